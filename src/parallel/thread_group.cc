// SPDX-License-Identifier: Apache-2.0
#include "parallel/thread_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "parallel/shard.h"

namespace loralei {
namespace {

constexpr int kSpins = 512;                  // a few microseconds
constexpr int64_t kYieldNs = 100'000;        // then the core is for whoever wants it
constexpr size_t kWholeFloats = 16384;       // sums of so few are made by everybody
constexpr int64_t kForever = INT64_MAX;      // of a wait
constexpr int64_t kSleepNs = 1'000'000'000;  // looks again so often, however long it waits

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadGroup::State {
  int size = 1;
  ThreadGroupOptions options;
  SteadyClock clock;
  std::vector<std::unique_ptr<Rank>> ranks;

  // What each rank gave to the call that is under way; written before it arrives.
  struct Given {
    std::byte* data = nullptr;
    size_t count = 0;
  };
  std::vector<Given> given;

  std::vector<float> slots;  // [2, size, kWholeFloats], of sum_whole

  std::atomic<int> arrived{0};
  std::atomic<uint32_t> phase{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;  // of `error`, and for who sleeps
  std::condition_variable woken;
  Error error;
  std::vector<std::atomic<bool>> here;  // whether a rank is in the wait of this phase; for the sentence alone

  explicit State(int ranks_count)
      : size(ranks_count), given(static_cast<size_t>(size)), here(static_cast<size_t>(size)) {
    if (size > 1) slots.resize(2 * given.size() * kWholeFloats);
  }

  void fail(Error why) {
    const std::lock_guard lock(mutex);
    if (failed.load()) return;
    error = std::move(why);
    failed.store(true);
    woken.notify_all();
  }
  Status health() {
    if (!failed.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex);
    return error;
  }
  bool passed(uint32_t before) const { return phase.load() != before || failed.load(); }
  void fail_of_late(int rank, int64_t waited_ns);
  void wait(int rank, uint32_t before, int64_t most_ns);
  Status meet(int rank, int64_t most_ns);
};

void ThreadGroup::State::fail_of_late(int rank, int64_t waited_ns) {
  std::string late;
  for (int other = 0; other < size; ++other) {
    if (other == rank || here[static_cast<size_t>(other)].load()) continue;
    late += (late.empty() ? "" : ", ") + std::to_string(other);
  }
  fail({ErrorCode::kUnavailable, "Rank " + late + " of " + std::to_string(size) +
                                     " did not come to where the others waited for it for " +
                                     std::to_string(waited_ns / 1'000'000) +
                                     " ms, which ends the tensor-parallel group; start the server again."});
}

// Until all have arrived, or the group has failed.
void ThreadGroup::State::wait(int rank, uint32_t before, int64_t most_ns) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (passed(before)) return;
    pause_core();
  }
  const int64_t begin_ns = clock.now_ns();
  while (clock.now_ns() - begin_ns < kYieldNs) {
    if (passed(before)) return;
    std::this_thread::yield();
  }
  sleepers.fetch_add(1);
  {
    std::unique_lock lock(mutex);
    while (!passed(before) && clock.now_ns() - begin_ns < most_ns) {
      const int64_t left_ns = most_ns == kForever ? kSleepNs : most_ns - (clock.now_ns() - begin_ns);
      woken.wait_for(lock, std::chrono::nanoseconds(std::clamp<int64_t>(left_ns, 1, kSleepNs)));
    }
  }
  sleepers.fetch_sub(1);
  if (!passed(before)) fail_of_late(rank, clock.now_ns() - begin_ns);
}

// All ranks are here before one goes on, and see what the others wrote.
Status ThreadGroup::State::meet(int rank, int64_t most_ns) {
  if (failed.load(std::memory_order_acquire)) return health();
  const uint32_t before = phase.load(std::memory_order_acquire);
  here[static_cast<size_t>(rank)].store(true);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    for (std::atomic<bool>& one : here) one.store(false, std::memory_order_relaxed);
    arrived.store(0, std::memory_order_relaxed);
    phase.fetch_add(1);
    if (sleepers.load() > 0) {
      const std::lock_guard lock(mutex);
      woken.notify_all();
    }
  } else {
    wait(rank, before, most_ns);
  }
  return health();
}

class ThreadGroup::Rank final : public Collective {
 public:
  Rank(State& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size; }
  void fail(Error why) override { group_.fail(std::move(why)); }
  Status health() const override { return group_.health(); }
  CollectiveTotals totals() const override { return totals_; }

  Status barrier() override {
    const Timed timed(*this);
    return meet();
  }

  Status all_reduce_sum(std::span<float> values) override {
    const Timed timed(*this);
    TRY(group_.health());  // what others still read of an earlier call stays as it is
    if (group_.size == 1) return {};
    if (values.size() <= kWholeFloats) return sum_whole(values);
    give(reinterpret_cast<std::byte*>(values.data()), values.size());
    TRY(meet());
    sum_part(values.size());
    totals_.bytes += received(values.size() * sizeof(float));
    return meet();
  }

