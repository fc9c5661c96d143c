// SPDX-License-Identifier: Apache-2.0
#include "device/host/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"
#include "sys/threads.h"

namespace loralei {
namespace {

// A layer's kernels follow each other within a few microseconds, so a short spin
// saves the futex call there; it is kept short because the cores may be shared with
// other processes.
constexpr std::chrono::microseconds kSpin{15};

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename Done>
bool spin_until(Done done) {
  for (int i = 0; i < 64; ++i) {
    if (done()) return true;
    cpu_relax();
  }
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

constexpr int64_t kRunsAThread = 2;  // how many shares of a thread the first run is one of

constexpr uint32_t kOpen = 1u << 31;  // gate: the job may be joined; the low bits count the workers inside

}  // namespace

// One job at a time. The caller writes the job, opens the gate and takes part; a worker
// that comes while the gate is open enters (one more in the count), a worker that comes
// late finds it closed and goes back to sleep, so that nobody waits for a thread that the
// system has not yet scheduled. The job's fields change only while the gate is closed and
// the count is zero.
struct ThreadPool::State {
  alignas(64) std::atomic<uint32_t> epoch{0};  // raised for every job; sleepers wait on it
  alignas(64) std::atomic<uint32_t> gate{0};
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) int64_t count = 0;
  int64_t grain = 1;
  int64_t divisor = 1;  // a chunk is at least this part of what is left; INT64_MAX: always `grain`
  Call call = nullptr;
  void* context = nullptr;
  std::atomic<bool> stop{false};
  bool spin = true;
  std::vector<std::thread> threads;

  int64_t chunk_end(int64_t begin) const {
    const int64_t left = count - begin;
    const int64_t chunk = std::max(grain, left / divisor);
    return chunk < left ? begin + chunk : count;
  }

  void take_chunks(int worker) {
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < count) {
      const int64_t end = chunk_end(begin);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      call(context, begin, end, worker);
      begin = next.load(std::memory_order_relaxed);
    }
  }

  bool enter() {
    uint32_t seen = gate.load(std::memory_order_relaxed);
    while ((seen & kOpen) != 0) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }

  void leave() {
    if (gate.fetch_sub(1, std::memory_order_acq_rel) == 1) gate.notify_one();  // the last one after the gate was closed
  }

  void work(int worker) {
    uint32_t seen = 0;
    for (;;) {
      const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen; };
      if (!spin || !spin_until(changed)) epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      if (enter()) {
        take_chunks(worker);
        leave();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : state_(std::make_unique<State>()) {
  CHECK(threads >= 1);
  const std::vector<int> cpus = allowed_cpus();
  // With more threads than CPUs a spinning thread only delays the one it waits for.
  state_->spin = static_cast<size_t>(threads) <= cpus.size();
  state_->threads.reserve(static_cast<size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    auto thread = start_thread([state = state_.get(), worker, pin, cpus] {
      name_this_thread("loralei-op" + std::to_string(worker));
      if (pin && !cpus.empty()) pin_this_thread(cpus[static_cast<size_t>(worker) % cpus.size()]);
      state->work(worker);
    });
    if (!thread.ok()) break;
    state_->threads.push_back(std::move(thread).value());
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_relaxed);
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(int64_t count, int64_t grain, Chunks chunks, Call call, void* context) {
  if (count <= 0) return;
  State& state = *state_;
  grain = grain < 1 ? 1 : grain;
  if (state.threads.empty() || count <= grain) {
    if (chunks == kShrinking) return call(context, 0, count, 0);
    for (int64_t begin = 0; begin < count; begin += grain) {
      call(context, begin, count - begin < grain ? count : begin + grain, 0);
    }
    return;
  }
  state.count = count;
  state.grain = grain;
  state.divisor = chunks == kEqual ? INT64_MAX : kRunsAThread * threads();
  state.call = call;
  state.context = context;
  state.next.store(0, std::memory_order_relaxed);
  state.gate.store(kOpen, std::memory_order_release);
  state.epoch.fetch_add(1, std::memory_order_release);
  state.epoch.notify_all();
  state.take_chunks(0);
  uint32_t inside = state.gate.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  if (inside == 0) return;
  const auto empty = [&] { return (inside = state.gate.load(std::memory_order_acquire)) == 0; };
  if (state.spin && spin_until(empty)) return;
  while (!empty()) state.gate.wait(inside, std::memory_order_acquire);
}

}  // namespace loralei
