// SPDX-License-Identifier: Apache-2.0
// Where a replica is, as gateways write it: a numeric address and a port, "10.0.0.1:8080"
// or "[fd00::1]:8080".
//
// Thread: pure functions. Ownership: values.
// Invariants: one address has one form, whatever it was written as (no zeros before a
// number, IPv6 as RFC 5952 has it), so that two that are the same compare as equal.
// Failure: none; what is no endpoint is nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "http/upstream.h"

namespace loralei {

// In its one form, without brackets; nothing where the host is a name.
std::optional<UpstreamAddress> numeric_address(const UpstreamAddress& address);
// What stands between the commas of a gateway's list; spaces around it do not count.
std::optional<UpstreamAddress> parse_endpoint(std::string_view text);

}  // namespace loralei
