// SPDX-License-Identifier: Apache-2.0
// Requests, answers and which connections are kept.
#include "http/upstream.h"

#include <linux/tcp.h>

#include <map>

#include "base/allocation_counter.h"
#include "http/upstream_test_util.h"

namespace loralei {
namespace {

TEST_F(UpstreamTest, CallsOneAfterTheOtherShareAConnection) {
  start();
  for (int i = 0; i < 20; ++i) {
    const auto told = ask(served(), post("body " + std::to_string(i)));
    ASSERT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_EQ(told->status, 200);
    EXPECT_EQ(told->body, "body " + std::to_string(i));
    EXPECT_EQ(find_header(told->headers, "x-method"), "POST");
  }
  EXPECT_EQ(server->stats().connections_total, 1);
  const UpstreamStats stats = upstream->stats();
  EXPECT_EQ(stats.opened_total, 1);
  EXPECT_EQ(stats.reused_total, 19);
  EXPECT_EQ(stats.connections, 1);
  EXPECT_EQ(stats.idle, 1);
  EXPECT_EQ(stats.calls, 0);
}

TEST_F(UpstreamTest, ManyThreadsShareTheCallsAndOneKeptConnectionServesThoseInARow) {
  upstream_options.threads = 3;
  start_upstream();
  start();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ask(served(), post("x"))->body, "x");
  EXPECT_EQ(upstream->stats().opened_total, 1);
  std::vector<std::shared_ptr<Told>> all;
  for (int i = 0; i < 60; ++i) all.push_back(call(served(), post(std::to_string(i))));
  for (int i = 0; i < 60; ++i) {
    EXPECT_TRUE(all[static_cast<size_t>(i)]->wait());
    EXPECT_EQ(all[static_cast<size_t>(i)]->body, std::to_string(i));
  }
}

TEST_F(UpstreamTest, TheRequestHasWhatBelongsToItAndNothingOfAnotherConnection) {
  RawServer raw;
  UpstreamRequest request = post("four", "/a?b=%20");
  request.headers = {{"X-Kept", "a\r\nX-Injected: b"},
                     {"Connection", "close, X-Named"},
                     {"x-named", "1"},
                     {"Transfer-Encoding", "chunked"},
                     {"content-length", "99"},
                     {"Expect", "100-continue"},
                     {"Proxy-Authorization", "p"},
                     {"Keep-Alive", "5"},
                     {"Authorization", "mine"}};
  const auto told = call(raw.address(), request);
  RawPeer peer = raw.accept();
  EXPECT_EQ(peer.request(), "POST /a?b=%20 HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(raw.port()) +
                                "\r\nX-Kept: a  X-Injected: b\r\nAuthorization: mine\r\nContent-Length: 4\r\n\r\nfour");
  peer.answer();
  EXPECT_TRUE(told->wait());
  request = get();
  request.headers = {{"host", "other"}};
  const auto second = call(raw.address(), request);
  EXPECT_EQ(peer.request(), "GET / HTTP/1.1\r\nhost: other\r\n\r\n");
  peer.answer();
  EXPECT_TRUE(second->wait());
}

TEST_F(UpstreamTest, WhatCannotBeWrittenIsRefused) {
  RawServer raw;
  UpstreamRequest bad_header = get();
  bad_header.headers = {{"a b", "c"}};
  const std::vector<std::pair<UpstreamAddress, UpstreamRequest>> cases = {
      {raw.address(), {.method = "GET /", .target = "/"}},
      {raw.address(), {.method = "", .target = "/"}},
      {raw.address(), get("/ HTTP/1.1\r\nX: y")},
      {raw.address(), get("/a b")},
      {raw.address(), get("")},
      {raw.address(), bad_header},
      {{"127.0.0.1", 0}, get()},
      {{"127.0.0.1", 65536}, get()},
      {{"", 80}, get()},
  };
  for (const auto& [address, request] : cases) {
    const auto told = ask(address, request);
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->stage, UpstreamStage::kConnect);
    EXPECT_EQ(told->failure->error.code, ErrorCode::kInvalidArgument) << told->failure->error.message;
  }
  EXPECT_FALSE(raw.has_one());
}

TEST_F(UpstreamTest, BodiesByLengthChunksAndEnd) {
  const std::map<std::string, int> answers = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 1},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: t\r\n\r\n", 1},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
       1},
      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", 0},
      {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", 0},
      {"HTTP/1.1 200 OK\r\n\r\nhello", 0},
  };
  for (const auto& [bytes, kept] : answers) {
    for (const size_t step : {size_t{1}, bytes.size()}) {
      SCOPED_TRACE(bytes);
      start_upstream();
      RawServer raw;
      const auto told = call(raw.address(), get());
      RawPeer peer = raw.accept();
      peer.request();
      for (size_t at = 0; at < bytes.size(); at += step) peer.send(std::string_view(bytes).substr(at, step));
      const bool by_end = bytes.find("hello") == bytes.find("\r\n\r\n") + 4 && bytes.find(": ") == std::string::npos;
      if (by_end) peer.close();
      ASSERT_TRUE(told->wait());
      ASSERT_FALSE(told->failure) << told->failure->error.message;
      EXPECT_EQ(told->status, 200);
      EXPECT_EQ(told->body, "hello");
      // A byte behind the answer may come later than its end.
      EXPECT_TRUE(
          soon([&, kept = kept] { return upstream->stats().idle == kept && upstream->stats().connections == kept; }));
    }
  }
}

