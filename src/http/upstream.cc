// SPDX-License-Identifier: Apache-2.0
#include "http/upstream.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "http/upstream_exchange.h"
#include "sys/threads.h"

namespace loralei {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kMostThreads = 64;
constexpr const char* kCheckServer = "; check that the server runs there and that the address is right";
constexpr const char* kCheckProtocol = "; check that a server of HTTP/1.1 listens there";

bool would_block(const error_code& ec) {
  return ec == asio::error::would_block || ec == asio::error::try_again || ec == asio::error::interrupted;
}
bool closed_by_peer(const error_code& ec) {
  return ec == asio::error::eof || ec == asio::error::connection_reset || ec == asio::error::broken_pipe ||
         ec == asio::error::connection_aborted;
}
bool out_of_descriptors(const error_code& ec) {
  return ec == asio::error::no_descriptors || ec == boost::system::errc::too_many_files_open_in_system;
}
// A machine that is gone without a word is noticed in half a minute, however long an
// answer may take.
void set_keep_alive(tcp::socket& socket) {
  using Idle = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Count = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  socket.set_option(Idle(15), ignored);
  socket.set_option(Interval(5), ignored);
  socket.set_option(Count(3), ignored);
}

Status check(const UpstreamOptions& options) {
  if (options.threads < 1 || options.threads > kMostThreads)
    return invalid_argument("the number of threads for calls to other servers lies between 1 and " +
                            std::to_string(kMostThreads) + ", not at " + std::to_string(options.threads));
  for (const int64_t ms : {options.connect_timeout_ms, options.head_timeout_ms, options.body_timeout_ms,
                           options.send_timeout_ms, options.idle_timeout_ms}) {
    if (ms < 1) return invalid_argument("a time limit of calls to other servers is at least 1 ms");
  }
  if (options.name_ms < 0 || options.max_idle_per_address < 0)
    return invalid_argument("the time for names and the number of idle connections are not negative");
  return {};
}

}  // namespace

