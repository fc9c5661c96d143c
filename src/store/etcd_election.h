// SPDX-License-Identifier: Apache-2.0
// Who of several does what only one is to do: of the keys that candidates put under a
// prefix, each bound to a lease, the one that was created first leads.
//
// Thread: any; calls block as those of EtcdClient.
// Ownership: borrows the client.
// Invariants: at most one leads at any revision, and as long as its lease lives it stays;
// who stands twice keeps the place of the first time. A leader whose lease is over may
// not know yet: what it writes meanwhile is to compare is_leader() in its transaction.
// Failure: as the client's.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "store/etcd_client.h"

namespace loralei {

class EtcdElection {
 public:
  // `prefix` ends with '/'.
  EtcdElection(EtcdClient& client, std::string prefix) : client_(client), prefix_(std::move(prefix)) {}

  // The candidate's own key, from now on or since earlier.
  Result<EtcdKeyValue> stand(int64_t lease, const std::string& value);
  // Nobody: nobody stands.
  Result<std::optional<EtcdKeyValue>> leader();
  // To hold in a transaction of whom stand() answered this: that the key is still there.
  static EtcdCompare is_leader(const EtcdKeyValue& own);
  Status withdraw(const EtcdKeyValue& own);

 private:
  EtcdClient& client_;
  const std::string prefix_;
};

}  // namespace loralei
