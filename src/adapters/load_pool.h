// SPDX-License-Identifier: Apache-2.0
// LoadPool: the few threads that touch adapter files. A job goes in as a value, its
// result comes out as a value through `post` (which puts it into the engine's inbox).
// Where the job wants the adapter early, that comes before it as a value through
// `post_begun`. Nothing else is called back.
//
// Thread: start() and stop() by the owner; both are called on a loader thread and
// must be thread-safe.
// Ownership: owns its threads; the destructor stops them, jobs not begun are dropped.
// Failure: start() says false when the queue is full or closed. check_headers() is the
// caller's own work: it blocks its thread and takes no loader's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/source_spec.h"
#include "base/bounded_queue.h"
#include "base/heartbeats.h"

namespace loralei {

// Where adapters come from: load_adapter and adapter_stamp bound to a base model, or a
// test's stand-in. Called on several loader threads.
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
  bool early = false;  // the adapter is wanted before its last layer is there
};

// The adapter of a read, whose numbers are still to come. Where its load fails, or the
// files have changed while they were read, its arrivals fail with the sentence of
// LoadDone.
struct LoadBegun {
  uint64_t id = 0;
  AdapterArriving arriving;
};

struct LoadDone {
  uint64_t id = 0;
  Result<FileStamp> stamp = FileStamp{};
  Result<AdapterLoad> load = AdapterLoad{};  // of a read
};

// `begun`: empty: nothing is handed out early.
LoadDone run_load_job(const AdapterSource& source, const LoadJob& job,
                      const std::function<void(LoadBegun&&)>& begun = {});

// What config and headers of an adapter say before anybody asks for it: whether it
// can be loaded, as far as they tell. Its numbers are not read, nor is there memory
// to find for them.
struct HeaderCheck {
  AdapterSourceSpec source;
  std::optional<FileStamp> stamp;  // of the files as they were looked at; nullopt: not known, or it may go well later
  Status status;                   // the sentence that a load would end with, but for not_loaded()
};
HeaderCheck check_headers(const AdapterSource& files, const AdapterSourceSpec& source, AdapterLoadOptions options,
                          int rank_max);
// What who waited for the load is told.
Error not_loaded(Error error, const std::string& label);
// ok, or that there is too much of it.
Status check_rank(int rank, int rank_max);
// What the file says or lacks stays so while its stamp does; what the system refused may
// go well the next time.
bool is_the_files_own(ErrorCode code);

class LoadPool {
 public:
  LoadPool(int threads, AdapterSource source, std::function<void(LoadDone&&)> post, Heartbeats* beats = nullptr,
           std::function<void(LoadBegun&&)> post_begun = {});
  ~LoadPool() { stop(); }
  bool start(LoadJob&& job);
  const AdapterSource& source() const { return source_; }
  void stop();  // waits for jobs in progress; idempotent

 private:
  const AdapterSource source_;
  const std::function<void(LoadDone&&)> post_;
  const std::function<void(LoadBegun&&)> post_begun_;
  BoundedQueue<LoadJob> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace loralei