std::string address_text(const UpstreamAddress& address) {
  const bool needs_brackets = address.host.find(':') != std::string::npos && !address.host.starts_with('[');
  return (needs_brackets ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

// ---- one call ----

Status UpstreamExchange::format_request() {
  if (address_.host.empty() || address_.port < 1 || address_.port > 65535)
    return invalid_argument("'" + where() + "' is no address: give a host and a port between 1 and 65535");
  if (!is_token(request_.method)) return invalid_argument("a request to " + where() + " has no valid method");
  const auto splits = [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f; };
  if (request_.target.empty() || std::any_of(request_.target.begin(), request_.target.end(), splits))
    return invalid_argument("the target of a request to " + where() + " is empty or has spaces or control characters");
  const HttpHeaders headers = end_to_end_headers(request_.headers);
  head_ = request_.method + " " + request_.target + " HTTP/1.1\r\n";
  if (!has_header(headers, "host")) head_ += "Host: " + clean_header_value(where()) + "\r\n";
  for (const auto& [name, value] : headers) {
    if (equals_ignoring_case(name, "content-length") || equals_ignoring_case(name, "expect")) continue;
    if (!is_token(name)) return invalid_argument("a header field of a request to " + where() + " has no valid name");
    head_ += name + ": " + clean_header_value(value) + "\r\n";
  }
  CHECK(!request_.body || !request_.pieces);
  if (request_.pieces) {
    bytes_left_ = request_.pieces->bytes();
    more_pieces_ = !bytes_left_ || *bytes_left_ > 0;
    asks_first_ = more_pieces_ && request_.continue_ms > 0;
    head_ += bytes_left_ ? "Content-Length: " + std::to_string(*bytes_left_) : "Transfer-Encoding: chunked";
    head_ += asks_first_ ? "\r\nExpect: 100-continue\r\n\r\n" : "\r\n\r\n";
    return {};
  }
  const size_t body_bytes = request_.body ? request_.body->size() : 0;
  if (body_bytes > 0 || request_.method == "POST" || request_.method == "PUT" || request_.method == "PATCH")
    head_ += "Content-Length: " + std::to_string(body_bytes) + "\r\n";
  head_ += "\r\n";
  return {};
}

void UpstreamExchange::late() {
  const UpstreamOptions& options = lane_->options;
  const auto deadline = [this](const std::string& what, int64_t ms) {
    fail({ErrorCode::kDeadline, where() + " " + what + " " + std::to_string(ms) + " ms"});
  };
  switch (stage_) {
    case UpstreamStage::kConnect:
      if (connection_) {
        connection_->close();
        connect_problem_ = {};
        return connect_next();
      }
      return deadline("could not be connected to: its name was not looked up within", options.connect_timeout_ms);
    case UpstreamStage::kSend:
      if (rests_for_word_) return got_word();
      return deadline("took nothing of the request for", options.send_timeout_ms);
    case UpstreamStage::kHead:
      return deadline("did not answer within",
                      request_.head_timeout_ms > 0 ? request_.head_timeout_ms : options.head_timeout_ms);
    case UpstreamStage::kBody:
      return deadline("sent nothing more of its answer for", options.body_timeout_ms);
  }
}

void UpstreamExchange::connect_next() {
  connection_.reset();
  while (next_address_ < addresses_.size()) {
    const auto left = connect_until_ - Clock::now();
    if (left <= Clock::duration::zero()) break;
    watch(left / static_cast<int64_t>(addresses_.size() - next_address_));
    const tcp::endpoint endpoint(addresses_[next_address_++], static_cast<uint16_t>(address_.port));
    auto connection = std::make_shared<UpstreamConnection>(lane_->executor, address_, *lane_->counts);
    error_code ec, ignored;
    connection->socket.open(endpoint.protocol(), ec);
    connect_problem_ = ec;
    if (ec) continue;
    connection->socket.non_blocking(true, ignored);
    connection->socket.set_option(tcp::no_delay(true), ignored);
    set_keep_alive(connection->socket);
    connection_ = connection;
    connection->socket.async_connect(endpoint, [self = shared_from_this(), connection](error_code result) {
      if (!self->ended_ && self->connection_ == connection) self->guarded([&] { self->connected(result); });
    });
    return;
  }
  if (!name_.empty()) lane_->names.forget(name_);
  const std::string begin = "cannot connect to " + where() + ": ";
  if (!connect_problem_)
    return fail({ErrorCode::kDeadline, begin + "no answer within " + std::to_string(lane_->options.connect_timeout_ms) +
                                           " ms" + kCheckServer});
  if (out_of_descriptors(connect_problem_))
    return fail({ErrorCode::kOverloaded, begin + connect_problem_.message() + "; raise the limit of open files"});
  fail({ErrorCode::kUnavailable, begin + connect_problem_.message() + kCheckServer});
}

void UpstreamExchange::connected(error_code ec) {
  // Where nobody listens on a port that the system also gives to those who connect, a
  // socket may meet itself.
  error_code ignored;
  if (!ec && connection_->socket.local_endpoint(ignored) == connection_->socket.remote_endpoint(ignored))
    ec = asio::error::connection_refused;
  if (ec) {
    connect_problem_ = ec;
    connection_->close();
    return connect_next();
  }
  connection_->opened();
  if (!name_.empty()) lane_->names.prefer(name_, addresses_[next_address_ - 1]);
  send();
}

void UpstreamExchange::take_piece(std::optional<std::string> piece) {
  if (ended_ || told_head_ || !send_problem_.empty()) return;
  if (cancelled_) return let_go();
  CHECK(!piece || !piece->empty());
  piece_ = piece ? *std::move(piece) : std::string();
  if (!bytes_left_) {
    // The line's end behind a chunk goes before the next one.
    char head[20];
    std::snprintf(head, sizeof head, "%zx\r\n", piece_.size());
    head_ = (std::exchange(first_piece_, false) ? "" : "\r\n") + std::string(head) + (piece ? "" : "\r\n");
    more_pieces_ = piece.has_value();
    return write_some();
  }
  if (!piece || piece_.size() > *bytes_left_) {
    return fail(invalid_argument("the body of a request to " + where() + " has " + (piece ? "more" : "fewer") +
                                 " bytes than were announced"));
  }
  *bytes_left_ -= piece_.size();
  more_pieces_ = *bytes_left_ > 0;
  write_some();
}

void UpstreamExchange::readable() {
  if (ended_ || resting_) return;
  if (cancelled_) return let_go();
  error_code ec;
  const size_t n = connection_->socket.read_some(asio::buffer(lane_->buffer.get(), kUpstreamBufferBytes), ec);
  if (would_block(ec)) return connection_->want_read();
  if (ec) return gone(ec);
  answered_ = true;
  if (sent_all_) {  // once is enough
    request_.body.reset();
    std::string().swap(head_);
  }
  if (!parser_) new_parser();
  const std::string_view bytes(lane_->buffer.get(), n);
  if (rest_.empty()) return take(bytes);
  rest_ += bytes;
  take(rest_);
}

void UpstreamExchange::take(std::string_view bytes) {
  while (feed(bytes)) {
  }
  if (ended_) return;
  if (resting_) {
    unwatch();
    return keep(bytes);
  }
  if (parser_->complete()) return finish(bytes.empty());
  keep(bytes);
  if (told_head_) watch_ms(lane_->options.body_timeout_ms);
  connection_->want_read();
}

// True when an interim answer was passed over and there is more.
bool UpstreamExchange::feed(std::string_view& bytes) {
  bytes.remove_prefix(parser_->feed(bytes));
  const int status = parser_->head().status;
  const bool interim = status < 200;
  if (status == 100 && parser_->complete()) got_word();
  if (parser_->header_complete() && !parser_->failed() && !interim && !told_head_) (void)tell_head();
  if (cancelled_) {
    let_go();
    return false;
  }
  if (status == 101 && parser_->complete()) refusal_ = "it changes the protocol, which nobody asked for";
  if (parser_->failed() && refusal_.empty()) refusal_ = parser_->error_message();
  if (!refusal_.empty()) {
    fail(io_error("the answer of " + where() + " cannot be used: " + refusal_ + kCheckProtocol));
    return false;
  }
  if (!interim || !parser_->complete()) return false;
  new_parser();
  return !bytes.empty();
}

void UpstreamExchange::gone(error_code ec) {
  if (ec == asio::error::eof && answered_) {
    parser_->feed_eof();
    if (parser_->complete() && told_head_) return finish(false);
  }
  const bool peer_closed = closed_by_peer(ec);
  if (repeat(peer_closed)) return;
  if (!send_problem_.empty() && !answered_) {
    // Not a byte was taken, so nothing was seen.
    if (!left_) stage_ = UpstreamStage::kConnect;
    return fail(io_error("sending a request to " + where() + " failed: " + send_problem_ + kCheckServer), peer_closed);
  }
  const std::string when = told_head_ ? "before its answer was complete" : "before it answered";
  if (peer_closed) return fail(io_error(where() + " closed the connection " + when), true);
  fail(io_error("the connection to " + where() + " broke " + when + ": " + ec.message()));
}

// See upstream.h for what may be sent once more.
bool UpstreamExchange::repeat(bool peer_closed) {
  if (!reused_ || repeated_ || answered_ || !peer_closed) return false;
  const std::string& method = request_.method;
  if (!request_.idempotent && method != "GET" && method != "HEAD" && method != "OPTIONS") return false;
  repeated_ = true;
  reached_ = stage_;
  connection_->close();
  connection_.reset();
  open();
  return true;
}

// ---- all of them ----

struct Upstream::Core {
  std::vector<std::shared_ptr<UpstreamLane>> lanes;
  std::shared_ptr<UpstreamCounts> counts = std::make_shared<UpstreamCounts>();
  std::mutex mutex;
  bool stopped = false;

  static void run(UpstreamLane& lane) {
    const IoThread thread(lane.options.beats);
    for (;;) {
      try {
        lane.context.run();
        return;
      } catch (const std::exception& failure) {  // an allocation, outside of any call
        lane.log.log(LogLevel::kError, "a thread for calls to other servers: " + std::string(failure.what()));
      }
    }
  }
  static void stop(UpstreamLane& lane) {
    lane.stopped = true;
    const auto calls = lane.calls;
    for (const auto& [key, call] : calls) call->stop();
    lane.pool.close_all();
  }
};

Upstream::Upstream(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Upstream::~Upstream() { stop(); }

Result<std::unique_ptr<Upstream>> Upstream::start(const UpstreamOptions& options, LogSink& log) {
  TRY(check(options));
  std::unique_ptr<Upstream> upstream(new Upstream(std::make_unique<Core>()));
  for (int i = 0; i < options.threads; ++i) {
    std::shared_ptr<UpstreamLane> lane;
    try {
      lane = std::make_shared<UpstreamLane>(options, log, upstream->core_->counts);
    } catch (const std::exception& failure) {
      return Error{ErrorCode::kOverloaded, "cannot prepare calls to other servers: " + std::string(failure.what()) +
                                               "; raise the limit of open files"};
    }
    upstream->core_->lanes.push_back(lane);
    TRY_ASSIGN(lane->thread, start_thread([raw = lane.get()] { Core::run(*raw); }));
  }
  return upstream;
}

std::shared_ptr<UpstreamCall> Upstream::call(const UpstreamAddress& address, UpstreamRequest request,
                                             std::shared_ptr<UpstreamListener> listener) {
  CHECK(listener != nullptr);
  const auto lane = *std::min_element(core_->lanes.begin(), core_->lanes.end(),
                                      [](const auto& a, const auto& b) { return a->load < b->load; });
  auto exchange = std::make_shared<UpstreamExchange>(lane, address, std::move(request), std::move(listener));
  {
    std::lock_guard lock(core_->mutex);
    if (!core_->stopped) {
      ++lane->load;
      ++core_->counts->calls;
      asio::post(lane->executor, [exchange] { exchange->begin(); });
      return exchange;
    }
  }
  exchange->refuse();
  return exchange;
}

UpstreamStats Upstream::stats() const {
  const UpstreamCounts& counts = *core_->counts;
  return {.connections = counts.connections,
          .idle = counts.idle,
          .opened_total = counts.opened_total,
          .reused_total = counts.reused_total,
          .calls = counts.calls};
}

void Upstream::stop() {
  {
    std::lock_guard lock(core_->mutex);
    if (std::exchange(core_->stopped, true)) return;
    for (const auto& lane : core_->lanes) {
      CHECK(lane->thread.get_id() != std::this_thread::get_id());
      asio::post(lane->executor, [raw = lane.get()] { Core::stop(*raw); });
      lane->work.reset();
    }
  }
  for (const auto& lane : core_->lanes) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

}  // namespace loralei
