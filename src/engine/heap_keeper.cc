// SPDX-License-Identifier: Apache-2.0
#include "engine/heap_keeper.h"

#include <utility>

#include "base/units.h"
#include "sys/process.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr auto kLookTime = std::chrono::seconds(1);
constexpr int64_t kReturnedBytes = 4 * kMiB;  // by requests: worth going through the heap
constexpr int64_t kGrownBytes = 8 * kMiB;     // resident for whatever reason, some of it perhaps free
constexpr int kLooksBetweenGrowths = 5;

}  // namespace

HeapKeeper::HeapKeeper(const RequestBudget& requests, std::function<int64_t()> process_bytes)
    : requests_(requests), process_bytes_(std::move(process_bytes)), thread_([this] { run(); }) {}

HeapKeeper::~HeapKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void HeapKeeper::run() {
  name_this_thread("heap");
  int64_t returned_before = requests_.returned_bytes(), resident_before = process_bytes_();
  int looks = 0;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kLookTime, [&] { return stop_; })) {
    ++looks;
    const int64_t returned = requests_.returned_bytes();
    const bool grown = looks >= kLooksBetweenGrowths && process_bytes_() >= resident_before + kGrownBytes;
    if (returned - returned_before < kReturnedBytes && !grown) continue;
    return_free_memory();
    returned_before = returned;
    resident_before = process_bytes_();
    looks = 0;
  }
}

}  // namespace loralei
