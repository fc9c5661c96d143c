// SPDX-License-Identifier: Apache-2.0
// Compiled where MPI is found (CMakeLists.txt).
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "parallel/process_group.h"
#include "parallel/shard.h"
#include "sys/process.h"
#include "sys/process_watch.h"

namespace loralei {
namespace {

constexpr int64_t kForever = INT64_MAX;
constexpr int64_t kBusyNs = 2'000'000;  // then a wait for an idle rank sleeps between two looks
constexpr auto kNap = std::chrono::microseconds(200);
constexpr size_t kBytesAtOnce = size_t{1} << 30;  // MPI counts in int
constexpr size_t kWholeFloats = 16384;            // sums of so few are passed on whole: one round in the place of two

class MpiRank final : public Collective {
 public:
  MpiRank(int rank, int size, const ProcessGroupOptions& options) : rank_(rank), size_(size), options_(options) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  CollectiveTotals totals() const override { return totals_; }

  void fail(Error why) override {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    error_ = std::move(why);
    failed_.store(true);
  }
  Status health() const override {
    if (!failed_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    return error_;
  }

  Status barrier() override {
    return timed([&] {
      MPI_Request request;
      MPI_Ibarrier(MPI_COMM_WORLD, &request);
      return wait(request, options_.late_ns);
    });
  }
  Status all_reduce_sum(std::span<float> values) override {
    return timed([&] { return values.size() <= kWholeFloats ? sum_whole(values) : sum_parts(values); });
  }
  Status broadcast(std::span<std::byte> bytes) override {
    ++totals_.calls;
    const int64_t most_ns = rank_ == 0 ? options_.late_ns : kForever;
    for (size_t at = 0; at < bytes.size(); at += kBytesAtOnce) {
      const size_t count = std::min(kBytesAtOnce, bytes.size() - at);
      TRY(health());
      MPI_Request request;
      MPI_Ibcast(bytes.data() + at, static_cast<int>(count), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
      TRY(wait(request, most_ns));
      if (rank_ > 0) totals_.bytes += static_cast<int64_t>(count);
    }
    return health();
  }
  Status gather(std::span<const float> part, std::span<float> all) override {
    CHECK(rank_ > 0 || all.size() == part.size() * static_cast<size_t>(size_));
    return timed([&]() -> Status {
      if (part.empty()) return {};
      const int count = static_cast<int>(part.size());
      // Rank 0's own part may lie where it belongs already.
      const bool in_place = rank_ == 0 && part.data() == all.data();
      MPI_Request request;
      MPI_Igather(in_place ? MPI_IN_PLACE : part.data(), count, MPI_FLOAT, all.data(), count, MPI_FLOAT, 0,
                  MPI_COMM_WORLD, &request);
      if (rank_ == 0) totals_.bytes += static_cast<int64_t>(part.size_bytes()) * (size_ - 1);
      return wait(request, options_.late_ns);
    });
  }

 private:
  template <typename Call>
  Status timed(Call&& call) {
    ++totals_.calls;
    TRY(health());
    const int64_t begin_ns = clock_.now_ns();
    Status status = call();
    totals_.ns += clock_.now_ns() - begin_ns;
    return status.ok() ? health() : std::move(status);
  }

  // Ranks may share cores: nobody holds one while it waits.
  Status wait(MPI_Request& request, int64_t most_ns) {
    const int64_t begin_ns = clock_.now_ns();
    for (;;) {
      int done = 0;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return {};
      TRY(health());
      const int64_t waited_ns = clock_.now_ns() - begin_ns;
      if (waited_ns > most_ns) {
        fail({ErrorCode::kUnavailable, "A rank of " + std::to_string(size_) + " did not come to where rank " +
                                           std::to_string(rank_) + " waited for it for " +
                                           std::to_string(waited_ns / 1'000'000) +
                                           " ms, which ends the tensor-parallel group; start the server again."});
        return health();
      }
      if (waited_ns > kBusyNs) {
        std::this_thread::sleep_for(kNap);
      } else {
        std::this_thread::yield();
      }
    }
  }

  float* room(size_t floats) {
    if (room_.size() < floats) room_.resize(floats);
    return room_.data();
  }
  void add_up(float* to, const float* parts, size_t count, size_t stride) const {
    std::memcpy(to, parts, count * sizeof(float));
    for (int rank = 1; rank < size_; ++rank) {
      const float* const more = parts + static_cast<size_t>(rank) * stride;
      for (size_t i = 0; i < count; ++i) to[i] += more[i];
    }
  }

  // Everybody gets all and adds up.
  Status sum_whole(std::span<float> values) {
    if (values.empty()) return {};
    const int count = static_cast<int>(values.size());
    float* const all = room(values.size() * static_cast<size_t>(size_));
    MPI_Request request;
    MPI_Iallgather(values.data(), count, MPI_FLOAT, all, count, MPI_FLOAT, MPI_COMM_WORLD, &request);
    TRY(wait(request, options_.late_ns));
    totals_.bytes += static_cast<int64_t>(values.size_bytes()) * (size_ - 1);
    add_up(values.data(), all, values.size(), values.size());
    return {};
  }

  // Each adds up a part, and everybody gets the sums.
  Status sum_parts(std::span<float> values) {
    const Shard shard{rank_, size_};
    const auto count = static_cast<int64_t>(values.size());
    const ShardPart own = tiled_part(shard, count, 1);
    for (int rank = 0; rank < size_; ++rank) {
      const ShardPart part = tiled_part({rank, size_}, count, 1);
      const auto index = static_cast<size_t>(rank);
      counts_[index] = static_cast<int>(part.count);
      begins_[index] = static_cast<int>(part.begin);
      own_counts_[index] = static_cast<int>(own.count);
      own_begins_[index] = static_cast<int>(own.count * rank);
    }
    float* const parts = room(static_cast<size_t>(own.count * (size_ + 1)));
    float* const sums = parts + own.count * size_;
    MPI_Request request;
    MPI_Ialltoallv(values.data(), counts_.data(), begins_.data(), MPI_FLOAT, parts, own_counts_.data(),
                   own_begins_.data(), MPI_FLOAT, MPI_COMM_WORLD, &request);
    TRY(wait(request, options_.late_ns));
    add_up(sums, parts, static_cast<size_t>(own.count), static_cast<size_t>(own.count));
    MPI_Iallgatherv(sums, static_cast<int>(own.count), MPI_FLOAT, values.data(), counts_.data(), begins_.data(),
                    MPI_FLOAT, MPI_COMM_WORLD, &request);
    TRY(wait(request, options_.late_ns));
    totals_.bytes += (own.count * (size_ - 1) + count - own.count) * static_cast<int64_t>(sizeof(float));
    return {};
  }

  const int rank_, size_;
  const ProcessGroupOptions options_;
  const SteadyClock clock_;
  CollectiveTotals totals_;
  std::vector<float> room_;  // grows to the largest sum
  std::array<int, kRanksMax> counts_{}, begins_{}, own_counts_{}, own_begins_{};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // of error_
  Error error_;
};

class MpiGroup final : public ProcessGroup {
 public:
  explicit MpiGroup(const ProcessGroupOptions& options) : rank_(world_rank(), world_size(), options) {}
  ~MpiGroup() override {
    watch_.reset();
    if (!rank_.health().ok()) MPI_Abort(MPI_COMM_WORLD, 1);  // with what failed calls still hold
    MPI_Finalize();
  }
  Collective& collective() override { return rank_; }
  int ranks_here() const override { return ranks_here_; }
  void end_process(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

  // The others on this machine, by their process numbers.
  Status watch_others() {
    MPI_Comm here;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &ranks_here_);
    const std::array<int, 2> own = {rank_.rank(), process_id()};
    std::vector<int> all(own.size() * static_cast<size_t>(ranks_here_));
    MPI_Allgather(own.data(), 2, MPI_INT, all.data(), 2, MPI_INT, here);
    MPI_Comm_free(&here);
    TRY_ASSIGN(
        watch_, ProcessWatch::create([this](const std::string& rank, int pid) {
          rank_.fail({ErrorCode::kUnavailable,
                      "Rank " + rank + " of " + std::to_string(rank_.size()) + " (process " + std::to_string(pid) +
                          ") has ended, and the tensor-parallel group with it; start the server again."});
        }));
    for (size_t i = 0; i < all.size(); i += 2) {
      if (all[i] != rank_.rank()) TRY(watch_->watch(std::to_string(all[i]), all[i + 1]));
    }
    return {};
  }

 private:
  static int world_rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }
  static int world_size() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }
  MpiRank rank_;
  int ranks_here_ = 1;
  std::unique_ptr<ProcessWatch> watch_;
};

}  // namespace

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::join(const ProcessGroupOptions& options) {
  int initialised = 0, provided = 0;
  MPI_Initialized(&initialised);
  CHECK(initialised == 0);
  // Ranks that share cores must let each other run, whatever the ranks before said.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED)
    return unsupported("This MPI lets one thread speak alone; take an Open MPI that was built with threads.");
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size > kRanksMax) return unsupported("mpirun started more than " + std::to_string(kRanksMax) + " processes.");
  auto group = std::make_unique<MpiGroup>(options);
  TRY(group->watch_others());
  return std::unique_ptr<ProcessGroup>(std::move(group));
}

}  // namespace loralei
