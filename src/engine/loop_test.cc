// SPDX-License-Identifier: Apache-2.0
// Scenarios of the engine loop: texts, prefixes, preemption, choices, scores. Adapters
// and how requests end have files of their own.
#include "engine/loop.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/loop_test_world.h"
#include "sampling/grammar.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(EngineLoop, GivesWhatTheModelSays) {
  World world;
  const RequestId id = world.submit(simple(10, 20));
  world.run();
  world.expect_oracle(id);
  EXPECT_EQ(world.record(id).tokens.size(), 20u);
  world.expect_nothing_held();
}

TEST(EngineLoop, ALongPromptIsComputedInChunksBesideDecodeRows) {
  World world;
  const RequestId first = world.submit(simple(4, 60, 1));
  for (int i = 0; i < 3; ++i) world.turn();
  const size_t before = world.record(first).tokens.size();
  const RequestId second = world.submit(simple(200, 5, 2));
  for (int i = 0; i < 5; ++i) world.turn();
  EXPECT_EQ(world.record(first).tokens.size(), before + 5);  // decoding goes on in every step
  world.run();
  world.expect_oracle(first);
  world.expect_oracle(second);
}

TEST(EngineLoop, StepsAreCountedByTheirRows) {
  World world;
  world.submit(simple(10, 20));
  world.run();
  const EngineStats stats = world.stats();
  EXPECT_EQ(stats.rows, 10u + 19u);  // the last token is not computed
  EXPECT_EQ(stats.steps_by_rows.at(0), 19u);
  EXPECT_EQ(stats.steps_by_rows.at(2), 1u);  // ten rows: above 8, up to 16
  EXPECT_EQ(stats.steps, 20u);
}

TEST(EngineLoop, AWarmPrefixGivesTheSameTextAsAColdOne) {
  World world;
  Submit submit = simple(70, 30, 3);
  const RequestId cold = world.submit(submit);
  world.run();
  const int64_t rows = world.executor.rows;
  const RequestId warm = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(warm).first.cached_tokens, 64);
  EXPECT_EQ(world.executor.rows - rows, 70 - 64 + 30 - 1);
  EXPECT_EQ(world.record(warm).tokens, world.record(cold).tokens);
  world.expect_oracle(warm);
}

TEST(EngineLoop, TheTimesOfCachedBlocksAreInTheState) {
  World world({.blocks = 12, .max_model_len = 160});
  const auto count = [&](const TimeCounts& times) {
    return std::accumulate(times.counts.begin(), times.counts.end(), uint64_t{0});
  };
  world.submit(simple(70, 10, 3));
  world.run();
  EXPECT_EQ(count(world.stats().kv_block_times.reuse_gap), 0u);
  world.submit(simple(70, 10, 3));
  world.run();
  EXPECT_EQ(count(world.stats().kv_block_times.reuse_gap), 4u);  // of 70 tokens
  EXPECT_EQ(count(world.stats().kv_block_times.lifetime), 0u);
  world.submit(simple(150, 5, 4));  // 10 blocks where 12 - 4 are free
  world.run();
  EXPECT_EQ(count(world.stats().kv_block_times.lifetime), 2u);
  EXPECT_EQ(count(world.stats().kv_block_times.idle_before_evict), 2u);
  EXPECT_GT(world.stats().kv_block_times.lifetime.sum_s, 0);
}

TEST(EngineLoop, AFullPromptHitStillComputesTheLastToken) {
  World world;
  const RequestId cold = world.submit(simple(64, 1, 3));
  world.run();
  const RequestId warm = world.submit(simple(64, 1, 3));
  world.run();
  EXPECT_EQ(world.record(warm).first.cached_tokens, 48);
  EXPECT_EQ(world.record(warm).tokens, world.record(cold).tokens);
}

TEST(EngineLoop, SaltAndScaleNeverShareAPrefix) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kAdd, "a", "/a");
  Submit submit = simple(40, 4, 1, {{source_of("a"), 1.0f}});
  world.submit(submit);
  world.run();
  submit.adapters[0].scale = 0.5f;
  const RequestId half = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(half).first.cached_tokens, 0);
  world.expect_oracle(half);
  submit.cache_salt = "tenant";
  const RequestId salted = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(salted).first.cached_tokens, 0);
  submit.cache_salt.clear();
  const RequestId again = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(again).first.cached_tokens, 32);
  submit.adapters[0].scale = 0.0f;  // adds nothing: the base's text and the base's prefix
  const RequestId none = world.submit(submit);
  submit.adapters.clear();
  const RequestId base = world.submit(submit);
  world.run();
  world.expect_oracle(none);
  EXPECT_EQ(world.record(none).tokens, world.record(base).tokens);
}

