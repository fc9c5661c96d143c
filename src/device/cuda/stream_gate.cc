// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/stream_gate.h"

#include <new>

namespace loralei {

Result<StreamGates> StreamGates::create(int32_t count) {
  StreamGates gates;
  TRY_ASSIGN(gates.memory_, PinnedBuffer::allocate(bytes(count)));
  gates.count_ = count;
  for (int32_t i = 0; i < count; ++i) new (gates.memory_.data() + int64_t{i} * kStrideBytes) StreamGate();
  return gates;
}

}  // namespace loralei
