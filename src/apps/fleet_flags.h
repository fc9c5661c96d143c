// SPDX-License-Identifier: Apache-2.0
// --etcd, --advertise and --fleet: a server that is found through etcd, and a router that
// finds.
//
// Thread: Membership's leave() from any, the rest from one.
// Ownership: Membership owns the keeper, which borrows the log.
// Failure: sentences that name the flag.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "store/membership.h"

namespace loralei {

struct FleetFlags {
  std::string etcd;               // endpoints as typed; empty: no etcd
  std::string advertise;          // of serve: where routers reach it; empty: where it listens
  std::string fleet = "default";  // whose member it is, and whose registry in etcd it has
};

// A sentence, or "" where a fleet may have this name.
std::string refuse_fleet(const std::string& name);
// Without endpoints where there is no --etcd.
Result<MembershipOptions> membership_options(const FleetFlags& flags);
// Of a server that listens on `host`; its port is 0 where that is the one it listens on.
// None without --etcd.
Result<UpstreamAddress> advertised_address(const FleetFlags& flags, const std::string& host);

// A server's, from before it serves until it has drained.
class Membership {
 public:
  Status join(const FleetFlags& flags, FleetMember member, LogSink& log);  // nothing without --etcd
  void leave();
  // So that no router sends anything more: until it has left, at most so long.
  void leave_and_wait(int64_t timeout_ms);

 private:
  std::mutex mutex_;
  bool left_ = false;
  std::unique_ptr<MemberKeeper> keeper_;  // set once; null: not yet, or no member
};

}  // namespace loralei
