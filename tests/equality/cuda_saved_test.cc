// SPDX-License-Identifier: Apache-2.0
// Adapters that replace full tensors (modules_to_save, trained tokens, larger
// vocabularies) on a device: a model's logits against Model's, in steps where such rows
// stand beside others; recorded steps between those that are not; the tensors' way onto
// the device and off it. On the emulated GPU (cuda_model_emulated_test) or a real one
// (cuda_model_test, which skips without).
//
// Tolerances as in cuda_model_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/step_graphs.h"
#include "support/made_files.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

const std::string kAdapters = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/adapters/";
const std::string kModels = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;  // that replace tensors
  std::optional<DType> quantise;
  DType activation = DType::kF32;
};

const std::vector<std::string> kTied = {"gqa-save-head-tied", "gqa-tokens-tied", "gqa-resized-tied",
                                        "gqa-save-embed-tied"};
const std::vector<std::string> kUntied = {"llama2-save-all",  "llama2-resized",   "llama2-save-layer-norms",
                                          "llama2-save-norm", "llama2-tokens",    "llama2-tokens-both",
                                          "llama2-save-head", "llama2-save-embed"};
const std::vector<Subject>& subjects() {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  static const std::vector<Subject> all = {
      {"tied_f32", "llama-gqa", kTied, std::nullopt, kF32},
      {"tied_bf16", "llama-gqa", kTied, std::nullopt, kBF16},
      {"tied_q8_0_bf16", "llama-gqa", kTied, DType::kQ8_0, kBF16},
      {"untied_f32", "llama2", kUntied, std::nullopt, kF32},
      {"untied_bf16", "llama2", kUntied, std::nullopt, kBF16},
      {"qk_norm_f32", "qwen3", {"qwen3-save-qk-norm"}, std::nullopt, kF32},
  };
  return all;
}
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

struct Device {
  std::unique_ptr<CudaModel> model;
  CudaKv kv;
};

class CudaSaved : public testing::TestWithParam<Subject> {
 protected:
  static constexpr int kSequences = 24;

  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    HarnessOptions options;
    options.quantise = GetParam().quantise;
    options.tokens_max = 64;
    options.sequences_max = kSequences;
    auto opened = ModelHarness::open(kModels + GetParam().model, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    for (const std::string& name : GetParam().adapters) ASSERT_NO_FATAL_FAILURE(load(kAdapters + name));
    ASSERT_NO_FATAL_FAILURE(load(write_wide_adapter(folder_.path() + "/wide", harness_->config(), 5)));
    saved_ = adapters_.size();
    ASSERT_NO_FATAL_FAILURE(
        load(write_adapter(folder_.path() + "/plain", harness_->config(), {.rank = 5, .deviation = 0.2f, .seed = 8})));
    ASSERT_NO_FATAL_FAILURE(make(device_));
  }

  void make(Device& device, bool graphs = true, int64_t extra_logits_bytes = int64_t{8} << 20) {
    CudaModelOptions options;
    options.limits.rows_max = 128;
    options.limits.logits_rows_max = 64;
    options.limits.rank_max = 64;
    options.activation = GetParam().activation;
    options.decode_bytes_max = 4096;  // several panels a matrix
    options.graphs = graphs;
    options.extra_logits_bytes_max = extra_logits_bytes;
    auto made = CudaModel::create(harness_->config(), harness_->weights(), options);
    ASSERT_TRUE(made.ok()) << made.error().message;
    device.model = std::move(*made);
    auto kv = CudaKv::create(harness_->config(), DType::kF32, harness_->total_blocks());
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    device.kv = std::move(*kv);
  }
  void load(const std::string& path) {
    auto adapter = harness_->load(path);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    adapters_.push_back(*adapter);
  }

