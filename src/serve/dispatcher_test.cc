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
