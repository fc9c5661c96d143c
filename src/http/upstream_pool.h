// SPDX-License-Identifier: Apache-2.0
// UpstreamConnection and UpstreamPool: a connection to a server, and those that wait for
// the next call. Private to http/, and included by upstream.cc alone.
//
// Thread: their lane's; the counts are read by any.
// Ownership: a connection belongs to its call or to the pool, and beside them to its
// pending operations, which end when it is closed.
// Invariants: a connection has at most one wait for something to read, which stays
// pending when it changes hands; an idle one is closed as soon as there is something to
// read. It has no buffer.
// Failure: none of its own.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "http/upstream.h"

namespace loralei {

struct UpstreamCounts {
  std::atomic<int64_t> connections{0}, idle{0}, opened_total{0}, reused_total{0}, calls{0};
};

class UpstreamConnection : public std::enable_shared_from_this<UpstreamConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  UpstreamConnection(const boost::asio::any_io_executor& executor, UpstreamAddress address, UpstreamCounts& counts)
      : socket(executor), address(std::move(address)), counts_(counts) {}
  ~UpstreamConnection() { close(); }
  UpstreamConnection(const UpstreamConnection&) = delete;
  UpstreamConnection& operator=(const UpstreamConnection&) = delete;

  void opened() {
    open_ = true;
    ++counts_.connections;
    ++counts_.opened_total;
  }
  void close() {
    on_readable = nullptr;
    boost::system::error_code ignored;
    socket.close(ignored);
    if (std::exchange(open_, false)) --counts_.connections;
  }
  // Tells on_readable once.
  void want_read() {
    if (std::exchange(waits_, true)) return;
    socket.async_wait(Socket::wait_read, [self = shared_from_this()](boost::system::error_code) {
      self->waits_ = false;
      const auto tell = self->on_readable;  // it may be replaced while it runs
      if (tell) tell();
    });
  }
  // Nothing has come of it, not even its end.
  bool is_silent() {
    char byte = 0;
    return ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  Socket socket;
  const UpstreamAddress address;
  std::function<void()> on_readable;
  std::chrono::steady_clock::time_point idle_since{};

 private:
  UpstreamCounts& counts_;
  bool waits_ = false;
  bool open_ = false;
};

class UpstreamPool {
 public:
  using Connection = std::shared_ptr<UpstreamConnection>;
  UpstreamPool(const boost::asio::any_io_executor& executor, const UpstreamOptions& options, UpstreamCounts& counts)
      : timer_(executor),
        timeout_(options.idle_timeout_ms),
        most_((static_cast<size_t>(options.max_idle_per_address) + static_cast<size_t>(options.threads) - 1) /
              static_cast<size_t>(options.threads)),
        counts_(counts) {}

  // The one that was used last, or null. The caller sets on_readable.
  Connection take(const UpstreamAddress& address) {
    for (;;) {
      const auto found = idle_.find(key(address));
      if (found == idle_.end()) return nullptr;
      Connection last = std::move(found->second.back());
      found->second.pop_back();
      if (found->second.empty()) idle_.erase(found);
      --counts_.idle;
      last->on_readable = nullptr;
      if (last->is_silent()) return last;
      last->close();
    }
  }

  void give(Connection connection) {
    UpstreamConnection* const raw = connection.get();
    raw->on_readable = [this, raw] { drop(raw); };
    raw->idle_since = std::chrono::steady_clock::now();
    auto& all = idle_[key(raw->address)];
    all.push_back(std::move(connection));
    ++counts_.idle;
    raw->want_read();
    if (all.size() > most_) remove(all, 0);
    if (all.empty()) idle_.erase(key(raw->address));
    if (!sweeps_) sweep_later(timeout_);
  }

  void close_all() {
    for (auto& [address, all] : idle_) {
      while (!all.empty()) remove(all, all.size() - 1);
    }
    idle_.clear();
    timer_.cancel();
  }

 private:
  using Key = std::pair<std::string, int>;
  static Key key(const UpstreamAddress& address) { return {address.host, address.port}; }

  void remove(std::vector<Connection>& all, size_t index) {
    all[index]->close();
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(index));
    --counts_.idle;
  }
  void drop(UpstreamConnection* connection) {
    const auto found = idle_.find(key(connection->address));
    if (found == idle_.end()) return;
    for (size_t i = 0; i < found->second.size(); ++i) {
      if (found->second[i].get() != connection) continue;
      remove(found->second, i);
      break;
    }
    if (found->second.empty()) idle_.erase(found);
  }

  void sweep_later(std::chrono::steady_clock::duration wait) {
    sweeps_ = true;
    timer_.expires_after(wait);
    timer_.async_wait([this](boost::system::error_code ec) {
      sweeps_ = false;
      if (!ec) sweep();
    });
  }
  // Those of one address stand in the order in which they became idle.
  void sweep() {
    const auto now = std::chrono::steady_clock::now();
    auto next = now + timeout_;
    for (auto& [address, all] : idle_) {
      while (!all.empty() && now - all.front()->idle_since >= timeout_) remove(all, 0);
      if (!all.empty()) next = std::min(next, all.front()->idle_since + timeout_);
    }
    std::erase_if(idle_, [](const auto& entry) { return entry.second.empty(); });
    if (!idle_.empty()) sweep_later(next - now);
  }

  std::map<Key, std::vector<Connection>> idle_;
  boost::asio::steady_timer timer_;
  const std::chrono::milliseconds timeout_;
  const size_t most_;
  UpstreamCounts& counts_;
  bool sweeps_ = false;
};

}  // namespace loralei