  Result<StepOutput> run(Device& device, const std::vector<Span>& spans) {
    harness_->set_forward([&](const ModelBatch& batch) { return device.model->forward(batch, device.kv); });
    auto output = harness_->run(spans);
    harness_->set_forward({});
    return output;
  }
  StepOutput on(Device& device, const std::vector<Span>& spans) {
    auto output = run(device, spans);
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? *output : StepOutput{};
  }
  StepOutput host(const std::vector<Span>& spans) { return harness_->run(spans).value(); }
  // The host's, with the adapters' low-rank pairs alone (and tokens that
  // the model knows).
  StepOutput host_without_tensors(std::vector<Span> spans) {
    for (Span& span : spans) {
      for (TokenId& token : span.tokens) token %= harness_->config().vocab;
    }
    harness_->set_forward([&](ModelBatch batch) {
      batch.overrides = {};
      return harness_->forward_on_host(batch);
    });
    StepOutput output = harness_->run(spans).value();
    harness_->set_forward({});
    return output;
  }

  // Tokens of the adapter's vocabulary; every third one is a trained or an added one
  // where there are any.
  std::vector<TokenId> tokens(const Adapter* adapter, int count) {
    const int vocab = adapter != nullptr ? adapter->vocab : harness_->config().vocab;
    std::vector<TokenId> list;
    for (int i = 0; i < count; ++i) {
      TokenId token = static_cast<TokenId>(random_.below(static_cast<uint64_t>(vocab)));
      if (adapter != nullptr && i % 3 == 0) {
        const auto& trained = adapter->saved.embed_tokens;
        if (!trained.empty()) token = trained[random_.below(trained.size())];
        if (vocab > harness_->config().vocab) token = vocab - 1 - static_cast<TokenId>(random_.below(2));
      }
      list.push_back(token);
    }
    return list;
  }
  Span span(int sequence, int position, int count, const Adapter* adapter = nullptr, bool hidden = false) {
    Span made;
    made.sequence = sequence;
    made.position = position;
    made.tokens = tokens(adapter, count);
    if (adapter != nullptr) made.adapters = {{adapter, 1.0f, 0}};
    made.logits_at = {count - 1};
    made.hidden = hidden;
    return made;
  }

  double tolerance() const {
    const ModelConfig& config = harness_->config();
    const double in = std::max({config.hidden, config.ffn, config.heads * config.head_dim});
    double e = 0x1p-24 * std::sqrt(in);
    if (GetParam().activation == DType::kBF16) e = GetParam().quantise ? 3 * 0x1p-8 : 2 * 0x1p-9;
    return 4 * e * std::sqrt(7.0 * config.layers + 1);
  }

  // The largest difference of one row, relative to the step's largest logit; -inf is like
  // nothing but itself.
  static double apart(const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i] == b[i]) continue;
      const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      most = std::isnan(difference) ? INFINITY : std::max(most, difference);
    }
    return most;
  }
  static double largest(const StepOutput& output) {
    double most = 1;
    for (const auto& row : output.logits) {
      for (const float value : row) {
        if (std::isfinite(value)) most = std::max(most, std::fabs(static_cast<double>(value)));
      }
    }
    return most;
  }
  void compare(const StepOutput& got, const StepOutput& want, const char* what) {
    ASSERT_EQ(got.logits.size(), want.logits.size());
    ASSERT_EQ(got.hidden.size(), want.hidden.size());
    const double allowed = tolerance() * largest(want);
    for (size_t row = 0; row < got.logits.size(); ++row)
      EXPECT_LE(apart(got.logits[row], want.logits[row]), allowed) << what << ", row " << row << " of the logits";
    for (size_t row = 0; row < got.hidden.size(); ++row)
      EXPECT_LE(apart(got.hidden[row], want.hidden[row]), allowed)
          << what << ", row " << row << " of the hidden states";
  }
  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  TempFolder folder_;
  std::unique_ptr<ModelHarness> harness_;
  std::vector<const Adapter*> adapters_;  // the last one replaces nothing
  size_t saved_ = 0;
  Device device_;
  Prng random_{17};
};

