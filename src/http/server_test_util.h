// SPDX-License-Identifier: Apache-2.0
// The server over loopback. Waiting is always for an event (an answer, a closed
// connection, a counter), with a long limit that only a failure reaches.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fixed_byte_budget.h"
#include "http/client.h"
#include "http/server.h"
#include "http/server_tls_test_util.h"

namespace loralei {

inline constexpr auto kPatience = std::chrono::seconds(30);

class Counter {
 public:
  void add() {
    std::lock_guard lock(mutex_);
    ++value_;
    changed_.notify_all();
  }
  bool wait_for(int value) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return value_ >= value; });
  }
  int value() {
    std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
};

// Routes for the tests; held writers stand for requests being computed.
class TestHandler final : public HttpHandler {
 public:
  bool wants_body(const HttpHead& head) override { return head.path != "/refused"; }
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    if (request.path == "/echo") {
      writer->respond(200, {{"X-Method", request.method}, {"X-Peer", request.peer}}, request.body);
    } else if (request.path == "/refused") {
      writer->respond(401, {}, std::to_string(request.body.size()));
    } else if (request.path == "/kept") {
      std::lock_guard lock(mutex);
      kept.push_back(std::move(request));
      writer->respond(200, {}, "");
    } else if (request.path == "/drop") {
      return;
    } else if (request.path == "/twice") {
      EXPECT_TRUE(writer->respond(200, {}, "first"));
      EXPECT_FALSE(writer->respond(500, {}, "second"));
      EXPECT_FALSE(writer->start_stream(500, {}));
      EXPECT_FALSE(writer->write("x"));
      writer->finish();
    } else if (request.path == "/evil") {
      writer->respond(200, {{"X-Evil", "a\r\nX-Injected: b"}}, "");
    } else {  // held until the test answers
      writer->on_closed([this] { closed.add(); });
      std::lock_guard lock(mutex);
      held.push_back(std::move(writer));
      held_count.add();
    }
  }
  std::shared_ptr<ResponseWriter> writer(int index) {
    EXPECT_TRUE(held_count.wait_for(index + 1));
    std::lock_guard lock(mutex);
    return held[static_cast<size_t>(index)];
  }
  void drop_all() {
    std::lock_guard lock(mutex);
    kept.clear();
    held.clear();
  }
  ~TestHandler() override = default;

  Counter closed, held_count;
  std::mutex mutex;
  std::vector<std::shared_ptr<ResponseWriter>> held;
  std::vector<HttpRequest> kept;
};

class ServerFixture : public testing::Test {
 protected:
  bool secure() const { return options.tls != nullptr; }
  void start() {
    if (memory) options.memory = memory;
    auto started = HttpServer::start(options, handler, log);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server = std::move(started).value();
  }
  // Where clients find the server.
  int port() const {
    if (!secure()) return server->port();
    auto& tunnel = tunnels_[server->port()];
    if (!tunnel) tunnel = std::make_unique<TlsTunnel>(options.host, server->port());
    return tunnel->port();
  }
  HttpClient client() const {
    return HttpClient({.host = secure() ? "127.0.0.1" : options.host, .port = port(), .read_timeout_ms = 30'000});
  }
  static bool soon(const std::function<bool()>& holds) {
    for (const auto until = std::chrono::steady_clock::now() + kPatience; !holds();) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  std::string raw(std::string_view bytes) {
    HttpClient c = client();
    EXPECT_TRUE(c.send_raw(bytes).ok());
    auto answer = c.read_raw();
    return answer.ok() ? *answer : "error: " + answer.error().message;
  }

  // Room for connections, which is there from the start, and so much more.
  void give_memory(int64_t more_bytes) {
    memory = std::make_shared<FixedByteBudget>(kConnectionsAlways * connection_bytes(options) + more_bytes);
  }
  int64_t taken() const { return memory->taken_bytes() - kConnectionsAlways * connection_bytes(options); }

  std::shared_ptr<FixedByteBudget> memory;
  HttpServerOptions options;
  NullLogSink log;
  TestHandler handler;
  std::unique_ptr<HttpServer> server;

 private:
  mutable std::map<int, std::unique_ptr<TlsTunnel>> tunnels_;  // by the server's port
};

// Over plain connections, and over TLS through a tunnel: all that holds for one holds
// for the other.
class ServerTest : public ServerFixture, public testing::WithParamInterface<bool> {
 protected:
  ServerTest() {
    if (GetParam()) options.tls = test_tls();
  }
  // A time limit that a test waits for, and that a handshake keeps.
  int64_t short_ms() const { return secure() ? 2000 : 50; }
};

inline std::string transport_name(const testing::TestParamInfo<bool>& info) { return info.param ? "Tls" : "Plain"; }

}  // namespace loralei