TEST_F(UpstreamTest, HeadAndSomeStatusesHaveNoBody) {
  RawServer raw;
  auto told = call(raw.address(), {.method = "HEAD", .target = "/"});
  RawPeer peer = raw.accept();
  const std::vector<std::string> answers = {"200 OK\r\nContent-Length: 1000", "200 OK\r\nTransfer-Encoding: chunked",
                                            "204 No Content", "304 Not Modified\r\nContent-Length: 7"};
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i > 0) told = call(raw.address(), {.method = i < 2 ? "HEAD" : "GET", .target = "/"});
    EXPECT_TRUE(peer.request().starts_with(i < 2 ? "HEAD / " : "GET / "));
    peer.send("HTTP/1.1 " + answers[i] + "\r\n\r\n");
    ASSERT_TRUE(told->wait());
    ASSERT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_EQ(told->status, std::stoi(answers[i]));
    EXPECT_EQ(told->body, "");
    EXPECT_EQ(find_header(told->headers, "content-length"), i == 0 ? "1000" : i == 3 ? "7" : "");
  }
  EXPECT_EQ(upstream->stats().opened_total, 1);
}

TEST_F(UpstreamTest, HeadersOfTheConnectionAreNotTold) {
  RawServer raw;
  const auto told = call(raw.address(), get());
  RawPeer peer = raw.accept();
  peer.request();
  peer.send(
      "HTTP/1.1 200 OK\r\nConnection: x-named , keep-alive\r\nConnection: X-Other\r\nX-Named: 1\r\nx-other: 2\r\n"
      "Keep-Alive: timeout=5\r\nProxy-Authenticate: p\r\nTrailer: t\r\nTE: t\r\nUpgrade: u\r\n"
      "Transfer-Encoding: chunked\r\nX-Mine: 3\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n0\r\n\r\n");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->headers, (HttpHeaders{{"X-Mine", "3"}, {"Set-Cookie", "a"}, {"Set-Cookie", "b"}}));
}

