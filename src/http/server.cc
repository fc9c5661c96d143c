// SPDX-License-Identifier: Apache-2.0
#include "http/server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>

#include "base/check.h"
#include "http/connection.h"

namespace loralei {

Status HttpServer::Core::listen() {
  std::string host = options.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string where = options.host + ":" + std::to_string(options.port);
  if (options.port < 0 || options.port > 65535)
    return invalid_argument("cannot listen on " + where + ": a port lies between 0 and 65535");
  error_code ec;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, std::to_string(options.port), tcp::resolver::passive, ec);
  if (ec || found.empty())
    return io_error("cannot listen on " + where + ": the host is unknown (" + ec.message() + ")");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  const auto failed = [&](const char* step) {
    return io_error("cannot listen on " + where + ": " + step + ": " + ec.message() +
                    (ec == asio::error::address_in_use ? "; stop the other program or choose another --port" : ""));
  };
  acceptor.open(endpoint.protocol(), ec);
  if (ec) return failed("socket");
  acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), ec);
  acceptor.bind(endpoint, ec);
  if (ec) return failed("bind");
  acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return failed("listen");
  port = acceptor.local_endpoint(ec).port();
  on_loopback = is_loopback(endpoint.address());
  return {};
}

awaitable<void> HttpServer::Core::accept_loop() {
  while (!stopping) {
    auto [ec, socket] = co_await acceptor.async_accept(make_strand(), kAwait);
    if (stopping || ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor) co_return;
    if (ec) {
      if (steady_clock::now() > next_log) {
        log.log(LogLevel::kWarning, "cannot accept a connection: " + ec.message());
        next_log = steady_clock::now() + milliseconds(1000);
      }
      if (refuse_without_descriptor()) continue;
      asio::steady_timer pause(acceptor.get_executor(), milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    if (take(std::move(socket))) continue;
    if (farewell->room_at() > steady_clock::now()) {  // others wait in the system's queue meanwhile
      asio::steady_timer pause(acceptor.get_executor(), farewell->room_at());
      co_await pause.async_wait(kAwait);
    }
  }
}

bool HttpServer::Core::take(tcp::socket socket) {
  const bool has_place = take_place();
  has_place ? begin(std::move(socket)) : refuse(std::move(socket));
  return has_place;
}

void HttpServer::Core::begin(tcp::socket socket) {
  ++connections_total;
  auto connection = std::make_shared<HttpConnection>(shared_from_this(), std::move(socket));
  const bool late = !add(connection);
  connection->start();
  if (late) connection->post_cut();
}

std::string HttpServer::Core::busy_answer() {
  const auto now = steady_clock::now();
  {
    std::lock_guard lock(mutex);
    if (!busy.empty() && now < busy_until) return busy;
    busy_until = now + milliseconds(1000);
  }
  HttpResponse response = error_response(503, "The server has too many open connections; try again in a moment.", {});
  response.headers.emplace_back("Retry-After", "1");
  std::string answer =
      format_response_head(503, 11, response.headers, static_cast<int64_t>(response.body.size()), false, false) +
      response.body;
  std::lock_guard lock(mutex);
  busy = answer;
  return answer;
}

void HttpServer::Core::refuse(tcp::socket socket) {
  ++connections_refused;
  farewell->tell(std::move(socket), refusal());
  if (sweeping) return;
  sweeping = true;
  asio::co_spawn(
      acceptor.get_executor(), [core = shared_from_this()] { return core->sweep(); }, asio::detached);
}

awaitable<void> HttpServer::Core::sweep() {
  asio::steady_timer pause(acceptor.get_executor());
  do {
    pause.expires_after(kShortestLinger);
    co_await pause.async_wait(kAwait);
  } while (!stopping && farewell->sweep());
  farewell->clear();
  sweeping = false;
}

// Out of descriptors: the spare one serves to tell so. Whoever came when there were some
// again is taken. False where that was not it, or nobody waits.
bool HttpServer::Core::refuse_without_descriptor() {
  if (spare < 0) return false;
  const std::string answer = refusal();
  ::close(spare);
  const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  tcp::socket socket(make_strand());
  error_code ec;
  if (spare >= 0 && !socket.assign(acceptor.local_endpoint(ec).protocol(), fd, ec)) {
    (void)take(std::move(socket));
    return true;
  }
  ++connections_refused;
  (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  ::shutdown(fd, SHUT_WR);
  std::array<char, 4096> discarded;
  (void)::recv(fd, discarded.data(), discarded.size(), 0);
  ::close(fd);
  if (spare < 0) spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return true;
}

HttpServer::Core::Core(const HttpServerOptions& options, LogSink& log)
    : options(options),
      memory(options.memory ? options.memory : own_memory(options)),
      log(log),
      acceptor(make_strand()),
      work(context.get_executor()),
      spare(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      farewell(std::make_unique<Farewell>(static_cast<size_t>(std::max(1, options.max_refusals)))),
      connections_share(memory),
      tls(options.tls) {}

HttpServer::Core::~Core() {
  if (spare >= 0) ::close(spare);
}

bool HttpServer::Core::add(const std::shared_ptr<HttpConnection>& connection) {
  std::lock_guard lock(mutex);
  connections.emplace(connection.get(), connection);
  return !stopped;
}

void HttpServer::Core::remove(HttpConnection* connection) {
  std::lock_guard lock(mutex);
  connections.erase(connection);
  if (connection->wait_seat_) waiting.leave(*connection->wait_seat_);
  if (connection->hold_seat_) holding.leave(*connection->hold_seat_);
  if (connection->has_place_) leave_place();
  if (connections.empty()) none_left.notify_all();
}

void HttpServer::Core::leave_place() {
  --places_taken;
  connections_share.shrink_to(std::max(places_taken, kConnectionsAlways) * connection_bytes(options));
}

bool HttpServer::Core::take_place() {
  std::lock_guard lock(mutex);
  if (places_taken < options.max_connections &&
      connections_share.grow_to((places_taken + 1) * connection_bytes(options))) {
    ++places_taken;
    return true;
  }
  if (waiting.empty()) return false;
  HttpConnection* const longest = waiting.first_of_most();
  waiting.leave(*longest->wait_seat_);
  longest->wait_seat_.reset();
  longest->has_place_ = false;
  longest->post_give_way();
  return true;
}

void HttpServer::Core::begin_wait(HttpConnection& connection) {
  std::lock_guard lock(mutex);
  if (connection.has_place_ && !connection.wait_seat_)
    connection.wait_seat_ = waiting.join(connection.address_, &connection);
}

bool HttpServer::Core::end_wait(HttpConnection& connection) {
  std::lock_guard lock(mutex);
  if (!connection.wait_seat_) return false;
  waiting.leave(*connection.wait_seat_);
  connection.wait_seat_.reset();
  return true;
}

void HttpServer::Core::hold(HttpConnection& connection, int64_t bytes) {
  connection.holds_bytes_ = bytes;
  std::lock_guard lock(mutex);
  if (connection.hold_seat_) holding.leave(*connection.hold_seat_);
  connection.hold_seat_.reset();
  if (bytes > 0) connection.hold_seat_ = holding.join(connection.address_, &connection, bytes);
}

void HttpServer::Core::ask_for_room(const std::string& address) {
  std::lock_guard lock(mutex);
  if (holding.empty() || holding.most() <= memory->most_bytes() / 4) return;
  HttpConnection* const oldest = holding.first_of_most();
  if (oldest->address_ != address) oldest->post_give_memory();
}

int HttpServer::Core::stop(int64_t grace_ms) {
  {
    std::lock_guard lock(mutex);
    if (stopped) return 0;
    stopped = true;
  }
  stopping = true;
  const auto close = [this] {
    error_code ignored;
    acceptor.close(ignored);
  };
  if (threads.empty()) {  // never served
    close();
    return 0;
  }
  asio::post(acceptor.get_executor(), [close, self = shared_from_this()] { close(); });
  const auto each = [&](void (HttpConnection::*action)()) {
    std::vector<std::shared_ptr<HttpConnection>> open;
    {
      std::lock_guard lock(mutex);
      for (auto& [key, weak] : connections) {
        if (auto connection = weak.lock()) open.push_back(std::move(connection));
      }
    }
    for (auto& connection : open) ((*connection).*action)();
  };
  each(&HttpConnection::post_wake);
  int cut = 0;
  {
    std::unique_lock lock(mutex);
    none_left.wait_for(lock, milliseconds(grace_ms), [&] { return connections.empty(); });
    cut = static_cast<int>(connections.size());
  }
  each(&HttpConnection::post_cut);
  work.reset();  // the threads end when the last coroutine has ended
  for (std::thread& thread : threads) thread.join();
  return cut;
}

HttpServer::HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const HttpServerOptions& options, LogSink& log) {
  auto core = std::make_shared<Core>(options, log);
  TRY(core->listen());
  // Where there is less, there are fewer.
  (void)core->connections_share.grow_to(std::min(options.max_connections, kConnectionsAlways) *
                                        connection_bytes(options));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

void HttpServer::serve(HttpHandler& handler) {
  CHECK(core_->handler == nullptr);
  core_->handler = &handler;
  asio::co_spawn(
      core_->acceptor.get_executor(), [core = core_] { return core->accept_loop(); }, asio::detached);
  for (int i = 0; i < std::max(1, core_->options.threads); ++i) {
    core_->threads.emplace_back([core = core_.get()] {
      const IoThread thread(core->options.beats);
      core->context.run();
    });
  }
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options, HttpHandler& handler,
                                                      LogSink& log) {
  TRY_ASSIGN(std::unique_ptr<HttpServer> server, bind(options, log));
  server->serve(handler);
  return server;
}

void HttpServer::adopt(int fd) {
  tcp::socket socket(core_->make_strand());
  error_code ec;
  socket.assign(tcp::v4(), fd, ec);
  if (ec) {
    ::close(fd);
    return;
  }
  asio::post(core_->acceptor.get_executor(), [core = core_, socket = std::move(socket)]() mutable {
    if (!core->stopping) (void)core->take(std::move(socket));
  });
}

HttpServer::~HttpServer() { stop(0); }
int HttpServer::port() const { return core_->port; }
bool HttpServer::on_loopback() const { return core_->on_loopback; }
int HttpServer::stop(int64_t grace_ms) { return core_->stop(grace_ms); }

std::shared_ptr<const ServerTls> HttpServer::Core::tls_now() {
  if (!options.tls) return nullptr;
  const std::lock_guard lock(mutex);
  return tls;
}

void HttpServer::use_tls(std::shared_ptr<const ServerTls> tls) {
  CHECK(tls && core_->options.tls);
  const std::lock_guard lock(core_->mutex);
  core_->tls.swap(tls);
}

HttpServerStats HttpServer::stats() const {
  HttpServerStats stats;
  {
    std::lock_guard lock(core_->mutex);
    stats.connections = static_cast<int64_t>(core_->connections.size());
  }
  stats.connections_total = core_->connections_total;
  stats.connections_refused = core_->connections_refused;
  stats.requests_total = core_->requests_total;
  stats.errors_total = core_->errors_total;
  return stats;
}

}  // namespace loralei