// Every adapter beside a row of the model's own and one of a plain adapter: prompts,
// decode steps with hidden states, then more rows than GEMVs take.
TEST_P(CudaSaved, GivesTheHostsLogits) {
  std::vector<Span> prompts = {span(0, 0, 5, nullptr, true)};
  for (size_t i = 0; i < adapters_.size(); ++i) {
    prompts.push_back(span(static_cast<int>(prompts.size()), 0, 7, adapters_[i], i % 2 == 0));
    prompts.back().logits_at = {2, 3, 6};
    if (i % 3 == 1) prompts.push_back(span(static_cast<int>(prompts.size()), 0, 2));
  }
  const StepOutput want = host(prompts);
  compare(on(device_, prompts), want, "prompts");
  const StepOutput without = host_without_tensors(prompts);
  size_t row = 0;
  for (const Span& prompt : prompts) {
    double most = 0;
    for (size_t i = 0; i < prompt.logits_at.size(); ++i, ++row)
      most = std::max(most, apart(want.logits[row], without.logits[row]));
    if (prompt.adapters.empty() || !prompt.adapters[0].adapter->saved.any()) continue;
    EXPECT_GT(most, 2 * tolerance() * largest(want)) << "the tensors of " << prompt.sequence << " cannot be seen";
  }
  host(prompts);  // the cache again as with tensors
  for (int step = 0; step < 3; ++step) {
    std::vector<Span> decode;
    for (const Span& prompt : prompts) {
      const int position = static_cast<int>(prompt.tokens.size()) + step;
      decode.push_back(span(prompt.sequence, position, 1,
                            prompt.adapters.empty() ? nullptr : prompt.adapters[0].adapter, step == 1));
    }
    compare(on(device_, decode), host(decode), "decode");
  }
  std::vector<Span> many;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    many.push_back(span(static_cast<int>(12 + i), 0, 80 / static_cast<int>(adapters_.size()), adapters_[i]));
    if (i < 2) many[i].logits_at = {0, 1, 2, 3, 4, 5, 6, 7};
  }
  compare(on(device_, many), host(many), "many rows");
}

// A model's own rows and those of other adapters have the bits they have without the rows
// that replace tensors.
TEST_P(CudaSaved, NobodyElseSeesTheTensors) {
  const Adapter* const plain = adapters_.back();
  const std::vector<Span> others = {span(0, 0, 3), span(1, 0, 1, plain), span(2, 0, 2)};
  for (size_t i = 0; i < saved_; ++i) {
    std::vector<Span> with = others;
    with.insert(with.begin() + 1, span(3, 0, 1, adapters_[i]));
    std::vector<Span> base = others;
    base.insert(base.begin() + 1, span(3, 0, 1));
    const StepOutput want = on(device_, base), got = on(device_, with);
    for (const size_t row : {0, 2, 3}) EXPECT_TRUE(same_bits(got.logits[row], want.logits[row])) << i << " " << row;
    // And its own bits do not depend on the others.
    const StepOutput alone = on(device_, {with[1]});
    EXPECT_TRUE(same_bits(alone.logits[0], got.logits[1])) << i;
    EXPECT_FALSE(same_bits(want.logits[1], got.logits[1])) << i;
  }
}

// Rows of a larger vocabulary end where the others' logits go on as -inf, and
// the other way round.
TEST_P(CudaSaved, EachRowHasItsOwnVocabulary) {
  std::vector<Span> spans = {span(0, 0, 1)};
  for (const Adapter* adapter : adapters_) spans.push_back(span(static_cast<int>(spans.size()), 0, 1, adapter));
  const StepOutput got = on(device_, spans);
  for (size_t row = 0; row < spans.size(); ++row) {
    const auto vocab = static_cast<size_t>(row == 0 ? harness_->config().vocab : adapters_[row - 1]->vocab);
    for (size_t token = 0; token < got.logits[row].size(); ++token)
      ASSERT_EQ(std::isfinite(got.logits[row][token]), token < vocab) << "row " << row << " token " << token;
  }
}

// An activated adapter's tensors begin with its first position.
TEST_P(CudaSaved, TensorsBeginWhereTheAdapterBegins) {
  for (size_t i = 0; i < saved_; ++i) {
    Span prompt = span(0, 0, 9);
    prompt.adapters = {{adapters_[i], 1.0f, 4}};
    prompt.logits_at = {3, 4, 8};
    prompt.hidden = true;
    const std::vector<Span> spans = {span(1, 0, 2), prompt};
    compare(on(device_, spans), host(spans), "from the fourth position on");
  }
}

