// SPDX-License-Identifier: Apache-2.0
// DiskMail: what the engine's thread wants done to the disk, and what has become of it.
// Values in order, both ways; but fetches, for which somebody waits, go before a seal
// that is next: it syncs a segment. They ask for what has been written alone, so nothing
// else is done in another order.
//
// Thread-safe: one thread gives jobs and takes reports, another does the jobs.
// Ownership: jobs borrow the bytes and slots they name.
// Invariant: in a steady state nothing is allocated. Bounds: jobs by the room of the ring
// and the number of slots, reports by the jobs.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/disk_buffers.h"
#include "kv/disk_format.h"

namespace loralei {

struct DiskJob {
  enum class Kind : uint8_t { kBegin, kWrite, kSeal, kRemove, kRemoveElder, kKeepGrid, kFetch };
  Kind kind = Kind::kWrite;
  uint32_t segment = 0;              // or the elder's index
  DiskHeader header;                 // of a write
  std::span<const std::byte> bytes;  // of a write: a piece of the ring
  ReadSlot* slot = nullptr;          // of a fetch
};

struct DiskReport {
  enum class Kind : uint8_t { kWritten, kNotWritten, kLost, kGone, kRead, kGridKept, kGridNotKept };
  Kind kind = Kind::kWritten;
  DiskHeader header;                 // of the record; kGone: of one of the segment
  std::span<const std::byte> bytes;  // of a write, read no more
  int64_t read_blocks = 0, read_coded = 0, read_bytes = 0, read_ns = 0;
};

class DiskMail {
 public:
  void put(const DiskJob& job) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(job);
      ++given_;
    }
    changed_.notify_one();
  }
  // The next job; nullopt: there is none now (`waits` false), or it is over.
  std::optional<DiskJob> next(bool waits) {
    std::unique_lock lock(mutex_);
    if (at_ == taken_.size()) {
      taken_.clear();
      at_ = 0;
      if (waits) changed_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
      std::swap(taken_, waiting_);
    }
    if (stops_ || at_ == taken_.size()) return std::nullopt;
    if (is_seal(taken_[at_]) && !std::exchange(passed_, true)) let_fetches_pass();
    if (is_seal(taken_[at_])) passed_ = false;
    return taken_[at_++];
  }
  void report(const DiskReport& report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(report);
  }
  void done() {  // with what next() gave
    {
      const std::lock_guard lock(mutex_);
      ++done_;
    }
    idle_.notify_all();
  }

  // Swaps out what was reported (`reports` is empty before).
  void take(std::vector<DiskReport>& reports) {
    const std::lock_guard lock(mutex_);
    std::swap(reports, reports_);
  }
  // Waits until all that was given is done, at most so long; whether it is.
  bool wait_idle(int64_t timeout_ms) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return done_ == given_; });
  }
  // What has not been begun is not done any more.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
  }

 private:
  static bool is_seal(const DiskJob& job) { return job.kind == DiskJob::Kind::kSeal; }
  // Those that wait now, so that the seal's turn comes.
  void let_fetches_pass() {
    taken_.erase(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(std::exchange(at_, 0)));
    taken_.insert(taken_.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
    auto front = taken_.begin();
    for (auto job = front; job != taken_.end(); ++job)
      if (job->kind == DiskJob::Kind::kFetch) std::rotate(front++, job, job + 1);
  }

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::vector<DiskJob> waiting_;
  std::vector<DiskReport> reports_;
  uint64_t given_ = 0, done_ = 0;
  bool stops_ = false;
  // Of the thread that does the jobs.
  std::vector<DiskJob> taken_;
  size_t at_ = 0;
  bool passed_ = false;  // the seal that is next
};

}  // namespace loralei
