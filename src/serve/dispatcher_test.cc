// SPDX-License-Identifier: Apache-2.0
#include "serve/dispatcher.h"

#include <gtest/gtest.h>

#include <atomic>

#include "serve/fake_engine_test_util.h"

namespace loralei {
namespace {

TEST(Dispatcher, IsNotIdleWhileAReplyIsOwed) {
  FakeEngine engine;
  engine.hold_replies = true;
  SteadyClock clock;
  Dispatcher dispatcher(engine, clock);
  std::atomic<int> answered{0};
  const auto pinned = [&](const CommandReply& reply) { answered += reply.status.ok(); };
  const auto loaded = [&](const CommandReply& reply) {  // and asks for more
    answered += reply.status.ok();
    EXPECT_TRUE(dispatcher.command({0, AdapterAction::kPin, {{1}, "a", "/a"}}, pinned).ok());
    engine.release_replies();
  };
  ASSERT_TRUE(dispatcher.command({0, AdapterAction::kLoad, {{1}, "a", "/a"}}, loaded).ok());
  EXPECT_FALSE(dispatcher.wait_idle(0));
  engine.release_replies();
  EXPECT_TRUE(dispatcher.wait_idle(30'000));
  EXPECT_EQ(answered, 2);
}

TEST(Dispatcher, NewsOfAdaptersAreOnTheBoardBeforeTheReply) {
  FakeEngine engine;
  SteadyClock clock;
  Dispatcher dispatcher(engine, clock);
  std::atomic<int> rounds{0};
  for (uint64_t id = 1; id <= 200; ++id) {
    const auto dropped = [&](const CommandReply&) {
      EXPECT_TRUE(dispatcher.adapters().list().empty());
      ++rounds;
    };
    const auto loaded = [&, id](const CommandReply&) {
      const AdapterList list = dispatcher.adapters().list();
      ASSERT_EQ(list.size(), 1u);
      EXPECT_EQ(list[0]->source.id, AdapterSourceId{id});
      EXPECT_TRUE(dispatcher.command({0, AdapterAction::kDrop, {{id}, "a", "/a"}}, dropped).ok());
    };
    ASSERT_TRUE(dispatcher.command({0, AdapterAction::kLoad, {{id}, "a", "/a"}}, loaded).ok());
    ASSERT_TRUE(dispatcher.wait_idle(30'000));
  }
  EXPECT_EQ(rounds, 200);
}

TEST(Dispatcher, ACommandThatTheEngineRefusesLeavesNothingOwed) {
  FakeEngine engine;
  engine.next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  SteadyClock clock;
  Dispatcher dispatcher(engine, clock);
  EXPECT_FALSE(dispatcher.command({0, AdapterAction::kPin, {{1}, "a", "/a"}}, [](const CommandReply&) {}).ok());
  EXPECT_TRUE(dispatcher.wait_idle(0));
}

}  // namespace
}  // namespace loralei