// Steps with such rows are launched kernel by kernel, whatever came before, and those
// without as the graphs they were.
TEST_P(CudaSaved, RecordedStepsAndOthersTakeTurns) {
  Device plain;
  ASSERT_NO_FATAL_FAILURE(make(plain, false));
  const auto both = [&](const std::vector<Span>& spans) {
    const StepOutput want = on(plain, spans), got = on(device_, spans);
    for (size_t row = 0; row < want.logits.size(); ++row)
      EXPECT_TRUE(same_bits(got.logits[row], want.logits[row])) << "row " << row;
    return got;
  };
  both({span(0, 0, 2), span(1, 0, 2, adapters_.back()), span(2, 0, 2)});
  int position = 2;
  const auto decode = [&](const Adapter* third) {
    both({span(0, position, 1), span(1, position, 1, adapters_.back()), span(2, position, 1, third)});
    ++position;
  };
  for (int round = 0; round < 3; ++round) decode(nullptr);
  const StepGraphs& graphs = device_.model->graphs();
  ASSERT_EQ(graphs.recorded(), 1);
  ASSERT_EQ(graphs.launched(), 2);
  for (size_t i = 0; i < saved_; ++i) {
    for (int round = 0; round < 3; ++round) decode(adapters_[i]);
    EXPECT_EQ(graphs.launched(), 2 + static_cast<int64_t>(i)) << "it was recorded, or run as a graph of others";
    // The tensors go and come again elsewhere.
    device_.model->adapters().drop(adapters_[i]->version);
    decode(nullptr);
  }
  for (size_t i = 0; i < saved_; ++i) decode(adapters_[i]);
  EXPECT_EQ(graphs.recorded(), 1);
  EXPECT_EQ(plain.model->graphs().recorded(), 0);
}

// Nobody brought them: a step uploads them, once, each in its own bytes.
TEST_P(CudaSaved, TensorsComeAndGo) {
  CudaAdapters& adapters = device_.model->adapters();
  for (size_t i = 0; i < saved_; ++i) {
    const SavedTensors& saved = adapters_[i]->saved;
    const ModelConfig& config = harness_->config();
    const int64_t before = adapters.bytes(), uploads = adapters.uploads();
    const StepOutput want = on(device_, {span(0, 0, 4, adapters_[i])});
    const int64_t bytes = adapters.bytes() - before;
    const SavedShape shape{config.hidden, config.head_dim, config.layers};
    EXPECT_EQ(bytes, CudaAdapters::adapter_bytes({}, &saved, shape) + CudaAdapters::adapter_bytes(adapters_[i]->pairs));
    EXPECT_NE(adapters.find_saved(adapters_[i]->version), nullptr);
    EXPECT_EQ(adapters.find_saved(AdapterVersionId{700}), nullptr);
    on(device_, {span(0, 4, 1, adapters_[i])});
    EXPECT_LE(adapters.uploads(), uploads + 2) << "the pairs and the tensors";
    EXPECT_EQ(adapters.bytes() - before, bytes);
    adapters.drop(adapters_[i]->version);
    EXPECT_EQ(adapters.find_saved(adapters_[i]->version), nullptr);
    EXPECT_EQ(adapters.bytes(), before);
    adapters.check();
  }
}

TEST_P(CudaSaved, AVocabularyBeyondTheLogitsIsRefused) {
  Device narrow;
  ASSERT_NO_FATAL_FAILURE(make(narrow, true, 4 * 64 * 2));  // two tokens more for 64 rows
  EXPECT_EQ(narrow.model->vocab_max(), harness_->config().vocab + 2);
  for (const Adapter* adapter : adapters_) {
    const auto output = run(narrow, {span(0, 0, 2, adapter)});
    EXPECT_EQ(output.ok(), adapter->vocab <= harness_->config().vocab + 2);
    if (output.ok()) continue;
    EXPECT_NE(output.error().message.find("has a vocabulary of"), std::string::npos) << output.error().message;
  }
  const Span fine = span(0, 0, 4);
  compare(on(narrow, {fine}), host({fine}), "after a refusal");
}

INSTANTIATE_TEST_SUITE_P(All, CudaSaved, testing::ValuesIn(subjects()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loralei::test