  Status broadcast(std::span<std::byte> bytes) override {
    ++totals_.calls;
    TRY(group_.health());
    if (group_.size == 1) return {};
    give(bytes.data(), bytes.size());
    TRY(group_.meet(rank_, rank_ == 0 ? group_.options.late_ns : kForever));
    const State::Given& from = group_.given[0];
    CHECK(from.count == bytes.size());
    if (rank_ > 0) std::memcpy(bytes.data(), from.data, bytes.size());
    if (rank_ > 0) totals_.bytes += static_cast<int64_t>(bytes.size());
    return meet();
  }

  Status gather(std::span<const float> part, std::span<float> all) override {
    const Timed timed(*this);
    TRY(group_.health());
    give(reinterpret_cast<std::byte*>(const_cast<float*>(part.data())), part.size());
    TRY(meet());
    if (rank_ == 0) {
      CHECK(all.size() == part.size() * static_cast<size_t>(group_.size));
      for (size_t other = 0; other < group_.given.size(); ++other) {
        const State::Given& from = group_.given[other];
        CHECK(from.count == part.size());
        if (other > 0) totals_.bytes += static_cast<int64_t>(part.size_bytes());
        std::memmove(all.data() + other * part.size(), from.data, part.size_bytes());
      }
    }
    return meet();
  }

 private:
  class Timed {
   public:
    explicit Timed(Rank& rank) : rank_(rank), begin_ns_(rank.group_.clock.now_ns()) { ++rank_.totals_.calls; }
    ~Timed() { rank_.totals_.ns += rank_.group_.clock.now_ns() - begin_ns_; }

   private:
    Rank& rank_;
    const int64_t begin_ns_;
  };
  void give(std::byte* data, size_t count) { group_.given[static_cast<size_t>(rank_)] = {data, count}; }
  Status meet() { return group_.meet(rank_, group_.options.late_ns); }
  int64_t received(size_t bytes) const {
    return static_cast<int64_t>(bytes) * (group_.size - 1) / group_.size * 2;  // parts to add, and sums of others
  }
  void sum_part(size_t count);
  Status sum_whole(std::span<float> values);

  State& group_;
  const int rank_;
  size_t turn_ = 0;  // of sum_whole: which half of the slots
  CollectiveTotals totals_;
};

// Everybody adds up all of it, from copies, so that ranks meet once. A copy is written
// over two turns later: all have met in between, and so have read it.
Status ThreadGroup::Rank::sum_whole(std::span<float> values) {
  turn_ ^= 1;
  const auto slot = [&](int rank) {
    return group_.slots.data() + (turn_ * group_.given.size() + static_cast<size_t>(rank)) * kWholeFloats;
  };
  std::memcpy(slot(rank_), values.data(), values.size_bytes());
  TRY(meet());
  std::memcpy(values.data(), slot(0), values.size_bytes());
  for (int rank = 1; rank < group_.size; ++rank) {
    const float* const more = slot(rank);
    for (size_t i = 0; i < values.size(); ++i) values[i] += more[i];
  }
  totals_.bytes += static_cast<int64_t>(values.size_bytes()) * (group_.size - 1);
  return {};
}

// This rank's part of all that is to be added, in the order of the ranks, to everybody.
void ThreadGroup::Rank::sum_part(size_t count) {
  const ShardPart part = tiled_part({rank_, group_.size}, static_cast<int64_t>(count), 16);
  constexpr int64_t kRun = 256;
  float sums[kRun];
  const auto of = [&](size_t rank) { return reinterpret_cast<float*>(group_.given[rank].data); };
  for (const State::Given& one : group_.given) CHECK(one.count == count);
  for (int64_t begin = part.begin; begin < part.end(); begin += kRun) {
    const int64_t run = std::min(kRun, part.end() - begin);
    std::memcpy(sums, of(0) + begin, sizeof(float) * static_cast<size_t>(run));
    for (size_t rank = 1; rank < group_.given.size(); ++rank) {
      const float* const more = of(rank) + begin;
      for (int64_t i = 0; i < run; ++i) sums[i] += more[i];
    }
    for (size_t rank = 0; rank < group_.given.size(); ++rank)
      std::memcpy(of(rank) + begin, sums, sizeof(float) * static_cast<size_t>(run));
  }
}

ThreadGroup::ThreadGroup(int size, const ThreadGroupOptions& options) : state_(std::make_unique<State>(size)) {
  CHECK(size >= 1 && size <= kRanksMax);
  state_->options = options;
  for (int rank = 0; rank < size; ++rank) state_->ranks.push_back(std::make_unique<Rank>(*state_, rank));
}
ThreadGroup::~ThreadGroup() = default;
int ThreadGroup::size() const { return state_->size; }
Collective& ThreadGroup::rank(int rank) { return *state_->ranks[static_cast<size_t>(rank)]; }

}  // namespace loralei
