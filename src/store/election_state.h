// SPDX-License-Identifier: Apache-2.0
// What candidates ask etcd (store/etcd_election.h), and what its answers mean: of the
// keys under a prefix, each bound to a lease, the one that was created first leads.
//
// Thread: pure functions, any thread. Ownership: values.
// Failure: kCorrupt for an answer that contradicts itself.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"
#include "store/etcd_messages.h"

namespace loralei {

// `prefix` ends with '/'.
inline EtcdTxn etcd_stand(const std::string& prefix, int64_t lease, const std::string& value) {
  const std::string key = prefix + std::to_string(lease);
  EtcdTxn txn;
  txn.compares = {{.key = key, .what = EtcdCompare::What::kCreateRevision, .revision = 0}};
  txn.puts = {{key, value, lease}};
  txn.reads = {key};
  return txn;
}

// The candidate's own key, from now on or since earlier.
inline Result<EtcdKeyValue> etcd_stood(const EtcdTxn& stand, EtcdTxnAnswer answer) {
  const EtcdPut& put = stand.puts.front();
  if (answer.succeeded) {
    const int64_t revision = answer.header.revision;
    return EtcdKeyValue{put.key, put.value, revision, revision, put.lease};
  }
  if (answer.found.empty()) return corrupt("etcd says that '" + put.key + "' is there, and that it is not");
  return std::move(answer.found.front());
}

// Its first key is the leader's.
inline EtcdRangeRequest etcd_leader(const std::string& prefix) {
  return {.key = prefix, .end = etcd_prefix_end(prefix), .limit = 1, .order = EtcdOrder::kByCreation};
}

// To hold in a transaction of whom etcd_stood() answered this: that the key is still
// there.
inline EtcdCompare etcd_is_leader(const EtcdKeyValue& own) {
  return {.key = own.key, .what = EtcdCompare::What::kCreateRevision, .revision = own.create_revision};
}

}  // namespace loralei
