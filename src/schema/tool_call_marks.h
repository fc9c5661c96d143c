// SPDX-License-Identifier: Apache-2.0
// The texts that mark tool calls, for their grammar and their parser. Private to text/.
// Thread, ownership: constants. Failure: none.
#pragma once

#include <string_view>

namespace loralei {

inline constexpr std::string_view kHermesOpen = "<tool_call>";
inline constexpr std::string_view kHermesClose = "</tool_call>";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
inline constexpr std::string_view kMistralMarker = "[TOOL_CALLS]";

}  // namespace loralei
