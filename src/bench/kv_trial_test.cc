// SPDX-License-Identifier: Apache-2.0
// Prefixes as integers, and as the base's, under real answers of the demo model.
#include "bench/kv_trial.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/prng.h"
#include "base/units.h"
#include "bench/calibrate_kv.h"
#include "codec/kv_spread.h"
#include "formats/json_util.h"
#include "sys/file.h"

namespace loralei {
namespace {

const std::string kDemo = std::string(LORALEI_SOURCE_DIR) + "/demo/";
constexpr TokenId kNewLine = 201, kBegin = 0, kEnd = 1;

std::unique_ptr<ModelHost> demo_host(DType kv_dtype = DType::kF16) {
  EngineHostOptions options;
  options.model_path = kDemo + "model";
  options.threads = 2;
  options.engine.kv_dtype = kv_dtype;
  options.engine.speculate = Speculation::kOff;
  NullLogSink log;
  auto host = ModelHost::start(options, log, {});
  CHECK(host.ok());
  return *std::move(host);
}
std::shared_ptr<const Adapter> demo_adapter(ModelHost& host, const std::string& name, uint64_t version) {
  auto adapter = host.load_adapter(kDemo + "adapters/" + name, AdapterVersionId{version});
  CHECK(adapter.ok());
  return *adapter;
}

// What the demo answers, from its own file.
struct Expected {
  std::vector<TokenId> prompt, answer;
};
std::vector<Expected> expected_of(const std::string& adapter, double margin) {
  const auto text = PosixFileSystem().read_all(kDemo + "expected.json", 1 << 24);
  CHECK(text.ok());
  std::vector<Expected> all;
  for (const Json& one : Json::parse(*text)) {
    const bool is_its = adapter.empty() ? one["adapter"].is_null() : one["adapter"] == adapter;
    if (is_its && one["margin"].get<double>() > margin)
      all.push_back({one["prompt_ids"].get<std::vector<TokenId>>(), one["ids"].get<std::vector<TokenId>>()});
  }
  CHECK(all.size() > 1);
  return all;
}
// One question behind another.
std::vector<KvDocument> dialogues_of(const std::string& adapter, size_t identity) {
  std::vector<KvDocument> documents;
  const std::vector<Expected> all = expected_of(adapter, 0);
  for (size_t i = 0; i < all.size(); ++i) {
    const Expected& first = all[i];
    const Expected& second = all[(i + 1) % all.size()];
    KvDocument document{.tokens = first.prompt, .identity = identity};
    std::vector<TokenId>& tokens = document.tokens;
    tokens.insert(tokens.end(), first.answer.begin(), first.answer.end() - 1);
    tokens.push_back(kNewLine);
    tokens.insert(tokens.end(), second.prompt.begin() + 1, second.prompt.end());
    document.prompt = tokens.size();
    tokens.insert(tokens.end(), second.answer.begin(), second.answer.end() - 1);
    documents.push_back(std::move(document));
  }
  return documents;
}

std::unique_ptr<KvTrial> demo_trial(ModelHost& host, const std::vector<const Adapter*>& adapters) {
  auto pieces = cut_kv_pieces(dialogues_of("", kKvAll), {}, 100'000, 4096);
  CHECK(pieces.ok());
  auto trial = KvTrial::create(host, *std::move(pieces), {.adapters = adapters, .prompt_tokens_most = 128});
  CHECK(trial.ok());
  return *std::move(trial);
}
KvQuality lossy(KvTrial& trial, const std::vector<float>& spread, float factor, size_t identity) {
  const auto grid = kv_steps_from(trial.shape(), spread, factor);
  CHECK(grid.ok());
  KvQualityCount count(trial.positions(identity, KvHalf::kSearched), 0);
  CHECK(trial.lossy(*grid, identity, KvHalf::kSearched, count).ok());
  return count.quality();
}

TEST(KvTrial, PiecesHaveAPrefixOfFullBlocksAndWhatIsCompared) {
  std::vector<TokenId> text(1000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<TokenId>(i);
  const std::vector<TokenId> begin = {7777};
  const std::vector<KvDocument> documents = {{.tokens = text},
                                             {.tokens = {text.begin(), text.begin() + 20}},
                                             {.tokens = text, .prompt = 40, .identity = 2},
                                             {.tokens = {text.begin(), text.begin() + 25}, .prompt = 18}};
  auto pieces = cut_kv_pieces(documents, begin, 1 << 20, 1000);
  ASSERT_TRUE(pieces.ok());
  ASSERT_EQ(pieces->size(), 5u);  // 4 of the first, none of the second and the last
  for (size_t i = 0; i < 4; ++i) {
    const KvTextPiece& piece = (*pieces)[i];
    EXPECT_EQ(piece.tokens.size(), i < 3 ? 256u : 236u);
    EXPECT_EQ(piece.tokens[0], 7777);
    EXPECT_EQ(piece.tokens[1], static_cast<TokenId>(255 * i));
    EXPECT_EQ(piece.prefix, i < 3 ? 192u : 176u);
    EXPECT_EQ(piece.compared, piece.prefix);
  }
  EXPECT_EQ((*pieces)[4].tokens, text);
  EXPECT_EQ((*pieces)[4].prefix, 32u);
  EXPECT_EQ((*pieces)[4].compared, 39u);
  EXPECT_EQ((*pieces)[4].identity, 2u);

  pieces = cut_kv_pieces(std::span(documents).first(1), begin, 512, 1000);
  ASSERT_TRUE(pieces.ok());
  ASSERT_EQ(pieces->size(), 2u);
  EXPECT_EQ((*pieces)[1].tokens[1], 510);
  EXPECT_FALSE(cut_kv_pieces(std::span(documents).subspan(1, 1), begin, 4096, 1000).ok());
  EXPECT_FALSE(cut_kv_pieces(documents, begin, 4096, 16).ok());
  EXPECT_EQ(kv_shared_tokens(2), 0u);
  EXPECT_EQ(kv_shared_tokens(18), 0u);
  EXPECT_EQ(kv_shared_tokens(19), 16u);
}

TEST(KvTrial, FineStepsChangeNothingAndCoarseOnesMore) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    const auto host = demo_host(dtype);
    const auto shout = demo_adapter(*host, "shout", 1);
    const auto trial = demo_trial(*host, {shout.get()});
    const int64_t positions = trial->positions(0, KvHalf::kSearched);
    ASSERT_GT(positions, 20);
    const std::vector<float> spread = trial->spread();
    for (size_t identity = 0; identity < 2; ++identity) {
      EXPECT_EQ(trial->positions(identity, KvHalf::kSearched), positions);
      const KvQuality fine = lossy(*trial, spread, 1.0f / 1024, identity);
      EXPECT_GE(fine.agreement, 0.98);  // but where two tokens are as likely
      EXPECT_LT(fine.mean_kl, 1e-4);
      EXPECT_EQ(fine.positions, positions);
      const KvQuality safe = lossy(*trial, spread, 0.25f, identity), rough = lossy(*trial, spread, 4, identity);
      EXPECT_GT(safe.mean_kl, fine.mean_kl);
      EXPECT_GT(rough.mean_kl, safe.mean_kl);
      EXPECT_LT(rough.agreement, 1);
      EXPECT_EQ(lossy(*trial, spread, 1.0f / 1024, identity), fine);  // what is kept has not changed
    }
    const auto grid = kv_steps_from(trial->shape(), spread, 0.25f);
    ASSERT_TRUE(grid.ok());
    const KvTrial::Bits base = trial->bits(*grid, 0), other = trial->bits(*grid, 1);
    EXPECT_LT(base.delta, 0.6);  // of what is the same: the headers
    EXPECT_LT(other.delta, other.alone);
    EXPECT_TRUE(base.alone > 3.5 && base.alone < 6) << base.alone;
    double entropy = 0;  // of the base alone, and of an adapter that differs
    for (const double row : trial->entropies(*grid)) entropy += row / 8;
    EXPECT_NEAR(entropy, (base.alone + other.delta) / 2, 0.5);
  }
}

TEST(KvTrial, EveryOtherPieceOfEachIsHeldOutAndOneAloneIsInBothHalves) {
  const auto host = demo_host();
  const auto json = demo_adapter(*host, "json", 1), shout = demo_adapter(*host, "shout", 2);
  std::vector<KvDocument> documents;  // the base's, json's and a shared one in turns, one of shout's
  const std::vector<KvDocument> base = dialogues_of("", 0), its = dialogues_of("json", 1);
  for (size_t i = 0; i < 2; ++i) {
    documents.push_back(base[i]);
    documents.push_back(its[i]);
    documents.push_back(base[i]);
    documents.back().identity = kKvAll;
  }
  documents.push_back(dialogues_of("shout", 2)[0]);
  auto pieces = cut_kv_pieces(documents, {}, 100'000, 4096);
  ASSERT_TRUE(pieces.ok());
  ASSERT_EQ(pieces->size(), documents.size());
  const auto trial =
      KvTrial::create(*host, *std::move(pieces), {.adapters = {json.get(), shout.get()}, .prompt_tokens_most = 128});
  ASSERT_TRUE(trial.ok());
  int64_t positions[2][3] = {};
  for (size_t i = 0; i < documents.size(); ++i) {
    const KvHalf half = (*trial)->half(i);
    EXPECT_EQ(half, i >= 3 && i < 6 ? KvHalf::kHeldOut : KvHalf::kSearched) << i;
    const KvTextPiece& piece = (*trial)->pieces()[i];
    for (size_t identity = 0; identity < 3; ++identity) {
      if (piece.identity == kKvAll || piece.identity == identity)
        positions[half == KvHalf::kHeldOut][identity] += static_cast<int64_t>(piece.tokens.size() - piece.compared);
    }
  }
  for (size_t identity = 0; identity < 3; ++identity) {
    EXPECT_EQ((*trial)->positions(identity, KvHalf::kSearched), positions[0][identity]);
    EXPECT_EQ((*trial)->positions(identity, KvHalf::kHeldOut), positions[1][identity]);
  }
  // Without the shared one shout has one piece, and that is all there is to measure.
  auto alone = cut_kv_pieces(std::span(documents).last(1), {}, 100'000, 4096);
  const auto lone =
      KvTrial::create(*host, *std::move(alone), {.adapters = {json.get(), shout.get()}, .prompt_tokens_most = 128});
  ASSERT_TRUE(lone.ok());
  EXPECT_GT((*lone)->positions(2, KvHalf::kHeldOut), 0);
  EXPECT_EQ((*lone)->positions(2, KvHalf::kHeldOut), (*lone)->positions(2, KvHalf::kSearched));
}

TEST(KvTrial, AnswersOfTheDemoAreRightAndCoarseStepsLoseThem) {
  const auto host = demo_host();
  const auto json = demo_adapter(*host, "json", 1);
  auto pieces = cut_kv_pieces(dialogues_of("json", 1), {}, 100'000, 4096);
  ASSERT_TRUE(pieces.ok());
  const auto trial = KvTrial::create(*host, *std::move(pieces), {.adapters = {json.get()}, .prompt_tokens_most = 128});
  ASSERT_TRUE(trial.ok());
  const std::vector<float> spread = (*trial)->spread();
  const KvQuality fine = lossy(**trial, spread, 1.0f / 256, 1), rough = lossy(**trial, spread, 8, 1);
  ASSERT_GT(fine.answers, 5);
  EXPECT_GT(fine.answers_exact_right, fine.answers / 2);  // the question before turns some
  EXPECT_EQ(fine.answers_right, fine.answers_exact_right);
  EXPECT_EQ(fine.answers_same, fine.answers);
  EXPECT_NEAR(fine.answers_lost, 0, 0.02);
  EXPECT_EQ(rough.answers_exact_right, fine.answers_exact_right);
  EXPECT_LT(rough.answers_right, fine.answers_right);
  EXPECT_GT(rough.answers_lost, 0.1);
}

TEST(KvTrial, BelowTheDepthThePrefixIsTheBases) {
  const auto host = demo_host();
  const auto cipher = demo_adapter(*host, "cipher", 1);
  const ModelConfig& config = host->file().config;
  const KvShape shape{config.layers, config.kv_heads, config.head_dim, host->kv_dtype()};
  auto runner = KvRunner::create(host->executor(), host->ledger(), config, shape, 6);
  ASSERT_TRUE(runner.ok());
  const std::vector<TokenId> tokens = dialogues_of("cipher", 0)[0].tokens;
  const auto compute = [&](int32_t block, const Adapter* adapter) {
    const std::vector<int32_t> table = {block};
    const KvRows rows{.tokens = std::span(tokens).first(kKvBlockTokens), .blocks = table};
    ASSERT_TRUE((*runner)->run({&rows, 1}, adapter).ok());
  };
  const auto same = [&](int32_t a, int32_t b, int32_t layer) {
    const KvView& view = (*runner)->view();
    return std::memcmp(view.slice(a, layer, 0), view.slice(b, layer, 0),
                       static_cast<size_t>(view.layer_stride_bytes)) == 0;
  };
  compute(0, nullptr);
  compute(1, cipher.get());
  for (int32_t depth = 0; depth <= 4; ++depth) {
    const Adapter above = adapter_from_layer(*cipher, depth, AdapterVersionId{static_cast<uint64_t>(10 + depth)});
    compute(2, &above);
    for (int32_t layer = 0; layer < 4; ++layer) EXPECT_EQ(same(0, 2, layer), layer < depth) << depth << " " << layer;
    if (depth == 0) {
      for (int32_t layer = 0; layer < 4; ++layer) EXPECT_TRUE(same(1, 2, layer));
    }
    (*runner)->forget(above);
  }
}

// A step of one block's rows, as the engine makes it.
void compute_as_served(ModelHost& host, const Adapter* adapter, std::span<const TokenId> tokens, int32_t block,
                       const GroupStream& stream) {
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto rows = static_cast<int32_t>(tokens.size());
  const BatchGroup group{.row_count = rows, .blocks_count = 1, .stream = stream};
  const LoraSegment segment{0, rows, 0, 1.0f};
  StepBatch batch{.step = 1, .tokens = tokens, .positions = positions, .blocks = {&block, 1}, .groups = {&group, 1}};
  if (adapter != nullptr) {
    batch.segments = {&segment, 1};
    batch.adapters = {&adapter->version, 1};
    batch.first_layers = {&stream.base_layers, 1};
  }
  Status ended;
  host.executor().on_done([&](StepDone&& done) { ended = std::move(done.status); });
  host.executor().start(batch);
  host.executor().on_done({});
  ASSERT_TRUE(ended.ok());
}

// Of who borrows in a server: the base leaves K, V and its stream, and another begins
// there.
TEST(KvTrial, WhatIsComputedAboveADepthIsWhatAServerComputes) {
  const auto host = demo_host(DType::kF32);
  const auto cipher = demo_adapter(*host, "cipher", 1);
  const ModelConfig& config = host->file().config;
  const KvShape shape{config.layers, config.kv_heads, config.head_dim, host->kv_dtype(), {config.hidden, 1, {1}}};
  const auto runner = KvRunner::create(host->executor(), host->ledger(), config, shape, 4);
  ASSERT_TRUE(runner.ok());
  const std::vector<TokenId> all = dialogues_of("cipher", 0)[0].tokens;
  const std::span<const TokenId> tokens = std::span(all).first(kKvBlockTokens);
  const auto run = [&](int32_t block, const Adapter& adapter, int32_t base_layers) {
    const KvRows rows{.tokens = tokens, .blocks = {&block, 1}};
    ASSERT_TRUE((*runner)->run({&rows, 1}, &adapter, {}, base_layers).ok());
  };
  const KvView& view = (*runner)->view();
  const auto same = [&](int32_t a, int32_t b) {
    const auto bytes = static_cast<size_t>(config.layers * view.layer_stride_bytes);
    return std::memcmp(view.slice(a, 0, 0), view.slice(b, 0, 0), bytes) == 0;
  };
  run(3, *cipher, 0);  // so that the executor knows it
  for (int32_t depth = 1; depth < config.layers; ++depth) {
    const Adapter above = adapter_from_layer(*cipher, depth, AdapterVersionId{static_cast<uint64_t>(10 + depth)});
    run(0, above, depth);
    compute_as_served(*host, nullptr, tokens, 1, {.base_layers = kWholeStream, .rows = kKvBlockTokens});
    compute_as_served(*host, cipher.get(), tokens, 1, {.begin_layer = depth, .base_layers = depth});
    EXPECT_TRUE(same(0, 1)) << depth;
    run(2, above, 0);
    EXPECT_FALSE(same(0, 2)) << depth << ": a stream that was kept has other bits";
    (*runner)->forget(above);
  }
}

TEST(KvTrial, AnswersAreTheDemosAndDepthZeroChangesNothing) {
  const auto host = demo_host();
  const auto shout = demo_adapter(*host, "shout", 1);
  const auto trial = demo_trial(*host, {shout.get()});
  const std::vector<TokenId> ends = {kEnd};
  for (const Expected& one : expected_of("shout", 1.0)) {
    const auto answer = trial->answer(one.prompt, 0, 1, 32, ends);
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(*answer, one.answer);
    EXPECT_EQ(trial->answer(one.prompt, 0, 1, 2, ends)->size(), 2u);
  }
  const int64_t positions = trial->positions(1, KvHalf::kSearched);
  KvQualityCount same(positions, 1), other(positions, 0);
  ASSERT_TRUE(trial->borrowed(0, 1, KvHalf::kSearched, same).ok());
  EXPECT_EQ(same.quality().agreement, 1);
  EXPECT_LT(same.quality().mean_kl, 1e-6);
  ASSERT_TRUE(trial->borrowed(4, 1, KvHalf::kSearched, other).ok());
  EXPECT_GT(other.quality().mean_kl, 1e-3);
}

KvCalibrationOptions demo_calibration(ModelHost& host) {
  KvCalibrationOptions options;
  options.model_name = "demo";
  options.begin = {kBegin};
  options.tokens = 100'000;
  options.agreement = 0.95;
  options.answer_tokens = 8;
  options.text = dialogues_of("", 0);
  for (const std::string name : {"json", "cipher"}) {
    CalibratedAdapter& adapter = options.adapters.emplace_back();
    adapter.name = name;
    adapter.adapter = demo_adapter(host, name, options.adapters.size());
    adapter.ends = {kEnd};
    const std::vector<KvDocument> documents = dialogues_of(name, options.adapters.size());
    options.text.insert(options.text.end(), documents.begin(), documents.end());
    const std::vector<TokenId>& tokens = documents[0].tokens;
    adapter.prompts.push_back({tokens.begin(), tokens.begin() + static_cast<int64_t>(documents[0].prompt)});
    adapter.prompts.push_back(expected_of(name, 0)[0].prompt);
  }
  return options;
}

TEST(CalibrateKv, FindsStepsThatHoldAndDepthsThatDiffer) {
  const auto host = demo_host();
  NullLogSink log;
  const KvCalibrationOptions options = demo_calibration(*host);
  const auto found = calibrate_kv(*host, options, log);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_TRUE(found->holds);
  const KvSteps& steps = found->steps;
  EXPECT_EQ(steps.fingerprint, host->fingerprint());
  ASSERT_EQ(steps.factors.size(), 8u);
  EXPECT_GT(steps.held_out_tokens, steps.text_tokens / 3);
  EXPECT_LT(steps.held_out_tokens, steps.text_tokens);
  EXPECT_GE(steps.quality.agreement, 0.95);  // of the half that was not searched
  EXPECT_GT(steps.quality.positions, 10);
  ASSERT_EQ(steps.adapters.size(), 2u);
  for (const KvAdapterSteps& adapter : steps.adapters) {
    EXPECT_GE(adapter.quality.agreement, 0.95);
    EXPECT_GT(adapter.quality.answers, 0);
    EXPECT_LT(adapter.bits_delta, adapter.bits);
    EXPECT_GE(adapter.borrow_agreement, 0.95);
  }
  EXPECT_GT(steps.adapters[0].borrow_layers, steps.adapters[1].borrow_layers);
  EXPECT_EQ(found->borrow[0].prompts, 1u);  // the other one is too short
  EXPECT_TRUE(kv_steps_text(steps).ok());
  EXPECT_NE(kv_calibration_table(*found).find("cipher"), std::string::npos);
  const auto again = calibrate_kv(*host, options, log);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->steps, steps);
}

TEST(CalibrateKv, WhereNothingHoldsTheFinestStepsAreMeasured) {
  const auto host = demo_host();
  NullLogSink log;
  KvCalibrationOptions options = demo_calibration(*host);
  options.adapters.clear();
  Prng prng(1);  // tokens at random: what comes next is a guess
  options.text.assign(1, {});
  for (int i = 0; i < 1000; ++i) options.text[0].tokens.push_back(static_cast<TokenId>(20 + prng.below(1500)));
  options.agreement = 1;
  const auto found = calibrate_kv(*host, options, log);
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->holds);
  EXPECT_EQ(found->steps.factors, std::vector<float>(8, 1.0f / 16));
  EXPECT_LT(found->steps.quality.agreement, 1);
  EXPECT_EQ(found->steps.quality.positions, 64 + 60);  // of the second piece and the last
  EXPECT_TRUE(kv_steps_text(found->steps).ok());
}

TEST(CalibrateKv, WhereMemoryIsShortLessOfTheTextIsUsed) {
  const auto host = demo_host();
  const int64_t free = host->ledger().available_bytes(MemoryUse::kOther);
  const auto taken = host->ledger().try_grant(MemoryUse::kOther, free - 12 * kMiB);
  ASSERT_TRUE(taken);
  NullLogSink log;
  KvCalibrationOptions options;
  options.agreement = 0;
  options.text.resize(1);
  for (int i = 0; i < 31 * 256; ++i) options.text[0].tokens.push_back(20 + i % 1500);
  options.tokens = 8000;
  const auto found = calibrate_kv(*host, options, log);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->pieces_wanted, 31u);
  EXPECT_LT(found->pieces, found->pieces_wanted);
  EXPECT_GT(found->pieces, 4u);
  EXPECT_EQ(found->steps.text_tokens, static_cast<int64_t>(found->pieces) * 256);
  // Where there is no room at all it says so.
  const auto rest = host->ledger().try_grant(MemoryUse::kOther, host->ledger().available_bytes(MemoryUse::kOther));
  const auto none = calibrate_kv(*host, options, log);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("memory"), std::string::npos) << none.error().message;
}

TEST(CalibrateKv, WhatCannotBeIsRefusedWithASentence) {
  NullLogSink log;
  const auto refused = [&](ModelHost& host, const KvCalibrationOptions& options, const std::string& part) {
    const auto found = calibrate_kv(host, options, log);
    ASSERT_FALSE(found.ok());
    EXPECT_NE(found.error().message.find(part), std::string::npos) << found.error().message;
  };
  const auto bytes = demo_host(DType::kI8);
  refused(*bytes, demo_calibration(*bytes), "no steps to choose");
  const auto host = demo_host();
  KvCalibrationOptions options = demo_calibration(*host);
  options.text.clear();
  refused(*host, options, "nothing long enough");
  options = demo_calibration(*host);
  options.text[0].tokens[3] = 1 << 20;
  refused(*host, options, "beyond the model's vocabulary");
  options = demo_calibration(*host);
  options.adapters[0].prompts.emplace_back(1 << 20, 5);
  refused(*host, options, "longer than the model takes");
  options = demo_calibration(*host);
  Adapter activated = *options.adapters[0].adapter;
  activated.alora_invocation = {5};
  options.adapters[0].adapter = std::make_shared<const Adapter>(activated);
  refused(*host, options, "activated");
}

}  // namespace
}  // namespace loralei
