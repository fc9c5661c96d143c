// SPDX-License-Identifier: Apache-2.0
// Golden values: logits and greedy continuations of transformers + PEFT for every
// architecture, format and LoRA feature (tests/golden/README.md), against the layer
// program on every kernel path of this machine.
//
// Max abs error <= tolerance * max(1, max|logit|), on the reference's own tokens
// (teacher-forced), and greedy equal wherever the reference's margin between the best
// two exceeds twice that. Weights are decoded exactly and the maths is f32 (quantised
// weights lie plain here; what rounding the inputs costs is rounding_test.cc's question),
// so the tolerance depends on the format of the KV cache alone: 1e-4 for f32 and, for the
// others, a multiple of the format's rounding unit (see kv_tolerance).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "support/model_harness.h"
#include "support/ranked_model.h"
#include "sys/file.h"

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

struct Setting {
  std::string ops;
  DType kv = DType::kF32;
  int ranks = 1;
  std::string name() const {
    return ops + (kv == DType::kF32 ? std::string() : "_kv_" + std::string(dtype_info(kv).name)) +
           (ranks == 1 ? std::string() : "_ranks_" + std::to_string(ranks));
  }
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name(); }

// A stored K or V is wrong by at most u of itself (f16: 2^-11, bf16: 2^-8), and
// scores carry that into the exponent. Measured over all cases and every position as
// error / max(1, max|logit|): f32 7.5e-6; f16 5.3e-3 = 10.8 u; bf16 3.4e-2 = 8.6 u (the
// property "worst" of a run).
float kv_tolerance(DType kv) {
  if (kv == DType::kF32) return 1e-4f;
  return 12.0f * (kv == DType::kF16 ? 0x1p-11f : 0x1p-8f);
}

float largest(std::span<const float> values) {
  float scale = 1;
  for (const float value : values) scale = std::max(scale, std::fabs(value));
  return scale;
}

// Whether what a cache in this format rounds may turn a router's choice: then the
// reference says nothing.
bool may_choose_others(const json& test_case, DType kv) {
  return kv != DType::kF32 && test_case.contains("router_gap") &&
         test_case["router_gap"].get<float>() < 4 * kv_tolerance(kv);
}

class Golden : public testing::TestWithParam<Setting> {
 protected:
  void check_generation(const json& test_case, ModelHarness& harness, const std::vector<AdapterRef>& adapters);
  void check_embedding(const json& test_case, ModelHarness& harness, const std::vector<AdapterRef>& adapters);
  void expect_close(std::span<const float> got, std::span<const float> want, const std::string& where);

  const float tolerance_ = kv_tolerance(GetParam().kv);
  float worst_ = 0;               // largest error seen, relative to max(1, max|logit|)
  int steps_ = 0, compared_ = 0;  // greedy steps, and those whose margin the tolerance cannot reach
};

void Golden::expect_close(std::span<const float> got, std::span<const float> want, const std::string& where) {
  ASSERT_GE(got.size(), want.size()) << where;
  float worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const float error = std::fabs(got[i] - want[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  worst_ = std::max(worst_, worst / largest(want));
  EXPECT_LE(worst, tolerance_ * largest(want)) << where;
  for (size_t i = want.size(); i < got.size(); ++i)
    ASSERT_EQ(got[i], -INFINITY) << where << ": column beyond the vocabulary";
}

struct Opened {
  std::unique_ptr<ModelHarness> harness;
  std::unique_ptr<RankedModel> ranked;  // where there are several ranks
  bool divides = true;                  // into as many
};

// All harnesses of one kernel path, by model and the length that fixes dynamic RoPE.
std::map<std::string, Opened>& harnesses() {
  static std::map<std::string, Opened> all;
  return all;
}

void open_ranked(Opened& opened, const HarnessOptions& options, int ranks) {
  auto ranked = RankedModel::open(*opened.harness, options, ranks);
  if (!ranked.ok()) {
    opened.divides = false;
    EXPECT_NE(ranked.error().message.find("cannot be cut"), std::string::npos) << ranked.error().message;
    return;
  }
  opened.ranked = std::move(*ranked);
  opened.harness->set_forward([model = opened.ranked.get()](const ModelBatch& batch) { return model->forward(batch); });
}

// Null with `divides` false: the model is none for so many ranks.
ModelHarness* harness_for(const json& test_case, const Setting& setting) {
  const int64_t max_model_len = test_case.value("max_model_len", int64_t{0});
  const std::string model = test_case["model"];
  const std::string key = setting.name() + ":" + model + ":" + std::to_string(max_model_len);
  Opened& of_case = harnesses()[key];
  std::unique_ptr<ModelHarness>& harness = of_case.harness;
  if (harness == nullptr) {
    HarnessOptions options;
    if (setting.ranks > 1) options.threads = 1;
    options.ops = setting.ops;
    options.kv_dtype = setting.kv;
    options.quantised_layout = LayoutId::kPlain;
    options.max_model_len = max_model_len;
    auto opened = ModelHarness::open(kRoot + model, options);
    if (!opened.ok()) {
      ADD_FAILURE() << model << ": " << opened.error().message;
      return nullptr;
    }
    harness = std::move(*opened);
    if (setting.ranks > 1) open_ranked(of_case, options, setting.ranks);
  }
  return of_case.divides ? harness.get() : nullptr;
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
    // Activated LoRA starts at the last occurrence of its invocation tokens; without
    // one it never does.
    if (!(*adapter)->alora_invocation.empty()) {
      const json& start = test_case["alora_start"];
      ref.start = start.is_null() ? count + 1000 : start.get<int>();
    }
    adapters.push_back(ref);
  }
  return true;
}

void Golden::check_generation(const json& test_case, ModelHarness& harness, const std::vector<AdapterRef>& adapters) {
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
    ++steps_;
    if (margins[step] > 2 * tolerance_ * largest(greedy_logits.row(step))) {
      ++compared_;
      EXPECT_EQ(arg_max(logits), greedy[step]) << where;
    }
    span.position += static_cast<int>(span.tokens.size());
    span.tokens = {greedy[step]};
    auto next = harness.run({span});
    ASSERT_TRUE(next.ok()) << next.error().message;
    logits = next->logits[0];
  }
}

void Golden::check_embedding(const json& test_case, ModelHarness& harness, const std::vector<AdapterRef>& adapters) {
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
    SCOPED_TRACE(test_case["name"].get<std::string>() + " on " + GetParam().name());
    if (may_choose_others(test_case, GetParam().kv)) {
      ++checked;
      continue;
    }
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
  if (GetParam().ranks == 1) {
    EXPECT_EQ(checked, static_cast<int>(all.size()));
  }
  EXPECT_GE(checked, GetParam().ranks == 1 ? 150 : GetParam().ranks == 2 ? 100 : 10);
  EXPECT_GT(compared_, steps_ / 2) << "the tolerance hides too many greedy steps";
  RecordProperty("worst", std::to_string(worst_));
  RecordProperty("compared", compared_);
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const OpTable* table : plain_op_tables()) {
    if (table->rounds_bf16) continue;
    for (const DType kv : {DType::kF32, DType::kF16, DType::kBF16}) all.push_back({table->name, kv});
    for (const int ranks : {2, 4}) all.push_back({table->name, DType::kF32, ranks});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, Golden, testing::ValuesIn(settings()), [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace loralei::test
