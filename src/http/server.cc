// SPDX-License-Identifier: Apache-2.0
#include "http/server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>

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
    auto [ec, socket] = co_await acceptor.async_accept(asio::make_strand(context), kAwait);
    if (stopping || ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor) co_return;
    if (ec) {
      // Out of descriptors, most often: the pending client stays in the kernel's queue, so pause instead of spinning.
      log.log(LogLevel::kWarning, "cannot accept a connection: " + ec.message());
      asio::steady_timer pause(acceptor.get_executor(), milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    const bool refused = !take_place();
    if (refused) {
      ++connections_refused;
      if (refusals >= kMaxRefusals) continue;  // the socket closes here
    } else {
      ++connections_total;
    }
    auto connection = std::make_shared<HttpConnection>(shared_from_this(), std::move(socket), refused);
    const bool late = !add(connection);
    connection->start();
    if (late) connection->post_cut();
  }
}

bool HttpServer::Core::add(const std::shared_ptr<HttpConnection>& connection) {
  std::lock_guard lock(mutex);
  connections.emplace(connection.get(), connection);
  return !stopped;
}

void HttpServer::Core::remove(HttpConnection* connection) {
  std::lock_guard lock(mutex);
  connections.erase(connection);
  if (connection->idle_place_) idle.erase(*connection->idle_place_);
  if (connection->has_place_) leave_place();
  if (connections.empty()) none_left.notify_all();
}

void HttpServer::Core::leave_place() {
  --places_taken;
  connections_share.shrink_to(std::max(places_taken, kConnectionsAlways) * kConnectionBytes);
}

bool HttpServer::Core::take_place() {
  std::lock_guard lock(mutex);
  if (places_taken < options.max_connections && connections_share.grow_to((places_taken + 1) * kConnectionBytes)) {
    ++places_taken;
    return true;
  }
  if (idle.empty()) return false;
  HttpConnection* const longest = idle.front();
  idle.pop_front();
  longest->idle_place_.reset();
  longest->has_place_ = false;
  longest->post_cut();
  return true;
}

void HttpServer::Core::begin_idle(HttpConnection& connection) {
  std::lock_guard lock(mutex);
  connection.idle_place_ = idle.insert(idle.end(), &connection);
}

bool HttpServer::Core::end_idle(HttpConnection& connection) {
  std::lock_guard lock(mutex);
  if (!connection.idle_place_) return false;
  idle.erase(*connection.idle_place_);
  connection.idle_place_.reset();
  return true;
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
  (void)core->connections_share.grow_to(std::min(options.max_connections, kConnectionsAlways) * kConnectionBytes);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

void HttpServer::serve(HttpHandler& handler) {
  CHECK(core_->handler == nullptr);
  core_->handler = &handler;
  asio::co_spawn(
      core_->acceptor.get_executor(), [core = core_] { return core->accept_loop(); }, asio::detached);
  for (int i = 0; i < std::max(1, core_->options.threads); ++i) {
    core_->threads.emplace_back([context = &core_->context] { context->run(); });
  }
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options, HttpHandler& handler,
                                                      LogSink& log) {
  TRY_ASSIGN(std::unique_ptr<HttpServer> server, bind(options, log));
  server->serve(handler);
  return server;
}

HttpServer::~HttpServer() { stop(0); }
int HttpServer::port() const { return core_->port; }
bool HttpServer::on_loopback() const { return core_->on_loopback; }
int HttpServer::stop(int64_t grace_ms) { return core_->stop(grace_ms); }

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
