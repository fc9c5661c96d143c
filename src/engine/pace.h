// SPDX-License-Identifier: Apache-2.0
// Pace: a server at the pace of another machine (serve --pace): all is computed, and then
// waited for until a profile says that it is done. What stands in front of servers
// (routers, gateways, autoscalers) meets the times of a machine that is not there.
//
// A step's time begins where the one before it ended, if it follows at once, and else
// when it starts: as in a profile, planning, sampling and delivering are part of it. It
// ends when the profile's time is over and it has been computed; waits for layers of
// adapters come on top. One that ends more than kPaceSlackNs behind its time is late: it
// is counted, and the next one begins where it really ended.
// An adapter that is read takes what the profile's disk and link take for one of its rank
// in the profile's model; as many are on their way as the disk takes at once, and one
// goes over the link. With a device of its own, which has a link, the disk alone.
// Nothing else is paced: the start, tokenizing, HTTP, KV that is decoded or on disk.
//
// Thread: the executor is used as any other; the source by loader threads; PaceSleep is
// thread-safe.
// Ownership: the clock is borrowed.
// Invariants: by the profile's clock no step and no load ends early, but for those of a
// PaceSleep that was stopped; results are those of what is paced. A step that failed is
// not held up.
// Failure: none of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "adapters/load_pool.h"
#include "base/clock.h"
#include "cost/profile.h"
#include "engine/executor.h"

namespace loralei {

inline constexpr int64_t kPaceSlackNs = 1'000'000;  // of threads that wake up

// Returns when it is so late by the clock.
using PaceWait = std::function<void(int64_t until_ns)>;

// Waits without computing, until it is stopped: then nobody waits any more.
class PaceSleep {
 public:
  void until(int64_t steady_ns);  // of a SteadyClock
  void stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
};

// What a paced server tells of itself as its profile: adapters that are in its memory
// need no link any more where loads have paid for it.
Profile told_pace(Profile profile, bool has_device);

// Adapters come as a whole: begins_early() is false.
std::unique_ptr<Executor> make_paced_executor(std::unique_ptr<Executor> executor, const Profile& profile,
                                              const Clock& clock, PaceWait wait);

AdapterSource paced_adapters(AdapterSource source, const Profile& profile, bool has_device, const Clock& clock,
                             PaceWait wait);

}  // namespace loralei
