// SPDX-License-Identifier: Apache-2.0
// Decode steps run as recorded graphs give the bits of the same steps launched kernel by kernel: two models of the same
// weights, one with graphs and one without, each with a KV cache of its own, on the emulated GPU
// (cuda_graphs_emulated_test) or a real one (cuda_graphs_test, which skips without). Every decode step but those of new
// shapes runs filled up with idle rows, from tables that were written for it alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/step_graphs.h"
#include "sampling/sampler.h"
#include "support/made_files.h"
#include "support/model_harness.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kSequences = 12, kTokensMax = 320;

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  DType activation = DType::kF32;
  DType kv = DType::kF32;
};

const std::vector<Subject>& subjects() {
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
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

struct Device {
  std::unique_ptr<CudaModel> model;
  CudaKv kv;
};

class LinesLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) override { lines.emplace_back(message); }
  std::vector<std::string> lines;
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

  // Sequences come and go, some from beside a boundary of positions; adapters change, are dropped and come again.
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
        device->model->adapters().drop(gone.pairs.data(), gone.pairs.size());
      }
      both(decode);
      ++done;
    }
    EXPECT_EQ(cache_of(plain_), cache_of(graphs_)) << "idle rows write, seed " << seed;
  }

  TempFolder folder_;
  LinesLog log_;
  std::unique_ptr<ModelHarness> harness_;
  Device plain_, graphs_;
  std::vector<const Adapter*> adapters_;
  Prng random_{21};
};

