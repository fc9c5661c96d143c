// SPDX-License-Identifier: Apache-2.0
// What is told of the KV cache when somebody asks, and what goes when an application is
// killed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

struct AskedWorld : World {
  using World::World;
  KvState ask(int32_t listed_max = 100) {
    messages.emplace_back(KvCommand{++tickets, listed_max});
    turn();
    EXPECT_EQ(replies.back().ticket, tickets);
    return *replies.back().kv;
  }
  int64_t kill(const std::string& id) {
    messages.emplace_back(AppCommand{++tickets, id, AppState::kKilled});
    turn();
    EXPECT_EQ(replies.back().ticket, tickets);
    EXPECT_TRUE(replies.back().status.ok());
    return replies.back().bytes_freed;
  }
  RequestId ask_as(const std::string& app, int prompt, int salt) {
    Submit request = simple(prompt, 5, salt);
    request.app_id = app;
    return submit(request);
  }
};

TEST(EngineLoopKvState, SaysWhatIsHeldAndWhatWasFoundAgain) {
  AskedWorld world;
  world.submit(simple(40, 5, 1));
  world.run();
  world.submit(simple(40, 5, 1));
  world.run();
  const KvState state = world.ask();
  EXPECT_EQ(state.block_tokens, kKvBlockTokens);
  EXPECT_EQ(state.running_tokens, 0);
  EXPECT_EQ(state.free_tokens + state.cached_tokens, state.total_tokens);
  EXPECT_EQ(state.held_tokens, state.cached_tokens);
  EXPECT_EQ(state.text_tokens, state.held_tokens) << "one alone computed";
  ASSERT_EQ(state.holders, 1);
  ASSERT_EQ(state.first.size(), 1u);
  EXPECT_TRUE(state.first[0].adapters.empty());
  EXPECT_EQ(state.first[0].hit_tokens, 32);
  EXPECT_GE(state.first[0].saved_s, 0);
  EXPECT_TRUE(state.apps.empty()) << "nobody named one";
  EXPECT_TRUE(world.ask(0).first.empty());
  EXPECT_EQ(world.ask(0).holders, 1);
}

TEST(EngineLoopKvState, WhatAKilledApplicationAloneUsedGoes) {
  AskedWorld world;
  world.ask_as("mail", 40, 1);
  world.ask_as("notes", 40, 2);
  world.run();
  world.ask_as("mail", 40, 2);
  world.run();
  const KvState before = world.ask();
  ASSERT_EQ(before.apps.size(), 2u);
  EXPECT_EQ(before.apps[0].id, "mail");
  EXPECT_GT(before.apps[0].tokens, before.apps[0].alone_tokens);
  EXPECT_GT(before.apps[0].alone_tokens, 0);
  const int64_t freed = world.kill("mail");
  EXPECT_EQ(freed, before.apps[0].alone_tokens / kKvBlockTokens * before.block_bytes);
  const KvState after = world.ask();
  EXPECT_EQ(after.held_tokens, before.held_tokens - before.apps[0].alone_tokens);
  EXPECT_EQ(world.kill("nobody"), 0);
}

// Whoever is killed while it computes is answered all the same, and leaves nothing.
TEST(EngineLoopKvState, ARequestOfAKilledApplicationEndsAsIfItWereNot) {
  AskedWorld world;
  const RequestId id = world.ask_as("mail", 60, 3);
  for (int i = 0; i < 3; ++i) world.turn();
  EXPECT_EQ(world.kill("mail"), 0) << "it is leased";
  world.run();
  world.expect_oracle(id);
  EXPECT_EQ(world.ask().held_tokens, 0);
  world.expect_nothing_held();
  // It asks again: it lives.
  world.ask_as("mail", 60, 3);
  world.run();
  EXPECT_GT(world.ask().held_tokens, 0);
}

}  // namespace
}  // namespace loralei
