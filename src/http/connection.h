// SPDX-License-Identifier: Apache-2.0
// HttpServer::Core and HttpConnection: what listener and connections share, and one client. Private to http/, and
// included by server.cc alone.
//
// Thread: a connection lives on its strand, but for post_wake() and post_cut(); what says "guarded by mutex" is Core's.
// Ownership: a connection's coroutines own it and share the Core, which borrows handler and log. Failure: none of its
// own.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>

#include "http/exchange.h"

namespace loralei {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadChunkBytes = 16 * 1024;
constexpr size_t kPipelineBytes = 64 * 1024;        // read ahead of the request being answered, no more
constexpr auto kLeftCheckTime = milliseconds(500);  // between two looks at a client of whom no more is read
constexpr size_t kLingerBytes =
    16 * 1024 * 1024;  // discarded after a refused request, so that the client sees the answer
constexpr auto kLingerTime = milliseconds(2000);

class HttpConnection;

// What listener and connections share. It outlives the HttpServer as long as a connection or a writer needs it.
struct HttpServer::Core : std::enable_shared_from_this<HttpServer::Core> {
  Core(const HttpServerOptions& options, LogSink& log)
      : options(options), log(log), acceptor(asio::make_strand(context)), work(context.get_executor()) {}

  HttpResponse error_response(int status, std::string_view message, const HttpHead& request) const {
    HttpResponse response;
    if (options.error_response) {
      response = options.error_response(status, message, request);
    } else {
      response.headers.emplace_back("Content-Type", "text/plain; charset=utf-8");
      response.body = std::string(message) + "\n";
    }
    response.status = status;
    return response;
  }

  Status listen();
  awaitable<void> accept_loop();
  bool add(const std::shared_ptr<HttpConnection>& connection);  // false when stop() has begun
  void remove(HttpConnection* connection);
  // A place for one more connection, if need be that of the one that has been idle longest; false: all are in use.
  bool take_place();
  void begin_idle(HttpConnection& connection);
  bool end_idle(HttpConnection& connection);  // false: its place has been taken
  int stop(int64_t grace_ms);
  int64_t max_bodies_bytes() const {
    if (options.max_bodies_bytes > 0) return options.max_bodies_bytes;
    return kBodiesAtOnce *
           static_cast<int64_t>(std::min<uint64_t>(options.limits.max_body_bytes, INT64_MAX / kBodiesAtOnce));
  }

  const HttpServerOptions options;
  HttpHandler* handler = nullptr;  // from serve() on
  LogSink& log;
  asio::io_context context;
  tcp::acceptor acceptor;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
  int port = 0;
  std::atomic<bool> stopping{false};
  std::atomic<int> refusals{0};
  std::atomic<int64_t> bodies_bytes{0};
  std::atomic<int64_t> connections_total{0}, connections_refused{0}, requests_total{0}, errors_total{0};

  std::mutex mutex;
  std::condition_variable none_left;
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections;
  int places_taken = 0;             // of max_connections
  std::list<HttpConnection*> idle;  // between requests, the longest first
  bool stopped = false;
};

// One body's share of what all bodies may take together. Grows on the connection's strand; given back where its last
// holder drops it.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<HttpServer::Core> core) : core_(std::move(core)) {}
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  ~BodyShare() { core_->bodies_bytes -= bytes_; }

  // False when there is no room: then it stays as it was.
  bool grow_to(int64_t bytes) {
    const int64_t more = bytes - bytes_;
    if ((core_->bodies_bytes += more) > core_->max_bodies_bytes()) {
      core_->bodies_bytes -= more;
      return false;
    }
    bytes_ = bytes;
    return true;
  }

 private:
  const std::shared_ptr<HttpServer::Core> core_;
  int64_t bytes_ = 0;
};

