// SPDX-License-Identifier: Apache-2.0
// The engine loop over a model whose sequences have states. The fake executor takes the
// state it is given into each row's hash, so that an answer differs from that of a
// sequence alone where a state is another's, is of another position, or was fed a row
// twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "engine/loop_traffic_test_util.h"

namespace loralei {
namespace {

using namespace testing_support;

WorldOptions roomy() { return {.blocks = 400, .states = 24, .step_tokens = 64, .max_model_len = 400}; }

TEST(LoopStates, AFoundPrefixIsAColdOne) {
  World world(roomy());
  const std::vector<int> lengths = {200, 200, 90, 350, 60, 351};
  for (const int length : lengths) {
    const RequestId id = world.submit(simple(length, 20, 0));
    world.run();
    world.expect_oracle(id);
  }
  // 200: 12 blocks. 90: nobody kept a state within its five. 350: from 192 on, and the
  // last from 336.
  EXPECT_EQ(world.stats().prefix_hits, 192u + 192u + 336u);
  EXPECT_EQ(world.stats().kv_states.found, 3u);
  EXPECT_EQ(world.record(RequestId{2}).first.cached_tokens, 192);
  world.expect_nothing_held();
  EXPECT_EQ(world.stats().kv_states.running, 0);
}

// The system's prompt of many: from the third on it is found.
TEST(LoopStates, ASharedBeginningIsFoundFromTheThirdOn) {
  World world(roomy());
  std::vector<int32_t> cached;
  for (int user = 0; user < 4; ++user) {
    Submit submit = simple(150, 10, 0);
    const std::vector<TokenId> question = prompt_of(70, user + 1);
    submit.prompt.insert(submit.prompt.end(), question.begin(), question.end());
    const RequestId id = world.submit(submit);
    world.run();
    world.expect_oracle(id);
    cached.push_back(world.record(id).first.cached_tokens);
  }
  EXPECT_EQ(cached, (std::vector<int32_t>{0, 0, 144, 144}));
}

TEST(LoopStates, AdaptersAndSaltsHaveStatesOfTheirOwn) {
  World world(roomy());
  for (const char* name : {"a", "b"}) {
    world.files.put(std::string("/") + name, static_cast<uint64_t>(name[0]));
    world.command(AdapterAction::kAdd, name, std::string("/") + name);
  }
  const auto with = [](const std::vector<std::pair<std::string, float>>& adapters, const std::string& salt) {
    Submit submit = simple(150, 10, 0);
    for (const auto& [name, scale] : adapters) submit.adapters.push_back({source_of(name), scale});
    submit.cache_salt = salt;
    return submit;
  };
  const std::vector<Submit> all = {with({}, ""),
                                   with({}, "x"),
                                   with({{"a", 1.0f}}, ""),
                                   with({{"a", 0.5f}}, ""),
                                   with({{"a", 1.0f}}, "x"),
                                   with({{"b", 1.0f}}, ""),
                                   with({{"a", 1.0f}, {"b", 0.5f}}, ""),
                                   with({{"b", 0.5f}, {"a", 1.0f}}, "")};
  for (const int32_t expected : {0, 144}) {
    for (const Submit& submit : all) {
      const RequestId id = world.submit(submit);
      world.run();
      world.expect_oracle(id);
      EXPECT_EQ(world.record(id).first.cached_tokens, expected);
    }
  }
}

TEST(LoopStates, ChoicesBeginWithTheStateOfTheirPrompt) {
  World world(roomy());
  Submit submit = simple(150, 20, 3);
  submit.choices = 4;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 4; ++choice) {
    world.expect_oracle(id, choice);
    EXPECT_EQ(world.record(id, choice).first.cached_tokens, choice == 0 ? 0 : 144);
  }
  world.expect_nothing_held();
}

// Log-probabilities of a prompt and means of its hidden states are of all its rows.
TEST(LoopStates, WhatWantsAllRowsBeginsWithNothing) {
  World world(roomy());
  for (int round = 0; round < 2; ++round) {
    Submit submit = simple(150, 10, 0);
    submit.prompt_logprobs = true;
    const RequestId id = world.submit(submit);
    world.run();
    world.expect_oracle(id);
    EXPECT_EQ(world.record(id).first.prompt_logprobs.size(), 150u);
    EXPECT_EQ(world.record(id).first.cached_tokens, 0);
    Submit embedding = simple(150, 0, 0);
    embedding.pooling = Pooling::kMean;
    const RequestId mean = world.submit(embedding);
    world.run();
    const std::vector<uint64_t> chain = hash_chain(embedding.prompt, {});
    double sum = 0;
    for (const uint64_t hash : chain) sum += fake_hidden(hash, 0);
    ASSERT_EQ(world.record(mean).last.embedding.size(), static_cast<size_t>(kHidden));
    EXPECT_EQ(world.record(mean).last.embedding[0], static_cast<float>(sum / 150));
    embedding.pooling = Pooling::kLast;
    const RequestId last = world.submit(embedding);
    world.run();
    EXPECT_EQ(world.record(last).last.embedding[0], fake_hidden(chain.back(), 0));
  }
}

TEST(LoopStates, NobodyGuessesSinceAStateCannotBeTakenBack) {
  WorldOptions setup = roomy();
  setup.speculate = Speculation::kLookup;
  setup.draft_rows = 32;
  World world(setup);
  const RequestId id = world.submit(repeating(60, 100, 1, {3, 4}));
  world.run();
  world.expect_oracle(id);
  EXPECT_EQ(world.stats().drafted_tokens, 0u);
}

TEST(LoopStates, PreemptionIsInvisible) {
  for (const bool prefix_cache : {true, false}) {
    WorldOptions setup{.blocks = 10, .states = 6, .max_sequences = 6, .step_tokens = 24, .max_model_len = 120};
    setup.prefix_cache = prefix_cache;
    World world(setup);
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) ids.push_back(world.submit(simple(20, 80, i)));
    world.run();
    EXPECT_GT(world.stats().preemptions, 0u);
    for (const RequestId id : ids) {
      world.expect_oracle(id);
      EXPECT_EQ(world.record(id).tokens.size(), 80u);
    }
    world.expect_nothing_held();
  }
}