uint64_t seed_of_run() {
  const char* given = std::getenv("CUDA_GRAPHS_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 4711;
}

TEST_P(CudaGraphs, RandomDecodeStepsHaveTheBitsOfPlainOnes) {
  const uint64_t seed = seed_of_run();
  talk(seed, 70, 5);
  const StepGraphs& graphs = graphs_.model->graphs();
  std::printf("seed %llu: %lld graphs, %lld steps run as one\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(graphs.recorded()), static_cast<long long>(graphs.launched()));
  EXPECT_GE(graphs.launched(), 20);
  EXPECT_EQ(plain_.model->graphs().launched(), 0);
  EXPECT_TRUE(log_.lines.empty()) << log_.lines[0];
}

// More rows than a GEMV takes: idle ones beside them keep the class.
TEST_P(CudaGraphs, ManyRowsKeepTheirClass) {
  std::vector<Span> prompts;
  std::vector<std::vector<AdapterRef>> uses;
  for (int i = 0; i < 11; ++i) {
    uses.push_back(i % 3 == 0 ? std::vector<AdapterRef>{} : std::vector<AdapterRef>{{adapters_.back(), 1.0f, 0}});
    prompts.push_back(span(i, 0, 2, uses.back()));
  }
  both(prompts);
  for (int round = 0; round < 4; ++round) {
    std::vector<Span> decode;
    for (int i = 0; i < 11 - round % 2; ++i) {
      decode.push_back(token(i, 2 + round, uses[static_cast<size_t>(i)]));
      if (i >= 9) decode.back().logits_at.clear();  // nine rows of logits beside ten and eleven rows
    }
    both(decode);
  }
  EXPECT_EQ(cache_of(plain_), cache_of(graphs_));
  EXPECT_LE(graphs_.model->graphs().recorded(), 2);
  EXPECT_GE(graphs_.model->graphs().launched(), 2);
}

INSTANTIATE_TEST_SUITE_P(Some, CudaGraphs, testing::ValuesIn(subjects()),
                         [](const auto& info) { return std::string(info.param.name); });

class CudaGraphsRules : public CudaGraphs {};

TEST_P(CudaGraphsRules, OneGraphServesASteadyStream) {
  const std::vector<std::vector<AdapterRef>> uses = {{{adapters_[0], 1.0f, 0}}, {}, {{adapters_.back(), 0.5f, 0}}};
  std::vector<Span> prompts;
  for (int i = 0; i < 3; ++i) prompts.push_back(span(i, 0, 3 + i, uses[static_cast<size_t>(i)]));
  both(prompts);
  for (int round = 0; round < 20; ++round) {
    std::vector<Span> decode;
    for (int i = 0; i < 3; ++i) decode.push_back(token(i, 3 + i + round, uses[static_cast<size_t>(i)]));
    both(decode);
  }
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 19);
  // Two other sequences instead, with the same ranks: nothing is recorded.
  both({token(5, 0, uses[0]), token(6, 0), token(7, 0, uses[2])});
  both({token(5, 1, uses[0]), token(6, 1), token(7, 1, uses[2]), token(8, 0)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_GE(graphs_.model->graphs().launched(), 20);
}

// Rows choose as the host's sampler does from the same logits, the others bring theirs, and one graph serves every mix.
TEST_P(CudaGraphsRules, TokensAreChosenWhereTheLogitsAre) {
  constexpr float kUntouched = -7;
  const auto vocab = static_cast<size_t>(harness_->config().vocab);
  const std::vector<AdapterRef> use = {{adapters_[0], 1.0f, 0}};
  both({span(0, 0, 3), span(1, 0, 4, use), span(2, 0, 5)});
  Sampler sampler;
  int drawn = 0, different = 0;
  for (int round = 0; round < 24; ++round) {
    const std::vector<Span> decode = {token(0, 3 + round), token(1, 4 + round, use), token(2, 5 + round)};
    std::vector<RowChoice> choices(3);
    for (size_t row = 0; row < 3; ++row) {
      if (random_.below(4) == 0) continue;  // wants its logits
      RowChoice& choice = choices[row];
      choice.vocab = static_cast<int32_t>(random_.below(3) == 0 ? vocab / 2 : vocab + random_.below(2));
      choice.temperature = random_.below(3) == 0 ? 0.0f : 0.7f;
      choice.top_k = random_.below(3) == 0 ? 5 : 0;
      choice.top_p = random_.below(3) == 0 ? 0.8f : 1.0f;
      choice.min_p = random_.below(3) == 0 ? 0.1f : 0.0f;
      choice.seed = random_();
      choice.position = static_cast<uint64_t>(round);
    }
    TokenId chosen[3] = {-9, -9, -9};
    const StepOutput want = step(plain_, decode);
    const StepOutput got = step(graphs_, decode, [&](ModelBatch batch) {
      std::fill_n(batch.logits, 3 * batch.logits_stride, kUntouched);
      batch.choices = choices;
      batch.chosen = chosen;
      return batch;
    });
    for (size_t row = 0; row < 3; ++row) {
      SCOPED_TRACE("round " + std::to_string(round) + " row " + std::to_string(row));
      const RowChoice& choice = choices[row];
      if (choice.vocab == 0) {
        EXPECT_TRUE(std::equal(want.logits[row].begin(), want.logits[row].end(), got.logits[row].begin()));
        EXPECT_EQ(chosen[row], -9);
        continue;
      }
      EXPECT_TRUE(std::all_of(got.logits[row].begin(), got.logits[row].end(), [](float x) { return x == kUntouched; }));
      SamplingParams params;
      params.temperature = choice.temperature;
      params.top_k = choice.top_k;
      params.top_p = choice.top_p;
      params.min_p = choice.min_p;
      params.seed = choice.seed;
      const size_t columns = std::min(vocab, static_cast<size_t>(choice.vocab));
      const TokenId expected = sampler.sample(
          {.logits = std::span(want.logits[row]).first(columns), .params = &params, .position = choice.position});
      ++drawn;
      different += chosen[row] != expected;
      if (choice.temperature == 0) {
        EXPECT_EQ(chosen[row], expected);
      }
    }
  }
  EXPECT_GT(drawn, 30);
  EXPECT_LE(different, 1) << "of " << drawn;  // roundings of a draw may differ (cuda_ops.h)
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 23);
}

// A context that grows past the positions a graph was recorded for takes another one.
TEST_P(CudaGraphsRules, AContextGrowsIntoTheNextBucket) {
  both({span(0, 238, 12), span(1, 0, 3)});
  for (int at = 250; at < 262; ++at) both({token(0, at), token(1, at - 247)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(graphs_.model->graphs().launched(), 10);
  both({token(0, 200), token(1, 15)});  // back to the first
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(graphs_.model->graphs().launched(), 11);
}

// All else equal, a higher rank needs more blocks than a lower one has recorded, and a module nobody changed is not in
// its graph at all.
TEST_P(CudaGraphsRules, AHigherRankTakesAnotherGraph) {
  const Adapter* const odd = adapters_[adapters_.size() - 3];
  const Adapter* const small = adapters_[adapters_.size() - 2];
  const Adapter* const large = adapters_.back();
  int at = 0;
  for (const Adapter* adapter : {odd, odd, odd, small, small, small, large, large, large, small, odd}) {
    both({token(0, at++, {{adapter, 1.0f, 0}})});
  }
  EXPECT_EQ(graphs_.model->graphs().recorded(), 3);
  EXPECT_EQ(graphs_.model->graphs().launched(), 8);
}

// Adapters that are dropped and uploaded again lie elsewhere on the device; their table says where.
TEST_P(CudaGraphsRules, AnAdapterThatMovedIsReadWhereItIs) {
  const Adapter* const one = adapters_[adapters_.size() - 2];
  const Adapter* const two = adapters_.back();
  const auto drop = [&](const Adapter& adapter) {
    graphs_.model->adapters().drop(adapter.pairs.data(), adapter.pairs.size());
  };
  const auto decode = [&](int at) { both({token(0, at, {{one, 1.0f, 0}}), token(1, at, {{two, 1.0f, 0}})}); };
  for (int at = 0; at < 3; ++at) decode(at);
  const int64_t uploads = graphs_.model->adapters().uploads();
  drop(*one);
  drop(*two);
  both({token(2, 0, {{two, 1.0f, 0}})});  // first the other
  both({token(2, 1, {{adapters_[0], 1.0f, 0}})});
  for (int at = 3; at < 6; ++at) decode(at);
  EXPECT_GE(graphs_.model->adapters().uploads(), uploads + 2);
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 5);
}

// Another version with other factors at the same host addresses.
TEST_P(CudaGraphsRules, AnAdapterReplacedAtItsAddressIsTheNewOne) {
  std::vector<LoraPair> pairs(adapters_.back()->pairs.begin(), adapters_.back()->pairs.end());
  std::vector<std::vector<std::byte>> factors;
  std::vector<LoraSource> sources(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].rank == 0) continue;
    const int64_t bytes = row_bytes(pairs[i].dtype, int64_t{pairs[i].rank} * pairs[i].out);
    factors.emplace_back(pairs[i].b_t, pairs[i].b_t + bytes);
    pairs[i].b_t = factors.back().data();
    sources[i].pair = &pairs[i];
    sources[i].kind = LoraSourceKind::kResident;
  }
  const LoraSegment segments[] = {{0, 1, 0, 1.0f}};
  AdapterVersionId version{100};
  const auto with_version = [&](ModelBatch batch) {
    batch.segments = segments;
    batch.sources = sources.data();
    batch.slots = 1;
    batch.versions = {&version, 1};
    return batch;
  };
  for (int at = 0; at < 3; ++at) both({token(0, at)}, with_version);
  const Span same = token(0, 3);
  const StepOutput before = both({same}, with_version);
  const size_t size = static_cast<size_t>(row_bytes(adapters_.back()->pairs[0].dtype, 1));
  for (auto& factor : factors) {
    for (size_t i = size - 1; i < factor.size(); i += size) factor[i] ^= std::byte{0x80};  // the sign
  }
  version = AdapterVersionId{101};
  const StepOutput after = both({same}, with_version);
  EXPECT_FALSE(same_bits(before, after));
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 4);
}

