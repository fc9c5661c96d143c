// SPDX-License-Identifier: Apache-2.0
// KeptFile: a file that holds the newest of the values it was given, whole: each is
// written beside it, synced and renamed, by a thread of its own, so that whoever has a
// new value never waits for a disk.
//
// Thread-safe. Ownership: owns its thread; borrows the log. Invariants: at most one value
// waits, the newest; a reader finds a whole one, whenever the process or the machine
// stops. Failure: start() refuses what cannot be written; a value that could not be
// written later is a warning in the log, and the file holds the one before.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/result.h"

namespace loralei {

class KeptFile {
 public:
  using Make = std::function<std::string()>;  // the file's bytes; called on its thread

  static Result<std::unique_ptr<KeptFile>> start(std::string path, LogSink& log);
  ~KeptFile();  // behind the last value's writing
  KeptFile(const KeptFile&) = delete;
  KeptFile& operator=(const KeptFile&) = delete;

  void put(Make value);

 private:
  KeptFile(std::string path, LogSink& log) : path_(std::move(path)), log_(log) {}
  Status write(const std::string& bytes) const;
  void run();

  const std::string path_;
  LogSink& log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Make waiting_;  // empty: nothing
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace loralei
