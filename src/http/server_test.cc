// SPDX-License-Identifier: Apache-2.0
#include "http/server.h"

#include <atomic>
#include <future>
#include <map>

#include "http/server_test_util.h"

namespace loralei {
namespace {

TEST_P(ServerTest, KeepsTheConnectionAlive) {
  start();
  HttpClient c = client();
  for (int i = 0; i < 10; ++i) {
    auto answer = c.post_json("/echo", "body " + std::to_string(i));
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "body " + std::to_string(i));
    EXPECT_EQ(answer->header("x-peer"), "127.0.0.1");
    EXPECT_FALSE(answer->header("date").empty());
  }
  EXPECT_EQ(server->stats().connections_total, 1);
}

TEST_P(ServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  HttpClient c = client();
  std::string bytes;
  for (int i = 0; i < 20; ++i) {
    bytes += "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n" +
             std::string(i == 19 ? "Connection: close\r\n" : "") + "\r\n" + std::to_string(10 + i);
  }
  const std::string answer = raw(bytes);
  size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    at = answer.find("\r\n\r\n" + std::to_string(10 + i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

// Some clients end a body with a line end that they do not count.
TEST_P(ServerTest, EmptyLinesBeforeARequestArePassedOver) {
  start();
  for (const std::string& lines : {std::string("\r\n"), std::string("\n"), std::string("\r\n\r\n\n")}) {
    const std::string answer =
        raw(lines + "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi" + lines +
            "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\r\nho");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
    EXPECT_NE(answer.find("\r\n\r\nhi"), std::string::npos);
    EXPECT_NE(answer.find("\r\n\r\nho"), std::string::npos);
  }
  EXPECT_TRUE(raw("\r\n\rPOST /echo HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 400"));
}

TEST_P(ServerTest, Http10HeadAndContinue) {
  start();
  const std::string old = raw("POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_TRUE(old.starts_with("HTTP/1.0 200")) << old;
  EXPECT_NE(old.find("Connection: close"), std::string::npos);
  HttpClient c = client();
  auto head = c.request("HEAD", "/echo", {}, "");
  ASSERT_TRUE(head.ok()) << head.error().message;
  EXPECT_EQ(head->header("content-length"), "0");
  HttpClient expecting = client();
  ASSERT_TRUE(expecting
                  .send_raw("POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: "
                            "100-continue\r\nContent-Length: 2\r\n\r\n")
                  .ok());
  auto interim = expecting.read_raw(25);
  ASSERT_TRUE(interim.ok());
  EXPECT_EQ(*interim, "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(expecting.send_raw("ok").ok());
  auto rest = expecting.read_raw();
  ASSERT_TRUE(rest.ok());
  EXPECT_TRUE(rest->ends_with("\r\n\r\nok")) << *rest;
}

TEST_P(ServerTest, ErrorsHaveTheShapeThatWasGiven) {
  options.limits.max_body_bytes = 1000;
  options.limits.max_header_bytes = 1024;
  options.error_response = [](int status, std::string_view message, const HttpHead&) {
    HttpResponse response;
    response.headers.emplace_back("X-Shape", "mine");
    response.body = std::to_string(status) + "|" + std::string(message);
    return response;
  };
  start();
  const std::map<std::string, std::string> cases = {
      {"rubbish\r\n\r\n", "400"},
      {"GET /" + std::string(2000, 'x') + " HTTP/1.1\r\n\r\n", "431"},
      {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + std::string(50'000, 'b'), "413"},
      {"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n" + std::string(0x5000, 'b'),
       "413"},
      {"GET /drop HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "500"},
  };
  for (const auto& [bytes, status] : cases) {
    const std::string answer = raw(bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + status)) << answer;
    EXPECT_NE(answer.find("X-Shape: mine"), std::string::npos);
    EXPECT_NE(answer.find("\r\n\r\n" + status + "|"), std::string::npos);
  }
}

TEST_P(ServerTest, ErrorsAreGivenWhatWasReadOfTheRequest) {
  options.limits.max_body_bytes = 1000;
  options.limits.max_headers = 4;
  options.read_timeout_ms = std::max<int64_t>(200, short_ms());
  options.error_response = [](int, std::string_view, const HttpHead& request) {
    HttpResponse response;
    response.headers.emplace_back("X-Id", std::string(request.header("x-id")));
    return response;
  };
  start();
  const std::string head = " HTTP/1.1\r\nHost: h\r\nX-Id: mine\r\n";
  const std::map<std::string, std::string> cases = {
      {"POST /echo" + head + "Content-Length: 1000000\r\n\r\n", "413"},
      {"POST /echo" + head + "Content-Length: 100\r\n\r\n", "408"},
      {"GET /echo" + head + "a: 1\r\nb: 2\r\nc: 3\r\n\r\n", "431"},
      {"GET /drop" + head + "Connection: close\r\n\r\n", "500"},
  };
  for (const auto& [bytes, status] : cases) {
    const std::string answer = raw(bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + status)) << answer;
    EXPECT_NE(answer.find("X-Id: mine"), std::string::npos) << answer;
  }
}

TEST_P(ServerTest, OneAnswerOnlyAndNoHeaderInjection) {
  start();
  HttpClient c = client();
  EXPECT_EQ(c.get("/twice")->body, "first");
  auto evil = c.get("/evil");
  ASSERT_TRUE(evil.ok());
  EXPECT_FALSE(has_header(evil->headers, "x-injected"));
}

TEST_P(ServerTest, StreamsChunks) {
  start();
  HttpClient c = client();
  std::thread producer([&] {
    auto writer = handler.writer(0);
    EXPECT_TRUE(writer->start_stream(200, {{"Content-Type", "text/event-stream"}}));
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(writer->write("data: " + std::to_string(i) + "\n\n"));
    writer->finish();
    EXPECT_FALSE(writer->write("late"));
  });
  SseParser sse;
  int next = 0;
  auto answer = c.post_json("/held", "{}", [&](std::string_view piece) {
    return sse.feed(piece, [&](std::string_view data) { return data == std::to_string(next++); });
  });
  producer.join();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(next, 100);
  EXPECT_EQ(handler.closed.value(), 0);
  EXPECT_EQ(c.post_json("/echo", "again")->body, "again");  // and the connection lives on
  EXPECT_EQ(server->stats().connections_total, 1);
}

TEST_P(ServerTest, StreamsToHttp10UntilClose) {
  start();
  std::thread producer([&] {
    auto writer = handler.writer(0);
    writer->start_stream(200, {});
    writer->write("one ");
    writer->write("two");
    writer->finish();
  });
  const std::string answer = raw("GET /held HTTP/1.0\r\n\r\n");
  producer.join();
  EXPECT_TRUE(answer.ends_with("\r\n\r\none two")) << answer;
}

TEST_P(ServerTest, NoticesAClientThatLeavesWhileItsAnswerIsComputed) {
  start();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").ok());
  auto writer = handler.writer(0);
  EXPECT_FALSE(writer->closed());
  c.close();
  ASSERT_TRUE(handler.closed.wait_for(1));
  EXPECT_TRUE(writer->closed());
  EXPECT_FALSE(writer->respond(200, {}, "too late"));
  Counter again;
  writer->on_closed([&] { again.add(); });  // registered afterwards: told at once
  EXPECT_EQ(again.value(), 1);
}

TEST_P(ServerTest, NoticesAClientThatLeavesBehindMoreThanIsReadAhead) {
  start();
  HttpClient c = client();
  std::string bytes =
      "GET /held HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n";
  bytes.append(90'000, 'x');
  ASSERT_TRUE(c.send_raw(bytes).ok());
  auto writer = handler.writer(0);
  EXPECT_FALSE(writer->closed());
  c.close();
  EXPECT_TRUE(handler.closed.wait_for(1));
  EXPECT_TRUE(writer->closed());
}

TEST_P(ServerTest, NoticesAClientThatLeavesDuringAStream) {
  start();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").ok());
  auto writer = handler.writer(0);
  ASSERT_TRUE(writer->start_stream(200, {}));
  ASSERT_TRUE(writer->write("first"));
  ASSERT_TRUE(c.read_raw(20).ok());
  c.close();
  ASSERT_TRUE(handler.closed.wait_for(1));
  EXPECT_FALSE(writer->write("second"));
  writer->finish();
  EXPECT_EQ(handler.closed.value(), 1);
}

TEST_P(ServerTest, ASlowReaderFillsItsBufferAndIsCut) {
  options.max_write_buffer_bytes = 64 * 1024;
  start();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").ok());
  auto writer = handler.writer(0);
  ASSERT_TRUE(writer->start_stream(200, {}));
  const std::string chunk(16 * 1024, 'x');
  int64_t written = 0;
  // The kernel takes some megabytes; then the buffer bounds what is kept.
  while (writer->write(chunk)) {
    written += static_cast<int64_t>(chunk.size());
    ASSERT_LT(written, int64_t{1} << 30);
  }
  ASSERT_TRUE(handler.closed.wait_for(1));
}

// The system's buffers are full, and the connection waits for them.
TEST_P(ServerTest, ASlowReaderIsCutThoughTheConnectionWaitsForTheSystem) {
  options.max_write_buffer_bytes = 64 * 1024;
  options.write_timeout_ms = 600'000;
  start();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").ok());
  auto writer = handler.writer(0);
  ASSERT_TRUE(writer->start_stream(200, {}));
  const std::string chunk(16 * 1024, 'x');
  for (int64_t written = 0; writer->write(chunk); written += static_cast<int64_t>(chunk.size())) {
    ASSERT_LT(written, int64_t{1} << 30);
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // the connection keeps up as long as it can
  }
  ASSERT_TRUE(handler.closed.wait_for(1));
}

TEST_P(ServerTest, ADroppedStreamIsCutNotEnded) {
  start();
  HttpClient c = client();
  std::thread producer([&] {
    {
      auto writer = handler.writer(0);
      writer->start_stream(200, {});
      writer->write("half");
    }
    std::lock_guard lock(handler.mutex);
    handler.held.clear();
  });
  auto answer = c.post_json("/held", "{}");
  producer.join();
  EXPECT_FALSE(answer.ok());
}

TEST_P(ServerTest, SlowRequestsRunIntoTheTimeLimit) {
  options.read_timeout_ms = short_ms();
  options.idle_timeout_ms = short_ms();
  start();
  HttpClient slow = client();
  ASSERT_TRUE(slow.send_raw("POST /echo HTTP/1.1\r\nHo").ok());
  auto answer = slow.read_raw();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->starts_with("HTTP/1.1 408")) << *answer;
  HttpClient idle = client();
  ASSERT_TRUE(idle.send_raw("").ok());
  auto nothing = idle.read_raw();
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(*nothing, "");
}

TEST_P(ServerTest, ARequestThatItsHeadRefusesIsAnsweredBeforeItsBody) {
  start();
  const std::string head = "POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n";
  for (const std::string& bytes :
       {head + "\r\n", head + "Expect: 100-continue\r\n\r\n", head + "\r\nthe first bytes",
        head + "\r\n" + std::string(999'999, 'x'),
        std::string("POST /refused HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")}) {
    const std::string answer = raw(bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 401")) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\n0")) << answer;
  }
  const std::string whole = "POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
  const std::string last = "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  const std::string answers = raw(whole + last);
  EXPECT_TRUE(answers.starts_with("HTTP/1.1 401")) << answers;
  EXPECT_NE(answers.find("HTTP/1.1 200"), std::string::npos) << "the connection of a body that is there lives on";
}

// What stands between the chunks of a body is no body: it may be sent without end.
TEST_P(ServerTest, OnlyBytesOfABodyBuyTime) {
  options.read_timeout_ms = short_ms();
  start();
  std::string bytes = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 300; ++i) bytes += "1;" + std::string(10'000, 'x') + "\r\nb\r\n";
  const std::string answer = raw(bytes);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 408")) << answer;
}

TEST_P(ServerTest, AClientThatTakesNothingOfItsAnswerIsCut) {
  options.write_timeout_ms = 50;
  start();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  handler.writer(0)->respond(200, {}, std::string(64 << 20, 'x'));
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
}

TEST_P(ServerTest, RefusesConnectionsBeyondTheLimit) {
  options.max_connections = 2;
  start();
  HttpClient a = client(), b = client(), c = client();
  ASSERT_TRUE(a.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  ASSERT_TRUE(b.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  handler.writer(1);
  ASSERT_TRUE(c.send_raw("").ok());
  auto answer = c.read_raw();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  if (secure()) {
    EXPECT_EQ(*answer, "") << "let go before the handshake";
  } else {
    EXPECT_TRUE(answer->starts_with("HTTP/1.1 503")) << *answer;
    EXPECT_NE(answer->find("Retry-After"), std::string::npos);
  }
  EXPECT_EQ(server->stats().connections_refused, 1);
  for (size_t i : {0, 1}) handler.writer(i)->respond(200, {}, "");  // which of the two came first is chance
  EXPECT_EQ(a.read_raw(12).value(), "HTTP/1.1 200");
  EXPECT_EQ(b.read_raw(12).value(), "HTTP/1.1 200");
}

TEST_P(ServerTest, AConnectionThatWaitsLongestGivesItsPlaceToANewOne) {
  options.max_connections = 3;
  options.threads = 1;  // so that who was answered first waits longest
  start();
  HttpClient busy = client(), longest = client(), later = client();
  ASSERT_TRUE(busy.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  handler.writer(0);
  ASSERT_EQ(longest.get("/echo")->status, 200);
  ASSERT_EQ(later.get("/echo")->status, 200);
  // An answer may be here before its connection counts as waiting again.
  int status = 503;
  for (int i = 0; i < 1000 && status == 503; ++i) {
    if (const auto answer = client().get("/echo"); answer.ok()) status = answer->status;
  }
  EXPECT_EQ(status, 200);
  EXPECT_EQ(longest.read_raw().value(), "") << "closed";
  ASSERT_TRUE(later.send_raw("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  EXPECT_EQ(later.read_raw(12).value(), "HTTP/1.1 200") << "on the connection it had";
  handler.writer(0)->respond(200, {}, "");
  EXPECT_EQ(busy.read_raw(12).value(), "HTTP/1.1 200");
}

// Its owner has it before the handler is called.
TEST_P(ServerTest, HandlesNothingBeforeItServes) {
  auto bound = HttpServer::bind(options, log);
  ASSERT_TRUE(bound.ok()) << bound.error().message;
  server = std::move(bound).value();
  HttpClient early = client();
  ASSERT_TRUE(early.send_raw("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  EXPECT_EQ(server->stats().requests_total, 0);
  server->serve(handler);
  EXPECT_EQ(early.read_raw(12).value(), "HTTP/1.1 200");
}

TEST_P(ServerTest, StopLetsRunningRequestsFinishThenCuts) {
  start();
  HttpClient finishing = client(), hanging = client(), idle = client();
  ASSERT_TRUE(finishing.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  handler.writer(0);
  ASSERT_TRUE(hanging.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  handler.writer(1);
  ASSERT_EQ(idle.get("/echo")->status, 200);
  std::thread stopper([&] { EXPECT_EQ(server->stop(2000), 1); });
  EXPECT_EQ(idle.read_raw().value(), "");  // closed at once: so stop() has begun
  handler.writer(0)->respond(200, {}, "done");
  auto answer = finishing.read_raw();
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->ends_with("\r\n\r\ndone")) << *answer;
  EXPECT_NE(answer->find("Connection: close"), std::string::npos);
  stopper.join();
  EXPECT_EQ(handler.closed.value(), 1);
  auto writer = handler.writer(1);
  server.reset();
  EXPECT_FALSE(writer->respond(200, {}, ""));  // a writer may outlive its server
}

TEST_P(ServerTest, StopRefusesARequestThatHasArrivedInPart) {
  start();
  HttpClient half = client();
  ASSERT_TRUE(
      half.send_raw("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n").ok());
  ASSERT_EQ(half.read_raw(25).value(), "HTTP/1.1 100 Continue\r\n\r\n");
  std::thread stopper([&] { EXPECT_EQ(server->stop(30'000), 0); });
  auto answer = half.read_raw();
  half.close();
  stopper.join();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->starts_with("HTTP/1.1 503")) << *answer;
}

TEST_P(ServerTest, TwoHundredStreamsAtOnceAndHalfOfThemLeave) {
  start();
  constexpr int kStreams = 200;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(new HttpClient(client()));
    ASSERT_TRUE(clients.back()->send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  }
  ASSERT_TRUE(handler.held_count.wait_for(kStreams));
  for (int i = 0; i < kStreams; ++i) ASSERT_TRUE(handler.writer(i)->start_stream(200, {{"Connection", "close"}}));
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < kStreams; ++i) ASSERT_TRUE(handler.writer(i)->write("0123456789"));
  }
  for (int i = 0; i < kStreams; i += 2) {
    ASSERT_TRUE(clients[static_cast<size_t>(i)]->read_raw(100).ok());
    clients[static_cast<size_t>(i)]->close();
  }
  ASSERT_TRUE(handler.closed.wait_for(kStreams / 2));
  int gone = 0;
  for (int i = 0; i < kStreams; ++i) {
    gone += handler.writer(i)->closed();
    handler.writer(i)->finish();
  }
  EXPECT_EQ(gone, kStreams / 2);
  const std::string end = "0\r\n\r\n";
  for (int i = 1; i < kStreams; i += 2) {
    std::string all;
    while (!all.ends_with(end)) {
      auto piece = clients[static_cast<size_t>(i)]->read_raw(all.empty() ? 300 : 1);
      ASSERT_TRUE(piece.ok() && !piece->empty());
      all += *piece;
    }
    size_t chunks = 0;
    for (size_t at = 0; (at = all.find("0123456789", at)) != std::string::npos; ++at) ++chunks;
    EXPECT_EQ(chunks, 20u);
  }
}

TEST_P(ServerTest, GarbageNeverHurtsTheNeighbours) {
  start();
  const uint64_t seed = 20261120;
  SCOPED_TRACE("seed " + std::to_string(seed));
  uint64_t state = seed;
  const auto next = [&] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint32_t>(state >> 33);
  };
  HttpClient good = client();
  const std::string valid = "POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 4\r\n\r\nabcd";
  for (int i = 0; i < 100; ++i) {
    std::string bytes = i % 2 == 0 ? valid : std::string(next() % 200, 'a');
    for (uint32_t k = 0; k < 1 + next() % 8 && !bytes.empty(); ++k)
      bytes[next() % bytes.size()] = static_cast<char>(next());
    HttpClient bad = client();
    (void)bad.send_raw(bytes);
    bad.close();
    EXPECT_EQ(good.post_json("/echo", "fine")->body, "fine");
  }
}

TEST_P(ServerTest, BindsIpv6AndExplainsAUsedPort) {
  options.host = "::1";
  auto started = HttpServer::start(options, handler, log);
  if (!started.ok()) GTEST_SKIP() << "no IPv6 here: " << started.error().message;
  server = std::move(started).value();
  EXPECT_EQ(client().get("/echo")->header("x-peer"), "::1");
  HttpServerOptions same = options;
  same.port = server->port();
  auto second = HttpServer::bind(same, log);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("--port"), std::string::npos) << second.error().message;
}

TEST(HttpClient, ErrorsNameTheAddress) {
  HttpClient client({.port = 1});
  auto answer = client.get("/");
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kIo);
  EXPECT_NE(answer.error().message.find("127.0.0.1:1"), std::string::npos);
}

// Holds who comes by until it is opened.
class Gate {
 public:
  void pass() {
    come.add();
    open_.wait(false);
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }
  Counter come;

 private:
  std::atomic<bool> open_{false};
};

class StuckHandler final : public HttpHandler {
 public:
  explicit StuckHandler(Gate& gate) : gate_(gate) {}
  bool wants_body(const HttpHead&) override {
    gate_.pass();
    return true;
  }
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    if (request.path == "/pieces") {
      writer->respond_pieces(200, {}, [this](std::string&) {
        gate_.pass();
        return false;
      });
    } else if (request.path == "/room") {
      writer->start_stream(200, {});
      writer->on_room([this, writer] {
        gate_.pass();
        writer->finish();
      });
    } else {
      if (request.path == "/handle") gate_.pass();
      writer->respond(200, {}, "");
    }
  }

 private:
  Gate& gate_;
};

// Whatever it is at: the handler's functions, those that answer what the server refuses,
// memory that is asked for.
TEST_P(ServerTest, AThreadThatIsStuckIsSeenWhereverItIs) {
  const std::string rest = " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  const std::string body = "POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
  for (const std::string where : {"handle", "pieces", "room", "wants_body", "error_response", "body_cost"}) {
    SCOPED_TRACE(where);
    Gate gate, opened;
    opened.open();
    ManualClock clock;
    Heartbeats beats(clock);
    StuckHandler stuck(where == "body_cost" ? opened : gate);
    options.beats = &beats;
    options.error_response = [&](int, std::string_view, const HttpHead&) {
      gate.pass();
      return HttpResponse{};
    };
    options.body_cost = [&](int64_t bytes) {
      if (where == "body_cost") gate.pass();
      return bytes;
    };
    auto started = HttpServer::start(options, stuck, log);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server = std::move(*started);
    HttpClient idle = client();
    ASSERT_TRUE(idle.get("/").ok());
    ASSERT_TRUE(soon([&] { return beats.silences().empty(); }));
    clock.advance_ns(1'000'000'000);
    EXPECT_TRUE(soon([&] { return beats.silences().empty(); })) << "who waits is not stuck";
    std::string request = "GET /" + where + rest;
    if (where == "wants_body" || where == "body_cost") request = body;
    if (where == "error_response") request = "no request at all\r\n\r\n";
    auto answer = std::async(std::launch::async, [&] { return raw(request); });
    ASSERT_TRUE(gate.come.wait_for(1));
    clock.advance_ns(25'000'000'000);
    EXPECT_TRUE(raw("GET /" + rest).starts_with("HTTP/1.1 200")) << "there is another thread";
    const auto silent = beats.silences();
    EXPECT_TRUE(silent.size() == 1 && silent[0].who == "http" && silent[0].ms == 25'000) << silent.size();
    gate.open();
    EXPECT_TRUE(answer.get().starts_with("HTTP/1.1 "));
    EXPECT_TRUE(soon([&] { return beats.silences().empty(); }));
    server.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(All, ServerTest, testing::Bool(), transport_name);

}  // namespace
}  // namespace loralei
