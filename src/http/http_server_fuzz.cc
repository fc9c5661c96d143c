// SPDX-License-Identifier: Apache-2.0
// The server's connections behind a socket pair: bytes in pieces, half closes and clients
// that leave at places the input chooses, answered in every way there is. Whatever comes,
// each request ends, and all memory is given back.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/fixed_byte_budget.h"
#include "http/server.h"

namespace {

using namespace loralei;

constexpr int64_t kOwnBytes = 4 * kConnectionBytes;

class AnySink final : public BodySink {
 public:
  int64_t max_bytes() const override { return 5'000; }
  void take(std::string piece, std::function<void(bool)> done) override {
    CHECK(!piece.empty());
    bytes += piece.size();
    CHECK(bytes <= 5'000);
    done(piece.find("enough") == std::string::npos);
  }
  size_t bytes = 0;
};

class AnyAnswer final : public HttpHandler {
 public:
  std::shared_ptr<BodySink> body_sink(const HttpHead& head) override {
    return head.path == "/sink" ? std::make_shared<AnySink>() : nullptr;
  }
  bool wants_body(const HttpHead& head) override { return head.path != "/unread"; }
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    if (request.sink) CHECK(request.body.empty());
    CHECK(request.memory && request.memory->bytes() >= static_cast<int64_t>(request.body.size()));
    writer->on_closed([] {});
    if (request.path == "/drop") return;
    if (request.path == "/pieces") {
      writer->respond_pieces(
          200, {}, [body = request.body, memory = request.memory, at = size_t{0}](std::string& piece) mutable {
            piece = body.substr(at, 7);
            return (at += 7) < body.size();
          });
    } else if (request.path == "/stream") {
      writer->start_stream(200, {{"X", request.query}});
      for (size_t at = 0; at < request.body.size() && writer->wants_more(); at += 5)
        writer->write(std::string_view(request.body).substr(at, 5));
      writer->on_room([writer] {
        writer->write("later");
        writer->finish();
      });
    } else if (request.path == "/cut") {
      writer->start_stream(200, {});
      writer->write("half");
    } else if (request.path == "/large") {
      writer->respond(200, {}, std::string(40'000, 'x'));
    } else {
      request.memory->shrink_to(0);
      writer->respond(request.path == "/none" ? 204 : 200, {{"X-Target", request.target}}, request.body);
    }
  }
};

struct Served {
  Served() {
    HttpServerOptions options;
    options.threads = 1;
    options.max_connections = 4;
    options.limits = {.max_header_bytes = 2048, .max_headers = 16, .max_body_bytes = 100'000};
    options.memory = memory;
    options.body_cost = [](int64_t bytes) { return 2 * bytes; };
    options.read_timeout_ms = 5;
    options.idle_timeout_ms = 5;
    options.write_timeout_ms = 5;
    server = HttpServer::start(options, handler, log).value();
  }
  std::shared_ptr<FixedByteBudget> memory = std::make_shared<FixedByteBudget>(kOwnBytes + 150'000);
  NullLogSink log;
  AnyAnswer handler;
  std::unique_ptr<HttpServer> server;
};

// Takes what is there, without waiting; false when the server has closed.
bool take(int fd) {
  char chunk[16 * 1024];
  for (;;) {
    const ssize_t n = ::recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (n <= 0) return n < 0 && errno == EAGAIN;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 64 * 1024) return 0;
  static Served served;
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  served.server->adopt(ends[0]);
  const int64_t total = served.server->stats().connections_total;
  const int fd = ends[1];
  // Two bytes say what comes next: how many bytes, and what is done behind them.
  bool open = true;
  for (size_t at = 0; open && at + 2 <= size;) {
    const size_t n = std::min<size_t>(1 + data[at] * 4, size - at - 2);
    const uint8_t then = data[at + 1];
    at += 2;
    if (n > 0) open = ::send(fd, data + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN;
    at += n;
    if (then % 4 == 1) std::this_thread::yield();
    if (then % 8 == 2) open = take(fd) && open;
    if (then % 64 == 3) ::shutdown(fd, SHUT_WR);
    if (then % 64 == 7) ::shutdown(fd, SHUT_RD);
    if (then % 64 == 11) break;
  }
  const bool leaves = size % 5 == 0;
  ::shutdown(fd, SHUT_WR);
  for (pollfd peer{.fd = fd, .events = POLLIN, .revents = 0}; !leaves && take(fd);) (void)::poll(&peer, 1, 1000);
  ::close(fd);
  // The end of it may still be under way.
  for (int looks = 0; served.server->stats().connections > 0 || served.server->stats().connections_total < total ||
                      served.memory->taken_bytes() > kOwnBytes;
       ++looks) {
    CHECK(looks < 200'000);
    if (looks > 100) ::usleep(50);
  }
  return 0;
}
