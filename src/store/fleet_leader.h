// SPDX-License-Identifier: Apache-2.0
// FleetLeader: of a fleet's routers one leads. What it decides the others are told.
//
//   /loralei/FLEET/lead/LEASE   who stands, under a lease; who stood first leads
//   /loralei/FLEET/decided      what was decided last
//
// Thread-safe; its own threads, start and the end from the owner's.
// Ownership: owns its connections to etcd; borrows log and clock.
// Invariants: who leads was told before what had been decided. leads() is true of one at
// a time, as long as clocks run alike: it ends before the lease does. What is written is
// written only if its writer still leads in that moment. While etcd is away nobody leads
// once the lease is over, and what was decided stays. Values are untrusted.
// Failure: none ends it; the log says when etcd is away, and when it is back.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "store/membership.h"

namespace loralei {

class FleetLeader {
 public:
  // `name`: what this candidate says of itself.
  static Result<std::unique_ptr<FleetLeader>> start(const MembershipOptions& options, const std::string& name,
                                                    const Clock& clock, LogSink& log);
  virtual ~FleetLeader() = default;  // it stands no more
  virtual bool leads() const = 0;
  // To be told to the others; the last word counts. Nothing, of one that does not lead.
  virtual void decide(std::string text) = 0;
  // The last that was decided, by whomever, if it is another than this was told before.
  virtual std::optional<std::string> news() = 0;
};

}  // namespace loralei