// One client. Two coroutines on one strand: the read loop, which always has a read pending, and the main one, which
// parses, hands over and writes. They meet in input_, eof_ and the wake event.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpServer::Core> core, tcp::socket socket, bool refused)
      : core_(std::move(core)),
        refused_(refused),
        socket_(std::move(socket)),
        wake_timer_(socket_.get_executor()),
        space_timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()) {
    if (refused_) ++core_->refusals;
  }

  ~HttpConnection() {
    if (refused_) --core_->refusals;
    core_->remove(this);
  }

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
    const tcp::endpoint remote = socket_.remote_endpoint(ignored);
    peer_ = ignored ? "unknown" : remote.address().to_string();
    peer_is_loopback_ = !ignored && is_loopback(remote.address());
    auto self = shared_from_this();
    // An exception can only be a failed allocation: this connection ends, the others go on.
    const auto end = [self](std::exception_ptr failure) {
      if (failure) self->cut();
    };
    asio::co_spawn(
        socket_.get_executor(), [self] { return self->main_loop(); }, end);
    asio::co_spawn(
        socket_.get_executor(), [self] { return self->read_loop(); }, end);
  }

  // From any thread.
  void post_wake() {
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->wake();
    });
  }
  void post_cut() {
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->cut();
    });
  }

 private:
  static bool is_loopback(const asio::ip::address& address) {
    if (address.is_loopback()) return true;
    return address.is_v6() && address.to_v6().is_v4_mapped() &&
           asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }

  void wake() {
    woken_ = true;
    wake_timer_.cancel();
  }

  // The client is gone or is to be gone: whoever computes for it is told, every pending operation ends.
  void cut() {
    eof_ = true;
    if (exchange_) exchange_->close();
    error_code ignored;
    socket_.close(ignored);
    wake();
    space_timer_.cancel();
  }

  // Sleeps until wake() or the time; true when woken. A wake() between two waits is not lost.
  awaitable<bool> wait_until(steady_clock::time_point deadline) {
    if (!woken_) {
      wake_timer_.expires_at(deadline);
      co_await wake_timer_.async_wait(kAwait);
    }
    const bool result = woken_;
    woken_ = false;
    co_return result;
  }

  size_t read_some(error_code& ec) {
    std::array<char, kReadChunkBytes> chunk;  // on the thread's stack: an idle connection holds no buffer
    const size_t n = socket_.read_some(asio::buffer(chunk), ec);
    if (!discard_) input_.append(chunk.data(), n);
    discarded_bytes_ += discard_ ? n : 0;
    return n;
  }

  awaitable<void> read_loop() {
    while (socket_.is_open()) {
      if (input_.size() >= std::max(kPipelineBytes, 2 * core_->options.limits.max_header_bytes)) {
        space_timer_.expires_after(kLeftCheckTime);
        co_await space_timer_.async_wait(kAwait);
        if (exchange_ && has_left() && exchange_->close()) cut();
        continue;
      }
      auto [ec] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
      if (!ec) read_some(ec);
      if (ec == asio::error::would_block || ec == asio::error::try_again || ec == asio::error::interrupted) continue;
      if (ec == asio::error::eof) {
        // A client that closes its sending side is gone, unless its answer is complete and only has to be written, or
        // the requests it sent before are still to be read.
        eof_ = true;
        if (exchange_ && exchange_->close()) cut();
        wake();
        co_return;
      }
      if (ec) {
        cut();
        co_return;
      }
      wake();
    }
  }

  // Has closed its side, behind bytes that are not read yet.
  bool has_left() {
    pollfd peer{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&peer, 1, 0) > 0;
  }

  friend struct HttpServer::Core;  // for what its mutex guards

  awaitable<void> main_loop() {
    bool more = !refused_;
    const HttpHead none;  // not a temporary: GCC 12 destroys those of a co_await twice
    if (refused_) co_await answer_error(503, "The server has too many open connections; try again in a moment.", none);
    while (more) {
      std::optional<HttpRequest> request = co_await read_request();
      if (!request) break;
      more = co_await answer(std::move(*request));
    }
    co_await linger();
    error_code ignored;
    socket_.close(ignored);
    space_timer_.cancel();
  }

  awaitable<std::optional<HttpRequest>> read_request() {
    RequestParser parser(core_->options.limits);
    core_->begin_idle(*this);
    std::shared_ptr<BodyShare> share;
    steady_clock::time_point begun{};
    bool judged = false, continued = false;
    for (;;) {
      if (!input_.empty()) {
        if (begun == steady_clock::time_point{}) {
          if (!core_->end_idle(*this)) co_return std::nullopt;
          begun = steady_clock::now();
        }
        input_.erase(0, parser.feed(input_));
        space_timer_.cancel();
      }
      if (parser.failed()) {
        co_await answer_error(parser.error_status(), parser.error_message(), parser.head());
        co_return std::nullopt;
      }
      if (parser.header_complete() && !parser.complete() && !judged) {
        judged = true;
        if (!core_->handler->wants_body(parser.head())) co_return without_body(parser.take());
      }
      if (parser.body_bytes() > 0) {
        if (!share) share = std::make_shared<BodyShare>(core_);
        if (!share->grow_to(static_cast<int64_t>(parser.body_bytes()))) {
          co_await answer_error(503, "The server holds as many bytes of requests as it may; try again in a moment.",
                                parser.head());
          co_return std::nullopt;
        }
      }
      if (parser.complete()) {
        HttpRequest request = parser.take();
        request.body_share = std::move(share);
        co_return request;
      }
      if (eof_ || !socket_.is_open()) co_return std::nullopt;
      const bool started = begun != steady_clock::time_point{};
      if (core_->stopping) {
        // Half a request must not hold the stop up as long as it may take to arrive.
        if (started)
          co_await answer_error(503, "The server is shutting down and takes no new requests.", parser.head());
        co_return std::nullopt;
      }
      if (parser.header_complete() && parser.expects_continue() && !continued) {
        continued = true;
        if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return std::nullopt;
      }
      const auto bought_ms = static_cast<int64_t>(parser.body_bytes()) * 1000 / kMinBodyBytesPerS;
      const auto deadline = started ? begun + milliseconds(core_->options.read_timeout_ms + bought_ms)
                                    : steady_clock::now() + milliseconds(core_->options.idle_timeout_ms);
      if (!co_await wait_until(deadline)) {
        if (started) co_await answer_error(408, "The request did not arrive in time.", parser.head());
        co_return std::nullopt;
      }
    }
  }

  // To be answered as it is, while the rest of it may still be on its way.
  HttpRequest without_body(HttpRequest request) {
    request.body.clear();
    request.keep_alive = false;
    linger_ = true;
    return request;
  }

  awaitable<void> answer_error(int status, std::string message, const HttpHead& request) {
    ++core_->errors_total;
    linger_ = true;
    HttpResponse response = core_->error_response(status, message, request);
    if (status == 503) response.headers.emplace_back("Retry-After", "1");
    co_await write(
        format_response_head(status, 11, response.headers, static_cast<int64_t>(response.body.size()), false, false) +
        response.body);
  }

  // Hands the request over and writes its answer. True when the connection may serve another request.
  awaitable<bool> answer(HttpRequest request) {
    request.peer = peer_;
    request.peer_is_loopback = peer_is_loopback_;
    ExchangeOptions options;
    options.version = request.version;
    options.head_only = request.method == "HEAD";
    options.keep_alive = request.keep_alive;
    options.max_buffer_bytes = core_->options.max_write_buffer_bytes;
    options.stopping = [core = core_] { return core->stopping.load(); };
    options.wake = [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->post_wake();
    };
    exchange_ = std::make_shared<Exchange>(std::move(options));
    const std::shared_ptr<Exchange> exchange = exchange_;
    ++core_->requests_total;
    auto writer = std::make_shared<ExchangeWriter>(
        exchange, [core = core_, head = static_cast<const HttpHead&>(request)](int status, std::string_view message) {
          return core->error_response(status, message, head);
        });
    core_->handler->handle(std::move(request), std::move(writer));
    if (eof_ && exchange->close()) cut();
    for (;;) {
      Exchange::Out out = exchange->take();
      if (out.overflow || !socket_.is_open()) {
        cut();
        break;
      }
      if (!out.bytes.empty()) {
        if (!co_await write(out.bytes)) {
          cut();
          break;
        }
        exchange->wrote(out.bytes.size());
        continue;
      }
      if (out.complete) break;
      co_await wait_until(steady_clock::time_point::max());
    }
    exchange_.reset();
    co_return exchange->keep_alive() && socket_.is_open() && !core_->stopping;
  }

  // Writes everything, or gives up when the client takes nothing for write_timeout_ms.
  awaitable<bool> write(std::string_view bytes) {
    while (!bytes.empty()) {
      if (!socket_.is_open()) co_return false;
      write_timer_.expires_after(milliseconds(core_->options.write_timeout_ms));
      write_timer_.async_wait([weak = weak_from_this()](error_code ec) {
        auto self = weak.lock();
        if (!ec && self) self->cut();
      });
      auto [ec, n] = co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), kAwait);
      write_timer_.cancel();
      if (ec) co_return false;
      bytes.remove_prefix(n);
    }
    co_return true;
  }

  // Closing while unread bytes wait would reset the connection and destroy the answer on its way: say that nothing
  // follows, then discard what still comes, within limits.
  awaitable<void> linger() {
    if (!linger_ || !socket_.is_open() || eof_) co_return;
    discard_ = true;
    input_.clear();
    space_timer_.cancel();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    const auto deadline = steady_clock::now() + kLingerTime;
    while (!eof_ && socket_.is_open() && discarded_bytes_ < kLingerBytes) {
      if (!co_await wait_until(deadline)) break;
    }
  }

  const std::shared_ptr<HttpServer::Core> core_;
  const bool refused_;  // one connection too many: answered 503 and closed
  tcp::socket socket_;
  asio::steady_timer wake_timer_;   // the main coroutine sleeps on it
  asio::steady_timer space_timer_;  // the read loop sleeps on it while input_ is full
  asio::steady_timer write_timer_;
  std::string input_;                   // read, not yet consumed
  std::shared_ptr<Exchange> exchange_;  // of the request being answered
  std::string peer_;
  bool peer_is_loopback_ = false;
  bool woken_ = false;
  bool eof_ = false;
  bool linger_ = false;
  bool discard_ = false;
  size_t discarded_bytes_ = 0;
  // Guarded by the core's mutex.
  bool has_place_ = !refused_;
  std::optional<std::list<HttpConnection*>::iterator> idle_place_;
};

}  // namespace loralei
