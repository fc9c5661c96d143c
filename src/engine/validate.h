// SPDX-License-Identifier: Apache-2.0
// What submit() refuses at once, with the numbers. Pure functions, any thread. What
// depends on adapters is checked when they are known.
#pragma once

#include "base/result.h"
#include "engine/api.h"

namespace loralei {

struct SubmitLimits {
  int64_t max_model_len = 0;
  KvSharing kv_sharing = KvSharing::kExact;
};

Status validate_submit(const Submit& submit, const SubmitLimits& limits);

}  // namespace loralei
