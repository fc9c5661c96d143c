// SPDX-License-Identifier: Apache-2.0
// Farewell: connections for which there is no place, told so in a few bytes and let go.
// Private to http/.
//
// Thread: the acceptor's strand.
// Ownership: owns their sockets, at most `most` of them, and nothing else for each.
// Invariants: a socket is closed when its client has closed, or kLingerTime has passed,
// or a newer one needs its place and it has had kShortestLinger: to close while a request
// is on its way would reset the connection and may destroy the answer. Work for each is
// a write of one answer and reads that do not wait.
// Failure: none; a client that does not take its answer loses it.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <deque>
#include <string_view>

#include "http/core.h"

namespace loralei {

constexpr auto kLingerTime = milliseconds(2000);
constexpr auto kShortestLinger = milliseconds(20);

class Farewell {
 public:
  explicit Farewell(size_t most) : most_(most) {}

  // When there is, or will be, room for one more.
  steady_clock::time_point room_at() const {
    return leaving_.size() < most_ ? steady_clock::time_point{} : leaving_.front().since + kShortestLinger;
  }
  void tell(tcp::socket socket, std::string_view answer) {
    if (leaving_.size() >= most_) leaving_.pop_front();
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(answer.data(), answer.size()), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    leaving_.push_back({std::move(socket), steady_clock::now()});
  }
  // Discards what has come, and closes whom nothing more is to come from. True while
  // there are others.
  bool sweep() {
    const auto now = steady_clock::now();
    std::erase_if(leaving_, [&](Leaving& one) { return now - one.since > kLingerTime || has_closed(one.socket); });
    return !leaving_.empty();
  }
  void clear() { leaving_.clear(); }

 private:
  struct Leaving {
    tcp::socket socket;
    steady_clock::time_point since;
  };
  static bool has_closed(tcp::socket& socket) {
    std::array<char, 4096> discarded;
    error_code ec;
    for (int reads = 0; reads < 4 && !ec; ++reads) socket.read_some(asio::buffer(discarded), ec);
    return ec && ec != asio::error::would_block && ec != asio::error::try_again && ec != asio::error::interrupted;
  }

  const size_t most_;
  std::deque<Leaving> leaving_;
};

}  // namespace loralei