// Sums made by the host come with the tables of a step, longer and shorter ones.
TEST_P(CudaGraphsRules, HostDeltasGoWithTheStep) {
  const ModelConfig& config = harness_->config();
  const size_t modules = static_cast<size_t>(config.layers) * kLayerModules + 2;
  std::vector<float> delta(3 * static_cast<size_t>(config.ffn + config.vocab));
  std::vector<LoraSource> sources(modules);
  LoraSegment segments[] = {{0, 2, 0, 1.0f}};
  const auto with_deltas = [&](ModelBatch batch) {
    batch.segments = segments;
    batch.sources = sources.data();
    batch.slots = 1;
    return batch;
  };
  for (const size_t module : {size_t{0}, size_t{5}, size_t{13}, modules - 2}) {
    sources[module].kind = LoraSourceKind::kHostDelta;
    sources[module].delta = delta.data();
  }
  const auto decode = [&](int at, bool deltas) {
    for (float& value : delta) value = static_cast<float>(random_.uniform() - 0.5);
    std::vector<Span> spans = {token(0, at), token(1, at), token(2, at + 20)};
    return both(spans, deltas ? Change(with_deltas) : Change());
  };
  for (int at = 0; at < 4; ++at) decode(at, true);
  segments[0] = {1, 2, 0, 1.0f};
  for (int at = 4; at < 6; ++at) decode(at, true);
  sources[3].delta = delta.data() + 7;  // one module more: another graph
  sources[3].kind = LoraSourceKind::kHostDelta;
  for (int at = 6; at < 9; ++at) decode(at, true);
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(graphs_.model->graphs().launched(), 7);
  const std::vector<Span> same = {token(0, 9), token(1, 9), token(2, 29)};
  const StepOutput last_two = both(same, with_deltas);
  segments[0] = {0, 2, 0, 1.0f};
  EXPECT_FALSE(same_bits(last_two, both(same, with_deltas)));
  EXPECT_EQ(graphs_.model->graphs().launched(), 9);
}

