// SPDX-License-Identifier: Apache-2.0
// ThreadPool: the workers of the host executor. Persistent threads, bounded spin, then
// futex (atomic wait).
//
// Thread: parallel_for is called by one thread at a time (the executor's), which works
// along as worker 0. Not re-entrant.
// Ownership: owns its threads; the destructor joins them.
// Invariant: every index in [0, count) is handed out exactly once, in ascending chunks,
// to whichever worker is free, so that a busy neighbour core costs its share and not a
// stall; an item may therefore wait for earlier ones. No allocation per call.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace loralei {

class ThreadPool {
 public:
  // threads >= 1, fewer where the system gives no more; with `pin`, worker i is bound to
  // the process's i-th CPU.
  explicit ThreadPool(int threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end, worker) over chunks of `grain` of [0, count); returns
  // when all are done.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    start(count, grain, kEqual, std::forward<Body>(body));
  }
  // The same in chunks that shrink with what is left, down to `grain`: long runs for work
  // that streams from memory, and still all workers end together. A pool of one thread
  // takes all in one run.
  template <typename Body>
  void parallel_for_runs(int64_t count, int64_t grain, Body&& body) {
    start(count, grain, kShrinking, std::forward<Body>(body));
  }

 private:
  enum Chunks : unsigned char { kEqual, kShrinking };
  template <typename Body>
  void start(int64_t count, int64_t grain, Chunks chunks, Body&& body) {
    using Fn = std::remove_reference_t<Body>;
    run(
        count, grain, chunks,
        [](void* context, int64_t begin, int64_t end, int worker) { (*static_cast<Fn*>(context))(begin, end, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  using Call = void (*)(void* context, int64_t begin, int64_t end, int worker);
  void run(int64_t count, int64_t grain, Chunks chunks, Call call, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace loralei