// A slot for each that runs, and none beside them: all the same, without copies.
TEST(LoopStates, WhereThereAreNoMoreSlotsThanSequencesNobodyWaitsForACopy) {
  WorldOptions setup = roomy();
  setup.max_sequences = setup.states = 3;
  World world(setup);
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(world.submit(simple(150, 30, i % 2)));
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  world.expect_nothing_held();
  EXPECT_LE(world.stats().kv_states.snapshots, 3);
}

// Those that were to begin with a copy which gave way in the same turn begin in the next
// with what there is.
TEST(LoopStates, ACopyThatGivesWayToAnotherThatBeginsIsPlannedAnew) {
  WorldOptions setup = roomy();
  setup.max_sequences = setup.states = 3;
  World world(setup);
  for (int i = 0; i < 2; ++i) {
    world.submit(simple(150, 2, i));
    world.run();
  }
  ASSERT_EQ(world.stats().kv_states.snapshots, 2);
  // Three begin at once: a new text, then the two of which there is a copy.
  std::vector<RequestId> ids;
  for (const int salt : {7, 1, 0}) ids.push_back(world.submit(simple(150, 10, salt)));
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  world.expect_nothing_held();
}

TEST(LoopStates, AStepThatFailsEndsItsRequestsAndLeavesNoStateOfIt) {
  World world(roomy());
  const RequestId first = world.submit(simple(150, 20, 0));
  world.turn();
  world.turn();
  world.executor.fail_next = true;
  world.turn();
  EXPECT_EQ(world.record(first).end, EndReason::kError);
  EXPECT_EQ(world.stats().kv_states.running, 0);
  const RequestId second = world.submit(simple(150, 20, 0));
  world.run();
  world.expect_oracle(second);
}

