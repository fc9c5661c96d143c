// SPDX-License-Identifier: Apache-2.0
// What a sequence gets does not depend on how it was computed, bit for bit: alone or
// among others, whole or in chunks, on its own KV blocks or on those another sequence
// filled, wherever its blocks lie, on one thread or three (ARCHITECTURE.md, decision 11).
//
// The oracle of every test is the sequence alone, in one step. Compared are the logits
// and the final hidden state of every row and the bytes of K and V, for every kernel path
// of this machine, several models (plain, sliding window, quantised) and KV formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/limits.h"
#include "base/prng.h"
#include "support/made_files.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kSequences = 8;
constexpr int kTokensMax = 96;
constexpr int kRowsMax = 2 * kTokensMax;  // the harness's limit for one step

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  bool quantised = false;  // its products go through tiles
};

const std::vector<std::string> kGqaAdapters = {"gqa-qv-r8",           "gqa-all-r16",        "gqa-rank-pattern",
                                               "gqa-embed-tied",      "gqa-head-tied",      "gqa-lora-bias",
                                               "gqa-save-embed-tied", "gqa-save-head-tied", "gqa-tokens-tied",
                                               "gqa-resized-tied",    "gqa-alora"};
const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"llama_gqa", "models/llama-gqa", kGqaAdapters, std::nullopt},
      {"llama2", "models/llama2", {"llama2-save-all", "llama2-r64", "llama2-embed-head", "llama2-r1"}, std::nullopt},
      {"qwen2", "models/qwen2", {"qwen2-bias-all", "qwen2-fused", "qwen2-qv-r8"}, std::nullopt},
      {"qwen3", "models/qwen3", {"qwen3-all-r4", "qwen3-save-qk-norm"}, std::nullopt},
      {"granite", "models/granite", {"granite-all-r4", "granite-save-all"}, std::nullopt},
      {"smollm3", "models/smollm3", {"smollm3-all-r4"}, std::nullopt},
      {"olmo2", "models/olmo2", {"olmo2-all-r4", "olmo2-save-norms"}, std::nullopt},
      {"phi3", "models/phi3", {"phi3-all-r4", "phi3-qkv-bias"}, std::nullopt},
      {"phi3_long", "models/phi3-long", {"phi3-long-r4"}, std::nullopt},
      {"glm", "models/glm", {"glm-all-r4", "glm-qk-bias"}, std::nullopt},
      {"glm4", "models/glm4", {"glm4-all-r4", "glm4-lora-bias", "glm4-save-norms"}, std::nullopt},
      {"starcoder2", "models/starcoder2", {"starcoder2-all-r4", "starcoder2-mlp-r4"}, std::nullopt},
      {"mistral3", "models/mistral3", {"mistral3-r4"}, std::nullopt},
      {"gemma3_vision", "models/gemma3-vision", {"gemma3-vision-r4"}, std::nullopt},
      {"qwen2_vl", "models/qwen2-vl", {"qwen2-vl-r4"}, std::nullopt},
      {"olmo3", "models/olmo3", {"olmo3-all-r4"}, std::nullopt},
      {"gemma", "models/gemma", {"gemma-tokens", "gemma-save-embed"}, std::nullopt},
      {"gemma2", "models/gemma2", {"gemma2-all-r4", "gemma2-save-norms", "gemma2-resized"}, std::nullopt},
      {"gemma3", "models/gemma3", {"gemma3-all-r4", "gemma3-save-norms"}, std::nullopt},
      {"gguf_gemma3", "models/gguf-gemma3-q8_0.gguf", {}, std::nullopt, true},
      {"qwen3_5", "models/qwen3_5", {"qwen3_5-all-r4", "qwen3_5-linear", "qwen3_5-save-norms"}, std::nullopt},
      {"gguf_qwen3_5", "models/gguf-qwen3_5-q8_0.gguf", {}, std::nullopt, true},
      {"qwen3_5_moe", "models/qwen3_5-moe", {"qwen3_5-moe-all", "qwen3_5-moe-experts"}, std::nullopt},
      {"qwen3_5_q8_0", "models/qwen3_5", {"qwen3_5-all-r4"}, DType::kQ8_0, true},
      {"qwen3_moe",
       "models/qwen3-moe",
       {"qwen3-moe-attn", "qwen3-moe-experts", "qwen3-moe-down", "qwen3-moe-router"},
       std::nullopt},
      {"qwen2_moe", "models/qwen2-moe", {"qwen2-moe-all", "qwen2-moe-experts"}, std::nullopt},
      {"mixtral", "models/mixtral", {"mixtral-single"}, std::nullopt},
      {"gpt_oss",
       "models/gpt-oss",
       {"gpt-oss-attn", "gpt-oss-experts", "gpt-oss-down", "gpt-oss-router"},
       std::nullopt},
      {"gpt_oss_mxfp4", "models/gpt-oss-mxfp4", {"gpt-oss-experts"}, std::nullopt, true},
      {"gguf_gpt_oss", "models/gguf-gpt-oss-mxfp4.gguf", {}, std::nullopt, true},
      {"gguf_qwen3_moe", "models/gguf-qwen3-moe-q8_0.gguf", {}, std::nullopt, true},
      {"gguf_mixtral", "models/gguf-mixtral-q4_0.gguf", {}, std::nullopt, true},
      {"mistral_window", "models/mistral-window", {"mistral-window-r8"}, std::nullopt},
      {"gguf_q8_0", "models/gguf-llama-q8_0.gguf", {"gguf-lora-f32.gguf", "gqa-all-r16"}, std::nullopt, true},
      {"gguf_q4_k_m", "models/gguf-llama-q4_k_m.gguf", {}, std::nullopt, true},
      {"gguf_q5_k_m", "models/gguf-qwen2-q5_k_m.gguf", {}, std::nullopt, true},
      {"gguf_q4_0", "models/gguf-llama-q4_0.gguf", {}, std::nullopt, true},
      {"gguf_q2_k_m", "models/gguf-llama-q2_k_m.gguf", {}, std::nullopt, true},
      {"gguf_q3_k_m", "models/gguf-llama-q3_k_m.gguf", {}, std::nullopt, true},
      {"gguf_iq4_nl", "models/gguf-llama-iq4_nl.gguf", {}, std::nullopt, true},
      {"gguf_iq4_xs_m", "models/gguf-qwen2-iq4_xs_m.gguf", {}, std::nullopt, true},
      {"gguf_mxfp4", "models/gguf-llama-mxfp4.gguf", {}, std::nullopt, true},
      {"awq", "models/awq", {"gqa-all-r16"}, std::nullopt, true},
      {"awq_moe", "models/awq-moe", {}, std::nullopt, true},
      {"gptq", "models/gptq-sym", {"gqa-all-r16"}, std::nullopt, true},
      {"fp8", "models/fp8-block", {"fp8-all-r4"}, std::nullopt},
      {"quant_q8_0", "models/llama-gqa", kGqaAdapters, DType::kQ8_0, true},
      {"quant_q4_0", "models/llama-gqa", {"gqa-all-r16"}, DType::kQ4_0, true},
  };
  return all;
}

