// SPDX-License-Identifier: Apache-2.0
// Speculation through the engine loop: the same text, log-probabilities and ends
// as without it, in fewer steps. The oracle computes one token after the other and
// knows of no drafts.
#include <gtest/gtest.h>

#include "engine/loop_test_world.h"
#include "sampling/grammar.h"

namespace loralei {
namespace {

using namespace testing_support;

WorldOptions guessing(WorldOptions setup = {}) {
  setup.speculate = Speculation::kLookup;
  setup.draft_rows = 24;
  return setup;
}

// The same events but for their number per step.
void expect_same(World& got, World& want) {
  ASSERT_EQ(got.records.size(), want.records.size());
  for (auto& [key, record] : want.records) {
    SCOPED_TRACE(testing::Message() << "request " << key.first.value << " choice " << key.second);
    const World::Record& other = got.records[key];
    EXPECT_EQ(other.tokens, record.tokens);
    EXPECT_EQ(other.events, record.events);
    EXPECT_EQ(other.end, record.end);
    EXPECT_EQ(other.last.stop_token, record.last.stop_token);
    ASSERT_EQ(other.logprobs.size(), record.logprobs.size());
    for (size_t i = 0; i < record.logprobs.size(); ++i) {
      EXPECT_EQ(other.logprobs[i].logprob, record.logprobs[i].logprob);
      ASSERT_EQ(other.logprobs[i].top.size(), record.logprobs[i].top.size());
      for (size_t j = 0; j < record.logprobs[i].top.size(); ++j)
        EXPECT_EQ(other.logprobs[i].top[j].token, record.logprobs[i].top[j].token);
    }
    EXPECT_EQ(other.first.prompt_logprobs.size(), record.first.prompt_logprobs.size());
  }
}

// Runs the requests with and without drafts; answers the figures with them.
EngineStats run_both(const std::vector<Submit>& requests, const WorldOptions& setup) {
  World plain(setup), guesses(guessing(setup));
  for (World* world : {&plain, &guesses}) {
    world->files.put("/a", 11);
    world->command(AdapterAction::kAdd, "a", "/a");
    world->submit_all(requests);
    world->run();
    for (const auto& [id, submit] : world->submits) {
      if (submit.sampling.grammar != nullptr) continue;  // the oracle knows none
      for (int32_t choice = 0; choice < submit.choices; ++choice) world->expect_oracle(id, choice);
    }
    world->expect_nothing_held();
  }
  expect_same(guesses, plain);
  const EngineStats stats = guesses.stats(), before = plain.stats();
  EXPECT_EQ(before.drafted_tokens, 0u);
  EXPECT_EQ(stats.generated_tokens, before.generated_tokens);
  EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);  // some guesses are wrong
  EXPECT_GT(stats.accepted_tokens, 0u);
  EXPECT_LT(stats.steps, before.steps);
  return stats;
}

TEST(Speculation, ATextThatRepeatsItselfTakesFewerSteps) {
  World plain, guesses(guessing());
  for (World* world : {&plain, &guesses}) {
    const RequestId id = world->submit(repeating(10, 100, 1, {3}));
    world->run();
    world->expect_oracle(id);
    EXPECT_EQ(world->record(id).events, 100);
  }
  EXPECT_EQ(plain.executor.steps, 100);
  EXPECT_LT(guesses.executor.steps, 20);  // up to nine tokens a step
  EXPECT_EQ(guesses.stats().accepted_tokens, guesses.stats().drafted_tokens);
}

TEST(Speculation, ATextThatDoesNotRepeatItselfCostsFewRows) {
  World plain, guesses(guessing());
  for (World* world : {&plain, &guesses}) {
    const RequestId id = world->submit(simple(40, 200, 1));
    world->run();
    world->expect_oracle(id);
  }
  EXPECT_LT(guesses.executor.rows - plain.executor.rows, 40);
}

TEST(Speculation, GreedyAndSampledTextIsTheSame) {
  std::vector<Submit> requests;
  for (int salt = 0; salt < 6; ++salt) {
    Submit submit = repeating(10 + 7 * salt, 80, salt, {3, 4});
    submit.sampling.temperature = salt % 2 == 0 ? 0.0f : 1.0f;
    submit.sampling.top_p = salt % 3 == 1 ? 0.8f : 1.0f;
    submit.sampling.top_k = salt % 3 == 2 ? 3 : 0;
    requests.push_back(submit);
  }
  run_both(requests, {});
}

TEST(Speculation, PenaltiesSeeTheTokensOfTheSameStep) {
  std::vector<Submit> requests;
  for (int salt = 0; salt < 6; ++salt) {
    Submit submit = repeating(20, 80, salt, {3, 4, 5});
    submit.sampling.repetition_penalty = salt % 2 == 0 ? 1.02f : 1.0f;
    submit.sampling.frequency_penalty = salt % 3 == 0 ? 0.5f : 0.0f;
    submit.sampling.presence_penalty = salt % 3 == 1 ? 1.0f : 0.0f;
    requests.push_back(submit);
  }
  run_both(requests, {});
}

TEST(Speculation, StopsWhereItShould) {
  std::vector<Submit> requests;
  for (int salt = 0; salt < 8; ++salt) {
    Submit submit = repeating(20, 60, salt, {3, 4});
    submit.ignore_eos = salt % 2 == 0;
    submit.stop_ids = {5, 6};
    submit.min_tokens = salt % 3 == 0 ? 20 : 0;
    submit.sampling.logit_bias.emplace_back(salt % 2 == 0 ? 5 : kEos, 47.0f);  // now and then
    submit.prompt[5] = submit.prompt[9] = 5;
    requests.push_back(submit);
  }
  run_both(requests, {});
  requests.clear();
  for (int salt = 0; salt < 40; ++salt) {  // the end itself is guessed
    Submit submit = repeating(12, 60, salt, {3, 4, 5});
    submit.prompt = {3, 3, 5, 3, 4, 5, 4, 3, 5, 4, 4, 5};
    submit.stop_ids = {5};
    requests.push_back(submit);
  }
  run_both(requests, {.step_tokens = 128});
  requests.clear();
  for (int output = 1; output <= 12; ++output) requests.push_back(repeating(20, output, 1, {3, 4}));
  run_both(requests, {.max_model_len = 29});  // ends at the model's length and at max_tokens
}

TEST(Speculation, LogprobsChoicesAndAdapters) {
  std::vector<Submit> requests;
  for (int salt = 0; salt < 5; ++salt) {
    Submit submit = repeating(70, 50, salt, {3, 4});
    submit.sampling.logprobs = salt;
    submit.prompt_logprobs = salt % 2 == 0;
    submit.choices = 1 + salt % 3;
    if (salt % 2 == 1) submit.adapters = {{source_of("a"), 0.5f}};
    requests.push_back(submit);
  }
  run_both(requests, {.step_tokens = 40});  // prompts in chunks
}

TEST(Speculation, PreemptionIsInvisible) {
  std::vector<Submit> requests;
  for (int salt = 0; salt < 6; ++salt) requests.push_back(repeating(20, 60, salt, {3, 4}));
  const EngineStats stats = run_both(requests, {.blocks = 14, .max_sequences = 6, .step_tokens = 40});
  EXPECT_GT(stats.preemptions, 0u);
}

// What a rejected guess wrote into the KV cache must never be found by a later request.
TEST(Speculation, OnlyAcceptedPositionsArePublished) {
  World world(guessing());
  Submit submit = repeating(20, 90, 1, {3, 4, 5});
  const RequestId first = world.submit(submit);
  world.run();
  world.expect_oracle(first);
  ASSERT_GT(world.stats().drafted_tokens, world.stats().accepted_tokens);
  for (const int kept : {89, 60, 33}) {
    Submit longer = submit;
    const auto& tokens = world.record(first).tokens;
    longer.prompt.insert(longer.prompt.end(), tokens.begin(), tokens.begin() + kept);
    longer.max_tokens = 10;
    const RequestId id = world.submit(longer);
    world.run();
    EXPECT_EQ(world.record(id).first.cached_tokens, (20 + kept - 1) / 16 * 16);
    world.expect_oracle(id);
  }
}

// Token i of 1..26 is a letter.
std::shared_ptr<const VocabTrie> letters() {
  std::vector<GrammarToken> tokens{{kEos, "", GrammarToken::Kind::kEnd}};
  for (int32_t id = 1; id <= 26; ++id) tokens.push_back({id, std::string(1, static_cast<char>('a' + id - 1))});
  return VocabTrie::build(std::move(tokens), kVocab).value();
}

// The form is any number of a and b, then one c.
TEST(Speculation, AGrammarIsToldOfWhatHoldsAndNothingElse) {
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  builder.add_range(builder.start(root), 'a', 'b', builder.start(root));
  builder.end_rule(builder.literal(builder.start(root), "c"));
  std::vector<Submit> requests(40);
  for (Submit& submit : requests) {
    submit = simple(20, 100, static_cast<int>(&submit - requests.data()));
    submit.ignore_eos = false;
    submit.sampling.logit_bias = {{3, &submit < &requests[4] ? -4.0f : 0.0f}};  // long texts and short ones
    submit.prompt = {1, 2, 3, 1, 1, 2, 3, 2, 2, 3, 1, 2, 3};                    // the form's end is guessed, too
  }
  requests[0].sampling.grammar = std::move(std::move(builder).finish(root)).value();
  requests[0].sampling.vocab_trie = letters();
  for (Submit& submit : requests) {
    submit.sampling.grammar = requests[0].sampling.grammar;
    submit.sampling.vocab_trie = requests[0].sampling.vocab_trie;
  }
  run_both(requests, {.step_tokens = 128});
}

// A form that may end anywhere: behind an accepted guess an end token is drawn, and what
// was drawn before it stays text.
TEST(Speculation, AnEndTokenDrawnBehindAGuessEndsThereAndNotBefore) {
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  builder.add_range(builder.start(root), 'a', 'b', builder.start(root));
  builder.end_rule(builder.start(root));
  const std::shared_ptr<const GrammarProgram> grammar = std::move(std::move(builder).finish(root)).value();
  const std::shared_ptr<const VocabTrie> trie = letters();
  std::vector<Submit> requests(40);
  for (Submit& submit : requests) {
    submit = simple(20, 100, static_cast<int>(&submit - requests.data()));
    submit.ignore_eos = false;
    submit.prompt = {1, 2, 1, 1, 2, 2, 1, 2, 1, 1, 2, 2};
    submit.sampling.logit_bias = {{kEos, &submit < &requests[20] ? -2.0f : -4.0f}};
    submit.sampling.grammar = grammar;
    submit.sampling.vocab_trie = trie;
  }
  run_both(requests, {.step_tokens = 128});
}

TEST(Speculation, ACancelBetweenStepsEndsTheChoice) {
  World world(guessing());
  const RequestId id = world.submit(repeating(10, 200, 1, {3}));
  for (int i = 0; i < 6; ++i) world.turn();
  EXPECT_GT(world.record(id).events, 6);
  world.cancel(id);
  world.run();
  EXPECT_EQ(world.record(id).end, EndReason::kCancelled);
  world.expect_nothing_held();
}

TEST(Speculation, AFailedStepEndsItsSequences) {
  World world(guessing());
  const RequestId id = world.submit(repeating(10, 200, 1, {3}));
  for (int i = 0; i < 6; ++i) world.turn();
  world.executor.fail_next = true;
  world.run();
  EXPECT_EQ(world.record(id).end, EndReason::kError);
  world.expect_nothing_held();
}

TEST(Speculation, AutoFollowsTheStreaming) {
  World world({.draft_rows = 8});
  world.submit(repeating(10, 200, 1, {3}));
  for (int i = 0; i < 10; ++i) world.turn();
  EXPECT_EQ(world.stats().drafted_tokens, 0u);
  world.executor.streaming = true;
  for (int i = 0; i < 5; ++i) world.turn();
  const uint64_t drafted = world.stats().drafted_tokens;
  EXPECT_GT(drafted, 0u);
  world.executor.streaming = false;
  for (int i = 0; i < 5; ++i) world.turn();
  EXPECT_EQ(world.stats().drafted_tokens, drafted);
  World off({.speculate = Speculation::kOff, .draft_rows = 8});
  off.executor.streaming = true;
  off.submit(repeating(10, 50, 1, {3}));
  off.run();
  EXPECT_EQ(off.stats().drafted_tokens, 0u);
}

// A world in which a pass has taken so long, and weights are streamed from now on.
std::unique_ptr<World> streaming(int32_t max_sequences, int64_t step_ns) {
  auto world = std::make_unique<World>(WorldOptions{.max_sequences = max_sequences});
  world->executor.clock = &world->clock;
  world->executor.step_ns = step_ns;
  world->submit(simple(10, 3));
  EngineOutput output;
  const Next next = world->next(output);
  EXPECT_NE(next.step, nullptr) << "nothing is streamed: nobody waits";
  world->compute(*next.step, output);
  world->run();
  world->executor.streaming = true;
  return world;
}

TEST(Gathering, WaitsAMomentFromIdleAndOnlyWhileStreaming) {
  const auto made = streaming(2, 160'000'000);
  World& world = *made;
  EngineOutput output;
  Next next = world.next(output);
  EXPECT_TRUE(next.step == nullptr && next.wake_at_ns == Next::kNever) << "nothing to compute";
  world.submit(simple(10, 3));
  const int64_t until_ns = world.clock.now_ns() + 10'000'000;
  for (int i = 0; i < 2; ++i) {
    next = world.next(output);
    EXPECT_TRUE(next.step == nullptr && next.wake_at_ns == until_ns);
    world.clock.advance_ns(1'000'000);
  }
  world.submit(simple(10, 3));
  world.executor.step_ns = 10'000'000'000;
  next = world.next(output);
  ASSERT_NE(next.step, nullptr) << "full";
  world.compute(*next.step, output);
  EXPECT_EQ(world.stats().running, 2);
  next = world.next(output);
  ASSERT_NE(next.step, nullptr) << "a step follows anyway";
  world.compute(*next.step, output);
  world.run();
  world.submit(simple(10, 3));
  EXPECT_EQ(world.next(output).wake_at_ns, world.clock.now_ns() + 50'000'000);
  world.clock.advance_ns(50'000'000);
  next = world.next(output);
  ASSERT_NE(next.step, nullptr) << "nobody came";
  world.compute(*next.step, output);
  world.run();
}

TEST(Gathering, WaitsForAdaptersOnTheirWay) {
  const auto made = streaming(8, 160'000'000);
  World& world = *made;
  const int64_t steps = world.executor.steps;
  for (const std::string name : {"a", "b"}) {
    world.files.put("/" + name, name == "a" ? 11 : 12);
    world.command(AdapterAction::kAdd, name, "/" + name);
    world.submit(simple(10, 3, 1, {{source_of(name), 1.0f}}));
  }
  EngineOutput output;
  const auto look = [&] {
    Next next;
    for (int i = 0; i < 3; ++i) {
      next = world.next(output);
      EXPECT_EQ(next.step, nullptr);
    }
    return next.wake_at_ns;
  };
  for (int stage = 0; stage < 2; ++stage) {  // looked at, then loaded
    EXPECT_EQ(look(), Next::kNever) << "nobody is ready: no step to hold back";
    ASSERT_EQ(world.jobs.size(), 2u);  // before any step
    world.finish_load();
    if (stage == 0) world.finish_load();
  }
  const int64_t until_ns = world.clock.now_ns() + 10'000'000;
  EXPECT_EQ(look(), until_ns);
  world.clock.advance_ns(5'000'000);
  world.finish_load();
  EXPECT_EQ(look(), until_ns);
  world.turn();
  EXPECT_EQ(world.stats().running, 2);
  EXPECT_EQ(world.executor.steps, steps + 1);
}

}  // namespace
}  // namespace loralei
