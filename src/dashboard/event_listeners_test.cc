// SPDX-License-Identifier: Apache-2.0
#include "dashboard/event_listeners.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "dashboard/event_feed.h"
#include "dashboard/fake_writer_test_util.h"

namespace loralei {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1000 * kMs;

class EventListenersTest : public testing::Test {
 protected:
  std::shared_ptr<FakeWriter> join(const EventQuery& query = {}, int64_t now_ns = 0) {
    EXPECT_TRUE(listeners.open().ok());
    auto writer = std::make_shared<FakeWriter>();
    listeners.add(writer, query, now_ns);
    return writer;
  }
  void tick(int64_t now_ns) {
    listeners.tick(now_ns, [this] { return "{\"n\":" + std::to_string(++snapshots) + "}"; });
  }
  EventListeners listeners;
  int snapshots = 0;
};

TEST_F(EventListenersTest, ATickMakesOneSnapshotHoweverManyFollow) {
  std::vector<std::shared_ptr<FakeWriter>> writers;
  for (int i = 0; i < 50; ++i) writers.push_back(join());
  tick(0);
  EXPECT_EQ(snapshots, 1);
  tick(kSecond);
  EXPECT_EQ(snapshots, 2);
  for (const auto& writer : writers)
    EXPECT_EQ(writer->written(), (std::vector<std::string>{"data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n"}));
}

// Whenever they came: those of one interval are due together.
TEST_F(EventListenersTest, WhoCameAtAnotherTimeIsToldWithTheOthers) {
  const auto first = join({}, 0), second = join({}, 330 * kMs);
  tick(0);
  EXPECT_EQ(listeners.next_ns(), 500 * kMs) << "the first event comes soon";
  tick(500 * kMs);
  EXPECT_EQ(second->written().size(), 1u);
  tick(kSecond);
  tick(2 * kSecond);
  EXPECT_EQ(snapshots, 4);
  EXPECT_EQ(first->written().size(), 3u);
  EXPECT_EQ(second->written().size(), 3u);
}

TEST_F(EventListenersTest, NobodyIsNoReasonForASnapshot) {
  EXPECT_EQ(listeners.next_ns(), std::nullopt);
  tick(0);
  const auto writer = join();
  writer->leave();
  tick(kSecond);
  EXPECT_EQ(snapshots, 0);
  EXPECT_EQ(listeners.size(), 0u);
  EXPECT_EQ(listeners.next_ns(), std::nullopt);
}

TEST_F(EventListenersTest, WhoIsNotDueIsNotTold) {
  const auto often = join({.interval_ms = 250}), seldom = join({.interval_ms = 60'000});
  for (int64_t at = 0; at <= 10 * kSecond; at += 250 * kMs) tick(at);
  EXPECT_EQ(often->written().size(), 41u);
  EXPECT_EQ(seldom->written().size(), 1u);
  EXPECT_EQ(snapshots, 41);
  tick(10 * kSecond + kMs);
  EXPECT_EQ(snapshots, 41);
  // Late, it is told once and not once for each that it missed.
  tick(20 * kSecond);
  EXPECT_EQ(often->written().size(), 42u);
  EXPECT_EQ(listeners.next_ns(), 20'250 * kMs);
}

TEST_F(EventListenersTest, WhoIsSlowMissesTicksAndHoldsNobodyUp) {
  const auto slow = join(), quick = join();
  tick(0);
  slow->be_slow(true);
  for (int i = 1; i <= 1000; ++i) tick(i * kSecond);
  EXPECT_EQ(quick->written().size(), 1001u);
  EXPECT_EQ(slow->written().size(), 1u) << "nothing is kept for it";
  slow->be_slow(false);
  tick(1001 * kSecond);
  EXPECT_EQ(slow->written().back(), "data: {\"n\":1002}\n\n") << "and then it is told what is now";
}

TEST_F(EventListenersTest, AStreamOfSoManyEventsEndsBehindThem) {
  const auto writer = join({.interval_ms = 1000, .count = 2});
  tick(0);
  EXPECT_FALSE(writer->finished());
  writer->be_slow(true);
  tick(kSecond);
  writer->be_slow(false);
  tick(2 * kSecond);
  EXPECT_TRUE(writer->finished());
  EXPECT_EQ(writer->written().size(), 2u);
  tick(3 * kSecond);
  EXPECT_EQ(listeners.size(), 0u);
  EXPECT_EQ(snapshots, 3) << "at the second it was not known that the reader is slow";
}

TEST_F(EventListenersTest, ADrainEndsAllAndTakesNoMore) {
  const auto writer = join();
  ASSERT_TRUE(listeners.open().ok());  // one that is about to begin
  listeners.drain();
  EXPECT_EQ(listeners.next_ns(), 0);
  tick(0);
  EXPECT_TRUE(writer->finished());
  ASSERT_EQ(writer->written().size(), 1u);
  EXPECT_EQ(writer->written()[0], "event: end\ndata: {\"why\":\"The server is shutting down.\"}\n\n");
  const auto late = std::make_shared<FakeWriter>();
  listeners.add(late, {}, 0);
  EXPECT_TRUE(late->finished());
  EXPECT_EQ(listeners.open().error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(snapshots, 0);
}

TEST_F(EventListenersTest, PlacesAreBounded) {
  for (size_t i = 0; i < EventListeners::kListenersMax; ++i) ASSERT_TRUE(listeners.open().ok());
  const Status full = listeners.open();
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kOverloaded);
  listeners.give_back();
  EXPECT_TRUE(listeners.open().ok());
}

TEST(EventQuery, TakesIntervalsThatAreBounded) {
  EXPECT_EQ(parse_event_query("")->interval_ms, 1000);
  EXPECT_EQ(parse_event_query("interval_ms=250")->interval_ms, 250);
  EXPECT_EQ(parse_event_query("a=b&interval_ms=60000&count=3")->count, 3);
  EXPECT_EQ(parse_event_query("interval_ms=300")->interval_ms, 500) << "whole steps";
  for (const char* wrong : {"interval_ms=249", "interval_ms=60001", "interval_ms=-1", "interval_ms=1e3",
                            "interval_ms=", "interval_ms=99999999999999999999", "interval_ms=500x"}) {
    const auto query = parse_event_query(wrong);
    ASSERT_FALSE(query.ok()) << wrong;
    EXPECT_EQ(query.error().message, "interval_ms is a whole number from 250 to 60000.");
  }
  EXPECT_FALSE(parse_event_query("count=0").ok());
}

TEST(EventFeedTest, TellsOnItsOwnThreadAndEndsWhatIsOpen) {
  SteadyClock clock;
  EventFeed feed(clock, [] { return std::string("{}"); });
  const auto writer = std::make_shared<FakeWriter>();
  const auto begin = [&] { return writer; };
  ASSERT_TRUE(feed.follow({.interval_ms = 250}, begin).ok());
  EXPECT_TRUE(writer->wait_for(2));
  EXPECT_EQ(writer->written()[0], "data: {}\n\n");
  feed.drain();
  EXPECT_TRUE(writer->wait_for_end());
  feed.stop();
  EXPECT_FALSE(feed.follow({}, begin).ok());
}

TEST(EventFeedTest, StopsWithStreamsThatAreOpen) {
  SteadyClock clock;
  const auto writer = std::make_shared<FakeWriter>();
  {
    EventFeed feed(clock, [] { return std::string("{}"); });
    ASSERT_TRUE(feed.follow({}, [&] { return writer; }).ok());
    EXPECT_TRUE(feed.follow({}, [] { return nullptr; }).ok()) << "its client left";
    EXPECT_EQ(feed.listeners(), 1u);
  }
  EXPECT_TRUE(writer->finished());
}

}  // namespace
}  // namespace loralei
