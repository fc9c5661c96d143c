// SPDX-License-Identifier: Apache-2.0
// WorkerPool: a few threads that run short jobs from one bounded queue: parsing, templates, tokenising.
// Thread-safe. Ownership: owns threads and queued jobs; the destructor runs what is queued. Failure: try_run answers
// false when full.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace loralei {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t capacity, const char* name);
  ~WorkerPool();
  bool try_run(std::function<void()> job) { return queue_.try_push(std::move(job)); }
  void stop();  // runs what is queued, takes no more, joins

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace loralei
