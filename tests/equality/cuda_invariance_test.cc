// SPDX-License-Identifier: Apache-2.0
// CudaModelOptions::batch_invariant: every row of random mixed steps (prompts in pieces
// of any size, decode rows, with and without adapters, up to some hundred rows) has the
// bits of the same row computed alone, one token a step, from nothing. Without it rows of
// the same steps differ, which shows that they cross kernel classes. On the emulated GPU
// (cuda_model_emulated_test) or a real one (cuda_model_test, which skips without).
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_model.h"
#include "support/made_files.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kSequences = 4, kTokensMax = 60, kRowsMax = kSequences * kTokensMax;

struct Subject {
  const char* name;
  const char* model;  // empty: made here, with tiled attention
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  DType kv = DType::kBF16;
  LayoutId layout = LayoutId::kTile16;  // of quantised weights
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"plain", "models/llama-gqa", {"gqa-rank-pattern", "gqa-embed-tied", "gqa-head-tied"}, std::nullopt, DType::kF32},
      {"tiles", "models/llama-gqa", {"gqa-all-r16", "gqa-lora-bias"}, DType::kQ8_0},
      {"five_bits", "models/gguf-qwen2-q5_k_m.gguf", {}, std::nullopt, DType::kF16},
      {"decoded", "models/llama-gqa", {"gqa-all-r16"}, DType::kQ8_0, DType::kF16, LayoutId::kPlain},
      {"tensors_of_their_own",
       "models/llama-gqa",
       {"gqa-save-head-tied", "gqa-tokens-tied", "gqa-resized-tied"},
       DType::kQ8_0},
      {"window", "models/mistral-window", {"mistral-window-r8"}, std::nullopt},
      {"tiled_attention", "", {}, std::nullopt},
      {"tiled_attention_fp8_kv", "", {}, DType::kQ8_0, DType::kF8},
  };
  return all;
}

