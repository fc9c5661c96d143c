// SPDX-License-Identifier: Apache-2.0
// Bodies that go elsewhere than into memory.
#include <atomic>
#include <deque>

#include "http/server_test_util.h"

namespace loralei {
namespace {

// Keeps what it gets; answers on a thread of its own, or when the test says so.
class TestSink final : public BodySink {
 public:
  explicit TestSink(int64_t max_bytes) : max_bytes_(max_bytes) {}
  ~TestSink() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t max_bytes() const override { return max_bytes_; }
  void take(std::string piece, std::function<void(bool)> done) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(taking_) << "the piece before was not taken yet";
    taking_ = true;
    largest_ = std::max(largest_, piece.size());
    ++pieces_;
    const bool more = bytes_.size() + piece.size() < stop_at;
    bytes_ += piece;
    if (held) {
      waiting_ = std::move(done);
      has_piece.add();
      return;
    }
    threads_.emplace_back([this, done = std::move(done), more] {
      {
        const std::lock_guard taken(mutex_);
        taking_ = false;
      }
      done(more);
    });
  }
  void let_go() {
    std::function<void(bool)> done;
    {
      const std::lock_guard lock(mutex_);
      taking_ = false;
      done = std::exchange(waiting_, nullptr);
    }
    done(true);
  }
  std::string bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  size_t largest() const { return largest_; }
  int pieces() const { return pieces_; }

  bool held = false;
  size_t stop_at = SIZE_MAX;
  Counter has_piece;

 private:
  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  bool taking_ = false;
  std::string bytes_;
  size_t largest_ = 0;
  int pieces_ = 0;
  std::function<void(bool)> waiting_;
  std::vector<std::thread> threads_;
};

// Answers with how much came, and keeps the sinks until the end.
class SinkHandler final : public HttpHandler {
 public:
  std::shared_ptr<BodySink> body_sink(const HttpHead& head) override {
    if (head.path == "/memory") return nullptr;
    auto sink = std::make_shared<TestSink>(max_bytes);
    sink->held = held;
    sink->stop_at = stop_at;
    const std::lock_guard lock(mutex_);
    sinks_.push_back(sink);
    made.add();
    return sink;
  }
  bool wants_body(const HttpHead& head) override { return head.path != "/refused"; }
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    const auto* sink = dynamic_cast<TestSink*>(request.sink.get());
    handled.add();
    const std::string bytes = sink ? sink->bytes() : request.body;
    writer->respond(200, {},
                    (sink ? "sink " : "memory ") + (bytes.size() < 1000 ? bytes : std::to_string(bytes.size())));
  }
  std::shared_ptr<TestSink> sink(size_t index) {
    EXPECT_TRUE(made.wait_for(static_cast<int>(index) + 1));
    const std::lock_guard lock(mutex_);
    return sinks_[index];
  }

  int64_t max_bytes = 100 << 20;
  bool held = false;
  size_t stop_at = SIZE_MAX;
  Counter made, handled;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<TestSink>> sinks_;
};

class ServerSinkTest : public ServerTest {
 protected:
  void begin() {
    if (memory) options.memory = memory;
    auto started = HttpServer::start(options, sinks, log);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server = std::move(started).value();
  }
  // Declared before the server's end, which must come first.
  ~ServerSinkTest() override { server.reset(); }
  SinkHandler sinks;
};

std::string text_of(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += std::to_string(text.size()) + ",";
  text.resize(bytes);
  return text;
}

TEST_P(ServerSinkTest, ABodyLargerThanAnyInMemoryPassesInPieces) {
  options.limits.max_body_bytes = 1 << 20;
  give_memory(1 << 20);
  begin();
  const std::string text = text_of(5 << 20);
  HttpClient c = client();
  auto answer = c.request("POST", "/upload", {}, text);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "sink " + std::to_string(text.size()));
  const auto sink = sinks.sink(0);
  EXPECT_TRUE(sink->bytes() == text);
  EXPECT_GT(sink->pieces(), 10);
  EXPECT_LE(sink->largest(), size_t{128} << 10);
  // The connection goes on, and memory is as it was.
  EXPECT_EQ(c.request("POST", "/memory", {}, "x")->body, "memory x");
  EXPECT_EQ(c.request("POST", "/upload", {}, "y")->body, "sink y");
  EXPECT_TRUE(soon([&] { return taken() <= 0; })) << taken();
}

