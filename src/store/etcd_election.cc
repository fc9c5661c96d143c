// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_election.h"

#include <utility>

#include "store/election_state.h"

namespace loralei {

Result<EtcdKeyValue> EtcdElection::stand(int64_t lease, const std::string& value) {
  const EtcdTxn txn = etcd_stand(prefix_, lease, value);
  TRY_ASSIGN(EtcdTxnAnswer answer, client_.txn(txn));
  return etcd_stood(txn, std::move(answer));
}

Result<std::optional<EtcdKeyValue>> EtcdElection::leader() {
  TRY_ASSIGN(EtcdRange found, client_.range(etcd_leader(prefix_)));
  if (found.keys.empty()) return std::optional<EtcdKeyValue>();
  return std::optional<EtcdKeyValue>(std::move(found.keys.front()));
}

EtcdCompare EtcdElection::is_leader(const EtcdKeyValue& own) { return etcd_is_leader(own); }

Status EtcdElection::withdraw(const EtcdKeyValue& own) {
  EtcdTxn txn;
  txn.compares = {is_leader(own)};
  txn.removals = {own.key};
  TRY(client_.txn(txn));
  return {};
}

}  // namespace loralei
