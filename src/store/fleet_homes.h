// SPDX-License-Identifier: Apache-2.0
// The homes of adapters (route/adapter_homes.h) as a fleet's routers tell them each
// other: by names and addresses, since each router numbers adapters and replicas for
// itself.
//
//   {"format": 1, "replicas": ["10.0.0.1:8080", ...], "homes": {"name": [0, 2], ...}}
//
// Thread: pure functions and plain values.
// Invariants: what was parsed has names and addresses that are not empty, and replicas
// that the text names; text is of at most kFleetHomesBytesMost, and holds as many as fit.
// Failure: a sentence.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr size_t kFleetHomesBytesMost = size_t{1} << 19;  // etcd takes 1.5 MiB in a request

struct NamedHomes {
  std::string adapter;
  std::vector<std::string> replicas;  // host:port
  friend bool operator==(const NamedHomes&, const NamedHomes&) = default;
};

std::string fleet_homes_text(const std::vector<NamedHomes>& homes);
Result<std::vector<NamedHomes>> parse_fleet_homes(std::string_view text);  // sorted by name

}  // namespace loralei
