// SPDX-License-Identifier: Apache-2.0
// AsyncReader: reads in the background; a submitted read is a ticket, a finished one a completion value.
//
// Thread: submit and poll from any thread. Ownership: the caller keeps `file` and `dest` alive and untouched until the
// completion has been polled or the reader has been destroyed (the destructor finishes running reads and drops queued
// ones). Invariants: every ticket completes exactly once, in any order; at most `queue_max` reads are unfinished or
// unpolled, so that memory is bounded. Failure: submit answers kOverloaded when that many are outstanding; a failed
// read is a completion with the error of File::read_exact.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "sys/file.h"

namespace loralei {

struct ReadRequest {
  const File* file = nullptr;
  int64_t offset_bytes = 0;
  std::span<std::byte> dest;
};

using ReadTicket = uint64_t;  // never reused by one reader; 0 is none

struct ReadCompletion {
  ReadTicket ticket = 0;
  Status status;
};

class AsyncReader {
 public:
  virtual ~AsyncReader() = default;
  virtual Result<ReadTicket> submit(const ReadRequest& request) = 0;
  // Appends what has finished; waits up to `timeout` while nothing has and something is outstanding. Returns the number
  // appended.
  virtual size_t poll(std::vector<ReadCompletion>& completions, std::chrono::nanoseconds timeout) = 0;
  virtual size_t outstanding() const = 0;  // submitted and not yet polled
};

struct AsyncReaderOptions {
  int threads = 4;
  size_t queue_max = 256;
};

// A few threads that call read_exact.
std::unique_ptr<AsyncReader> make_pool_reader(const AsyncReaderOptions& options);

// The twin for tests: nothing happens until step(), which performs one outstanding read chosen by the seed.
class SimulatedReader final : public AsyncReader {
 public:
  SimulatedReader(uint64_t seed, size_t queue_max) : prng_(seed), queue_max_(queue_max) {}
  Result<ReadTicket> submit(const ReadRequest& request) override;
  size_t poll(std::vector<ReadCompletion>& completions, std::chrono::nanoseconds timeout) override;  // never waits
  size_t outstanding() const override;
  bool step();  // false when nothing was left to do

 private:
  struct Pending {
    ReadTicket ticket;
    ReadRequest request;
  };
  mutable std::mutex mutex_;
  Prng prng_;
  const size_t queue_max_;
  ReadTicket last_ticket_ = 0;
  std::vector<Pending> pending_;
  std::vector<ReadCompletion> done_;
};

}  // namespace loralei