struct Setting {
  std::string ops;
  size_t subject = 0;
  int threads = 1;
  DType kv = DType::kF32;
  std::string name() const {
    return ops + "_" + subjects()[subject].name + "_t" + std::to_string(threads) + "_" + dtype_info(kv).name;
  }
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name(); }

struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<AdapterRef> adapters;
  std::vector<int32_t> blocks;  // empty: the harness's
};

// One row for each token.
struct Rows {
  std::vector<std::vector<float>> logits, hidden;
  std::vector<std::byte> kv;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void expect_same(const Rows& got, const Rows& want, const std::string& what) {
  ASSERT_EQ(got.logits.size(), want.logits.size());
  for (size_t row = 0; row < want.logits.size(); ++row) {
    ASSERT_TRUE(same_bits(got.hidden[row], want.hidden[row]))
        << what << ": hidden state at position " << row << " differs";
    ASSERT_TRUE(same_bits(got.logits[row], want.logits[row])) << what << ": logits at position " << row << " differ";
  }
  if (!got.kv.empty()) {
    EXPECT_TRUE(got.kv == want.kv) << what << ": K or V differ";
  }
}

class Equality : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    harness_ = open(GetParam());
    if (harness_ == nullptr) return;
    load(*harness_, adapters_);
  }

  static std::unique_ptr<ModelHarness> open(const Setting& setting) {
    const Subject& subject = subjects()[setting.subject];
    HarnessOptions options;
    options.ops = setting.ops;
    options.threads = setting.threads;
    options.kv_dtype = setting.kv;
    options.quantise = subject.quantise;
    options.sequences_max = kSequences;
    options.tokens_max = kTokensMax;
    auto opened = ModelHarness::open(kRoot + subject.model, options);
    if (!opened.ok()) {
      ADD_FAILURE() << opened.error().message;
      return nullptr;
    }
    return std::move(*opened);
  }

  // The subject's adapters and two made ones (an odd rank, a large rank).
  void load(ModelHarness& harness, std::vector<const Adapter*>& adapters) {
    std::vector<std::string> paths;
    for (const std::string& name : subjects()[GetParam().subject].adapters) paths.push_back(kRoot + "adapters/" + name);
    paths.push_back(write_adapter(folder_.path() + "/odd", harness.config(),
                                  {.rank = 3, .seed = 5, .targets = {"q_proj", "down_proj"}}));
    MadeAdapter large{.rank = 40, .alpha = 40, .deviation = 0.02f, .seed = 6};
    if (!harness.config().gated) std::erase(large.targets, "gate_proj");
    paths.push_back(write_adapter(folder_.path() + "/large", harness.config(), large));
    for (const std::string& path : paths) {
      auto adapter = harness.load(path);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      adapters.push_back(*adapter);
    }
  }

  TokenId token(Prng& random) const {
    int vocab = harness_->config().vocab;
    for (const Adapter* adapter : adapters_) vocab = std::min(vocab, adapter->vocab);
    return static_cast<TokenId>(random.below(static_cast<uint64_t>(vocab)));
  }

  // None, one, or a weighted sum of up to three of which at most one replaces
  // whole tensors.
  std::vector<AdapterRef> some_adapters(Prng& random) const {
    static constexpr float kScales[] = {1.0f, 0.5f, -0.75f, 1.7f, 0.0f};
    std::vector<AdapterRef> uses;
    bool replaces = false;
    const uint64_t count = random.below(4);
    for (uint64_t i = 0; i < count; ++i) {
      AdapterRef use;
      use.adapter = adapters_[random.below(adapters_.size())];
      if (use.adapter->saved.any() && replaces) continue;
      replaces = replaces || use.adapter->saved.any();
      use.scale = kScales[random.below(std::size(kScales))];
      if (!use.adapter->alora_invocation.empty()) use.start = static_cast<int>(random.below(kTokensMax));
      uses.push_back(use);
    }
    return uses;
  }

  Sequence some_sequence(Prng& random) const {
    Sequence sequence;
    const auto count = 1 + random.below(kTokensMax);
    for (uint64_t i = 0; i < count; ++i) sequence.tokens.push_back(token(random));
    sequence.adapters = some_adapters(random);
    return sequence;
  }

  static Span span_of(const Sequence& sequence, int index, int position, int count) {
    Span span;
    span.sequence = index;
    span.position = position;
    span.tokens.assign(sequence.tokens.begin() + position, sequence.tokens.begin() + position + count);
    span.adapters = sequence.adapters;
    span.blocks = sequence.blocks;
    span.hidden = true;
    for (int i = 0; i < count; ++i) span.logits_at.push_back(i);
    return span;
  }

  // Runs one step and hangs its rows onto those of each span's sequence.
  static void step(ModelHarness& harness, const std::vector<Span>& spans, std::vector<Rows*> rows) {
    auto output = harness.run(spans);
    ASSERT_TRUE(output.ok()) << output.error().message;
    size_t next = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
      for (size_t row = 0; row < spans[i].tokens.size(); ++row, ++next) {
        rows[i]->logits.push_back(output->logits[next]);
        rows[i]->hidden.push_back(output->hidden[next]);
      }
    }
  }

  static Rows alone(ModelHarness& harness, const Sequence& sequence) {
    Rows rows;
    harness.poison_kv();
    const int count = static_cast<int>(sequence.tokens.size());
    step(harness, {span_of(sequence, 0, 0, count)}, {&rows});
    rows.kv = harness.kv_bytes(sequence.blocks.empty() ? harness.blocks(0) : sequence.blocks, count);
    for (const auto& row : rows.hidden) {
      for (const float value : row) EXPECT_TRUE(std::isfinite(value)) << "a slot of KV was read that was never written";
    }
    return rows;
  }

  // All blocks of the harness in random order, dealt out to the sequences.
  void deal_blocks(Prng& random, std::vector<Sequence>& sequences) const {
    std::vector<int32_t> blocks;
    for (int sequence = 0; sequence < kSequences; ++sequence) {
      blocks.insert(blocks.end(), harness_->blocks(sequence).begin(), harness_->blocks(sequence).end());
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    size_t next = 0;
    for (Sequence& sequence : sequences) {
      const size_t count = (sequence.tokens.size() + kKvBlockTokens - 1) / kKvBlockTokens;
      sequence.blocks.assign(blocks.begin() + static_cast<ptrdiff_t>(next),
                             blocks.begin() + static_cast<ptrdiff_t>(next + count));
      next += count;
    }
  }

  std::unique_ptr<ModelHarness> harness_;
  std::vector<const Adapter*> adapters_;
  TempFolder folder_;
};

