// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_election.h"

#include <utility>

namespace loralei {

Result<EtcdKeyValue> EtcdElection::stand(int64_t lease, const std::string& value) {
  const std::string key = prefix_ + std::to_string(lease);
  EtcdTxn txn;
  txn.compares = {{.key = key, .what = EtcdCompare::What::kCreateRevision, .revision = 0}};
  txn.puts = {{key, value, lease}};
  txn.reads = {key};
  TRY_ASSIGN(EtcdTxnAnswer answer, client_.txn(txn));
  if (answer.succeeded) {
    const int64_t revision = answer.header.revision;
    return EtcdKeyValue{key, value, revision, revision, lease};
  }
  if (answer.found.empty()) return corrupt("etcd says that '" + key + "' is there, and that it is not");
  return std::move(answer.found.front());
}

Result<std::optional<EtcdKeyValue>> EtcdElection::leader() {
  TRY_ASSIGN(
      EtcdRange found,
      client_.range({.key = prefix_, .end = etcd_prefix_end(prefix_), .limit = 1, .order = EtcdOrder::kByCreation}));
  if (found.keys.empty()) return std::optional<EtcdKeyValue>();
  return std::optional<EtcdKeyValue>(std::move(found.keys.front()));
}

EtcdCompare EtcdElection::is_leader(const EtcdKeyValue& own) {
  return {.key = own.key, .what = EtcdCompare::What::kCreateRevision, .revision = own.create_revision};
}

Status EtcdElection::withdraw(const EtcdKeyValue& own) {
  EtcdTxn txn;
  txn.compares = {is_leader(own)};
  txn.removals = {own.key};
  TRY(client_.txn(txn));
  return {};
}

}  // namespace loralei
