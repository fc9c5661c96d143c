// SPDX-License-Identifier: Apache-2.0
// HeapKeeper: gives freed memory back to the system while a server runs, so that what a
// load took is there for others when it has gone by.
//
// Thread: one of its own, since it takes milliseconds; ends with the object.
// Ownership: borrows the budget, which outlives it. It looks once a second, and does
// something where requests have given memory back, or where more is resident than
// after the last time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/request_budget.h"

namespace loralei {

class HeapKeeper {
 public:
  HeapKeeper(const RequestBudget& requests, std::function<int64_t()> process_bytes);
  ~HeapKeeper();

 private:
  void run();

  const RequestBudget& requests_;
  const std::function<int64_t()> process_bytes_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace loralei
