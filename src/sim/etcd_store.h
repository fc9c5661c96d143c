// SPDX-License-Identifier: Apache-2.0
// EtcdStore: what a cluster of etcd holds, and what it answers: keys at every revision
// since the last compaction, leases, transactions that compare. As etcd 3.4 to 3.6 have
// it, as far as our client asks (store/etcd_messages.h).
//
// Thread: one; times are handed in. Ownership: values.
// Invariants: a change of one or several keys at once is one revision; what changes
// nothing is none. The end of a lease removes its keys at one revision. A lease ends when
// nobody kept it alive for its time, but not while it is paused (no leader), after which
// it has all of its time again.
// Failure: kNotFound for a lease that is not there and for a revision that was compacted
// or is to come, kInvalidArgument for what etcd refuses.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/etcd_messages.h"

namespace loralei::sim {

class EtcdStore {
 public:
  EtcdHeader header() const { return {"1", revision_}; }
  int64_t revision() const { return revision_; }
  int64_t compacted() const { return compacted_; }

  Result<EtcdRange> range(const EtcdRangeRequest& request) const;
  Result<EtcdHeader> put(const EtcdPut& put);
  EtcdHeader remove(const std::string& key);
  Result<EtcdTxnAnswer> txn(const EtcdTxn& txn);
  Status compact(int64_t revision);

  Result<EtcdLease> grant(int64_t id, int64_t ttl_s, int64_t now_ns);
  EtcdLease keep_alive(int64_t id, int64_t now_ns);  // ttl_s 0: it is over
  Status revoke(int64_t id);
  // Those that are over end; true: some were.
  bool expire(int64_t now_ns);
  // When the next one is over; none: none is, or they are paused.
  std::optional<int64_t> next_expiry_ns() const;
  void pause_leases() { paused_ = true; }
  void resume_leases(int64_t now_ns);
  size_t leases() const { return leases_.size(); }

  // What happened to the keys in [key, end) from this revision on.
  std::vector<EtcdEvent> events(const std::string& key, const std::string& end, int64_t from_revision) const;

 private:
  struct Lease {
    int64_t ttl_s = 0, over_ns = 0;
  };
  static bool within(const std::string& key, const std::string& from, const std::string& end);
  EtcdKeyValue at(const std::string& key, int64_t revision) const;  // as it was then
  EtcdKeyValue now(const std::string& key) const { return at(key, revision_); }
  bool holds(const EtcdCompare& compare) const;
  Status check(const EtcdTxn& txn) const;
  // Of a revision that has begun.
  void set(const EtcdPut& put);
  void erase(const std::string& key);

  int64_t revision_ = 1, compacted_ = 0;
  std::map<std::string, std::vector<EtcdEvent>> keys_;  // what became of each, in order
  std::deque<EtcdEvent> log_;                           // of all, in order
  std::map<int64_t, Lease> leases_;
  bool paused_ = false;
};

}  // namespace loralei::sim
