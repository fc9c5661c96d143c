// SPDX-License-Identifier: Apache-2.0
// CudaModel against Model: the same weights, adapters and steps, on the emulated GPU
// (cuda_model_emulated_test) or a real one (cuda_model_test, which skips without).
//
// Tolerances, relative to max(1, max|logit|). There are P = 7 layers + 1 products one
// after another, whose errors are independent and add up in squares; the largest of some
// hundred results lies within four deviations. One product's relative error e is
//
//   f32 throughout          2^-24 sqrt(in): another order of summation
//   inputs in bf16          2^-9: half a unit in the last place of 8 bits (attention in
//                           tiles rounds as well: counted twice)
//   weights in tiles, f32   twice 3 * 2^-7 / sqrt(in): the inputs are rounded to int8 as
//                           on the host to the bit, but one that lies within the noise
//                           of f32 beside a boundary may fall on either side, by 2^-7 of
//                           the block's largest number, about three times the usual one,
//                           in a few of `in` inputs
//   weights in tiles, bf16  3 * 2^-8: with many rows the host rounds inputs to int8
//                           (2^-8 of the block's largest number), the device does not
//
// Every test of a model also shows that its adapters change the logits by far more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_model.h"
#include "support/made_files.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

struct Subject {
  const char* name;
  const char* model;  // empty: made here, with heads of 64 numbers
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  DType activation = DType::kF32;
  DType kv = DType::kF32;
  bool tiles = false;
  bool int8_adapters = false;           // every second one's factors
  LayoutId layout = LayoutId::kTile16;  // of quantised weights
};

const std::vector<std::string> kGqa = {"gqa-qv-r8",      "gqa-all-r16",   "gqa-rank-pattern",
                                       "gqa-embed-tied", "gqa-head-tied", "gqa-lora-bias"};
const std::vector<Subject>& subjects() {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  static const std::vector<Subject> all = {
      {"gqa_f32", "models/llama-gqa", kGqa, std::nullopt, kF32, kF32},
      {"gqa_bf16", "models/llama-gqa", kGqa, std::nullopt, kBF16, kF32},
      {"f32_weights", "models/dtype-f32", {}, std::nullopt, kF32, kF32},
      {"f32_weights_bf16", "models/dtype-f32", {}, std::nullopt, kBF16, kF32},
      {"f16_weights_bf16", "models/dtype-f16", {}, std::nullopt, kBF16, kF32},
      {"untied_f32", "models/llama2", {"llama2-embed-head", "llama2-r64", "llama2-r1"}, std::nullopt, kF32, kF32},
      {"qwen2_f32", "models/qwen2", {"qwen2-bias-all", "qwen2-fused"}, std::nullopt, kF32, kF32},
      {"qwen2_bf16", "models/qwen2", {"qwen2-bias-all", "qwen2-fused"}, std::nullopt, kBF16, kF32},
      {"all_biases_bf16", "models/llama-bias", {"llama-bias-all", "llama-bias-lora-bias"}, std::nullopt, kBF16, kF32},
      {"qwen3_f32", "models/qwen3", {"qwen3-all-r4"}, std::nullopt, kF32, kF32},
      {"window_f32", "models/mistral-window", {"mistral-window-r8"}, std::nullopt, kF32, kF32},
      {"yarn_f32", "models/rope-yarn-factor", {}, std::nullopt, kF32, kF32},
      {"q8_0_f32", "models/llama-gqa", kGqa, DType::kQ8_0, kF32, kF32, true},
      {"q8_0_bf16", "models/llama-gqa", kGqa, DType::kQ8_0, kBF16, kF32, true},
      {"q4_0_f32", "models/llama-gqa", {"gqa-all-r16"}, DType::kQ4_0, kF32, kF32, true},
      {"q4_k_f32", "models/gguf-llama-q4_k_m.gguf", {}, std::nullopt, kF32, kF32, true},
      {"q4_k_bf16", "models/gguf-llama-q4_k_m.gguf", {}, std::nullopt, kBF16, kF32, true},
      {"q4_1_f32", "models/gguf-llama-q4_1.gguf", {}, std::nullopt, kF32, kF32, true},
      {"q5_0_f32", "models/gguf-llama-q5_0.gguf", {}, std::nullopt, kF32, kF32, true},
      {"q5_1_f32", "models/gguf-llama-q5_1.gguf", {}, std::nullopt, kF32, kF32, true},
      {"q5_k_f32", "models/gguf-qwen2-q5_k_m.gguf", {}, std::nullopt, kF32, kF32, true},
      {"q5_k_bf16", "models/gguf-qwen2-q5_k_m.gguf", {}, std::nullopt, kBF16, kF32, true},
      {"tiled_bf16", "", {}, std::nullopt, kBF16, DType::kBF16},
      {"tiled_q8_0_int8_kv", "", {}, DType::kQ8_0, kBF16, DType::kI8, true},
      {"tiled_q8_0_fp8_kv", "", {}, DType::kQ8_0, kBF16, DType::kF8, true},
      {"gqa_f32_int8_adapters", "models/llama-gqa", kGqa, std::nullopt, kF32, kF32, false, true},
      {"q8_0_bf16_int8_adapters", "models/llama-gqa", kGqa, DType::kQ8_0, kBF16, kF32, true, true},
      {"q8_0_decoded", "models/llama-gqa", kGqa, DType::kQ8_0, kF32, kF32, false, false, LayoutId::kPlain},
  };
  return all;
}

