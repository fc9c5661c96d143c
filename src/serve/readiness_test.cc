// SPDX-License-Identifier: Apache-2.0
#include "serve/readiness.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/text_pool.h"

namespace loralei {
namespace {

using Json = nlohmann::json;

AdapterList list_of(const std::vector<AdapterStatus>& statuses) {
  AdapterList list;
  for (const AdapterStatus& status : statuses) list.push_back(std::make_shared<const AdapterStatus>(status));
  return list;
}

ServerState healthy() {
  ServerState state;
  state.max_queued = 10;
  state.adapters = list_of({{.source = {.id = {1}, .label = "a", .path = "/a"}, .tier = AdapterTier::kResident},
                            {.source = {.id = {2}, .label = "b", .path = "/b"}}});
  state.silences = {{"engine", 100}, {"text", 5}, {"adapter loader", 30'000}};
  return state;
}

// The one thing that it cannot do, and whether it is ready all the same.
void expect_one(const ServerState& state, const std::string& what, const std::string& why, bool ready) {
  const auto cannot = impediments(state);
  ASSERT_EQ(cannot.size(), 1u);
  EXPECT_EQ(cannot[0].what, what);
  EXPECT_NE(cannot[0].why.find(why), std::string::npos) << cannot[0].why;
  EXPECT_EQ(is_ready(cannot), ready);
  const Json body = Json::parse(readiness_body(cannot));
  EXPECT_EQ(body["status"], ready ? "ready" : "not ready");
  EXPECT_EQ(body["cannot"][0]["what"], what);
}

TEST(Readiness, SaysNothingWhereNothingIsWrong) {
  EXPECT_TRUE(impediments(healthy()).empty());
  EXPECT_EQ(readiness_body({}), R"({"status":"ready"})");
}

TEST(Readiness, TellsWhatConcernsEveryRequest) {
  ServerState state = healthy();
  state.health = Error{ErrorCode::kUnavailable, "The GPU is lost."};
  expect_one(state, "requests", "The GPU is lost.", false);
  state = healthy();
  state.stats.ready = Error{ErrorCode::kUnavailable, "The weights are being made again."};
  expect_one(state, "requests", "The weights are being made again.", false);
  state = healthy();
  state.draining = true;
  expect_one(state, "requests", "draining", false);
  state = healthy();
  state.stats.waiting = 7;
  state.stats.waiting_for_adapter = 3;
  expect_one(state, "requests", "10 requests are waiting", false);
  for (const char* who : {"text", "dispatcher", "http"}) {
    state = healthy();
    state.silences = {{who, 25'000}};
    expect_one(state, "requests", who, false);
    EXPECT_EQ(impediments(state)[0].since_s, 25);
    EXPECT_FALSE(engine_is_stuck(state));
  }
}

TEST(Readiness, AStepMayTakeLongWhereTheLastOneDid) {
  ServerState state = healthy();
  state.silences = {{"engine", 130'000}};
  expect_one(state, "requests", "engine", false);
  EXPECT_TRUE(engine_is_stuck(state));
  state.stats.step_ms_last = 100'000;
  EXPECT_TRUE(impediments(state).empty());
  EXPECT_FALSE(engine_is_stuck(state));
}

TEST(Readiness, TellsWhatOthersNeedNotKnow) {
  ServerState state = healthy();
  state.adapters[1] = list_of({{.source = {.id = {2}, .label = "b", .path = "/b"},
                                .tier = AdapterTier::kFailed,
                                .error = "It has no room.\n"}})[0];
  expect_one(state, "some adapters", "b. It has no room.\\n", true);
  state.adapters[0] = state.adapters[1];
  expect_one(state, "adapters", "No adapter could be loaded", true);
  for (int i = 0; i < 10; ++i) state.adapters.push_back(state.adapters[1]);
  expect_one(state, "adapters", "and 7 more", true);
  state = healthy();
  state.silences = {{"adapter loader", 400'000}};
  expect_one(state, "adapters", "adapter loader", true);
  state = healthy();
  state.log = {12, 6000};
  expect_one(state, "logs", "12 have been dropped", true);
}

TEST(Readiness, AStuckTextThreadIsSeenAndForgottenWhenItGoesOn) {
  ManualClock clock;
  Heartbeats beats(clock);
  std::atomic<bool> stuck{true}, begun{false};
  TextPool pool(1, 10, "text", &beats);
  ASSERT_TRUE(pool.try_run({.bytes = 10, .run = [&](Work&) {
                              begun = true;
                              begun.notify_all();
                              stuck.wait(true);
                            }}));
  begun.wait(false);
  clock.advance_ns(21'000'000'000);
  ServerState state = healthy();
  state.silences = beats.silences();
  expect_one(state, "requests", "text", false);
  stuck = false;
  stuck.notify_all();
  ASSERT_TRUE(pool.wait_idle(10'000));
  state.silences = beats.silences();
  EXPECT_TRUE(impediments(state).empty());
}

}  // namespace
}  // namespace loralei
