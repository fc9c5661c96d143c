// SPDX-License-Identifier: Apache-2.0
#include "store/watch_state.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

using Act = WatchState::Act;

EtcdKeyValue kv(const std::string& key, int64_t revision, const std::string& value = "v") {
  return {.key = key, .value = value, .create_revision = revision, .mod_revision = revision};
}
EtcdRange range_at(int64_t revision, std::vector<EtcdKeyValue> keys) {
  return {.header = {"11", revision}, .keys = std::move(keys)};
}
EtcdWatchMessage created(int64_t revision, const std::string& cluster = "11") {
  EtcdWatchMessage message{.header = {cluster, revision}};
  message.created = true;
  return message;
}
EtcdWatchMessage events_at(int64_t revision, std::vector<EtcdEvent> events, bool fragment = false) {
  EtcdWatchMessage message{.header = {"11", revision}, .events = std::move(events)};
  message.fragment = fragment;
  return message;
}
const Error kAway{ErrorCode::kUnavailable, "away"};

class WatchStateTest : public testing::Test {
 protected:
  void begin() {
    EXPECT_EQ(state.act(), Act::kList);
    const WatchOutcome listed = state.listed(range_at(10, {kv("k/1", 4), kv("k/2", 7)}));
    ASSERT_TRUE(listed.news && listed.news->listed);
    EXPECT_EQ(listed.news->events.size(), 2u);
    EXPECT_EQ(state.act(), Act::kOpen);
    EXPECT_EQ(state.from_revision(), 11);
    state.opened();
    const WatchOutcome up = state.read(created(10));
    EXPECT_TRUE(up.turned && up.status->ok() && !up.news);
  }
  WatchState state{"k/", {.silence_ms = 100, .renew_ms = 300, .back_first_ms = 50, .back_most_ms = 150}, 0, 2};
};

TEST_F(WatchStateTest, GoesOnBehindWhatWasToldAtTheNextEndpoint) {
  begin();
  const WatchOutcome news = state.read(events_at(12, {{false, kv("k/1", 12)}}));
  EXPECT_EQ(news.news->revision, 12);
  const WatchOutcome down = state.ended(kAway);
  EXPECT_TRUE(down.turned && !down.status->ok());
  EXPECT_EQ(state.act(), Act::kRest);
  EXPECT_EQ(state.rest_ms(), 50);
  state.rested();
  EXPECT_EQ(state.act(), Act::kOpen);
  EXPECT_EQ(state.endpoint(), 1u);
  EXPECT_EQ(state.from_revision(), 13);
  state.opened();
  EXPECT_FALSE(state.ended(kAway).turned) << "that is known";
  EXPECT_EQ(state.rest_ms(), 100) << "longer each time";
  state.rested();
  state.opened();
  state.ended(kAway);
  EXPECT_EQ(state.rest_ms(), 150) << "and not longer than this";
  state.rested();
  state.opened();
  EXPECT_TRUE(state.read(created(12)).turned);
  EXPECT_FALSE(state.read(events_at(12, {{false, kv("k/1", 12)}})).news) << "it was told";
}

TEST_F(WatchStateTest, BehindACompactionTheDifferenceIsTold) {
  begin();
  EtcdWatchMessage gone{.header = {"11", 20}};
  gone.canceled = true;
  gone.compact_revision = 19;
  state.read(gone);
  EXPECT_EQ(state.act(), Act::kRest);
  state.rested();
  ASSERT_EQ(state.act(), Act::kList);
  const WatchOutcome listed = state.listed(range_at(20, {kv("k/2", 7), kv("k/3", 15)}));
  ASSERT_EQ(listed.news->events.size(), 2u);
  EXPECT_EQ(listed.news->events[0].kv.key, "k/3");
  EXPECT_TRUE(listed.news->events[1].removed);
  EXPECT_EQ(listed.news->events[1].kv.key, "k/1");
  EXPECT_FALSE(listed.news->anew);
  EXPECT_EQ(state.from_revision(), 21);
}

TEST_F(WatchStateTest, ARevisionIsToldAsAWhole) {
  begin();
  EXPECT_FALSE(state.read(events_at(11, {{false, kv("k/1", 11)}}, true)).news);
  const WatchOutcome whole = state.read(events_at(11, {{false, kv("k/4", 11)}}));
  ASSERT_TRUE(whole.news);
  EXPECT_EQ(whole.news->events.size(), 2u);
}

TEST_F(WatchStateTest, AnotherStoreIsListedAnew) {
  begin();
  state.ended(kAway);
  state.rested();
  state.opened();
  state.read(created(3, "12"));
  state.rested();
  ASSERT_EQ(state.act(), Act::kList);
  WatchOutcome listed = state.listed(EtcdRange{.header = {"12", 3}, .keys = {kv("k/9", 2)}});
  EXPECT_TRUE(listed.news->anew);
  EXPECT_EQ(listed.news->events.size(), 1u);
}

// A member that says less than was told may lag, which a probe shows.
TEST_F(WatchStateTest, RevisionsThatWentBackAreAskedAbout) {
  begin();
  state.read(events_at(14, {}));
  state.ended(kAway);
  state.rested();
  state.opened();
  state.read(created(12));
  ASSERT_EQ(state.act(), Act::kProbe);
  EXPECT_TRUE(state.probed(EtcdHeader{"11", 14}).status->ok());
  EXPECT_EQ(state.act(), Act::kRead) << "it lagged";
  state.ended(kAway);
  state.rested();
  state.opened();
  state.read(created(5));
  state.probed(EtcdHeader{"11", 5});
  state.rested();
  EXPECT_EQ(state.act(), Act::kList) << "it went back";
}

TEST_F(WatchStateTest, SilenceIsAskedAboutAndTheStreamRenewed) {
  begin();
  for (int i = 0; i < 2; ++i) {
    state.silent();
    ASSERT_EQ(state.act(), Act::kProbe);
    EXPECT_FALSE(state.probed(EtcdHeader{"11", 10}).status);
    EXPECT_EQ(state.act(), Act::kRead);
  }
  state.heard();
  state.silent();
  state.probed(EtcdHeader{"11", 10});
  EXPECT_EQ(state.act(), Act::kRead) << "it was not silent for long";
  for (int i = 0; i < 2; ++i) {
    state.silent();
    state.probed(EtcdHeader{"11", 10});
  }
  EXPECT_EQ(state.act(), Act::kRest);
  EXPECT_EQ(state.rest_ms(), 0) << "opened again at once";
  state.rested();
  EXPECT_EQ(state.act(), Act::kOpen);
  EXPECT_EQ(state.endpoint(), 0u);
  state.opened();
  state.silent();
  EXPECT_FALSE(state.probed(kAway).status->ok());
  EXPECT_EQ(state.endpoint(), 1u);
}

TEST_F(WatchStateTest, AListThatFailsIsTakenElsewhere) {
  EXPECT_FALSE(state.listed(kAway).status->ok());
  EXPECT_EQ(state.act(), Act::kRest);
  state.rested();
  EXPECT_EQ(state.act(), Act::kList);
  EXPECT_EQ(state.endpoint(), 1u);
  begin();
}

}  // namespace
}  // namespace loralei