// (a), (b) and (f) together: sequences with different adapters advance in random chunks,
// in random company and order, on random blocks.
TEST_P(Equality, ARowInAnyBatchIsTheRowAlone) {
  ASSERT_NE(harness_, nullptr);
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    std::vector<Sequence> sequences(2 + random.below(kSequences - 1));
    std::vector<Rows> want, got(sequences.size());
    for (Sequence& sequence : sequences) {
      sequence = some_sequence(random);
      want.push_back(alone(*harness_, sequence));
    }
    deal_blocks(random, sequences);
    harness_->poison_kv();
    std::vector<size_t> order(sequences.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (bool more = true; more;) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Span> spans;
      std::vector<Rows*> rows;
      int room = kRowsMax;
      more = false;
      for (const size_t i : order) {
        const int position = static_cast<int>(got[i].logits.size());
        const int left = static_cast<int>(sequences[i].tokens.size()) - position;
        if (left == 0) continue;
        more = true;
        if (room == 0 || random.below(4) == 0) continue;
        const int count =
            random.below(3) == 0 ? 1 : 1 + static_cast<int>(random.below(static_cast<uint64_t>(std::min(left, room))));
        spans.push_back(span_of(sequences[i], static_cast<int>(i), position, count));
        rows.push_back(&got[i]);
        room -= count;
      }
      if (!spans.empty()) step(*harness_, spans, rows);
      if (HasFatalFailure()) return;
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      got[i].kv = harness_->kv_bytes(sequences[i].blocks, static_cast<int>(sequences[i].tokens.size()));
      expect_same(got[i], want[i], "sequence " + std::to_string(i));
    }
  }
}

