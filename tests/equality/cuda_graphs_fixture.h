// SPDX-License-Identifier: Apache-2.0
// CudaGraphs: two models of the same weights on a GPU (the emulated one or a real one),
// one with recorded steps and one without, each with a KV cache of its own, and steps
// that run on either or on both.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>

#include "base/log_test_util.h"
#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/step_graphs.h"
#include "support/made_files.h"
#include "support/model_harness.h"

namespace loralei::test {

inline const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kSequences = 12, kTokensMax = 320;

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  DType activation = DType::kF32;
  DType kv = DType::kF32;
};

inline const std::vector<Subject>& subjects() {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  static const std::vector<Subject> all = {
      {"gqa_f32",
       "models/llama-gqa",
       {"gqa-rank-pattern", "gqa-embed-tied", "gqa-head-tied"},
       std::nullopt,
       kF32,
       kF32},
      {"q8_0_bf16_int8_kv", "models/llama-gqa", {"gqa-all-r16", "gqa-lora-bias"}, DType::kQ8_0, kBF16, DType::kI8},
      {"q8_0_bf16_fp8_kv", "models/llama-gqa", {"gqa-all-r16"}, DType::kQ8_0, kBF16, DType::kF8},
      {"qwen2_bf16", "models/qwen2", {"qwen2-bias-all", "qwen2-fused"}, std::nullopt, kBF16, kBF16},
      {"window_f32", "models/mistral-window", {"mistral-window-r8"}, std::nullopt, kF32, DType::kF16},
  };
  return all;
}
inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

struct Device {
  std::unique_ptr<CudaModel> model;
  CudaKv kv;
};

