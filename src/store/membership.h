// SPDX-License-Identifier: Apache-2.0
// Who is of a fleet: each replica keeps a key in etcd under a lease, routers watch them.
// Keys say where a replica is and what it serves, which changes when it is started anew;
// how busy it is they never say: routers ask the replica itself.
//
//   replica: MemberKeeper ──► /loralei/FLEET/members/HOST:PORT ──► MemberWatch: router
//
// Thread: each has its own; start and the end from the owner's. leave() from any.
// Ownership: each owns its connections to etcd; both borrow the log.
// Invariants: a keeper whose lease or key is gone takes another one; one that has left
// comes back never. A watch tells of each member once that it joined and once that it
// left; a member that is another process than before leaves and joins. While etcd is away
// nobody leaves. Values are untrusted: what is no member is left out, with a line.
// Failure: none ends them; the log says when etcd is away, and when it is back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/result.h"
#include "http/upstream.h"

namespace loralei {

struct FleetMember {
  UpstreamAddress address;             // where routers reach it
  std::string boot;                    // another word each time it is started
  std::string model;                   // the base's name
  std::string base;                    // the base's digest
  int64_t sequences_max = 0;           // computed at once
  std::string report = "/v1/replica";  // what it says of itself, its costs among it

  friend bool operator==(const FleetMember&, const FleetMember&) = default;
};

std::string fleet_member_text(const FleetMember& member);
Result<FleetMember> parse_fleet_member(std::string_view text);

struct MembershipOptions {
  std::vector<UpstreamAddress> etcd;  // endpoints, not empty
  std::string fleet = "default";
  int64_t lease_s = 10;        // that a member is kept without a word of it
  int64_t attempt_ms = 1'000;  // at one endpoint
};

class MemberKeeper {
 public:
  static Result<std::unique_ptr<MemberKeeper>> start(const MembershipOptions& options, const FleetMember& member,
                                                     LogSink& log);
  virtual ~MemberKeeper() = default;  // leave(), and a little patience
  // Takes the key out, on the keeper's thread.
  virtual void leave() = 0;
  // Until it has, at most so long; false: it may be there until its lease is over.
  virtual bool wait_left(int64_t timeout_ms) = 0;
  // Whether etcd has it, as far as is known.
  virtual bool is_member() const = 0;
};

// Called on the watch's thread.
struct MemberListeners {
  std::function<void(const FleetMember&)> joined;
  std::function<void(const FleetMember&)> left;
};

class MemberWatch {
 public:
  static Result<std::unique_ptr<MemberWatch>> start(const MembershipOptions& options, MemberListeners listeners,
                                                    LogSink& log);
  virtual ~MemberWatch() = default;
  // Until the members that there are were told, at most so long; else why not.
  virtual Status wait_for_first(int64_t timeout_ms) = 0;
  virtual bool up_to_date() const = 0;
};

}  // namespace loralei