TEST_P(CudaGraphsRules, FewGraphsAreKept) {
  ASSERT_NO_FATAL_FAILURE(make(graphs_, true, 2));
  talk(seed_of_run() + 1, 40, 4);
  for (int round = 0; round < 3; ++round) {
    for (int rows = 1; rows <= 5; ++rows) {
      std::vector<Span> decode;
      for (int i = 0; i < rows; ++i) decode.push_back(token(6 + i, round));
      for (int twice = 0; twice < 2; ++twice) both(decode);
    }
  }
  const StepGraphs& graphs = graphs_.model->graphs();
  EXPECT_LE(graphs.held(), 2);
  EXPECT_GT(graphs.recorded(), 2);
}

// What a graph addresses is part of its shape.
TEST_P(CudaGraphsRules, AnotherCacheHasItsOwnGraph) {
  for (int at = 0; at < 3; ++at) both({token(0, at)});
  Device other_plain, other;
  ASSERT_NO_FATAL_FAILURE(make(other_plain, false));
  ASSERT_NO_FATAL_FAILURE(make(other, true));
  std::swap(other.kv, graphs_.kv);
  std::swap(other_plain.kv, plain_.kv);
  for (int at = 0; at < 3; ++at) both({token(0, at)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  std::swap(other.kv, graphs_.kv);
  std::swap(other_plain.kv, plain_.kv);
  both({token(0, 3)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(cache_of(plain_), cache_of(graphs_));
}

TEST_P(CudaGraphsRules, OnlyDecodeStepsAreRecorded) {
  for (int at = 0; at < 3; ++at) {
    both({span(0, 2 * at, 2), token(1, at)});
    std::vector<Span> with_hidden = {token(2, at)};
    with_hidden[0].hidden = true;
    both(with_hidden);
  }
  EXPECT_EQ(graphs_.model->graphs().recorded(), 0);
  ASSERT_NO_FATAL_FAILURE(make(graphs_, true, 0));
  ASSERT_NO_FATAL_FAILURE(make(plain_, false));
  for (int at = 0; at < 3; ++at) both({token(1, at)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 0);
}

#ifdef LORALEI_CUDA_EMULATION
TEST_P(CudaGraphsRules, ADriverThatRefusesToRecordIsSaidOnceAndForGood) {
  for (int at = 0; at < 2; ++at) both({token(0, at)});
  cuda_emulated::refuse_captures(true);
  for (int at = 0; at < 3; ++at) both({token(1, at), token(2, at)});
  for (int at = 0; at < 3; ++at) both({token(1, 3 + at), token(2, 3 + at), token(3, at)});
  cuda_emulated::refuse_captures(false);
  both({token(1, 6), token(2, 6)});
  const StepGraphs& graphs = graphs_.model->graphs();
  EXPECT_EQ(graphs.recorded(), 1);
  EXPECT_EQ(graphs.launched(), 1);
  ASSERT_EQ(log_.lines.size(), 1u);
  EXPECT_NE(log_.lines[0].find("--enforce-eager"), std::string::npos) << log_.lines[0];
  EXPECT_EQ(graphs.refusal(), log_.lines[0]);
  both({token(0, 2)});  // what was recorded before still runs
  EXPECT_EQ(graphs.launched(), 2);
}
#endif

INSTANTIATE_TEST_SUITE_P(Rules, CudaGraphsRules, testing::Values(subjects()[0]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loralei::test
