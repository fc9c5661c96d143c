// SPDX-License-Identifier: Apache-2.0
// LoadPool: the few threads that touch adapter files. A job goes in as a value, its result comes out as a value through
// `post` (which puts it into the engine's inbox); nothing else is called back.
//
// Thread: start() and stop() by the owner; `post` is called on a loader thread and must be thread-safe. Ownership: owns
// its threads; the destructor stops them, jobs not begun are dropped. Failure: start() says false when the queue is
// full or closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "adapters/adapter.h"
#include "base/bounded_queue.h"
#include "base/heartbeats.h"

namespace loralei {

// Where adapters come from: load_adapter and adapter_stamp bound to a base model, or a test's stand-in. Called on
// several loader threads.
struct AdapterSource {
  std::function<Result<FileStamp>(const std::string& path)> stamp;
  std::function<Result<AdapterLoad>(const std::string& path, const AdapterLoadOptions& options,
                                    AdapterVersionId version)>
      load;
};

struct LoadJob {
  uint64_t id = 0;
  std::string path;
  bool read = false;  // false: only look at the stamp
  AdapterLoadOptions options;
  AdapterVersionId version;
};

struct LoadDone {
  uint64_t id = 0;
  Result<FileStamp> stamp = FileStamp{};
  Result<AdapterLoad> load = AdapterLoad{};  // of a read
};

LoadDone run_load_job(const AdapterSource& source, const LoadJob& job);

class LoadPool {
 public:
  LoadPool(int threads, AdapterSource source, std::function<void(LoadDone&&)> post, Heartbeats* beats = nullptr);
  ~LoadPool() { stop(); }
  bool start(LoadJob&& job);
  void stop();  // waits for jobs in progress; idempotent

 private:
  const AdapterSource source_;
  const std::function<void(LoadDone&&)> post_;
  BoundedQueue<LoadJob> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace loralei