// (b) on its own, with the sizes around a block.
TEST_P(Equality, APromptInChunksIsThePromptAtOnce) {
  ASSERT_NE(harness_, nullptr);
  Prng random(31);
  SCOPED_TRACE("seed 31");
  Sequence sequence = some_sequence(random);
  while (sequence.tokens.size() < kTokensMax) sequence.tokens.push_back(token(random));
  sequence.adapters = {{adapters_[0], 0.5f, 0}};
  const Rows want = alone(*harness_, sequence);
  for (const int chunk : {1, 7, 15, 16, 17, 48}) {
    harness_->poison_kv();
    Rows got;
    for (int position = 0; position < kTokensMax; position += chunk) {
      step(*harness_, {span_of(sequence, 0, position, std::min(chunk, kTokensMax - position))}, {&got});
    }
    got.kv = harness_->kv_bytes(harness_->blocks(0), kTokensMax);
    expect_same(got, want, "chunks of " + std::to_string(chunk));
  }
}

// (c): a second sequence reads the first one's blocks through its own table and goes on
// from there, while the first goes on as well.
TEST_P(Equality, ACachedPrefixIsAColdOne) {
  ASSERT_NE(harness_, nullptr);
  for (uint64_t seed = 41; seed <= 42; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const int shared = static_cast<int>(1 + random.below(kTokensMax / kKvBlockTokens - 1)) * kKvBlockTokens;
    std::vector<Sequence> sequences(2);
    for (int i = 0; i < kTokensMax; ++i) sequences[0].tokens.push_back(token(random));
    sequences[0].adapters = some_adapters(random);
    sequences[1] = sequences[0];
    for (int i = shared; i < kTokensMax; ++i) sequences[1].tokens[static_cast<size_t>(i)] = token(random);
    const Rows first = alone(*harness_, sequences[0]);
    const Rows second = alone(*harness_, sequences[1]);
    deal_blocks(random, sequences);
    harness_->poison_kv();
    std::copy_n(sequences[0].blocks.begin(), shared / kKvBlockTokens, sequences[1].blocks.begin());
    Rows first_got, second_got;
    step(*harness_, {span_of(sequences[0], 0, 0, shared)}, {&first_got});
    harness_->copy_state(0, 1);
    second_got = first_got;
    step(*harness_,
         {span_of(sequences[1], 1, shared, kTokensMax - shared), span_of(sequences[0], 0, shared, kTokensMax - shared)},
         {&second_got, &first_got});
    first_got.kv = harness_->kv_bytes(sequences[0].blocks, kTokensMax);
    second_got.kv = harness_->kv_bytes(sequences[1].blocks, kTokensMax);
    expect_same(first_got, first, "the sequence that filled the prefix");
    expect_same(second_got, second, "the sequence that found it");
  }
}