void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class CudaModelTest : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  }

  void open(const Subject& subject) {
    const std::string path = *subject.model == 0 ? folder_.path() : kRoot + subject.model;
    if (*subject.model == 0) write_small_model(path);
    HarnessOptions options;
    options.quantise = subject.quantise;
    options.quantised_layout = subject.layout;
    options.kv_dtype = subject.kv;
    options.tokens_max = 64;
    auto opened = ModelHarness::open(path, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    CudaModelOptions cuda;
    cuda.limits.rows_max = 128;
    cuda.limits.logits_rows_max = 64;
    cuda.limits.rank_max = 64;
    cuda.activation = subject.activation;
    cuda.adapters_max = 16;
    cuda.decode_bytes_max = 4096;     // several panels a matrix
    cuda.attention_bytes_max = 4096;  // several launches
    auto made = CudaModel::create(harness_->config(), harness_->weights(), cuda);
    ASSERT_TRUE(made.ok()) << made.error().message;
    model_ = std::move(*made);
    const auto planned = CudaModel::device_bytes(harness_->config(), harness_->weights(), cuda).value();
    EXPECT_EQ(model_->device_bytes(), planned.weights + planned.scratch);
    auto kv = CudaKv::create(harness_->config(), subject.kv, harness_->total_blocks());
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    kv_ = std::move(*kv);
    int8_adapters_ = subject.int8_adapters;
    for (const std::string& name : subject.adapters) load(kRoot + "adapters/" + name);
    load(write_adapter(folder_.path() + "/odd", harness_->config(),
                       {.rank = 3, .deviation = 0.2f, .seed = 5, .targets = {"q_proj", "down_proj"}}));
    load(write_adapter(folder_.path() + "/large", harness_->config(),
                       {.rank = 40, .alpha = 40, .deviation = 0.05f, .seed = 6}));
  }

  void load(const std::string& path) {
    auto adapter = harness_->load(path, true, int8_adapters_ && adapters_.size() % 2 == 0);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    adapters_.push_back(*adapter);
  }

  Result<StepOutput> on_device(const std::vector<Span>& spans) {
    harness_->set_forward([this](const ModelBatch& batch) { return model_->forward(batch, kv_); });
    auto output = harness_->run(spans);
    harness_->set_forward({});
    return output;
  }
  StepOutput device(const std::vector<Span>& spans) {
    auto output = on_device(spans);
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? *output : StepOutput{};
  }
  StepOutput host(const std::vector<Span>& spans) { return harness_->run(spans).value(); }

  std::vector<TokenId> tokens(int count) {
    std::vector<TokenId> list;
    for (int i = 0; i < count; ++i)
      list.push_back(static_cast<TokenId>(random_.below(static_cast<uint64_t>(harness_->config().vocab))));
    return list;
  }
  Span span(int sequence, int position, int count, std::vector<AdapterRef> adapters, bool hidden = false) {
    Span made;
    made.sequence = sequence;
    made.position = position;
    made.tokens = tokens(count);
    made.adapters = std::move(adapters);
    made.logits_at = {count - 1};
    made.hidden = hidden;
    return made;
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

  double tolerance(const Subject& subject) const {
    const ModelConfig& config = harness_->config();
    const double in = std::max({config.hidden, config.ffn, config.heads * config.head_dim});
    double e = 0x1p-24 * std::sqrt(in);
    if (subject.activation == DType::kBF16) e = 2 * 0x1p-9;
    if (subject.tiles) e = subject.activation == DType::kBF16 ? 3 * 0x1p-8 : 6 * 0x1p-7 / std::sqrt(in);
    return 4 * e * std::sqrt(7.0 * config.layers + 1);
  }

  // The largest difference, relative to the largest logit.
  static double difference(const StepOutput& got, const StepOutput& want) {
    double most = 0;
    EXPECT_EQ(got.logits.size(), want.logits.size());
    EXPECT_EQ(got.hidden.size(), want.hidden.size());
    const auto rows = [&](const auto& a, const auto& b) {
      for (size_t row = 0; row < std::min(a.size(), b.size()); ++row) {
        for (size_t i = 0; i < b[row].size(); ++i) {
          if (a[row][i] == b[row][i]) continue;
          const double apart = std::fabs(static_cast<double>(a[row][i]) - static_cast<double>(b[row][i]));
          most = std::isnan(apart) ? INFINITY : std::max(most, apart);
        }
      }
    };
    rows(got.logits, want.logits);
    rows(got.hidden, want.hidden);
    return most / largest(want);
  }

  static bool same_bits(const StepOutput& a, size_t row_a, const StepOutput& b, size_t row_b) {
    return a.logits[row_a].size() == b.logits[row_b].size() &&
           std::memcmp(a.logits[row_a].data(), b.logits[row_b].data(), a.logits[row_a].size() * sizeof(float)) == 0;
  }

  TempFolder folder_;
  std::unique_ptr<ModelHarness> harness_;
  std::unique_ptr<CudaModel> model_;
  CudaKv kv_;
  std::vector<const Adapter*> adapters_;
  bool int8_adapters_ = false;
  Prng random_{11};
};

// Prompts of several sequences together, with and without adapters, then decode steps of
// all, then one long sequence's next piece beside them.
TEST_P(CudaModelTest, GivesTheHostsLogits) {
  const Subject& subject = GetParam();
  open(subject);
  ASSERT_FALSE(HasFatalFailure());
  const size_t count = adapters_.size();
  const auto use = [&](size_t i, float scale = 1.0f) { return AdapterRef{adapters_[i % count], scale, 0}; };
  const double allowed = tolerance(subject);
  double worst = 0;
  const auto compare = [&](const std::vector<Span>& spans, const char* what) {
    const StepOutput want = host(spans), got = device(spans);
    const double apart = difference(got, want);
    worst = std::max(worst, apart);
    EXPECT_LE(apart, allowed) << what;
  };
  std::vector<Span> prompts = {span(0, 0, 21, {use(0)}, true), span(1, 0, 6, {}),
                               span(2, 0, 17, {use(1, 0.7f), use(2)}), span(3, 0, 9, {use(3, -0.5f)}),
                               span(4, 0, 2, {use(4), use(5, 0.3f), use(0, 0.5f)})};
  prompts[2].adapters[1].start = 8;  // overlapping segments that begin apart
  compare(prompts, "prompts");
  std::vector<Span> without = prompts;
  for (Span& plain : without) plain.adapters.clear();
  EXPECT_GT(difference(host(prompts), host(without)), 3 * allowed) << "the adapters change too little to be seen";
  host(prompts);  // the cache again as with adapters

  for (int step = 0; step < 3; ++step) {
    std::vector<Span> decode;
    for (const Span& prompt : prompts) {
      const int position = prompt.position + static_cast<int>(prompt.tokens.size()) + step;
      decode.push_back(span(prompt.sequence, position, 1, prompt.adapters, step == 1));
    }
    compare(decode, "decode");
  }
  compare({span(1, 9, 3, {}), span(0, 24, 28, {use(0)}), span(2, 20, 1, prompts[2].adapters)}, "a further piece");
  RecordProperty("worst", std::to_string(worst / allowed));
  if (std::getenv("CUDA_MODEL_TEST_SHOW") != nullptr) std::printf("%s: %g of %g\n", subject.name, worst, allowed);
}

INSTANTIATE_TEST_SUITE_P(All, CudaModelTest, testing::ValuesIn(subjects()),
                         [](const auto& info) { return std::string(info.param.name); });

class CudaModelOnce : public CudaModelTest {};

// A row's bits do not depend on the rows beside it: decode alone and among others,
// prompts whose class of rows (33 to 64) and kind of attention are the same.
TEST_P(CudaModelOnce, ARowAloneIsTheRowInABatch) {
  open(GetParam());
  ASSERT_FALSE(HasFatalFailure());
  const Span prompt = span(0, 0, 36, {{adapters_[0], 1.0f, 0}});
  const StepOutput alone = device({prompt});
  const StepOutput among = device({span(1, 0, 5, {{adapters_[1], 1.0f, 0}}), prompt, span(2, 0, 20, {})});
  ASSERT_EQ(among.logits.size(), 3u);
  EXPECT_TRUE(same_bits(alone, 0, among, 1)) << "a prompt";
  const Span next = span(0, 36, 1, {{adapters_[0], 1.0f, 0}});
  const StepOutput one = device({next});
  const StepOutput many =
      device({span(1, 5, 1, {}), span(2, 20, 1, {{adapters_[1], 0.5f, 0}, {adapters_[0], 2.0f, 0}}), next});
  EXPECT_TRUE(same_bits(one, 0, many, 2)) << "a decode step";
}

// 40 rows, then 24, each beside enough others that both steps have 33 to 64 rows as the
// prompt in one go has.
TEST_P(CudaModelOnce, APromptInPiecesIsThePromptInOneGo) {
  open(GetParam());
  ASSERT_FALSE(HasFatalFailure());
  const std::vector<AdapterRef> uses = {{adapters_[0], 1.0f, 0}};
  const Span whole = span(0, 0, 64, uses);
  const StepOutput once = device({whole});
  Span first = whole, second = whole;
  first.sequence = second.sequence = 3;
  first.tokens.resize(40);
  first.logits_at = {39};
  second.tokens.assign(whole.tokens.begin() + 40, whole.tokens.end());
  second.position = 40;
  second.logits_at = {23};
  device({first});
  const StepOutput pieces = device({span(1, 0, 30, {}), second});
  EXPECT_TRUE(same_bits(once, 0, pieces, 1));
}

INSTANTIATE_TEST_SUITE_P(Some, CudaModelOnce,
                         testing::Values(subjects()[0], subjects()[1], subjects()[13], subjects()[22]),
                         [](const auto& info) { return std::string(info.param.name); });

class CudaModelRules : public CudaModelTest {};

TEST_P(CudaModelRules, RefusesWhatItCannotDo) {
  open(GetParam());
  ASSERT_FALSE(HasFatalFailure());
  const auto expect_refused = [&](const Status& status, const std::string& words) {
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
  };
  load(write_adapter(folder_.path() + "/high", harness_->config(), {.rank = 70}));
  const auto output = on_device({span(0, 0, 4, {{adapters_.back(), 1.0f, 0}})});
  expect_refused(output.ok() ? Status() : Status(output.error()), "has rank 70");
  // After a refusal the model goes on.
  const Span fine = span(0, 0, 4, {{adapters_[0], 1.0f, 0}});
  EXPECT_LE(difference(device({fine}), host({fine})), tolerance(GetParam()));

  CudaModelOptions options;
  const auto refused = [&] {
    const auto made = CudaModel::create(harness_->config(), harness_->weights(), options);
    return made.ok() ? Status() : Status(made.error());
  };
  options.limits.rows_max = cuda::kRowsMax + 1;
  expect_refused(refused(), "rows in one step");
  options.limits.rows_max = cuda::kRowsMax;
  options.limits.max_model_len = 1 << 24;
  options.attention_bytes_max = int64_t{1} << 50;  // every row's partial results: terabytes, whatever the GPU
  expect_refused(refused(), "of GPU memory");
}

TEST_P(CudaModelRules, RefusesWeightsThatStream) {
  if (cuda_devices().list.empty()) return;
  HarnessOptions options;
  options.stream_folder = folder_.path();
  options.streaming.weight_bytes = 44 * 1024;
  auto opened = ModelHarness::open(kRoot + GetParam().model, options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto made = CudaModel::create((*opened)->config(), (*opened)->weights(), {});
  ASSERT_TRUE((*opened)->weights().streams());
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("streamed from disk"), std::string::npos) << made.error().message;
}

// Adapters are uploaded once, dropped when asked, and give way to others
// within the bound.
TEST_P(CudaModelRules, AdaptersComeAndGo) {
  open(GetParam());
  ASSERT_FALSE(HasFatalFailure());
  const Span first = span(0, 0, 4, {{adapters_[0], 1.0f, 0}});
  const StepOutput want = device({first});
  CudaAdapters& adapters = model_->adapters();
  EXPECT_EQ(adapters.uploads(), 1);
  const int64_t one = adapters.bytes();
  EXPECT_GT(one, 0);
  EXPECT_TRUE(same_bits(device({first}), 0, want, 0));
  EXPECT_EQ(adapters.uploads(), 1);
  device({span(1, 0, 4, {{adapters_[1], 1.0f, 0}})});
  EXPECT_GT(adapters.bytes(), one);
  EXPECT_EQ(adapters.waits(), 2) << "nobody brought them before";
  adapters.check();
  adapters.drop(adapters_[1]->version);
  EXPECT_EQ(adapters.bytes(), one);

  // Room for one: the other goes; for none: a sentence.
  const auto column = [&](const Adapter& adapter) {
    std::vector<CudaAdapters::ModulePair> pairs;
    for (size_t module = 0; module < adapter.pairs.size(); ++module) {
      if (adapter.pairs[module].rank > 0) pairs.push_back({static_cast<int32_t>(module), &adapter.pairs[module]});
    }
    return pairs;
  };
  CudaAdapters small = CudaAdapters::create({.bytes_max = one}).value();
  const Adapter& there = *adapters_[0];
  ASSERT_TRUE(small.ensure(there.version, column(there)).ok());
  const Status full = small.ensure(there.version, column(there));
  EXPECT_TRUE(full.ok());
  EXPECT_EQ(small.uploads(), 1);
  const Adapter& odd = *adapters_[adapters_.size() - 2];
  const Status refused = small.ensure(odd.version, column(odd));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("need more GPU memory"), std::string::npos) << refused.error().message;
  small.begin_step();
  EXPECT_EQ(small.find(odd.version, column(odd)[0].module), nullptr);
  EXPECT_NE(small.find(there.version, column(there)[0].module), nullptr);
  // Another version at the same address, while the one before is there still, and after.
  const AdapterVersionId later{700};
  EXPECT_EQ(small.find(later, column(there)[0].module), nullptr);
  small.begin_step();
  ASSERT_TRUE(small.ensure(later, column(there)).ok());
  EXPECT_EQ(small.uploads(), 2);
  EXPECT_EQ(small.find(there.version, column(there)[0].module), nullptr) << "it gave its room";
  EXPECT_NE(small.find(later, column(there)[0].module), nullptr);
  small.check();
}

TEST_P(CudaModelRules, Int8FactorsTakeTheirBytesAlone) {
  open(GetParam());
  ASSERT_FALSE(HasFatalFailure());
  const auto bytes_of = [&](bool int8) {
    const Adapter& adapter = *harness_->load(kRoot + "adapters/gqa-all-r16", true, int8).value();
    const int64_t before = model_->adapters().bytes();
    device({span(0, 0, 4, {{&adapter, 1.0f, 0}})});
    const int64_t bytes = CudaAdapters::adapter_bytes(adapter.pairs);
    EXPECT_EQ(model_->adapters().bytes() - before, bytes);
    return bytes;
  };
  EXPECT_LT(bytes_of(true), bytes_of(false));
}

INSTANTIATE_TEST_SUITE_P(Rules, CudaModelRules, testing::Values(subjects()[0]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loralei::test
