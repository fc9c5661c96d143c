// SPDX-License-Identifier: Apache-2.0
// How long what keeps a lease of a fleet asks etcd: a call ends before the lease does, so
// that another one can be made. Pure; no failure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "store/etcd_client.h"
#include "store/membership.h"

namespace loralei {

inline EtcdOptions fleet_etcd_options(const MembershipOptions& options) {
  EtcdOptions etcd;
  etcd.endpoints = options.etcd;
  etcd.attempt_ms = options.attempt_ms;
  etcd.deadline_ms = std::max<int64_t>(options.attempt_ms, options.lease_s * 1000 / 3);
  return etcd;
}

}  // namespace loralei
