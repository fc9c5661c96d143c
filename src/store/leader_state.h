// SPDX-License-Identifier: Apache-2.0
// LeaderState: what one of those that may lead a fleet does next: when it takes a lease,
// stands, asks who leads, and writes what it decided. store/fleet_leader asks a real etcd
// for it, the simulator one under virtual time.
//
//   act():  kKeepAlive ──► kGrant ──► kStand ──► kLook ──► kWrite ──► kRest
//               ▲                                                       │
//               └───────────────────────────────────────────────────────┘
//
// Thread: one; no I/O, times are handed in. Ownership: values.
// Invariants: as FleetLeader's: leads() ends before the lease does, whose time is counted
// from before it was asked for, and what is written is compared with who leads.
// Failure: none ends it; what fails ends its round, and stood() says why.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "store/election_state.h"
#include "store/etcd_messages.h"

namespace loralei {

class LeaderState {
 public:
  enum class Act : unsigned char { kKeepAlive, kGrant, kStand, kLook, kWrite, kRest };

  // `prefix`: of those that stand; ends with '/'.
  LeaderState(std::string prefix, std::string name, std::string decided_key, int64_t lease_s, int64_t now_ns)
      : prefix_(std::move(prefix)),
        name_(std::move(name)),
        decided_key_(std::move(decided_key)),
        lease_s_(lease_s),
        asked_ns_(now_ns) {}

  Act act() const { return act_; }
  int64_t lease_s() const { return lease_s_; }
  int64_t lease() const { return lease_; }  // 0: none
  int64_t leads_until_ns() const { return leads_until_ns_; }
  int64_t rest_ms() const { return stood_.ok() ? lease_s_ * 1000 / 3 : 1000; }
  const Status& stood() const { return stood_; }  // of the last round

  void kept_alive(const Result<EtcdLease>& alive) {
    if (!alive.ok()) return end_round(alive.error());
    if (alive->ttl_s == 0) lease_ = 0;
    act_ = lease_ == 0 ? Act::kGrant : Act::kStand;
  }
  void granted(const Result<EtcdLease>& lease) {
    if (!lease.ok()) return end_round(lease.error());
    lease_ = lease->id;
    act_ = Act::kStand;
  }
  EtcdTxn to_stand() const { return etcd_stand(prefix_, lease_, name_); }
  void stands(Result<EtcdTxnAnswer> answer) {
    if (!answer.ok()) return end_round(answer.error());
    Result<EtcdKeyValue> own = etcd_stood(to_stand(), *std::move(answer));
    if (!own.ok()) return end_round(own.error());
    own_ = *std::move(own);
    act_ = Act::kLook;
  }
  EtcdRangeRequest to_look() const { return etcd_leader(prefix_); }
  // True: it leads. A little less than the lease, which began before it was heard of.
  bool looked(const Result<EtcdRange>& found) {
    if (!found.ok()) return end_round(found.error()), false;
    const bool leads = !found->keys.empty() && found->keys.front().key == own_.key;
    leads_until_ns_ = leads ? asked_ns_ + lease_s_ * 900'000'000 : 0;
    leads ? void(act_ = Act::kWrite) : end_round({});
    return leads;
  }
  EtcdTxn to_write(const std::string& text) const {
    EtcdTxn txn;
    txn.compares = {etcd_is_leader(own_)};
    txn.puts = {{decided_key_, text, 0}};
    return txn;
  }
  void wrote(const Result<EtcdTxnAnswer>& answer) {
    if (!answer.ok()) return end_round(answer.error());
    // It was over, and nobody had said so.
    if (!answer->succeeded && !answer->repeated) leads_until_ns_ = 0;
    end_round({});
  }
  void wrote_nothing() { end_round({}); }
  // The rest is over, or was broken off.
  void rested(int64_t now_ns) {
    asked_ns_ = now_ns;
    act_ = lease_ == 0 ? Act::kGrant : Act::kKeepAlive;
  }

 private:
  void end_round(Status stood) {
    stood_ = std::move(stood);
    act_ = Act::kRest;
  }

  const std::string prefix_, name_, decided_key_;
  const int64_t lease_s_;
  Act act_ = Act::kGrant;
  int64_t asked_ns_;  // when this round began
  int64_t lease_ = 0, leads_until_ns_ = 0;
  EtcdKeyValue own_;
  Status stood_;
};

}  // namespace loralei
