// SPDX-License-Identifier: Apache-2.0
// How many blocks so many tokens take. Pure; any thread.
#pragma once

#include <cstdint>

#include "base/limits.h"

namespace loralei {

inline constexpr int64_t kv_blocks_for(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }
inline constexpr int32_t kv_blocks_for(int32_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

}  // namespace loralei