TEST(EngineLoop, AShrinkingKvCachePreemptsTheYoungestAndLosesNothing) {
  World world({.blocks = 48, .blocks_max = 64, .step_tokens = 64, .max_model_len = 160});
  for (const char* name : {"a", "b"}) {
    world.files.put(std::string("/") + name, 100 + static_cast<uint64_t>(name[0]));
    world.command(AdapterAction::kAdd, name, std::string("/") + name);
  }
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i)
    ids.push_back(world.submit(simple(40, 100, i, {{source_of(i % 2 == 0 ? "a" : "b"), i % 3 == 0 ? 1.0f : 0.5f}})));
  for (int i = 0; i < 30; ++i) {
    world.turn();
    world.finish_load();
  }
  ASSERT_EQ(world.stats().running, 6);
  const int64_t held = world.ledger.used_bytes(MemoryUse::kKv);
  const size_t oldest = world.record(ids[0]).tokens.size(), youngest = world.record(ids[5]).tokens.size();
  EXPECT_GT(youngest, 5u);
  world.resize(10);  // one sequence of the longest length
  world.turn();
  EXPECT_TRUE(world.replies.back().status.ok());
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kKv), held * 10 / 48);
  EXPECT_EQ(world.stats().kv_blocks_total, 10);
  EXPECT_GE(world.stats().preemptions, 4u);
  EXPECT_EQ(world.record(ids[0]).tokens.size(), oldest + 1);  // the oldest goes on in the same step
  for (int i = 0; i < 20; ++i) world.turn();
  EXPECT_EQ(world.record(ids[0]).tokens.size(), oldest + 21);
  EXPECT_EQ(world.record(ids[5]).tokens.size(), youngest);
  world.resize(64);
  for (int i = 0; i < 12; ++i) world.turn();
  EXPECT_EQ(world.stats().running, 6);  // there is room for all at once
  EXPECT_GT(world.record(ids[5]).tokens.size(), youngest);
  world.run();
  for (const RequestId id : ids) {
    world.expect_oracle(id);
    EXPECT_EQ(world.record(id).tokens.size(), 100u);
  }
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kKv), held * 64 / 48);
  world.expect_nothing_held();
}

TEST(EngineLoop, PrefixesOfBlocksThatMovedAreFoundAndRight) {
  World world({.blocks = 40, .max_model_len = 160});
  world.submit(simple(120, 20, 1));
  world.run();
  const RequestId cold = world.submit(simple(90, 20, 2));
  world.run();
  const RequestId running = world.submit(simple(30, 40, 3));
  for (int i = 0; i < 10; ++i) world.turn();
  world.resize(11);  // cached: 8 + 6 blocks, of which 8 have room beside the running sequence's 3
  world.turn();
  EXPECT_EQ(world.stats().preemptions, 0u);
  world.run();
  world.expect_oracle(running);
  const RequestId warm = world.submit(simple(90, 20, 2));
  world.run();
  EXPECT_EQ(world.record(warm).first.cached_tokens, 80);
  EXPECT_EQ(world.record(warm).tokens, world.record(cold).tokens);
  world.expect_oracle(warm);
}

TEST(EngineLoop, AKvCacheThatCannotGrowSaysSoAndGoesOn) {
  World world({.blocks = 12, .blocks_max = 1 << 20, .max_model_len = 160});
  const RequestId id = world.submit(simple(40, 60, 1));
  for (int i = 0; i < 10; ++i) world.turn();
  world.resize(1 << 20);
  world.turn();
  EXPECT_EQ(world.replies.back().status.error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(world.stats().kv_blocks_total, 12);
  world.run();
  world.expect_oracle(id);
}

TEST(EngineLoop, ChoicesComputeThePromptOnceAndDependOnSeedAndChoiceOnly) {
  World world;
  Submit submit = simple(100, 12, 4);
  submit.choices = 4;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 4; ++choice) world.expect_oracle(id, choice);
  EXPECT_EQ(world.executor.rows, 100 + 3 * (100 - 96) + 4 * 11);
  EXPECT_NE(world.record(id, 0).tokens, world.record(id, 1).tokens);
}

