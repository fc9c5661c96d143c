// SPDX-License-Identifier: Apache-2.0
// WatchedExecutor: another executor, whose work is seen: a thread that runs some of it
// has a mark meanwhile, and rests while it waits for the next. Private to http/.
//
// All that is run on behalf of sockets, timers and coroutines goes through the executor
// that they were made with, so this sees it all: reading, parsing, the handler's
// functions, writing.
// Thread: as the other executor.
// Ownership: the thread's mark is its own (IoThread), alive while it runs work; elsewhere
// nothing is marked.
// Failure: none.
#pragma once

#include <boost/asio/execution.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/require.hpp>
#include <utility>

#include "base/heartbeats.h"

namespace loralei {

// What a thread of the server does, while it lives. Null heartbeats: nobody watches.
class IoThread {
 public:
  explicit IoThread(Heartbeats* beats) : mark_(beats, "http") {
    mark_.rest();
    current_ = this;
  }
  ~IoThread() { current_ = nullptr; }
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // From one piece of work to its end; what it runs within itself is part of it.
  class AtWork {
   public:
    AtWork() : thread_(current_) {
      if (thread_ != nullptr && thread_->depth_++ == 0) thread_->mark_.beat();
    }
    ~AtWork() {
      if (thread_ != nullptr && --thread_->depth_ == 0) thread_->mark_.rest();
    }
    AtWork(const AtWork&) = delete;
    AtWork& operator=(const AtWork&) = delete;

   private:
    IoThread* const thread_;
  };

 private:
  static inline thread_local IoThread* current_ = nullptr;
  Heartbeats::Mark mark_;
  int depth_ = 0;
};

template <typename Inner>
class WatchedExecutor {
 public:
  explicit WatchedExecutor(Inner inner) : inner_(std::move(inner)) {}

  template <typename Function>
  void execute(Function&& function) const {
    inner_.execute([function = std::forward<Function>(function)]() mutable {
      const IoThread::AtWork at_work;
      std::move(function)();
    });
  }
  // Properties are the other's.
  template <typename Property>
  requires boost::asio::can_query_v<const Inner&, Property>
  decltype(auto) query(const Property& property) const { return boost::asio::query(inner_, property); }
  template <typename Property>
  requires boost::asio::can_require_v<const Inner&, Property>
  auto require(const Property& property) const { return wrap(boost::asio::require(inner_, property)); }
  template <typename Property>
  requires boost::asio::can_prefer_v<const Inner&, Property>
  auto prefer(const Property& property) const { return wrap(boost::asio::prefer(inner_, property)); }
  friend bool operator==(const WatchedExecutor& a, const WatchedExecutor& b) noexcept { return a.inner_ == b.inner_; }
  friend bool operator!=(const WatchedExecutor& a, const WatchedExecutor& b) noexcept { return a.inner_ != b.inner_; }

 private:
  template <typename Other>
  static WatchedExecutor<Other> wrap(Other other) {
    return WatchedExecutor<Other>(std::move(other));
  }
  Inner inner_;
};

}  // namespace loralei
