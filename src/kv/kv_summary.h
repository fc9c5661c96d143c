// SPDX-License-Identifier: Apache-2.0
// KvSummary: who holds how much of a KV cache, at one moment.
//
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/identity.h"

namespace loralei {

// Blocks of one identity.
struct KvHeld {
  KvIdentity identity;
  int32_t blocks = 0;
  int32_t leased = 0;        // of these: by sequences that run
  int32_t alone = 0;         // of these: on texts on which nobody else holds anything
  uint64_t times_found = 0;  // since they were stored: each time a block was not computed again
};

struct KvSummary {
  int32_t texts = 0;         // blocks of text, however many hold something there
  std::vector<KvHeld> held;  // most blocks first
};

}  // namespace loralei
