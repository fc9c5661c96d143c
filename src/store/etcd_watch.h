// SPDX-License-Identifier: Apache-2.0
// EtcdWatch: all keys that begin alike, from a list on and then as they change.
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
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "store/etcd_client.h"

namespace loralei {

struct EtcdNews {
  std::vector<EtcdEvent> events;
  int64_t revision = 0;  // up to which all is told now
  bool listed = false;   // of a list: what it has that was not known, or no longer has
  bool anew = false;     // forget all before: these are all there is, and revisions began again
};

struct EtcdWatchOptions {
  std::string prefix;
  int64_t silence_ms = 2'000;                        // then the member is asked whether it is in touch
  int64_t renew_ms = 60'000;                         // of silence: then the stream is opened again, lest it be dead
  int64_t back_first_ms = 50, back_most_ms = 1'000;  // between attempts
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
  // How a stream stands. kRenew: it is opened again where it was.
  enum class Next : unsigned char { kGoesOn, kElsewhere, kRenew, kList, kStopped };
  EtcdWatch(const EtcdWatchOptions& options, EtcdClient& client) : options_(options), client_(client) {}
  void run();
  Status list();
  EtcdNews difference(EtcdRange found);
  Next follow();
  Next read_some(Stream& stream, UpstreamCall& call);
  Next on_silence(Stream& stream);
  Next take_lines(int status);
  Next take(EtcdWatchMessage message);
  Next check_begin(const EtcdWatchMessage& message);
  void tell(EtcdNews news);
  void state(const Status& status);
  bool stopping();

  const EtcdWatchOptions options_;
  EtcdClient& client_;
  // The thread's.
  std::map<std::string, int64_t> known_;  // keys, and when each was changed
  std::string cluster_;
  int64_t next_ = 0;  // revision; 0: nothing was told yet
  size_t endpoint_ = 0;
  // Of the stream that is read.
  std::string waiting_;  // a line that has not ended
  std::vector<EtcdEvent> fragments_;
  size_t fragment_bytes_ = 0;
  int64_t silent_ms_ = 0;
  bool heard_ = false;  // it has begun
  Error why_;           // it ended

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_, as those below
  bool listed_ = false, up_ = false;
  Error last_error_;
  std::thread thread_;
};

}  // namespace loralei
