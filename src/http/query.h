// SPDX-License-Identifier: Apache-2.0
// Parameters behind the '?' of a request's target.
//
// Thread: pure. Ownership: views into the query. Failure: none.
#pragma once

#include <optional>
#include <string_view>

namespace loralei {

// The first value of `name` in a query without escapes; none: it is not there.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

}  // namespace loralei