uint64_t seed_of_run() {
  const char* given = std::getenv("CUDA_INVARIANCE_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 2025;
}

class CudaInvariance : public testing::TestWithParam<Subject> {
 protected:
  using Rows = std::vector<std::vector<float>>;  // logits of a sequence's positions
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<AdapterRef> adapters;
  };

  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    const std::string path = *GetParam().model == 0 ? folder_.path() : kRoot + GetParam().model;
    if (*GetParam().model == 0) write_small_model(path);
    HarnessOptions options;
    options.quantise = GetParam().quantise;
    options.quantised_layout = GetParam().layout;
    options.kv_dtype = GetParam().kv;
    options.tokens_max = kTokensMax;
    options.sequences_max = kSequences;
    auto opened = ModelHarness::open(path, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    for (const std::string& name : GetParam().adapters) load(kRoot + "adapters/" + name);
    load(write_adapter(folder_.path() + "/small", harness_->config(), {.rank = 5, .deviation = 0.1f, .seed = 6}));
    load(write_adapter(folder_.path() + "/large", harness_->config(), {.rank = 40, .deviation = 0.05f, .seed = 7}));
  }

  void load(const std::string& path) {
    auto adapter = harness_->load(path);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    adapters_.push_back(*adapter);
  }

  // A model and a cache nobody wrote to.
  void make(bool batch_invariant) {
    CudaModelOptions options;
    options.limits.rows_max = options.limits.logits_rows_max = kRowsMax;
    options.limits.rank_max = 40;
    options.adapters_max = 12;
    options.decode_bytes_max = 4096;     // several panels a matrix
    options.attention_bytes_max = 4096;  // several launches
    options.batch_invariant = batch_invariant;
    auto made = CudaModel::create(harness_->config(), harness_->weights(), options);
    ASSERT_TRUE(made.ok()) << made.error().message;
    model_ = std::move(*made);
    const auto planned = CudaModel::device_bytes(harness_->config(), harness_->weights(), options).value();
    EXPECT_EQ(model_->device_bytes(), planned.weights + planned.scratch);
    forget();
  }
  void forget() {
    auto kv = CudaKv::create(harness_->config(), GetParam().kv, harness_->total_blocks());
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    kv_ = std::move(*kv);
  }

  std::vector<Sequence> some_sequences(Prng& random) {
    std::vector<Sequence> sequences(kSequences);
    for (Sequence& sequence : sequences) {
      for (uint64_t i = 20 + random.below(kTokensMax - 19); i > 0; --i) {
        sequence.tokens.push_back(static_cast<TokenId>(random.below(static_cast<uint64_t>(harness_->config().vocab))));
      }
      for (uint64_t i = random.below(3); i > 0; --i) {
        const Adapter* const adapter = adapters_[random.below(adapters_.size())];
        const bool replaces = std::any_of(sequence.adapters.begin(), sequence.adapters.end(),
                                          [](const AdapterRef& use) { return use.adapter->saved.any(); });
        if (replaces && adapter->saved.any()) continue;  // a tensor is replaced once
        sequence.adapters.push_back({adapter, 0.5f + static_cast<float>(random.below(3)) / 4,
                                     static_cast<int>(random.below(2) * random.below(30))});
      }
    }
    return sequences;
  }

  Span span(const std::vector<Sequence>& sequences, size_t i, size_t position, size_t count) const {
    Span made;
    made.sequence = static_cast<int>(i);
    made.position = static_cast<int>(position);
    const auto from = sequences[i].tokens.begin() + static_cast<int64_t>(position);
    made.tokens.assign(from, from + static_cast<int64_t>(count));
    made.adapters = sequences[i].adapters;
    for (size_t row = 0; row < count; ++row) made.logits_at.push_back(static_cast<int>(row));
    return made;
  }

  Rows step(const std::vector<Span>& spans) {
    harness_->set_forward([&](const ModelBatch& batch) { return model_->forward(batch, kv_); });
    auto output = harness_->run(spans);
    harness_->set_forward({});
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? output->logits : Rows();
  }

  std::vector<Rows> alone(const std::vector<Sequence>& sequences) {
    std::vector<Rows> rows(sequences.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (size_t at = 0; at < sequences[i].tokens.size(); ++at)
        rows[i].push_back(step({span(sequences, i, at, 1)}).at(0));
    }
    return rows;
  }

  // All sequences from nothing, in random pieces or each whole in the one step (80 rows
  // at least); answers how many rows differ from `want`.
  int differing_in_company(const std::vector<Sequence>& sequences, const std::vector<Rows>& want, Prng& random,
                           bool whole = false) {
    forget();
    std::vector<size_t> done(sequences.size());
    int differing = 0;
    for (bool more = true; more;) {
      std::vector<Span> spans;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const size_t left = sequences[i].tokens.size() - done[i];
        if (left == 0 || (!whole && random.below(4) == 0)) continue;
        constexpr uint64_t kPieces[] = {1, 1, 3, 8, 20, kTokensMax};
        const size_t count = whole ? left : std::min<size_t>(left, 1 + random.below(kPieces[random.below(6)]));
        spans.push_back(span(sequences, i, done[i], count));
      }
      const Rows got = step(spans);
      size_t row = 0;
      for (const Span& one : spans) {
        const auto i = static_cast<size_t>(one.sequence);
        for (size_t n = 0; n < one.tokens.size(); ++n, ++row, ++done[i])
          differing += same_bits(got.at(row), want[i][done[i]]) ? 0 : 1;
      }
      more = false;
      for (size_t i = 0; i < sequences.size(); ++i) more = more || done[i] < sequences[i].tokens.size();
    }
    return differing;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  TempFolder folder_;
  std::unique_ptr<ModelHarness> harness_;
  std::unique_ptr<CudaModel> model_;
  CudaKv kv_;
  std::vector<const Adapter*> adapters_;
};

TEST_P(CudaInvariance, ARowInAnyStepIsTheRowAlone) {
  const uint64_t seed = seed_of_run();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Prng random(seed);
  const std::vector<Sequence> sequences = some_sequences(random);
  ASSERT_NO_FATAL_FAILURE(make(true));
  const std::vector<Rows> want = alone(sequences);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(differing_in_company(sequences, want, random), 0) << seed;

  // The class is that of small steps, and the others are left without the option.
  ASSERT_NO_FATAL_FAILURE(make(false));
  EXPECT_EQ(alone({sequences[0]})[0], want[0]);
  EXPECT_GT(differing_in_company(sequences, want, random, true), 0)
      << "nothing is proved: these steps have one class anyway";
}

INSTANTIATE_TEST_SUITE_P(All, CudaInvariance, testing::ValuesIn(subjects()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loralei::test
