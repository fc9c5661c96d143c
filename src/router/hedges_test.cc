// SPDX-License-Identifier: Apache-2.0
#include "router/hedges.h"

#include <string>

#include "router/router_test_util.h"

namespace loralei {
namespace {

constexpr const char* kAsk = R"({"model": "base", "stream": true})";

RouterServerOptions hedged(int64_t after_ms = 20) {
  RouterServerOptions options;
  options.hedge_after_ms = after_ms;
  return options;
}

// Answers when the test says so.
class HeldReplica {
 public:
  HeldReplica()
      : replica([this](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
          const std::lock_guard lock(mutex_);
          writer->on_closed([this] { ++left; });
          if (begins) writer->start_stream(200, kEvents);
          if (begins) writer->write(": ping\n\n");
          held_.push_back(std::move(writer));
        }) {}
  ~HeldReplica() { answer(""); }
  void answer(const std::string& events) {
    std::vector<std::shared_ptr<ResponseWriter>> writers;
    {
      const std::lock_guard lock(mutex_);
      writers.swap(held_);
    }
    for (const auto& writer : writers) {
      if (!begins) writer->start_stream(200, kEvents);
      if (!events.empty()) writer->write(events);
      writer->finish();
    }
  }
  bool begins = false;  // with a comment
  std::atomic<int> left{0};

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<ResponseWriter>> held_;

 public:
  FakeReplica replica;
};

Answering stream_of(const std::string& text) {
  return [text](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->start_stream(200, kEvents);
    writer->write(event(text));
    writer->finish();
  };
}

int sent_by(const RouterWorld& world) {
  int sent = 0;
  for (const ReplicaState& state : world.server->replicas()) sent += state.sent;
  return sent;
}

TEST(HedgedRelay, AStreamThatDoesNotBeginIsAskedForElsewhere) {
  for (const bool begins : {false, true}) {  // a comment is no beginning
    HeldReplica silent;
    silent.begins = begins;
    FakeReplica other(stream_of("other"));
    RouterWorld world({silent.replica.address(), other.address()}, hedged());
    const auto answer = world.post(kAsk);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->body, (begins ? ": ping\n\n" : "") + event("other"));
    EXPECT_EQ(silent.replica.asked, 1);
    wait_until([&] { return silent.left == 1 && sent_by(world) == 0; });
    const std::string metrics = world.metrics();
    EXPECT_NE(metrics.find("loralei_router_hedges_total{what=\"sent\"} 1"), std::string::npos) << metrics;
    EXPECT_NE(metrics.find("loralei_router_hedges_total{what=\"won\"} 1"), std::string::npos);
    EXPECT_NE(metrics.find("loralei_router_retries_total 0"), std::string::npos);
  }
}

TEST(HedgedRelay, TheFirstOneMayStillBeFirst) {
  HeldReplica slow, slower;
  RouterWorld world({slow.replica.address(), slower.replica.address()}, hedged());
  std::thread when_both([&] {
    wait_until([&] { return slower.replica.asked == 1; });
    slow.answer(event("one") + event("two"));
  });
  const auto answer = world.post(kAsk);
  when_both.join();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body, event("one") + event("two"));
  wait_until([&] { return slower.left == 1 && sent_by(world) == 0; });
  EXPECT_NE(world.metrics().find("loralei_router_hedges_total{what=\"won\"} 0"), std::string::npos);
}

// One of two breaks off, or cannot take it: the other one goes on, and nobody else is
// asked.
void waits_for_the_first(const UpstreamAddress& bad, const std::atomic<int>& bad_asked) {
  HeldReplica slow;
  FakeReplica third(stream_of("third"));
  RouterWorld world({slow.replica.address(), bad, third.address()}, hedged());
  std::thread later([&] {
    wait_until([&] { return bad_asked >= 1 && sent_by(world) == 1; });
    slow.answer(event("one"));
  });
  const auto answer = world.post(kAsk);
  later.join();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body, event("one"));
  EXPECT_EQ(third.asked, 0);
}

TEST(HedgedRelay, WhileOneIsUnderWayNoThirdIsAsked) {
  FakeReplica busy([](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(503, kJson, "{}"); });
  waits_for_the_first(busy.address(), busy.asked);
  BreakingReplica breaks("");
  waits_for_the_first(breaks.address(), breaks.asked);
}

TEST(HedgedRelay, WhereBothFailAThirdIsAsked) {
  std::shared_ptr<ResponseWriter> held;
  FakeReplica first([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) { held = std::move(writer); });
  FakeReplica second([](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(503, kJson, "{}"); });
  FakeReplica third(stream_of("third"));
  RouterWorld world({first.address(), second.address(), third.address()}, hedged());
  std::thread later([&] {
    wait_until([&] { return second.asked == 1 && sent_by(world) == 1; });
    std::exchange(held, nullptr)->respond(503, kJson, "{}");
  });
  const auto answer = world.post(kAsk);
  later.join();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body, event("third"));
  wait_until([&] { return sent_by(world) == 0; });
}

TEST(HedgedRelay, WhatComesAsAWholeIsNotHedged) {
  FakeReplica slow([](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    std::this_thread::sleep_for(std::chrono::milliseconds(80));
    writer->respond(200, kJson, "{}");
  });
  FakeReplica other(stream_of("other"));
  RouterWorld world({slow.address(), other.address()}, hedged(5));
  EXPECT_EQ(world.post(R"({"model": "base"})")->body, "{}");
  EXPECT_EQ(other.asked, 0);
}

TEST(HedgedRelay, AClientThatLeavesCancelsBoth) {
  HeldReplica one, two;
  RouterWorld world({one.replica.address(), two.replica.address()}, hedged());
  one.begins = true;
  {
    HttpClient client = world.client();
    (void)client.request("POST", "/v1/chat/completions", {}, kAsk, [&](std::string_view) {
      wait_until([&] { return two.replica.asked == 1; });
      return false;
    });
  }
  wait_until([&] { return one.left == 1 && two.left == 1 && sent_by(world) == 0; });
}

TEST(Hedges, AreAShareOfTheRequests) {
  const SteadyClock clock;
  Hedges hedges(int64_t{3600} * 1'000'000'000, clock);
  EXPECT_TRUE(hedges.take());
  EXPECT_FALSE(hedges.take());
  for (int i = 0; i < 1000; ++i) hedges.add({});
  int taken = 0;
  while (hedges.take()) ++taken;
  EXPECT_EQ(taken, 10) << "what was not used long ago is not saved";
  for (int i = 0; i < 55; ++i) hedges.add({});
  while (hedges.take()) ++taken;
  EXPECT_EQ(taken, 15);
}

}  // namespace
}  // namespace loralei