TEST(EngineLoop, ChoicesWorkWithoutThePrefixCache) {
  World world({.prefix_cache = false});
  Submit submit = simple(50, 6, 4);
  submit.choices = 3;
  submit.prompt_logprobs = true;
  submit.sampling.logprobs = 1;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) {
    world.expect_oracle(id, choice);
    EXPECT_EQ(world.record(id, choice).first.prompt_logprobs.size(), 50u);
  }
  world.expect_nothing_held();
}

TEST(EngineLoop, PreemptionIsInvisible) {
  World world({.blocks = 14, .max_sequences = 6, .step_tokens = 24});
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(world.submit(simple(20, 60, i)));
  world.run();
  EXPECT_GT(world.stats().preemptions, 0u);
  for (const RequestId id : ids) {
    world.expect_oracle(id);
    EXPECT_EQ(world.record(id).tokens.size(), 60u);
  }
  world.expect_nothing_held();
}

TEST(EngineLoop, PromptLogprobsAreThoseOfTheModelInAnyChunking) {
  for (const int32_t step_tokens : {8, 32}) {
    World world({.step_tokens = step_tokens});
    Submit submit = simple(60, 3, 2);
    submit.prompt_logprobs = true;
    submit.sampling.logprobs = 2;
    submit.choices = 2;
    world.submit(submit);  // leaves a warm prefix behind, which must not hide anything
    world.run();
    const RequestId id = world.submit(submit);
    world.run();
    for (int32_t choice = 0; choice < 2; ++choice) {
      const auto& entries = world.record(id, choice).first.prompt_logprobs;
      ASSERT_EQ(entries.size(), 60u);
      EXPECT_FALSE(entries[0].has_value());
      const auto chain = hash_chain(submit.prompt, {});
      for (size_t position = 1; position < 60; ++position) {
        const auto logits = fake_logits(chain[position - 1]);
        std::vector<TokenLogprob> top(2);
        EXPECT_EQ(entries[position]->logprob, token_logprob({.logits = logits, .token = submit.prompt[position]}, top));
        EXPECT_EQ(entries[position]->top[1].token, top[1].token);
      }
      world.expect_oracle(id, choice);
      EXPECT_EQ(world.record(id, choice).logprobs.size(), 3u);
      EXPECT_EQ(world.record(id, choice).logprobs[0].top.size(), 2u);
    }
  }
}

TEST(EngineLoop, MaxTokensZeroWithPromptLogprobsGeneratesNothing) {
  World world;
  Submit submit = simple(20, 0);
  submit.prompt_logprobs = true;
  submit.sampling.logprobs = 0;
  const RequestId id = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(id).end, EndReason::kLength);
  EXPECT_TRUE(world.record(id).tokens.empty());
  EXPECT_EQ(world.record(id).first.prompt_logprobs.size(), 20u);
}

TEST(EngineLoop, EmbeddingsOfLastAndMeanRow) {
  World world({.step_tokens = 16});
  world.files.put("/a", 11);
  world.command(AdapterAction::kAdd, "a", "/a");
  for (const bool adapted_text : {false, true}) {
    Submit submit = simple(50, 0, 6);
    if (adapted_text) submit.adapters = {{source_of("a"), 0.5f}};
    const auto chain =
        hash_chain(submit.prompt, adapted_text ? std::vector<FakeUse>{{11, 0.5f, 0}} : std::vector<FakeUse>{});
    submit.pooling = Pooling::kLast;
    const RequestId last = world.submit(submit);
    submit.pooling = Pooling::kMean;
    const RequestId mean = world.submit(submit);
    world.run();
    for (int32_t i = 0; i < kHidden; ++i) {
      double sum = 0;
      for (const uint64_t hash : chain) sum += fake_hidden(hash, i);
      EXPECT_EQ(world.record(last).last.embedding.at(static_cast<size_t>(i)), fake_hidden(chain.back(), i));
      EXPECT_EQ(world.record(mean).last.embedding.at(static_cast<size_t>(i)), static_cast<float>(sum / 50));
    }
    EXPECT_EQ(world.record(mean).end, EndReason::kStop);
  }
}

