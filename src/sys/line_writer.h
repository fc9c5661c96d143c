// SPDX-License-Identifier: Apache-2.0
// LineWriter: lines to a file descriptor by a thread of its own, so that whoever has
// something to say never waits for a pipe that nobody reads, a terminal that is stopped
// or a disk that hangs.
//
// Thread-safe.
// Ownership: owns its thread and what is queued, borrows the descriptor, which stays open
// to the end of the process.
// Invariants: lines are written whole and in the order in which they were pushed;
// what is queued and being written stays within the limits; nobody holds the lock while
// writing, and the thread takes no signals. Once there is room again, a line says how
// many were dropped.
// Failure: a line without room, or that the descriptor refuses, is dropped and
// counted. A thread that hangs in the system is left behind by the destructor, with
// what it still needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/units.h"

namespace loralei {

// A file for a LineWriter, made or emptied; its descriptor.
Result<int> open_for_lines(const std::string& path);

class LineWriter {
 public:
  struct Limits {
    size_t lines = 8192, bytes = 4 * kMiB;
  };
  // What is written once there is room again. Called on the writer's thread, which may
  // have been left behind: it owns what it needs.
  using DroppedLine = std::function<std::string(uint64_t count)>;

  LineWriter(int descriptor, DroppedLine dropped_line, Limits limits);
  ~LineWriter();  // writes what is queued, for half a second at most
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  void push(std::string line);     // the line's end is added
  bool flush(int64_t timeout_ms);  // waits until what was pushed is written or dropped; false: the time is over
  uint64_t dropped_lines() const;  // since the start
  int64_t stuck_ms() const;        // how long the write under way has been; 0: there is none

 private:
  struct State;
  static std::thread start(const std::shared_ptr<State>& state);
  static void run(const std::shared_ptr<State>& state);
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace loralei
