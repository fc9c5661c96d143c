// SPDX-License-Identifier: Apache-2.0
// JSON text to template values, without a tree between: in time and memory linear in the
// text, whatever its keys are.
//
// Thread: pure function.
// Ownership: plain values.
// Failure: std::nullopt for text that is not JSON; an error where it is nested deeper
// than kMaxJsonDepth, or where the work it takes is not granted.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/work.h"
#include "template/jinja_value.h"

namespace loralei {

// Numbers beyond int64 become floats; of equal keys the last value counts, at the
// place of the first.
Result<std::optional<JinjaValue>> jinja_from_json_text(std::string_view text, Work& work);

}  // namespace loralei
