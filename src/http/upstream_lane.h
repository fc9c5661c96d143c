// SPDX-License-Identifier: Apache-2.0
// UpstreamLane: one thread of an Upstream, with all that its calls share. Private to
// http/, and included by upstream.cc alone.
//
// Thread: its own, but for what says otherwise. Ownership: shared by the Upstream and the
// calls that were begun on it; owns connections, and running calls until they end.
// Invariants: every function of a call, of the pool and of the names runs on the lane's
// thread, so none of them has a lock. Failure: none of its own.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "http/upstream_names.h"
#include "http/upstream_pool.h"
#include "http/watched_executor.h"

namespace loralei {

class UpstreamExchange;

struct UpstreamLane {
  UpstreamLane(const UpstreamOptions& options, LogSink& log, std::shared_ptr<UpstreamCounts> counts)
      : options(options),
        log(log),
        counts(std::move(counts)),
        executor(WatchedExecutor(context.get_executor())),
        work(context.get_executor()),
        names(this->options, executor),
        pool(executor, this->options, *this->counts),
        buffer(std::make_unique<char[]>(kUpstreamBufferBytes)) {}

  const UpstreamOptions options;
  LogSink& log;
  const std::shared_ptr<UpstreamCounts> counts;
  boost::asio::io_context context{1};
  const boost::asio::any_io_executor executor;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  UpstreamNames names;
  UpstreamPool pool;
  const std::unique_ptr<char[]> buffer;  // for what is being read
  std::unordered_map<UpstreamExchange*, std::shared_ptr<UpstreamExchange>> calls;
  bool stopped = false;
  std::atomic<int64_t> load{0};  // calls that are running or on their way here
  std::thread thread;            // the Upstream's
};

}  // namespace loralei