TEST(LoopStates, ADecodeStepAllocatesNothing) {
  WorldOptions setup = roomy();
  setup.max_sequences = 8;
  World world(setup);
  for (int i = 0; i < 8; ++i) world.submit(simple(20, 370, i));
  for (int i = 0; i < 100; ++i) world.turn();
  ASSERT_EQ(world.stats().running, 8);
  EngineOutput output;
  output.tokens.reserve(4000);
  start_counting_allocations();
  for (int i = 0; i < 60; ++i) {
    world.clock.advance_ns(1000);
    world.turn(output);
  }
  const int64_t allocations = stop_counting_allocations().count;
  EXPECT_EQ(output.tokens.size(), 480u);
  EXPECT_EQ(allocations, 0);
}

TEST(LoopStates, WhoAsksIsToldOfThem) {
  World world(roomy());
  world.submit(simple(150, 5, 0));
  world.run();
  world.messages.emplace_back(KvCommand{++world.tickets, 100});
  world.turn();
  const auto& states = world.replies.back().kv->states;
  ASSERT_TRUE(states.has_value());
  EXPECT_EQ(states->slots, 24);
  EXPECT_EQ(states->snapshots, 1);
  EXPECT_EQ(states->running, 0);
  EXPECT_EQ(states->bytes, 24 * 128);
  EXPECT_EQ(states->kept, 1u);
}

// Arrivals with and without adapters, cancels, holds, choices, a cache that shrinks and
// grows, and as few slots as sequences, or more.
TEST(LoopStates, RandomTrafficGetsWhatItWouldAlone) {
  uint64_t preemptions = 0, found = 0, dropped = 0;
  for (uint64_t seed = 1; seed <= 40 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    WorldOptions setup{.blocks = 16, .blocks_max = 60, .max_model_len = 256};
    setup.max_sequences = 1 + static_cast<int32_t>(random.below(8));
    setup.states = setup.max_sequences + static_cast<int32_t>(random.below(8));
    setup.step_tokens = setup.max_sequences + static_cast<int32_t>(random.below(100));
    setup.prefix_cache = random.below(5) != 0;
    if (seed % 3 == 0) setup.kv_eviction = KvEviction::kDensity;
    if (seed % 3 == 1) setup.kv_eviction = KvEviction::kUtility;
    World world(setup);
    for (const char* name : {"a", "b"}) {
      world.files.put(std::string("/") + name, static_cast<uint64_t>(name[0]));
      world.command(AdapterAction::kAdd, name, std::string("/") + name);
    }
    std::map<RequestId, bool> disturbed;
    for (int step = 0; step < 500 && !testing::Test::HasFailure(); ++step) {
      const uint64_t choice = random.below(16);
      if (choice < 2) {
        Submit submit = simple(1 + static_cast<int>(random.below(200)), 1 + static_cast<int>(random.below(50)),
                               static_cast<int>(random.below(2)));
        submit.choices = 1 + static_cast<int32_t>(random.below(3) * random.below(2));
        submit.prompt_logprobs = random.below(8) == 0;
        if (random.below(3) == 0) submit.adapters.push_back({source_of(random.below(2) == 0 ? "a" : "b"), 1.0f});
        if (random.below(8) == 0) submit.adapters.push_back({source_of("b"), 0.5f});
        world.submit(submit);
      } else if (choice == 2 && world.last_id > 0) {
        const RequestId id{1 + random.below(world.last_id)};
        disturbed[id] = true;
        world.cancel(id);
      } else if (choice == 3) {
        world.resize(16 + static_cast<int32_t>(random.below(45)));
      } else if (choice == 4 && world.last_id > 0) {
        world.hold(RequestId{1 + random.below(world.last_id)}, random.below(3) == 0);
      }
      if (random.below(4) == 0) world.finish_load();
      world.turn();
    }
    for (uint64_t id = 1; id <= world.last_id; ++id) world.hold(RequestId{id}, false);
    world.run(20000);
    for (const auto& [id, submit] : world.submits) {
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        if (disturbed.count(id) == 0) world.expect_oracle(id, choice);
      }
    }
    world.expect_nothing_held();
    const EngineStats stats = world.stats();
    preemptions += stats.preemptions;
    found += stats.kv_states.found;
    dropped += stats.kv_states.dropped;
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(found, 100u);
  EXPECT_GT(dropped, 200u);
}

}  // namespace
}  // namespace loralei
