// SPDX-License-Identifier: Apache-2.0
#include "serve/worker_pool.h"

#include <algorithm>
#include <string>

#include "sys/threads.h"

namespace loralei {

WorkerPool::WorkerPool(int threads, size_t capacity, const char* name) : queue_(capacity) {
  for (int i = 0; i < std::max(1, threads); ++i) {
    threads_.emplace_back([this, label = std::string(name)] {
      name_this_thread(label);
      while (auto job = queue_.pop()) (*job)();
    });
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  queue_.close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace loralei