// (e): adapters that are loaded and not used cost a base-only batch no
// operation and no bit.
TEST_P(Equality, UnusedAdaptersCostNothing) {
  ASSERT_NE(harness_, nullptr);
  Prng random(51);
  SCOPED_TRACE("seed 51");
  std::vector<Span> spans;
  for (int i = 0; i < 4; ++i) {
    Sequence sequence = some_sequence(random);
    sequence.tokens.resize(std::min<size_t>(sequence.tokens.size(), 40));
    sequence.adapters.clear();
    spans.push_back(span_of(sequence, i, 0, static_cast<int>(sequence.tokens.size())));
  }
  auto without = harness_->run(spans);
  ASSERT_TRUE(without.ok()) << without.error().message;
  harness_->keep_slots(adapters_);
  auto with = harness_->run(spans);
  ASSERT_TRUE(with.ok()) << with.error().message;
  EXPECT_EQ(with->ops, without->ops);
  EXPECT_GT(without->ops, 0u);
  for (size_t row = 0; row < without->logits.size(); ++row)
    EXPECT_TRUE(same_bits(with->logits[row], without->logits[row]));

  spans[0].adapters = {{adapters_.back(), 1.0f, 0}};  // the made adapter on every module of every layer
  auto used = harness_->run(spans);
  ASSERT_TRUE(used.ok()) << used.error().message;
  // Beside experts it changes attention alone.
  const uint64_t inputs = harness_->config().experts.count > 0 ? 2 : 4;
  const uint64_t more = inputs * static_cast<uint64_t>(harness_->config().layers);
  if (harness_->config().experts.shared_width > 0) return;  // whose inputs count, too
  EXPECT_EQ(used->ops, without->ops + more) << "one call per input of a layer";
}

// Threads split rows and columns, never a sum.
TEST_P(Equality, ThreadsChangeNoBit) {
  ASSERT_NE(harness_, nullptr);
  Setting setting = GetParam();
  setting.threads = setting.threads == 1 ? 2 : 1;
  const std::unique_ptr<ModelHarness> other = open(setting);
  ASSERT_NE(other, nullptr);
  std::vector<const Adapter*> others;
  load(*other, others);
  ASSERT_EQ(others.size(), adapters_.size());
  for (uint64_t seed = 61; seed <= 64; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Sequence sequence = some_sequence(random);
    const Rows got = alone(*harness_, sequence);
    for (AdapterRef& use : sequence.adapters) {
      use.adapter =
          others[static_cast<size_t>(std::find(adapters_.begin(), adapters_.end(), use.adapter) - adapters_.begin())];
    }
    expect_same(got, alone(*other, sequence), "threads");
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  const std::vector<const OpTable*> plain = plain_op_tables();
  for (const OpTable* table : available_op_tables()) {
    const bool tiles_only = std::find(plain.begin(), plain.end(), table) == plain.end();
    for (size_t subject = 0; subject < subjects().size(); ++subject) {
      if (tiles_only && table != available_op_tables().back() && !subjects()[subject].quantised) continue;
      for (const int threads : {1, 3}) {
#if defined(LORALEI_THREAD_SANITIZER)
        // Races need threads, and ten times the time is spent here: the best kernels
        // on three threads.
        if (threads == 1 || table != available_op_tables().back()) continue;
#endif
        // The reference is slow, and simple: it is asked once a subject.
        if (table == plain.front() && threads == 1) continue;
        for (const DType kv : {DType::kF32, DType::kF16, DType::kI8})
          all.push_back({table->name, subject, threads, kv});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, Equality, testing::ValuesIn(settings()), [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace loralei::test