// Token i of 1..26 is a letter; the form is any number of a and b, then one c.
TEST(EngineLoop, AGrammarHoldsItsSequenceAndEndsItThroughPreemption) {
  std::vector<GrammarToken> tokens{{kEos, "", GrammarToken::Kind::kEnd}};
  for (int32_t id = 1; id <= 26; ++id) tokens.push_back({id, std::string(1, static_cast<char>('a' + id - 1))});
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  builder.add_range(builder.start(root), 'a', 'b', builder.start(root));
  builder.end_rule(builder.literal(builder.start(root), "c"));
  Submit submit = simple(20, 100, 1);
  submit.ignore_eos = false;
  submit.sampling.grammar = std::move(std::move(builder).finish(root)).value();
  submit.sampling.vocab_trie = std::move(VocabTrie::build(std::move(tokens), kVocab)).value();
  submit.sampling.logit_bias = {{3, -4.0f}};  // a long text before the end
  World alone, crowded({.blocks = 14, .max_sequences = 6, .step_tokens = 24});
  const RequestId wanted = alone.submit(submit);
  alone.run();
  const auto& record = alone.record(wanted);
  ASSERT_GT(record.tokens.size(), 5u);
  EXPECT_EQ(record.end, EndReason::kStop);
  EXPECT_FALSE(record.last.stop_token.has_value());  // c is text; nothing but the end could follow
  EXPECT_EQ(record.tokens.back(), 3);
  for (size_t i = 0; i + 1 < record.tokens.size(); ++i) EXPECT_TRUE(record.tokens[i] == 1 || record.tokens[i] == 2);

  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(crowded.submit(simple(20, 60, i)));
  ids.push_back(crowded.submit(submit));
  crowded.run();
  EXPECT_EQ(crowded.record(ids.back()).tokens, record.tokens);
  EXPECT_GT(crowded.stats().preemptions, 0u);
}

// Rows, what they attend to, adapters: as whoever costs the step needs them.
TEST(EngineLoop, EveryStepLeavesARecord) {
  std::vector<StepRecord> records;
  World world({.on_step = [&](const StepRecord& record) { records.push_back(record); }});
  world.executor.clock = &world.clock;
  world.executor.step_ns = 7'000'000;
  for (const char* name : {"a", "b"}) {
    world.files.put(std::string("/") + name, name[0] == 'a' ? 11 : 22);
    world.command(AdapterAction::kLoad, name, std::string("/") + name);
  }
  world.run();
  ASSERT_TRUE(records.empty());
  const RequestId first = world.submit(simple(20, 3, 1, {{source_of("a"), 1.0f}}));
  const RequestId second = world.submit(simple(5, 3, 2, {{source_of("a"), 0.5f}, {source_of("b"), 1.0f}}));
  const RequestId base = world.submit(simple(1, 2, 3));
  world.run();
  ASSERT_EQ(records.size(), 3u);
  const StepRecord& prompts = records[0];
  EXPECT_EQ(prompts.ns, 7'000'000);
  EXPECT_EQ(prompts.admitted, (std::vector<RequestId>{first, second, base}));
  EXPECT_EQ(prompts.features, (StepFeatures{.prefill_rows = 25,
                                            .decode_rows = 1,
                                            .prefill_attended = 20 * 21 / 2 + 5 * 6 / 2,
                                            .decode_attended = 1,
                                            .logits_rows = 3,
                                            .adapters = 2,
                                            .rank_sum = 8,
                                            .rank_max = 4,
                                            .lora_rows = 20 + 2 * 5,
                                            .lora_row_ranks = 4 * (20 + 2 * 5)}));
  const StepFeatures& decode = records[1].features;
  EXPECT_EQ(decode.prefill_rows, 0);
  EXPECT_EQ(decode.decode_rows, 3);
  EXPECT_EQ(decode.decode_attended, 21 + 6 + 2);
  EXPECT_EQ(decode.lora_rows, 1 + 2);
  EXPECT_TRUE(records[1].admitted.empty());
  EXPECT_EQ(records[2].features.decode_rows, 2);
  EXPECT_EQ(records[2].step, records[0].step + 2);
  world.executor.fail_next = true;
  world.submit(simple(4, 2, 4));
  world.run();
  EXPECT_EQ(records.size(), 3u) << "a step that failed says nothing of time";
}

}  // namespace
}  // namespace loralei
