// SPDX-License-Identifier: Apache-2.0
// HttpConnection: one client. Private to http/, and included by server.cc alone.
//
// Thread: a connection lives on its strand, but for post_wake() and post_cut(); what
// says "guarded by mutex" is Core's. Ownership: its coroutines own it and share the Core.
// Failure: none of its own.
#pragma once

#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <optional>
#include <tuple>

#include "http/core.h"
#include "http/exchange.h"
#include "http/farewell.h"

namespace loralei {

constexpr size_t kReadChunkBytes = 16 * 1024;
constexpr size_t kInputBytes = 4 * 1024;            // of input_ without a share; read ahead while answering
constexpr size_t kHeadBytes = 4 * 1024;             // of a head, parsed and in the handler's hands, without a share
constexpr size_t kBodyStepBytes = 64 * 1024;        // of a chunked body, at first
constexpr int kNotSentBytes = 32 * 1024;            // of an answer in the system's buffer
constexpr auto kLeftCheckTime = milliseconds(500);  // between two looks at a client of whom no more is read
// Discarded after a refused request, so that the client sees the answer.
constexpr size_t kLingerBytes = 16 * 1024 * 1024;
using NotSentLowat = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;

// One client. Two coroutines on one strand: the read loop, which always has a read
// pending, and the main one, which parses, hands over and writes. They meet in input_,
// eof_ and the wake event.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpServer::Core> core, tcp::socket socket)
      : core_(std::move(core)),
        socket_(std::move(socket)),
        wake_timer_(socket_.get_executor()),
        space_timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()),
        share_(core_->memory) {
    if (const auto tls = core_->tls_now()) tls_.emplace(*tls, socket_.native_handle());
  }

  ~HttpConnection() { core_->remove(this); }

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    // What a slow reader leaves unsent stands with us, where it is counted.
    socket_.set_option(NotSentLowat(kNotSentBytes), ignored);
    socket_.non_blocking(true, ignored);
    const tcp::endpoint remote = socket_.remote_endpoint(ignored);
    const int family = remote.protocol().family();
    const bool known = !ignored && (family == AF_INET || family == AF_INET6);
    peer_ = known ? remote.address().to_string() : "unknown";
    peer_is_loopback_ = known && is_loopback(remote.address());
    address_ = known ? crowd_address(remote.address()) : "";
    run(&HttpConnection::main_loop);
    if (!tls_) run(&HttpConnection::read_loop);
  }

  // From any thread.
  void post_wake() {
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->look_up();
    });
  }
  // Its place has been taken.
  void post_give_way() {
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->give_way();
    });
  }
  // The memory of the body on its way is asked for by others.
  void post_give_memory() {
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->gives_memory_ = true, self->wake();
    });
  }
  void post_cut() {
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->cut();
    });
  }

 private:
  // An exception can only be a failed allocation: this connection ends,
  // the others go on.
  void run(awaitable<void> (HttpConnection::*loop)()) {
    auto self = shared_from_this();
    asio::co_spawn(
        socket_.get_executor(), [self, loop] { return ((*self).*loop)(); },
        [self](std::exception_ptr failure) {
          if (failure) self->cut();
        });
  }

  // Addresses that one client can have count as one.
  static std::string crowd_address(const asio::ip::address& address) {
    if (address.is_v4()) return address.to_string();
    if (address.to_v6().is_v4_mapped())
      return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
    const auto bytes = address.to_v6().to_bytes();
    return std::string(bytes.begin(), bytes.begin() + 8);
  }

  void give_way() {
    if (begun_ && !(tls_ && tls_->is_writing())) {
      const std::string answer = core_->busy_answer();
      error_code ignored;
      // For who reads it in time.
      if (tls_) {
        (void)tls_->write(answer, {}, ignored);
        tls_->say_end();
      } else {
        socket_.write_some(asio::buffer(answer), ignored);
      }
    }
    cut();
  }

  void wake() {
    woken_ = true;
    wake_timer_.cancel();
  }

  // Something is new of the answer. One whose reader is too slow ends now, even while the
  // system takes nothing of it.
  void look_up() {
    const bool shakes_hands = tls_ && !tls_->ready();
    if ((exchange_ && exchange_->overflowed()) || (core_->stopping && shakes_hands)) return cut();
    wake();
  }

  // The client is gone or is to be gone: whoever computes for it is told, every
  // pending operation ends.
  void cut() {
    eof_ = true;
    if (exchange_) exchange_->close();
    close_socket();
    wake();
    space_timer_.cancel();
  }

  void close_socket() {
    if (tls_) tls_->leave_socket();
    error_code ignored;
    socket_.close(ignored);
  }

  // False: there is nobody to talk to. Who speaks plain HTTP is told so, and is a plain
  // connection from then on.
  awaitable<bool> shake_hands() {
    core_->begin_wait(*this);
    write_timer_.expires_after(milliseconds(core_->options.read_timeout_ms));
    write_timer_.async_wait([weak = weak_from_this()](error_code ec) {
      auto self = weak.lock();
      if (!ec && self) self->cut();
    });
    for (error_code ec = asio::error::would_block; ec;) {
      const auto ready = tls_->wants_write() ? tcp::socket::wait_write : tcp::socket::wait_read;
      auto [failed] = co_await socket_.async_wait(ready, kAwait);
      if (failed || !socket_.is_open() || core_->stopping) co_return false;
      if (!hello_seen_ && tls_->is_plain_http()) co_return co_await refuse_plain();
      hello_seen_ = true;
      tls_->shake_hands(ec);
      if (ec && ec != asio::error::would_block) co_return false;
    }
    write_timer_.cancel();
    run(&HttpConnection::read_loop);
    co_return true;
  }

  awaitable<bool> refuse_plain() {
    write_timer_.cancel();
    tls_.reset();
    run(&HttpConnection::read_loop);
    const HttpHead unread;  // a temporary would be destroyed twice by some compilers
    co_await answer_error(400, "This port speaks https: send the request to https:// instead of http://.", unread);
    co_return false;
  }

  // Sleeps until wake() or the time; true when woken. A wake() between two
  // waits is not lost.
  awaitable<bool> wait_until(steady_clock::time_point deadline) {
    if (!woken_) {
      wake_timer_.expires_at(deadline);
      co_await wake_timer_.async_wait(kAwait);
    }
    const bool result = woken_;
    woken_ = false;
    co_return result;
  }

  // How much may be read now. What a request needs beyond the first kInputBytes is
  // taken from the memory.
  size_t input_room() {
    if (discard_) return kReadChunkBytes;
    const size_t have = input_.size();
    const size_t most = exchange_ ? kInputBytes : std::max(kReadChunkBytes, 2 * core_->options.limits.max_header_bytes);
    size_t room = std::min(most, filled_ ? have + kReadChunkBytes : std::max(have + 1, kInputBytes));
    starved_ = room > kInputBytes && !share_.grow_to(input_cost(room) + head_cost_);
    if (starved_) room = kInputBytes;
    return room - std::min(room, have);
  }
  // A string that grows may have twice its size.
  static int64_t input_cost(size_t bytes) { return bytes > kInputBytes ? 2 * static_cast<int64_t>(bytes) : 0; }

  void read_some(size_t room, error_code& ec) {
    std::array<char, kReadChunkBytes> chunk;  // on the thread's stack: an idle connection holds no buffer
    const size_t most = std::min(room, chunk.size());
    const bool secure = tls_ && !discard_;  // behind the end of what is said nothing is read, only taken
    const size_t n =
        secure ? tls_->read({chunk.data(), most}, ec) : socket_.read_some(asio::buffer(chunk.data(), most), ec);
    filled_ = n == most;
    if (!discard_) input_.append(chunk.data(), n);
    discarded_bytes_ += discard_ ? n : 0;
  }

  awaitable<void> read_loop() {
    while (socket_.is_open()) {
      if (input_room() == 0) {
        if (starved_) wake();
        space_timer_.expires_after(kLeftCheckTime);
        co_await space_timer_.async_wait(kAwait);
        if (exchange_ && has_left() && exchange_->close()) cut();
        continue;
      }
      error_code ec;
      const bool secure = tls_ && !discard_;
      if (!secure || !tls_->has_pending()) {
        const bool writes = secure && tls_->wants_write() && !tls_->is_writing();
        auto [failed] = co_await socket_.async_wait(writes ? tcp::socket::wait_write : tcp::socket::wait_read, kAwait);
        ec = failed;
      }
      const size_t room = input_room();  // again: the request may be another
      if (!ec && room > 0) read_some(room, ec);
      if (ec == asio::error::would_block || ec == asio::error::try_again || ec == asio::error::interrupted) continue;
      if (ec == asio::error::eof) {
        // A client that closes its sending side is gone, unless its answer is
        // complete and only has to be written, or the requests it sent before are
        // still to be read.
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
    bool more = !tls_ || co_await shake_hands();
    while (more) {
      core_->begin_wait(*this);
      std::optional<HttpRequest> request = co_await read_request();
      if (holds_bytes_ > 0) core_->hold(*this, 0);
      if (!request || !core_->end_wait(*this)) break;
      begun_ = false;
      more = co_await answer(std::move(*request));
    }
    core_->begin_wait(*this);  // for the end
    co_await linger();
    if (tls_) tls_->say_end();
    close_socket();
    space_timer_.cancel();
  }

  // Some clients send them before a request, behind the body of the one before
  // (RFC 9112, 2.2).
  void skip_empty_lines() {
    size_t end = 0;
    while (end < input_.size()) {
      const bool both = input_.compare(end, 2, "\r\n") == 0;
      if (!both && input_[end] != '\n') break;
      end += both ? 2 : 1;
    }
    input_.erase(0, end);
    if (end > 0) space_timer_.cancel();
  }

  awaitable<std::optional<HttpRequest>> read_request() {
    std::shared_ptr<BodySink> sink;
    RequestParser parser(core_->options.limits, [&](const HttpHead& head) {
      if (head.has_body) sink = core_->handler->body_sink(head);
      return sink ? sink->max_bytes() : static_cast<int64_t>(core_->options.limits.max_body_bytes);
    });
    auto memory = std::make_shared<ByteShare>(core_->memory);
    steady_clock::time_point begun{};
    bool granted = false, continued = false;
    gives_memory_ = false;
    size_t head_bytes = 0;
    for (;;) {
      if (begun == steady_clock::time_point{}) skip_empty_lines();
      if (!input_.empty()) {
        if (begun == steady_clock::time_point{}) {
          begun_ = true;
          begun = steady_clock::now();
        }
        const size_t used = granted ? parser.feed(input_) : parser.feed_head(input_);
        head_bytes += granted ? 0 : used;
        input_.erase(0, used);
        space_timer_.cancel();
      }
      if (parser.failed()) {
        co_await answer_error(parser.error_status(), parser.error_message(), parser.head());
        co_return std::nullopt;
      }
      std::optional<Refusal> refusal;
      if (gives_memory_ && memory->bytes() > 0 && !parser.complete()) {
        refusal = {429, "The server needs the memory of this request for those of others; try again in a moment."};
      } else if (!parser.header_complete()) {
        if (starved_ && input_.size() >= kInputBytes)
          refusal = no_room("head", input_.size(), input_cost(input_.size() + 1));
      } else if (!granted) {
        granted = true;
        if (parser.head().has_body && !core_->handler->wants_body(parser.head())) co_return without_body(parser);
        refusal = grant_head(parser.head(), head_bytes);
        if (!refusal && parser.head().has_body) refusal = sink ? grant_piece(*memory) : grant_body(parser, *memory);
        if (!refusal && !input_.empty() && !parser.complete()) continue;
      } else if (sink) {
        if (std::string piece = parser.drain_body(); !piece.empty()) {
          const std::optional<bool> more = co_await hand_over(*sink, std::move(piece));
          if (!more || !socket_.is_open()) co_return std::nullopt;
          if (!*more && !parser.complete()) co_return without_body(parser, std::move(sink));
          continue;
        }
      } else if (parser.body_is_full()) {
        refusal = grant_body(parser, *memory);
        if (!refusal) continue;
      }
      if (refusal) {
        if (refusal->status == 429 && !gives_memory_) core_->ask_for_room(address_);
        co_await answer_error(refusal->status, refusal->message, parser.head());
        co_return std::nullopt;
      }
      if (parser.complete()) {
        HttpRequest request = parser.take();
        request.memory = std::move(memory);
        request.sink = std::move(sink);
        co_return request;
      }
      if (memory->bytes() != holds_bytes_) core_->hold(*this, memory->bytes());
      if (!co_await wait_for_more(parser, begun, continued)) co_return std::nullopt;
    }
  }

  // Of a request that began then, if it has. False: the connection ends, with an answer
  // where it is to have one.
  awaitable<bool> wait_for_more(RequestParser& parser, steady_clock::time_point begun, bool& continued) {
    if (eof_ || !socket_.is_open()) co_return false;
    const bool started = begun != steady_clock::time_point{};
    if (core_->stopping) {
      // Half a request must not hold the stop up as long as it may take to arrive.
      if (started) co_await answer_error(503, "The server is shutting down and takes no new requests.", parser.head());
      co_return false;
    }
    if (parser.header_complete() && parser.expects_continue() && !continued) {
      continued = true;
      if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    const auto bought_ms = static_cast<int64_t>(parser.body_bytes()) * 1000 / kMinBodyBytesPerS;
    const auto deadline = started ? begun + milliseconds(core_->options.read_timeout_ms + bought_ms)
                                  : steady_clock::now() + milliseconds(core_->options.idle_timeout_ms);
    if (co_await wait_until(deadline)) co_return true;
    if (started) co_await answer_error(408, "The request did not arrive in time.", parser.head());
    co_return false;
  }

  struct Refusal {
    int status;
    std::string message;
  };
  // 413 where waiting cannot help, else 429.
  Refusal no_room(const char* part, size_t bytes, int64_t cost) const {
    const int64_t most = core_->memory->most_bytes();
    const std::string needs = "The request's " + std::string(part) + " of " + std::to_string(bytes) + " bytes takes " +
                              std::to_string(cost) + " bytes of the server's memory";
    if (cost > most)
      return {413, needs + ", and it has at most " + std::to_string(most) + " for requests; send a smaller one."};
    return {429, needs + ", and of the " + std::to_string(most) +
                     " it has for requests not so many are free now; try again in a moment."};
  }

  // The fields' strings, here and with who answers.
  std::optional<Refusal> grant_head(const HttpHead& head, size_t bytes) {
    constexpr size_t kFieldBytes = 256;
    const size_t cost = 4 * bytes + kFieldBytes * head.headers.size();
    if (cost <= kHeadBytes) return std::nullopt;
    head_cost_ = static_cast<int64_t>(cost);
    if (share_.grow_to(input_cost(input_.capacity()) + head_cost_)) return std::nullopt;
    return no_room("head", bytes, head_cost_);
  }

  // All of a body whose length is announced; of another one more step, and the memory of
  // two while it moves.
  std::optional<Refusal> grant_body(RequestParser& parser, ByteShare& memory) const {
    if (const auto announced = parser.announced_bytes()) {
      const int64_t cost = core_->body_cost(*announced);
      if (!memory.grow_to(cost)) return no_room("body", *announced, cost);
      parser.reserve_body(*announced);
      return std::nullopt;
    }
    const size_t have = parser.body_bytes(), most = core_->options.limits.max_body_bytes;
    int64_t cost = 0;
    for (const size_t next : {std::max(kBodyStepBytes, 2 * have), have + kBodyStepBytes}) {
      const size_t bytes = std::min(next, most);
      cost = core_->body_cost(bytes);
      if (!memory.grow_to(cost + static_cast<int64_t>(have))) continue;
      parser.reserve_body(bytes);
      memory.shrink_to(cost);
      return std::nullopt;
    }
    return no_room("body", have, cost + static_cast<int64_t>(have));
  }

  // Of a body that goes to a sink no more is held than one piece, which what is read at
  // once bounds.
  std::optional<Refusal> grant_piece(ByteShare& memory) const {
    constexpr size_t kPieceCost = 2 * kBodyStepBytes;
    if (memory.grow_to(static_cast<int64_t>(kPieceCost))) return std::nullopt;
    return no_room("body", kBodyStepBytes, static_cast<int64_t>(kPieceCost));
  }

  // False: the sink wants no more. Nothing: the client left before it answered; what it
  // answers late is nobody's.
  awaitable<std::optional<bool>> hand_over(BodySink& sink, std::string piece) {
    struct Answer {
      std::atomic<int> value{-1};  // 0 and 1: what it said
    };
    auto answer = std::make_shared<Answer>();
    sink.take(std::move(piece), [answer, weak = weak_from_this()](bool more) {
      answer->value = more ? 1 : 0;
      if (auto self = weak.lock()) self->post_wake();
    });
    while (answer->value < 0 && socket_.is_open() && !eof_) co_await wait_until(steady_clock::time_point::max());
    woken_ = true;  // whatever else woke it is looked at again
    const int said = answer->value;
    co_return said < 0 ? std::nullopt : std::optional(said == 1);
  }

  // To be answered as it is. Where its body is not here, it may be on its way.
  HttpRequest without_body(RequestParser& parser, std::shared_ptr<BodySink> sink = nullptr) {
    const size_t had = parser.body_bytes();
    const std::optional<size_t> announced = parser.announced_bytes();
    HttpRequest request = parser.take();
    request.memory = std::make_shared<ByteShare>(core_->memory);
    request.sink = std::move(sink);
    if (announced && *announced - had <= input_.size()) {
      input_.erase(0, *announced - had);
    } else {
      request.keep_alive = false;
      linger_ = true;
    }
    return request;
  }

  awaitable<void> answer_error(int status, std::string message, const HttpHead& request) {
    ++core_->errors_total;
    linger_ = true;
    HttpResponse response = core_->error_response(status, message, request);
    if (status == 503 || status == 429) response.headers.emplace_back("Retry-After", "1");
    co_await write(
        format_response_head(status, 11, response.headers, static_cast<int64_t>(response.body.size()), false, false) +
        response.body);
  }

  // Hands the request over and writes its answer. True when the connection may serve
  // another request.
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
    options.memory = core_->memory;
    options.error_response = [core = core_, head = static_cast<const HttpHead&>(request)](int status,
                                                                                          std::string_view message) {
      return core->error_response(status, message, head);
    };
    exchange_ = std::make_shared<Exchange>(std::move(options));
    const std::shared_ptr<Exchange> exchange = exchange_;
    if (input_.empty()) std::string().swap(input_);
    share_.shrink_to(input_cost(input_.capacity()) + head_cost_);
    waiting_since_ = {};
    ++core_->requests_total;
    core_->handler->handle(std::move(request), std::make_shared<ExchangeWriter>(exchange));
    if (eof_ && exchange->close()) cut();
    for (;;) {
      Exchange::Out out = exchange->take();
      if (out.overflow || !socket_.is_open()) {
        cut();
        break;
      }
      if (out.on_room) out.on_room();
      if (out.size() > 0) {
        if (!co_await write(out.bytes, out.body)) {
          cut();
          break;
        }
        exchange->wrote(out.size());
        continue;
      }
      if (out.complete) break;
      if (exchange->pull()) continue;
      waiting_since_ = {};
      co_await wait_until(steady_clock::time_point::max());
    }
    waiting_since_ = {};
    exchange->drop();
    exchange_.reset();
    head_cost_ = 0;
    share_.shrink_to(input_cost(input_.capacity()));
    co_return exchange->keep_alive() && socket_.is_open() && !core_->stopping;
  }

  // Writes everything, or gives up when the client takes nothing for write_timeout_ms,
  // or of what waits for it without a break less than its least rate.
  awaitable<bool> write(std::string_view bytes, std::string_view behind = {}) {
    const milliseconds timeout(core_->options.write_timeout_ms);
    if (waiting_since_ == steady_clock::time_point{}) {
      waiting_since_ = steady_clock::now();
      taken_bytes_ = 0;
    }
    while (bytes.size() + behind.size() > 0) {
      if (!socket_.is_open()) co_return false;
      const milliseconds bought(taken_bytes_ * 1000 / core_->options.min_answer_bytes_per_s);
      write_timer_.expires_at(
          std::min(steady_clock::now() + timeout, waiting_since_ + kSlowAnswerTimeouts * timeout + bought));
      write_timer_.async_wait([weak = weak_from_this()](error_code ec) {
        auto self = weak.lock();
        if (!ec && self) self->cut();
      });
      error_code ec;
      size_t n = 0;
      if (tls_) {
        n = co_await write_secure(bytes, behind, ec);
      } else {
        const std::array<asio::const_buffer, 2> both = {asio::buffer(bytes.data(), bytes.size()),
                                                        asio::buffer(behind.data(), behind.size())};
        std::tie(ec, n) = co_await socket_.async_write_some(both, kAwait);
      }
      write_timer_.cancel();
      if (ec) co_return false;
      taken_bytes_ += static_cast<int64_t>(n);
      const size_t first = std::min(n, bytes.size());
      bytes.remove_prefix(first);
      behind.remove_prefix(n - first);
    }
    co_return true;
  }

  awaitable<size_t> write_secure(std::string_view bytes, std::string_view behind, error_code& ec) {
    for (;;) {
      const size_t n = tls_->write(bytes, behind, ec);
      if (ec != asio::error::would_block) co_return n;
      auto [failed] = co_await socket_.async_wait(tcp::socket::wait_write, kAwait);
      ec = failed;
      if (ec || !socket_.is_open()) co_return 0;
    }
  }

  // Closing while unread bytes wait would reset the connection and destroy the answer on
  // its way: say that nothing follows, then discard what still comes, within limits.
  awaitable<void> linger() {
    if (!linger_ || !socket_.is_open() || eof_) co_return;
    discard_ = true;
    std::string().swap(input_);
    share_.release();
    space_timer_.cancel();
    if (tls_) tls_->say_end();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    const auto deadline = steady_clock::now() + kLingerTime;
    while (!eof_ && socket_.is_open() && discarded_bytes_ < kLingerBytes) {
      if (!co_await wait_until(deadline)) break;
    }
  }

  const std::shared_ptr<HttpServer::Core> core_;
  tcp::socket socket_;
  std::optional<ServerTlsStream> tls_;  // none: plain
  bool hello_seen_ = false;
  asio::steady_timer wake_timer_;   // the main coroutine sleeps on it
  asio::steady_timer space_timer_;  // the read loop sleeps on it while input_ is full
  asio::steady_timer write_timer_;
  std::string input_;      // read, not yet consumed
  ByteShare share_;        // of what input_ and the request's head take beyond what every connection has
  int64_t head_cost_ = 0;  // of the request being answered
  bool filled_ = false;    // the last read took all that it might
  bool starved_ = false;   // there is no memory for more input
  steady_clock::time_point waiting_since_{};  // an answer's bytes, without a break
  int64_t taken_bytes_ = 0;                   // since then
  std::shared_ptr<Exchange> exchange_;        // of the request being answered
  std::string peer_, address_;
  bool begun_ = false;         // a request has come in part
  bool gives_memory_ = false;  // others need what its body has
  int64_t holds_bytes_ = 0;    // of the core's crowd
  bool peer_is_loopback_ = false;
  bool woken_ = false;
  bool eof_ = false;
  bool linger_ = false;
  bool discard_ = false;
  size_t discarded_bytes_ = 0;
  // Guarded by the core's mutex.
  bool has_place_ = true;
  std::optional<Crowd<HttpConnection>::Seat> wait_seat_, hold_seat_;
};

}  // namespace loralei
