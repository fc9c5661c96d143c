// SPDX-License-Identifier: Apache-2.0
// What requests and answers cost, before it is allocated and until it is given back.
#include <map>
#include <random>

#include "http/server_test_util.h"

namespace loralei {
namespace {

constexpr int64_t kMib = 1024 * 1024;

std::string post_head(size_t bytes, const std::string& more = "", const std::string& path = "/echo") {
  return "POST " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: " + std::to_string(bytes) +
         "\r\n" + more + "\r\n";
}
std::string chunk(size_t bytes) {
  char length[20];
  std::snprintf(length, sizeof length, "%zx\r\n", bytes);
  return length + std::string(bytes, 'c') + "\r\n";
}

TEST_P(ServerTest, ABodyIsGrantedWhenItsHeadIsComplete) {
  give_memory(10 * kMib);
  options.body_cost = [](int64_t bytes) { return 3 * bytes; };
  start();
  HttpClient c = client();
  const std::string head = post_head(1'000'000, "Expect: 100-continue\r\n");
  ASSERT_TRUE(c.send_raw(std::string_view(head).substr(0, head.size() - 1)).ok());
  EXPECT_TRUE(soon([&] { return server->stats().connections == 1; }));
  EXPECT_EQ(taken(), 0);
  ASSERT_TRUE(c.send_raw("\n").ok());
  EXPECT_EQ(c.read_raw(25).value(), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(taken(), 3'000'000) << "before a byte of it was sent";
  ASSERT_TRUE(c.send_raw(std::string(1'000'000, 'b')).ok());
  EXPECT_TRUE(c.read_raw().value().ends_with(std::string(1'000'000, 'b')));
  EXPECT_TRUE(soon([&] { return taken() == 0; })) << taken();
}

TEST_P(ServerTest, WhatNeverFindsRoomIs413AndWhatFindsNoneNow429) {
  give_memory(kMib);
  options.body_cost = [](int64_t bytes) { return 3 * bytes; };
  start();
  const int64_t most = memory->most_bytes();
  HttpClient holds = client();
  ASSERT_TRUE(holds.send_raw(post_head(300'000)).ok());
  ASSERT_TRUE(soon([&] { return taken() == 900'000; }));
  const std::map<std::string, std::pair<int, std::string>> cases = {
      {post_head(5'000'000, "Expect: 100-continue\r\n"), {413, "15000000"}},
      {post_head(5'000'000), {413, "15000000"}},
      {post_head(300'000, "Expect: 100-continue\r\n"), {429, "900000"}},
      {post_head(300'000), {429, "900000"}},
  };
  for (const auto& [bytes, expected] : cases) {
    const auto& [status, cost] = expected;
    const std::string answer = raw(bytes);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::to_string(status))) << answer;
    EXPECT_NE(answer.find(cost), std::string::npos) << answer;
    EXPECT_NE(answer.find(std::to_string(most)), std::string::npos) << answer;
    EXPECT_EQ(answer.find("Retry-After: ") != std::string::npos, status == 429) << answer;
    EXPECT_EQ(taken(), 900'000);
  }
  EXPECT_EQ(client().post_json("/echo", "small")->body, "small");
  holds.close();
  EXPECT_TRUE(soon([&] { return taken() == 0; }));
  EXPECT_EQ(client().post_json("/echo", std::string(200'000, 'b'))->status, 200);
}

TEST_P(ServerTest, AChunkedBodyIsGrantedAsItGrows) {
  give_memory(4 * kMib);
  start();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /kept HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(1000)).ok());
  EXPECT_TRUE(soon([&] { return taken() == 64 * 1024; })) << taken();
  ASSERT_TRUE(c.send_raw(chunk(1'000'000)).ok());
  EXPECT_TRUE(soon([&] { return taken() >= 1'001'000; }));
  ASSERT_TRUE(c.send_raw(chunk(500'000) + "0\r\n\r\n").ok());
  ASSERT_TRUE(soon([&] { return server->stats().requests_total == 1; }));
  EXPECT_EQ(c.read_raw(12).value(), "HTTP/1.1 200");
  {
    std::lock_guard lock(handler.mutex);
    const HttpRequest& request = handler.kept.front();
    EXPECT_EQ(request.body, std::string(1'501'000, 'c'));
    EXPECT_LE(static_cast<int64_t>(request.body.capacity()), request.memory->bytes());
  }
  std::string endless = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 40; ++i) endless += chunk(100'000);
  EXPECT_TRUE(raw(endless).starts_with("HTTP/1.1 429"));
  handler.drop_all();
  EXPECT_TRUE(soon([&] { return taken() == 0; })) << taken();
}

TEST_P(ServerTest, BodiesOfAllConnectionsAreBoundedTogether) {
  constexpr int kFit = 16, kMore = 8;
  give_memory(kFit * 1000);
  start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kFit + kMore; ++i) {
    clients.emplace_back(new HttpClient(client()));
    ASSERT_TRUE(clients.back()->send_raw(post_head(1000) + std::string(999, 'b')).ok());
  }
  ASSERT_TRUE(soon([&] { return server->stats().errors_total == kMore; }));
  int refused = 0;
  for (const auto& one : clients) {
    (void)one->send_raw("b");
    const auto answer = one->read_raw();
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    if (answer->starts_with("HTTP/1.1 200")) continue;
    ++refused;
    EXPECT_TRUE(answer->starts_with("HTTP/1.1 429")) << *answer;
  }
  EXPECT_EQ(refused, kMore);
}

TEST_P(ServerTest, ABodyHasItsMemoryUntilItsRequestIsDropped) {
  give_memory(1500);
  start();
  const std::string body(1000, 'b');
  EXPECT_EQ(client().post_json("/kept", body)->status, 200);
  EXPECT_EQ(client().post_json("/kept", body)->status, 429);
  EXPECT_EQ(client().post_json("/kept", "small")->status, 200);
  handler.drop_all();
  EXPECT_EQ(client().post_json("/kept", body)->status, 200);
}

// Connections that do all that peers do, against one budget: it is never overdrawn, and
// all of it comes back.
TEST_P(ServerTest, WhateverClientsDoTheMemoryComesBack) {
  give_memory(3 * kMib);
  options.read_timeout_ms = 200;
  options.limits.max_body_bytes = 2 * kMib;
  start();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<std::unique_ptr<HttpClient>> open;
  const auto end_some = [&] {
    std::lock_guard lock(handler.mutex);
    for (const auto& writer : handler.held) writer->respond(200, {}, std::string(below(100'000), 'a'));
    handler.held.clear();
    handler.kept.clear();
  };
  for (int i = 0; i < 200; ++i) {
    std::string bytes;
    for (size_t requests = 1 + below(3); requests > 0; --requests) {
      const char* const paths[] = {"/echo", "/kept", "/refused", "/drop", "/held"};
      const std::string path = paths[below(5)];
      const size_t size = below(3) == 0 ? below(2 * kMib + 100) : below(20'000);
      if (below(3) == 0) {
        bytes += "POST " + path + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(1 + size) +
                 chunk(1 + below(1000)) + "0\r\n\r\n";
      } else {
        bytes += "POST " + path + " HTTP/1.1\r\nHost: h\r\nX-Long: " + std::string(below(20'000), 'x') +
                 "\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n" + std::string(size, 'b');
      }
    }
    if (below(2) == 0) bytes.resize(below(bytes.size()));
    open.emplace_back(new HttpClient({.port = port(), .read_timeout_ms = 20}));
    (void)open.back()->send_raw(bytes);  // fails where the server reads no more
    if (below(2) == 0) open[below(open.size())]->close();
    if (below(4) == 0) end_some();
    ASSERT_LE(memory->taken_bytes(), memory->most_bytes());
    ASSERT_GE(taken(), 0);
  }
  open.clear();
  const auto empty = [&] {
    end_some();
    return server->stats().connections == 0 && taken() == 0;
  };
  EXPECT_TRUE(soon(empty)) << taken();
  HttpClient last = client();
  ASSERT_TRUE(last.send_raw(post_head(kMib)).ok());
  EXPECT_TRUE(soon([&] { return taken() == kMib; }));
  server.reset();
  handler.drop_all();
  EXPECT_EQ(memory->taken_bytes(), 0) << "the connections' own as well";
}

class ReadersTest : public ServerTest {
 protected:
  // Clients that have asked and read nothing yet.
  void ask(int readers) {
    for (int i = 0; i < readers; ++i) {
      clients.emplace_back(new HttpClient(client()));
      ASSERT_TRUE(clients.back()->send_raw("GET /held HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").ok());
    }
    ASSERT_TRUE(handler.held_count.wait_for(static_cast<int>(clients.size())));
  }
  // Until it has been the same for a while.
  static int64_t settled(const std::function<int64_t()>& value) {
    int64_t last = value();
    for (int same = 0; same < 20; ++same) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (value() != last) same = 0;
      last = value();
    }
    return last;
  }
  // What a chunked answer says.
  static std::string unchunked(const std::string& answer) {
    HttpResponse out;
    ResponseParser parser({.max_body_bytes = size_t{1} << 30}, false, [&](std::string_view piece) {
      out.body += piece;
      return true;
    });
    parser.feed(answer);
    EXPECT_TRUE(parser.complete()) << parser.error_message();
    return out.body;
  }
  std::vector<std::unique_ptr<HttpClient>> clients;
};

TEST_P(ReadersTest, AnswersAreMadeAsTheyAreRead) {
  start();
  ask(1);  // one after the other, so that the first writer is the first client's
  ask(1);
  constexpr int kPieces = 3000;
  std::atomic<int> made{0};
  const auto pieces = [&](std::shared_ptr<int> at) {
    return [&made, at = std::move(at)](std::string& piece) {
      ++made;
      piece.assign(kPieceBytes, static_cast<char>('a' + *at % 26));
      return ++*at < kPieces;
    };
  };
  auto first = handler.writer(0);
  ASSERT_TRUE(first->respond_pieces(200, {}, pieces(std::make_shared<int>(0))));
  EXPECT_FALSE(first->respond(200, {}, "second"));
  EXPECT_FALSE(first->write("third"));
  EXPECT_LT(settled([&] { return made.load(); }), kPieces / 2);
  const auto answer = clients[0]->read_raw();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const std::string body = unchunked(*answer);
  ASSERT_EQ(body.size(), kPieces * kPieceBytes);
  for (size_t i = 0; i < kPieces; ++i) ASSERT_EQ(body[i * kPieceBytes], static_cast<char>('a' + i % 26));
  EXPECT_EQ(made, kPieces);

  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = owned;
  ASSERT_TRUE(handler.writer(1)->respond_pieces(200, {}, pieces(std::move(owned))));
  ASSERT_TRUE(soon([&] { return made > kPieces; }));
  clients[1]->close();
  EXPECT_TRUE(soon([&] { return watched.expired(); })) << "who left needs nothing any more";
  EXPECT_TRUE(handler.closed.wait_for(1));
  EXPECT_LT(made, 2 * kPieces);
}

TEST_P(ReadersTest, PiecesForOldClientsAndForHead) {
  start();
  for (const char* request :
       {"GET /held HTTP/1.0\r\n\r\n", "HEAD /held HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "GET /held HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"}) {
    HttpClient c = client();
    const int index = handler.held_count.value();
    ASSERT_TRUE(c.send_raw(request).ok());
    int calls = 0;
    ASSERT_TRUE(handler.writer(index)->respond_pieces(200, {}, [&](std::string& piece) {
      piece = calls++ == 0 ? "one " : "two";
      return calls < 2;
    }));
    const std::string answer = c.read_raw().value();
    const std::string end = index == 0   ? "\r\n\r\none two"
                            : index == 1 ? "chunked\r\nConnection: close\r\n\r\n"
                                         : "\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n";
    EXPECT_TRUE(answer.ends_with(end)) << answer;
    EXPECT_EQ(calls, index == 1 ? 0 : 2);
  }
}

TEST_P(ReadersTest, AProducerRestsWhileItsReaderIsSlow) {
  give_memory(kMib);
  start();
  ask(1);
  auto writer = handler.writer(0);
  ASSERT_TRUE(writer->start_stream(200, {}));
  constexpr int kChunks = 20'000;
  const std::string text(1000, 'x');
  std::atomic<int> written{0};
  std::function<void()> produce = [&] {
    while (written < kChunks && writer->wants_more()) {
      ++written;
      EXPECT_TRUE(writer->write(text));
    }
    if (written < kChunks) return writer->on_room(produce);
    writer->finish();
  };
  produce();
  EXPECT_LT(settled([&] { return written.load(); }), kChunks / 2);
  EXPECT_LE(taken(), 128 * 1024);
  EXPECT_FALSE(writer->closed());
  const std::string body = unchunked(clients[0]->read_raw().value());
  EXPECT_EQ(body.size(), kChunks * text.size());
  EXPECT_EQ(handler.closed.value(), 0);
  EXPECT_TRUE(soon([&] { return taken() == 0; }));
}

TEST_P(ReadersTest, TwoHundredSlowReadersTakeWhatTheMemoryHas) {
  constexpr int kReaders = 200;
  memory = std::make_shared<FixedByteBudget>(kReaders * connection_bytes(options) + 4 * kMib);
  start();
  ask(kReaders);
  const std::string large(40'000, 'x');
  int64_t queued = 0, given = 0;
  for (int i = 0; i < kReaders; ++i) {
    auto writer = handler.writer(i);
    if (i % 2 == 0) {
      ASSERT_TRUE(writer->respond_pieces(200, {}, [n = 0](std::string& piece) mutable {
        piece.assign(kPieceBytes, 'x');
        return ++n < 1000;
      }));
      continue;
    }
    ASSERT_TRUE(writer->start_stream(200, {}));
    for (int k = 0; k < 1000 && writer->wants_more(); ++k) queued += writer->write(large);
    given += 1000;
    EXPECT_FALSE(writer->closed());
  }
  EXPECT_LT(queued, given / 2);
  EXPECT_LE(memory->taken_bytes(), memory->most_bytes());
  EXPECT_EQ(server->stats().connections, kReaders) << "nobody is cut";
  clients.clear();
  EXPECT_TRUE(soon([&] { return taken() == 0; })) << taken();
}

TEST_P(ReadersTest, AnAnswerWithoutRoomIsNotKept) {
  give_memory(100'000);
  start();
  ask(1);
  EXPECT_TRUE(handler.writer(0)->respond(200, {}, std::string(200'000, 'x')));
  const std::string answer = clients[0]->read_raw().value();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
  EXPECT_NE(answer.find("200000"), std::string::npos) << answer;
}

// It takes something each time before write_timeout_ms is over.
TEST_P(ReadersTest, WhoTakesLessThanTheLeastRateIsCut) {
  options.write_timeout_ms = 200;
  options.min_answer_bytes_per_s = int64_t{1} << 40;
  start();
  ask(1);
  ASSERT_TRUE(handler.writer(0)->respond(200, {}, std::string(64 << 20, 'x')));
  size_t taken = 0;
  while (server->stats().connections > 0 && taken < size_t{60} << 20) {
    auto some = clients[0]->read_raw(200'000);
    if (!some.ok() || some->empty()) break;
    taken += some->size();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(taken, size_t{60} << 20);
}

INSTANTIATE_TEST_SUITE_P(All, ReadersTest, testing::Bool(), transport_name);

}  // namespace
}  // namespace loralei
