// SPDX-License-Identifier: Apache-2.0
// Streamer: panels of a packed file on their way through a window of memory, read ahead
// in the order of use, pass after pass (FlexInfer §3.2: asynchronous prefetch).
//
// Thread: the consumer's calls come from one thread; a thread of its own reads.
// Ownership: owns the window and the open file.
// Invariants: panels are handed out in order; one stays valid from wait() to release();
// what is not released is never overwritten; the memory used is the window, no more.
// What arrives is as the disk has it: the consumer checks it (weight_use.cc), since every
// millisecond of the reading thread is lost to the disk.
// Failure: wait() answers the read's error and goes on doing so until restart(): a pass
// that has failed is begun again from its first panel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "device/host/arena.h"
#include "formats/packed_index.h"
#include "sys/block_reader.h"

namespace loralei {

// A run of whole tiles of one matrix.
struct StreamPanel {
  int32_t matrix = 0;  // in the packed index
  int64_t first_tile = 0;
  int64_t tiles = 0;
};

struct StreamerOptions {
  int64_t window_bytes = 0;
  int64_t block_bytes = int64_t{1} << 20;
  // False: a panel is read when it is waited for, not before (to measure what reading
  // ahead is worth).
  bool read_ahead = true;
  // Opens the file for reads into `memory`; a seam for tests, which inject faults.
  std::function<Result<std::unique_ptr<BlockReader>>(std::span<std::byte> memory)> open;
};

struct StreamerTotals {
  int64_t read_bytes = 0;  // from disk
  int64_t waited_ns = 0;   // by the consumer
  int64_t passes = 0;      // begun by the reader
};

class Streamer {
 public:
  // `index` outlives the streamer. The window must hold two of the largest panels
  // (plan_residency sees to it).
  static Result<std::unique_ptr<Streamer>> create(const PackedIndex& index, std::vector<StreamPanel> panels,
                                                  StreamerOptions options);
  ~Streamer();
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;

  // Panel `number` of this pass: its first tile. Blocks until it is there.
  Result<const std::byte*> wait(int64_t number);
  bool ready(int64_t number) const;
  // Panels [first unreleased, end) of this pass are not used any more.
  void release(int64_t end);
  // Releases what is left of this pass and begins the next.
  void end_pass();
  // Forgets a pass that failed or was given up; the next one begins with panel 0.
  void restart();

  StreamerTotals totals() const;
  const std::string& how() const;  // it reads, for people

 private:
  struct Reading;
  Streamer(const PackedIndex& index, std::vector<StreamPanel> panels, StreamerOptions options);
  void run();

  const PackedIndex& index_;
  const std::vector<StreamPanel> panels_;
  const StreamerOptions options_;
  HostBuffer window_;
  std::unique_ptr<BlockReader> reader_;

  // Panels are numbered on through the passes ("sequence numbers").
  mutable std::mutex mutex_;
  std::condition_variable arrived_, wanted_;
  std::vector<const std::byte*> places_;  // of the panels in the window, by sequence number modulo its size
  std::atomic<int64_t> arrived_end_{0};   // all before this one have arrived
  int64_t released_end_ = 0;
  int64_t wanted_end_ = 0;  // without reading ahead: all before this one may be read
  int64_t pass_begin_ = 0;  // sequence number of the consumer's panel 0
  int64_t generation_ = 0;  // of restarts
  Status failure_;
  bool stop_ = false;
  StreamerTotals totals_;
  std::thread thread_;
};

}  // namespace loralei
