// SPDX-License-Identifier: Apache-2.0
// ReplicaWatch: looks at every replica, again and again, and tells the fleet: reports
// (GET /v1/replica), or, of servers of another make, their models (GET /v1/models). It
// also tells the fleet who joins and leaves, for a place is another's only when no look
// at it is under way.
//
// Thread: its own, and those of Upstream. start and the end from the owner's; join() and
// leave() from any, one at a time.
// Ownership: borrows fleet, Upstream and clock, which outlive it.
// Invariants: one look at a replica at a time; a page behind which there is more is
// followed by the next at once; who was in the fleet from the start stays; one that left
// is looked at as long as requests run there.
// Failure: none; what a look finds wrong is the replica's state.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "http/upstream.h"
#include "router/fleet.h"

namespace loralei {

struct WatchOptions {
  int64_t interval_ms = 1000;
  int64_t timeout_ms = 2000;  // of a look
  std::string api_key;        // with which replicas are asked; empty: none
  // Of a replica that did not answer for so many looks; on any thread.
  int lost_after = 2;
  std::function<void(size_t replica)> on_lost;
};

inline constexpr int64_t kSoonMs = 20;  // no suspicion counts that soon behind a look

class ReplicaWatch {
 public:
  ReplicaWatch(const WatchOptions& options, Fleet& fleet, Upstream& upstream, const Clock& clock);
  ~ReplicaWatch();  // stop()

  // Who is there already stays as it is.
  void join(const UpstreamAddress& address);
  void leave(const UpstreamAddress& address);
  // Somebody has seen a sign that it may be gone: it is looked at, if not just now.
  void look_soon(size_t replica);
  // Until each was looked at once, at most so long.
  void wait_for_first(int64_t timeout_ms);
  void stop();

 private:
  class Look;
  struct Watched {
    UpstreamAddress address;
    bool stays = false;  // it was there from the start
    bool left = false;
    bool looking = false, first_done = false;
    int64_t due_ns = 0, looked_ns = 0;
    int silent = 0;       // looks in a row
    bool models = false;  // it makes no reports
  };
  void run();
  void look(size_t replica);
  // again: there is more to be asked for at once.
  void looked(size_t replica, bool answered, bool again);
  void take_answer(size_t replica, bool models, int status, const std::string& body);

  const WatchOptions options_;
  Fleet& fleet_;
  Upstream& upstream_;
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;  // guarded by mutex_
  bool stopping_ = false;         // guarded by mutex_
  std::thread thread_;
};

}  // namespace loralei
