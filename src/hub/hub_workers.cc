// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_workers.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace loralei {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);

}  // namespace

HubWorkers::HubWorkers(const HubNetwork& network, int connections) {
  for (int i = 0; i < std::max(1, connections); ++i) connections_.push_back(std::make_unique<HubConnection>(network));
}

Status HubWorkers::run(size_t count, const Work& work, const std::function<void()>& tick) {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> failure;
  size_t next = 0;
  size_t running = std::min(count, connections_.size());
  stop_ = false;
  const auto one_thread = [&](HubConnection& connection) {
    for (;;) {
      std::unique_lock lock(mutex);
      if (next == count || failure) break;
      const size_t index = next++;
      lock.unlock();
      Status done = work(connection, index);
      lock.lock();
      if (done.ok() || failure) continue;
      failure = std::move(done).error();
      stop_ = true;
    }
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  };
  std::vector<std::thread> threads;
  for (size_t i = 0, all = running; i < all; ++i) threads.emplace_back([&, i] { one_thread(*connections_[i]); });
  {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kTick, [&] { return running == 0; })) {
      lock.unlock();
      if (tick) tick();
      lock.lock();
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (tick) tick();
  if (failure) return *failure;
  return {};
}

Error hub_stopped() { return {ErrorCode::kCancelled, "the download was stopped"}; }

}  // namespace loralei
