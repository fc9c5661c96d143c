// SPDX-License-Identifier: Apache-2.0
// Reading a LoRA source once and consistently: another thread may change its
// kind between layers.
// Any thread. No ownership; the pointers live as long as the source's adapter pin.
#pragma once

#include "ops/args.h"

namespace loralei {

// The part of a source that applies to one segment in this call. `pair` and `delta` are
// null where there is nothing to do.
struct ResolvedLora {
  const LoraPair* pair = nullptr;
  const float* delta = nullptr;
};

// Waits for a host delta that is still being computed: its producer was started before
// the step, so the wait is bounded by it.
inline ResolvedLora resolve_lora(const LoraSource& source) {
  switch (source.kind.load(std::memory_order_acquire)) {
    case LoraSourceKind::kNone:
      break;
    case LoraSourceKind::kResident:
      return {source.pair, nullptr};
    case LoraSourceKind::kHostDelta:
      if (source.delta_ready != nullptr) source.delta_ready->wait(0, std::memory_order_acquire);
      return {nullptr, source.delta};
  }
  return {};
}

}  // namespace loralei
