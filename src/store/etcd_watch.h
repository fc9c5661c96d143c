// SPDX-License-Identifier: Apache-2.0
// EtcdWatch: all keys that begin alike, from a list on and then as they change. What is
// asked for when, and what of the answers is news, is WatchState's.
//
// Thread: its own, on which its listeners are told; start and stop from the owner's.
// Ownership: borrows the client, which is stopped before the watch is (what the watch
// waits for then fails at once).
// Invariants: what is told is told once, in the order of its revisions and a revision as
// a whole: a stream that breaks off goes on behind the last revision that was told, at
// the next endpoint. Where that revision was compacted all keys are listed again, and the
// difference is told, with what is gone among it. Where the store began anew (its
// revisions went back, or another cluster answers) the news say so. A stream that is
// silent is asked about: a member that has lost the others, and one that does not answer,
// is left.
// Failure: none ends it; on_state says since when it is not up to date, and why.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"
#include "store/etcd_client.h"
#include "store/watch_state.h"

namespace loralei {

struct EtcdWatchOptions {
  std::string prefix;
  WatchPatience patience;
  std::function<void(const EtcdNews&)> on_news;
  std::function<void(const Status&)> on_state;  // ok: all is told; called when that changes
};

class EtcdWatch {
 public:
  static Result<std::unique_ptr<EtcdWatch>> start(const EtcdWatchOptions& options, EtcdClient& client);
  ~EtcdWatch();  // stop()

  // Until the first list was told, at most so long; else why not.
  Status wait_for_first(int64_t timeout_ms);
  void stop();

 private:
  class Stream;
  EtcdWatch(const EtcdWatchOptions& options, EtcdClient& client);
  void run();
  void act();
  void open();
  void read_some();
  void on_silence();
  void take_lines();
  void list();
  void tell(const WatchOutcome& outcome);
  bool stopping();

  const EtcdWatchOptions options_;
  EtcdClient& client_;
  // The thread's.
  WatchState state_;
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<UpstreamCall> call_;  // none: no stream
  std::string waiting_;                 // a line that has not ended

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_, as those below
  bool listed_ = false;
  Error last_error_;
  std::thread thread_;
};

}  // namespace loralei
