// SPDX-License-Identifier: Apache-2.0
// Reading some members of a large JSON object: the others are read past, and nothing is
// built that was not asked for.
//
// Thread: pure functions.
// Ownership: plain values.
// Invariant: memory is asked for before it is allocated, so that a refusal finds
// it unallocated.
// Failure: sentences: text that is no JSON object, too deep, or of more values than are
// read; or what `take` answers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/byte_budget.h"
#include "base/result.h"
#include "formats/json_util.h"

namespace loralei {

// The members of the object named in `only`, or all of them, in at most `max_values`
// values. `name` stands for the text in messages.
Result<Json> parse_json_members(std::string_view text, const std::string& name,
                                std::optional<std::span<const std::string_view>> only, int64_t max_values,
                                const TakeMemory& take = {});

}  // namespace loralei
