// SPDX-License-Identifier: Apache-2.0
// Golden values: logits and greedy continuations of transformers + PEFT for every architecture, format and LoRA feature
// (tests/golden/README.md), against the layer program on every kernel path of this machine.
//
// f32 math: max abs error <= 1e-4 * max(1, max|logit|), on the reference's own tokens (teacher-forced), and greedy equal wherever the
// reference's margin between the best two exceeds twice that tolerance.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "sys/file.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

using nlohmann::json;
const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::span<const float> row(size_t index) const {
    const auto width = static_cast<size_t>(shape.back());
    return {values.data() + index * width, width};
  }
};

std::map<std::string, Tensor> read_tensors(const std::string& path) {
  std::map<std::string, Tensor> tensors;
  const PosixFileSystem files;
  auto header = read_safetensors(files, path);
  if (!header.ok()) {
    ADD_FAILURE() << header.error().message;
    return tensors;
  }
  auto file = files.open(path);
  for (const TensorInfo& info : header->tensors) {
    Tensor& tensor = tensors[info.name];
    tensor.shape = info.shape;
    tensor.values.resize(static_cast<size_t>(info.bytes) / sizeof(float));
    EXPECT_TRUE((*file)->read_exact(info.offset, std::as_writable_bytes(std::span(tensor.values))).ok());
  }
  return tensors;
}

json cases() {
  std::ifstream file(kRoot + "cases.json");
  return json::parse(file, nullptr, false);
}

void expect_close(std::span<const float> got, std::span<const float> want, const std::string& where) {
  ASSERT_GE(got.size(), want.size()) << where;
  float scale = 1;
  for (const float value : want) scale = std::max(scale, std::fabs(value));
  float worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const float error = std::fabs(got[i] - want[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LE(worst, 1e-4f * scale) << where;
  for (size_t i = want.size(); i < got.size(); ++i) ASSERT_EQ(got[i], -INFINITY) << where << ": column beyond the vocabulary";
}

class Golden : public testing::TestWithParam<std::string> {};

// All harnesses of one kernel path, by model and the length that fixes dynamic RoPE.
std::map<std::string, std::unique_ptr<ModelHarness>>& harnesses() {
  static std::map<std::string, std::unique_ptr<ModelHarness>> all;
  return all;
}

ModelHarness* harness_for(const json& test_case, const std::string& ops) {
  const int64_t max_model_len = test_case.value("max_model_len", int64_t{0});
  const std::string model = test_case["model"];
  const std::string key = ops + ":" + model + ":" + std::to_string(max_model_len);
  auto& harness = harnesses()[key];
  if (harness == nullptr) {
    HarnessOptions options;
    options.ops = ops;
    options.max_model_len = max_model_len;
    auto opened = ModelHarness::open(kRoot + model, options);
    if (!opened.ok()) {
      ADD_FAILURE() << model << ": " << opened.error().message;
      return nullptr;
    }
    harness = std::move(*opened);
  }
  return harness.get();
}

bool load_adapters(const json& test_case, ModelHarness& harness, std::vector<AdapterRef>& adapters) {
  const int count = static_cast<int>(test_case["prompt"].size());
  for (const json& use : test_case["adapters"]) {
    auto adapter = harness.load(kRoot + use["path"].get<std::string>());
    if (!adapter.ok()) {
      ADD_FAILURE() << use["path"] << ": " << adapter.error().message;
      return false;
    }
    AdapterRef ref{*adapter, use.value("scale", 1.0f), 0};
    // Activated LoRA starts at the last occurrence of its invocation tokens; without one it never does.
    if (!(*adapter)->alora_invocation.empty()) {
      const json& start = test_case["alora_start"];
      ref.start = start.is_null() ? count + 1000 : start.get<int>();
    }
    adapters.push_back(ref);
  }
  return true;
}

void check_generation(const json& test_case, ModelHarness& harness, const std::vector<AdapterRef>& adapters) {
  const auto tensors = read_tensors(kRoot + test_case["file"].get<std::string>());
  const Tensor& prompt_logits = tensors.at("prompt_logits");
  const Tensor& greedy_logits = tensors.at("greedy_logits");
  Span span;
  span.tokens = test_case["prompt"].get<std::vector<TokenId>>();
  span.adapters = adapters;
  span.logits_at = test_case["logits_at"].get<std::vector<int>>();
  auto prefill = harness.run({span});
  ASSERT_TRUE(prefill.ok()) << prefill.error().message;
  for (size_t i = 0; i < span.logits_at.size(); ++i) {
    expect_close(prefill->logits[i], prompt_logits.row(i), "prompt position " + std::to_string(span.logits_at[i]));
  }
  const auto greedy = test_case["greedy"].get<std::vector<TokenId>>();
  const auto margins = test_case["margins"].get<std::vector<float>>();
  std::vector<float> logits = prefill->logits.back();
  span.logits_at = {0};
  for (size_t step = 0; step < greedy.size(); ++step) {
    const std::string where = "greedy step " + std::to_string(step);
    expect_close(logits, greedy_logits.row(step), where);
    float scale = 1;
    for (const float value : greedy_logits.row(step)) scale = std::max(scale, std::fabs(value));
    if (margins[step] > 2e-4f * scale) {
      EXPECT_EQ(arg_max(logits), greedy[step]) << where;
    }
    span.position += static_cast<int>(span.tokens.size());
    span.tokens = {greedy[step]};
    auto next = harness.run({span});
    ASSERT_TRUE(next.ok()) << next.error().message;
    logits = next->logits[0];
  }
}

void check_embedding(const json& test_case, ModelHarness& harness, const std::vector<AdapterRef>& adapters) {
  const auto tensors = read_tensors(kRoot + test_case["file"].get<std::string>());
  Span span;
  span.tokens = test_case["prompt"].get<std::vector<TokenId>>();
  span.adapters = adapters;
  span.hidden = true;
  auto result = harness.run({span});
  ASSERT_TRUE(result.ok()) << result.error().message;
  std::vector<float> mean(result->hidden[0].size());
  for (const auto& row : result->hidden) {
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += row[i] / static_cast<float>(result->hidden.size());
  }
  expect_close(result->hidden.back(), tensors.at("hidden_last").values, "last");
  expect_close(mean, tensors.at("hidden_mean").values, "mean");
}

TEST_P(Golden, EqualsTheReference) {
  const json all = cases();
  ASSERT_TRUE(all.is_array()) << "tests/golden/cases.json is missing or damaged";
  int checked = 0;
  for (const json& test_case : all) {
    SCOPED_TRACE(test_case["name"].get<std::string>() + " on " + GetParam());
    ModelHarness* harness = harness_for(test_case, GetParam());
    if (harness == nullptr) continue;
    std::vector<AdapterRef> adapters;
    if (!load_adapters(test_case, *harness, adapters)) continue;
    harness->poison_kv();
    if (test_case["kind"] == "embedding") {
      check_embedding(test_case, *harness, adapters);
    } else {
      check_generation(test_case, *harness, adapters);
    }
    ++checked;
  }
  EXPECT_EQ(checked, static_cast<int>(all.size()));
  EXPECT_GE(checked, 150);
}

std::vector<std::string> op_tables() {
  std::vector<std::string> names;
  for (const OpTable* table : available_op_tables()) names.push_back(table->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, Golden, testing::ValuesIn(op_tables()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace loralei::test