class CudaGraphs : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    open(GetParam());
  }

  void open(const Subject& subject) {
    HarnessOptions options;
    options.quantise = subject.quantise;
    options.kv_dtype = subject.kv;
    options.tokens_max = kTokensMax;
    options.sequences_max = kSequences;
    auto opened = ModelHarness::open(kRoot + subject.model, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    ASSERT_NO_FATAL_FAILURE(make(plain_, false));
    ASSERT_NO_FATAL_FAILURE(make(graphs_, true));
    const ModelConfig& config = harness_->config();
    for (const std::string& name : subject.adapters) load(kRoot + "adapters/" + name);
    load(write_adapter(folder_.path() + "/odd", config,
                       {.rank = 3, .deviation = 0.2f, .seed = 5, .targets = {"q_proj", "down_proj"}}));
    load(write_adapter(folder_.path() + "/small", config, {.rank = 5, .deviation = 0.1f, .seed = 6}), true);
    load(write_adapter(folder_.path() + "/large", config, {.rank = 40, .alpha = 40, .deviation = 0.05f, .seed = 7}));
  }

  void make(Device& device, bool graphs, int32_t graphs_max = 64) {
    CudaModelOptions options;
    options.limits.rows_max = 48;
    options.limits.logits_rows_max = 24;
    options.limits.rank_max = 40;  // a power of two would hide a rank beyond it
    options.limits.max_model_len = 2 * kTokensMax;
    options.activation = GetParam().activation;
    options.adapters_max = 12;
    options.decode_bytes_max = 4096;     // several panels a matrix
    options.attention_bytes_max = 4096;  // several launches
    options.graphs = graphs;
    options.graphs_max = graphs_max;
    options.log = &log_;
    auto made = CudaModel::create(harness_->config(), harness_->weights(), options);
    ASSERT_TRUE(made.ok()) << made.error().message;
    device.model = std::move(*made);
    auto kv = CudaKv::create(harness_->config(), GetParam().kv, harness_->total_blocks());
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    device.kv = std::move(*kv);
    // Zeros are positions like any other, so that a sequence may begin anywhere.
    CudaStream stream = CudaStream::create().value();
    ASSERT_TRUE(fill_on_device(device.kv.view().base, 0, device.kv.bytes(), stream).ok());
    ASSERT_TRUE(stream.synchronize().ok());
  }

  void load(const std::string& path, bool int8 = false) {
    auto adapter = harness_->load(path, true, int8);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    adapters_.push_back(*adapter);
  }

  using Change = std::function<ModelBatch(ModelBatch)>;
  StepOutput step(Device& device, const std::vector<Span>& spans, const Change& change = {}) {
    harness_->set_forward(
        [&](const ModelBatch& batch) { return device.model->forward(change ? change(batch) : batch, device.kv); });
    auto output = harness_->run(spans);
    harness_->set_forward({});
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? *output : StepOutput{};
  }
  // The step on both; answers the logits.
  StepOutput both(const std::vector<Span>& spans, const Change& change = {}) {
    StepOutput want = step(plain_, spans, change), got = step(graphs_, spans, change);
    EXPECT_TRUE(same_bits(got, want));
    return got;
  }

  static bool same_bits(const StepOutput& a, const StepOutput& b) {
    if (a.logits.size() != b.logits.size()) return false;
    for (size_t row = 0; row < a.logits.size(); ++row) {
      if (a.logits[row].size() != b.logits[row].size() ||
          std::memcmp(a.logits[row].data(), b.logits[row].data(), a.logits[row].size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }

  Span span(int sequence, int position, int count, std::vector<AdapterRef> adapters = {}) {
    Span made;
    made.sequence = sequence;
    made.position = position;
    for (int i = 0; i < count; ++i) {
      made.tokens.push_back(static_cast<TokenId>(random_.below(static_cast<uint64_t>(harness_->config().vocab))));
    }
    made.adapters = std::move(adapters);
    made.logits_at = {count - 1};
    return made;
  }
  Span token(int sequence, int position, std::vector<AdapterRef> adapters = {}) {
    return span(sequence, position, 1, std::move(adapters));
  }

  std::vector<std::byte> cache_of(const Device& device) {
    CudaStream stream = CudaStream::create().value();
    PinnedBuffer bytes = PinnedBuffer::allocate(device.kv.bytes()).value();
    EXPECT_TRUE(copy_to_host(bytes.data(), device.kv.view().base, device.kv.bytes(), stream).ok());
    EXPECT_TRUE(stream.synchronize().ok());
    return {bytes.data(), bytes.data() + device.kv.bytes()};
  }

  // Sequences come and go, some from beside a boundary of positions; adapters change,
  // are dropped and come again.
  void talk(uint64_t seed, int steps, uint64_t sequences_max) {
    struct Sequence {
      bool live = false;
      int position = 0;
      std::vector<AdapterRef> adapters;
    };
    random_ = Prng(seed);
    std::vector<Sequence> sequences(sequences_max);
    const auto choose_adapters = [&] {
      std::vector<AdapterRef> chosen;
      const uint64_t most = random_.below(4) == 0 ? 2 : 1;
      const uint64_t first = random_.below(adapters_.size());
      for (uint64_t i = 0; i < most && random_.below(5) != 0; ++i) {
        const float scale = 0.5f + static_cast<float>(random_.below(3)) / 4;
        chosen.push_back({adapters_[(first + 2 * i) % adapters_.size()], scale, 0});
      }
      return chosen;
    };
    for (int done = 0; done < steps && !HasFailure();) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(done));
      std::vector<Span> prompts, decode;
      for (size_t i = 0; i < sequences.size(); ++i) {
        Sequence& sequence = sequences[i];
        if (sequence.live && (sequence.position >= kTokensMax || random_.below(40) == 0)) sequence.live = false;
        if (sequence.live && random_.below(30) == 0) sequence.adapters = choose_adapters();
        if (sequence.live || (done > 0 && random_.below(10) != 0)) continue;
        const int at = random_.below(3) == 0 ? 240 + static_cast<int>(random_.below(14)) : 0;
        const int count = 1 + static_cast<int>(random_.below(4));
        sequence = {true, at + count, choose_adapters()};
        prompts.push_back(span(static_cast<int>(i), at, count, sequence.adapters));
      }
      if (!prompts.empty()) both(prompts);
      for (size_t i = 0; i < sequences.size(); ++i) {
        Sequence& sequence = sequences[i];
        if (!sequence.live) continue;
        decode.push_back(token(static_cast<int>(i), sequence.position++, sequence.adapters));
        if (random_.below(50) == 0) decode.back().logits_at.clear();
      }
      if (decode.empty()) continue;
      for (Device* device : {&plain_, &graphs_}) {
        if (random_.below(8) != 0) continue;
        const Adapter& gone = *adapters_[random_.below(adapters_.size())];
        device->model->adapters().drop(gone.version);
      }
      both(decode);
      ++done;
    }
    EXPECT_EQ(cache_of(plain_), cache_of(graphs_)) << "idle rows write, seed " << seed;
  }

  TempFolder folder_;
  CollectingLog log_;
  std::unique_ptr<ModelHarness> harness_;
  Device plain_, graphs_;
  std::vector<const Adapter*> adapters_;
  Prng random_{21};
};

}  // namespace loralei::test
