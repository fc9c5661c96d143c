// SPDX-License-Identifier: Apache-2.0
// The body of GET /v1/admin/memory: the budget of a memory and who has how much of it.
//
// Thread: pure function. Ownership: none. Failure: none.
#pragma once

#include <string>

#include "engine/api.h"

namespace loralei {

std::string memory_body(const EngineStats& stats);

}  // namespace loralei