TEST_F(UpstreamTest, HeadAndSmallBodyLeaveInOneWrite) {
  RawServer raw;
  RawPeer peer = kept_connection(raw);
  const auto segments = [&] {
    tcp_info info{};
    socklen_t size = sizeof info;
    EXPECT_EQ(::getsockopt(peer.fd(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return info.tcpi_data_segs_in;
  };
  const auto before = segments();
  ASSERT_EQ(before, 1U) << "the request before this one";
  const auto told = call(raw.address(), post("a small body"));
  EXPECT_TRUE(peer.request().ends_with("a small body"));
  EXPECT_EQ(segments(), 2U);
  peer.answer();
  EXPECT_TRUE(told->wait());
}

TEST_F(UpstreamTest, AnIdleConnectionThatThePeerClosesIsDropped) {
  RawServer raw;
  RawPeer peer = kept_connection(raw);
  peer.close();
  EXPECT_TRUE(nothing_is_open());
  EXPECT_EQ(upstream->stats().idle, 0);
  RawPeer second = kept_connection(raw);
  second.reset();
  EXPECT_TRUE(nothing_is_open());
}

TEST_F(UpstreamTest, AnIdleConnectionOnWhichSomethingComesIsDropped) {
  RawServer raw;
  RawPeer peer = kept_connection(raw);
  peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged");
  EXPECT_TRUE(nothing_is_open());
  EXPECT_TRUE(peer.sees_the_end());
}

// The thread is kept from seeing it by itself.
TEST_F(UpstreamTest, AConnectionThatThePeerClosedIsNotHandedOut) {
  RawServer raw, other;
  RawPeer peer = kept_connection(raw);
  Counter busy, released;
  auto blocking = std::make_shared<Told>();
  blocking->at_head = [&] {
    busy.add();
    EXPECT_TRUE(released.wait_for(1));
  };
  upstream->call(other.address(), get(), blocking);
  RawPeer others = other.accept();
  others.request();
  others.answer();
  ASSERT_TRUE(busy.wait_for(1));
  peer.close();
  const auto told = call(raw.address(), post("not to be lost"));
  released.add();
  RawPeer fresh = raw.accept();
  EXPECT_TRUE(fresh.request().ends_with("not to be lost"));
  fresh.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
  EXPECT_EQ(upstream->stats().reused_total, 0);
}

TEST_F(UpstreamTest, AnIdleConnectionIsClosedInTime) {
  upstream_options.idle_timeout_ms = 30;
  start_upstream();
  RawServer raw;
  auto told = call(raw.address(), get());
  RawPeer peer = raw.accept();
  peer.request();
  peer.answer();
  EXPECT_TRUE(peer.sees_the_end());
  EXPECT_TRUE(nothing_is_open());
  EXPECT_FALSE(told->failure);
}

TEST_F(UpstreamTest, SoManyAreKeptOfOneAddress) {
  upstream_options.max_idle_per_address = 2;
  start_upstream();
  RawServer raw;
  std::vector<std::shared_ptr<Told>> all;
  std::vector<RawPeer> peers;
  for (int i = 0; i < 5; ++i) {
    all.push_back(call(raw.address(), get()));
    peers.push_back(raw.accept());
    peers.back().request();
  }
  EXPECT_EQ(upstream->stats().connections, 5);
  EXPECT_EQ(upstream->stats().calls, 5);
  for (size_t i = 0; i < all.size(); ++i) {
    peers[i].answer();
    EXPECT_TRUE(all[i]->wait());
  }
  EXPECT_EQ(upstream->stats().idle, 2);
  EXPECT_EQ(upstream->stats().connections, 2);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(peers[i].sees_the_end()) << "those idle longest";
  const auto told = call(raw.address(), get());
  EXPECT_TRUE(peers[4].request().starts_with("GET")) << "the one that was used last";
  peers[4].answer();
  EXPECT_TRUE(told->wait());
}

TEST_F(UpstreamTest, AnEarlyAnswerIsToldAndItsConnectionNotKept) {
  RawServer raw;
  const auto told = call(raw.address(), post(std::string(64'000'000, 'b')));
  RawPeer peer = raw.accept();
  ASSERT_TRUE(peer.readable());
  peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nlong");
  ASSERT_TRUE(told->wait());
  ASSERT_FALSE(told->failure) << told->failure->error.message;
  EXPECT_EQ(told->status, 413);
  EXPECT_EQ(told->body, "long");
  EXPECT_TRUE(nothing_is_open());
}

TEST_F(UpstreamTest, ALargeRequestAndAnswerArriveWhole) {
  options.limits.max_body_bytes = 64 * 1024 * 1024;
  start();
  std::string body(20'000'000, ' ');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i * 31 % 23);
  for (int i = 0; i < 2; ++i) {
    const auto told = ask(served(), post(body));
    ASSERT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_TRUE(told->body == body);
  }
  EXPECT_EQ(upstream->stats().opened_total, 1);
}

TEST_F(UpstreamTest, FiveHundredCallsAtOnceOnOneThread) {
  constexpr int kCalls = 500;
  start();
  std::vector<std::shared_ptr<Told>> all;
  for (int i = 0; i < kCalls; ++i) all.push_back(call(served(), get("/held")));
  ASSERT_TRUE(handler.held_count.wait_for(kCalls));
  EXPECT_EQ(upstream->stats().calls, kCalls);
  EXPECT_EQ(upstream->stats().connections, kCalls);
  for (int i = 0; i < kCalls; ++i) handler.writer(i)->respond(200, {}, "answer");
  for (const auto& told : all) {
    ASSERT_TRUE(told->wait());
    ASSERT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_EQ(told->body, "answer");
  }
  EXPECT_EQ(upstream->stats().calls, 0);
  EXPECT_TRUE(soon([&] { return upstream->stats().connections == 64; })) << "those that are kept";
  handler.drop_all();
}

// What the thread of the calls has allocated for them, and still has.
TEST_F(UpstreamTest, AnIdleConnectionCostsLittle) {
  constexpr int kCalls = 64;
  RawServer raw, other;
  const auto in_the_thread = [&](const std::function<void()>& work) {
    auto told = std::make_shared<Told>();
    told->at_head = work;
    upstream->call(other.address(), get(), told);
    RawPeer peer = other.accept();
    peer.request();
    peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    EXPECT_TRUE(told->wait());
  };
  std::vector<std::shared_ptr<Told>> all;
  std::vector<RawPeer> peers;
  for (int i = 0; i < kCalls; ++i) {
    all.push_back(std::make_shared<Told>());
    all.back()->keeps_body = false;
  }
  in_the_thread([&] {
    testing_support::start_counting_allocations();
    for (const auto& told : all) upstream->call(raw.address(), get(), told);
  });
  for (int i = 0; i < kCalls; ++i) {
    peers.push_back(raw.accept());
    peers.back().request();
  }
  for (size_t i = 0; i < all.size(); ++i) {
    peers[i].answer(std::string(100'000, 'x'));
    EXPECT_TRUE(all[i]->wait());
  }
  testing_support::Allocated allocated;
  in_the_thread([&] { allocated = testing_support::stop_counting_allocations(); });
  EXPECT_EQ(upstream->stats().idle, kCalls);
  EXPECT_GT(allocated.bytes, kCalls * 100) << "it was counted";
  EXPECT_LT(allocated.live_bytes, kCalls * 2048) << allocated.live_bytes / kCalls;
  RecordProperty("bytes", static_cast<int>(allocated.live_bytes / kCalls));
}

}  // namespace
}  // namespace loralei
