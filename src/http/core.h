// SPDX-License-Identifier: Apache-2.0
// HttpServer::Core: what listener and connections share. Private to http/.
//
// Thread: any; what says "guarded by mutex" is. Ownership: shared by the HttpServer,
// connections and what they wait for; borrows handler and log. It outlives the HttpServer
// as long as a connection or a writer needs it. Failure: none of its own.
#pragma once

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fixed_byte_budget.h"
#include "http/crowd.h"
#include "http/server.h"
#include "http/server_tls_stream.h"
#include "http/watched_executor.h"

namespace loralei {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

inline bool is_loopback(const asio::ip::address& address) {
  if (address.is_loopback()) return true;
  return address.is_v6() && address.to_v6().is_v4_mapped() &&
         asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
}

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

class Farewell;
class HttpConnection;

struct HttpServer::Core : std::enable_shared_from_this<HttpServer::Core> {
  Core(const HttpServerOptions& options, LogSink& log);
  ~Core();

  static std::shared_ptr<ByteBudget> own_memory(const HttpServerOptions& options) {
    const uint64_t largest = std::min<uint64_t>(options.limits.max_body_bytes, INT64_MAX / 2 / kBodiesAtOnce);
    const int64_t bodies =
        options.max_bodies_bytes > 0 ? options.max_bodies_bytes : kBodiesAtOnce * static_cast<int64_t>(largest);
    return std::make_shared<FixedByteBudget>(bodies + options.max_connections * connection_bytes(options));
  }

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

  // For all that is made here: its work is seen (HttpServerOptions::beats).
  WatchedExecutor<asio::strand<asio::io_context::executor_type>> make_strand() {
    return WatchedExecutor(asio::make_strand(context));
  }
  Status listen();
  awaitable<void> accept_loop();
  void begin(tcp::socket socket);                               // a connection that has a place
  bool add(const std::shared_ptr<HttpConnection>& connection);  // false when stop() has begun
  void remove(HttpConnection* connection);
  // A place for one more connection, if need be that of one that waits: of the address
  // that has most of these, the one that has waited longest. False: all are in use.
  bool take_place();
  void leave_place();  // under the lock
  void begin_wait(HttpConnection& connection);
  bool end_wait(HttpConnection& connection);  // false: its place has been taken
  // A body on its way holds so many bytes; 0: none any more.
  void hold(HttpConnection& connection, int64_t bytes);
  // Somebody of `address` found no room for a body: another one that holds more than a
  // quarter of all gives one back.
  void ask_for_room(const std::string& address);
  std::string busy_answer();
  std::string refusal() { return options.tls ? std::string(kTlsBusy) : busy_answer(); }
  std::shared_ptr<const ServerTls> tls_now();  // null: plain
  void refuse(tcp::socket socket);
  awaitable<void> sweep();
  bool take(tcp::socket socket);  // false: refused
  bool refuse_without_descriptor();
  int stop(int64_t grace_ms);
  int64_t body_cost(size_t body_bytes) const {
    const auto bytes = static_cast<int64_t>(std::min<uint64_t>(body_bytes, INT64_MAX));
    return options.body_cost ? std::max(bytes, options.body_cost(bytes)) : bytes;
  }

  const HttpServerOptions options;
  const std::shared_ptr<ByteBudget> memory;
  HttpHandler* handler = nullptr;  // from serve() on
  LogSink& log;
  asio::io_context context;
  tcp::acceptor acceptor;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::thread> threads;
  int port = 0;
  bool on_loopback = false;
  std::atomic<bool> stopping{false};
  int spare = -1;  // a descriptor, so that there is one to refuse with; of the acceptor's strand, as is
  std::unique_ptr<Farewell> farewell;
  bool sweeping = false;
  steady_clock::time_point next_log{};
  std::atomic<int64_t> connections_total{0}, connections_refused{0}, requests_total{0}, errors_total{0};

  std::mutex mutex;
  std::condition_variable none_left;
  std::unordered_map<HttpConnection*, std::weak_ptr<HttpConnection>> connections;
  int places_taken = 0;           // of max_connections
  ByteShare connections_share;    // of those that have a place, and of kConnectionsAlways at least
  Crowd<HttpConnection> waiting;  // for a request, or the rest of one
  Crowd<HttpConnection> holding;  // memory for bodies on their way
  std::string busy;               // the answer to who is refused, made anew once a second at most
  steady_clock::time_point busy_until{};
  std::shared_ptr<const ServerTls> tls;  // of connections from now on
  bool stopped = false;
};

}  // namespace loralei
