// SPDX-License-Identifier: Apache-2.0
// KeeperState: what keeps a key in etcd under a lease does next: when it takes a lease,
// puts its key, keeps the lease alive, takes another one, and how it leaves.
// store/membership asks a real etcd for it, the simulator one under virtual time.
//
//   act():  kKeepAlive ──► kGrant ──► kRead ──► kPut ──► kRest ──► kRevoke ──► kLeft
//               ▲                                         │
//               └─────────────────────────────────────────┘
//
// Thread: one; no clock, no I/O. Ownership: values.
// Invariants: a round ends in kRest, after which the next begins; what fails ends its
// round at once. A lease that is over is taken anew in the same round. A key that is
// gone, another's, or of another value is put again: twice is as good as once, for nobody
// else has this lease. Who has left begins no round any more.
// Failure: none ends it; kept() says why the last round failed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "store/etcd_messages.h"

namespace loralei {

class KeeperState {
 public:
  enum class Act : unsigned char { kKeepAlive, kGrant, kRead, kPut, kRest, kRevoke, kLeft };

  KeeperState(std::string key, std::string value, int64_t lease_s)
      : key_(std::move(key)), value_(std::move(value)), lease_s_(lease_s) {}

  Act act() const { return act_; }
  const std::string& key() const { return key_; }
  int64_t lease_s() const { return lease_s_; }  // that is asked for
  int64_t lease() const { return lease_; }      // 0: none
  EtcdPut to_put() const { return {key_, value_, lease_}; }
  int64_t rest_ms() const { return kept_.ok() ? lease_s_ * 1000 / 3 : std::min<int64_t>(1000, lease_s_ * 100); }
  const Status& kept() const { return kept_; }  // of the last round

  void kept_alive(const Result<EtcdLease>& alive) {
    if (!alive.ok()) return end_round(alive.error());
    if (alive->ttl_s == 0) lease_ = 0;
    act_ = lease_ == 0 ? Act::kGrant : Act::kRead;
  }
  void granted(const Result<EtcdLease>& lease) {
    if (!lease.ok()) return end_round(lease.error());
    lease_ = lease->id;
    act_ = Act::kRead;
  }
  // What stands at the key.
  void read(const Result<EtcdKeyValue>& there) {
    if (!there.ok()) return end_round(there.error());
    if (there->lease == lease_ && there->value == value_) return end_round({});
    act_ = Act::kPut;
  }
  void put(const Status& done) { end_round(done); }
  // The rest is over, or was broken off.
  void rested() { act_ = lease_ == 0 ? Act::kGrant : Act::kKeepAlive; }
  // Between two rounds, in the place of rested().
  void leave() { act_ = lease_ == 0 ? Act::kLeft : Act::kRevoke; }
  void revoked(const Status& done) {
    if (done.ok()) lease_ = 0;
    act_ = Act::kLeft;
  }

 private:
  void end_round(Status kept) {
    kept_ = std::move(kept);
    act_ = Act::kRest;
  }

  const std::string key_, value_;
  const int64_t lease_s_;
  Act act_ = Act::kGrant;
  int64_t lease_ = 0;
  Status kept_;
};

}  // namespace loralei