TEST_P(ServerSinkTest, ChunkedOnesAndThoseBehindThem) {
  begin();
  std::string bytes, want;
  for (int i = 0; i < 5; ++i) {
    bytes += "POST /upload HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" +
             std::string(i == 4 ? "Connection: close\r\n" : "") + "\r\n3\r\nabc\r\n1\r\n" + std::to_string(i) +
             "\r\n0\r\n\r\n";
  }
  const std::string answer = raw(bytes);
  size_t at = 0;
  for (int i = 0; i < 5; ++i) {
    at = answer.find("\r\n\r\nsink abc" + std::to_string(i), at);
    ASSERT_NE(at, std::string::npos) << i << " in " << answer;
  }
}

TEST_P(ServerSinkTest, ItsOwnLimitCounts) {
  options.limits.max_body_bytes = 10;
  sinks.max_bytes = 100;
  begin();
  EXPECT_EQ(client().request("POST", "/upload", {}, text_of(100))->status, 200);
  const auto refused = client().request("POST", "/upload", {}, text_of(101));
  EXPECT_EQ(refused->status, 413);
  EXPECT_NE(refused->body.find("limit of 100 bytes"), std::string::npos) << refused->body;
  EXPECT_EQ(client().request("POST", "/memory", {}, text_of(11))->status, 413);
  const std::string chunked = raw("POST /upload HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n60\r\n" +
                                  text_of(96) + "\r\n60\r\n" + text_of(96) + "\r\n0\r\n\r\n");
  EXPECT_TRUE(chunked.starts_with("HTTP/1.1 413")) << chunked;
}

TEST_P(ServerSinkTest, OneThatWantsNoMoreIsAskedAtOnce) {
  sinks.stop_at = 1000;
  begin();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + text_of(5000)).ok());
  const auto answer = c.read_raw();  // though the rest never comes
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->starts_with("HTTP/1.1 200")) << *answer;
  EXPECT_NE(answer->find("Connection: close"), std::string::npos);
}

TEST_P(ServerSinkTest, WhileOneIsBusyNothingIsReadBeyondABuffer) {
  sinks.held = true;
  give_memory(1 << 20);
  begin();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n" + text_of(100'000)).ok());
  const auto sink = sinks.sink(0);
  ASSERT_TRUE(sink->has_piece.wait_for(1));
  EXPECT_LE(taken(), 512 << 10);
  // The others are served.
  EXPECT_EQ(client().request("POST", "/memory", {}, "x")->body, "memory x");
  std::thread rest([&] { EXPECT_TRUE(c.send_raw(text_of(300'000).substr(100'000)).ok()); });
  for (int i = 1;; ++i) {
    ASSERT_TRUE(sink->has_piece.wait_for(i));
    const bool last = sink->bytes().size() == 300'000;
    sink->let_go();
    if (last) break;
  }
  rest.join();
  const auto answer = c.read_raw(20);
  EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(sink->bytes() == text_of(300'000));
}

TEST_P(ServerSinkTest, AClientThatLeavesAndAServerThatStopsWhileOneIsBusy) {
  sinks.held = true;
  begin();
  {
    HttpClient c = client();
    ASSERT_TRUE(c.send_raw("POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\nabc").ok());
    ASSERT_TRUE(sinks.sink(0)->has_piece.wait_for(1));
  }
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; })) << "noticed though the sink says nothing";
  sinks.sink(0)->let_go();
  HttpClient c = client();
  ASSERT_TRUE(c.send_raw("POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\nabc").ok());
  ASSERT_TRUE(sinks.sink(1)->has_piece.wait_for(1));
  server->stop(0);
  sinks.sink(1)->let_go();  // nobody listens
  EXPECT_EQ(sinks.handled.value(), 0);
}

TEST_P(ServerSinkTest, ARequestThatItsHeadRefusesHasNone) {
  begin();
  const auto answer = client().request("POST", "/refused", {}, text_of(100));
  EXPECT_EQ(answer->body, "memory ");
  EXPECT_EQ(sinks.sink(0)->pieces(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, ServerSinkTest, testing::Bool(), transport_name);

}  // namespace
}  // namespace loralei
