// SPDX-License-Identifier: Apache-2.0
// ProcessWatch: tells when processes of this machine end, each by a descriptor of its own
// (pidfd): a number that the system gives to another process later is not mistaken for
// the one that was meant.
//
// Thread-safe; on_exit runs on the watch's own thread, which sleeps in poll(), without a
// lock: it may call back.
// Ownership: a descriptor a watched process; the destructor ends the thread and tells
// nothing any more.
// Invariants: at most kMost are watched; of what forget() or another watch() of the same
// name replaced nothing is told that had not been told before.
// Failure: create() where there is no thread or no pipe to wake it; watch() says which
// process there is not, or that too many are watched. Nothing has changed then.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/posix_file.h"

namespace loralei {

class ProcessWatch {
 public:
  static constexpr size_t kMost = 256;
  using OnExit = std::function<void(const std::string& name, int pid)>;

  static Result<std::unique_ptr<ProcessWatch>> create(OnExit on_exit);
  ~ProcessWatch();
  // One process a name.
  Status watch(const std::string& name, int pid);
  void forget(const std::string& name);
  std::map<std::string, int> watched() const;  // process numbers by name

 private:
  struct Watched {
    int pid = 0;
    Descriptor pidfd;
  };
  ProcessWatch(OnExit on_exit, Descriptor wakes) : on_exit_(std::move(on_exit)), wakes_(std::move(wakes)) {}
  void run();
  void wake() const;
  // Waits for any of these or a call of wake(); those that have ended.
  using Named = std::pair<std::string, std::shared_ptr<const Watched>>;
  std::vector<Named> wait(std::vector<Named> watched) const;

  const OnExit on_exit_;
  const Descriptor wakes_;  // an eventfd
  mutable std::mutex mutex_;
  // Shared with the thread, which keeps open what it waits for.
  std::map<std::string, std::shared_ptr<const Watched>> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loralei
