// SPDX-License-Identifier: Apache-2.0
// AssistFactors: where the factors of an adapter's layers lie in a memory that helpers
// map, as a table that travels in a memory of its own.
//
//   layers, a word | [layers, kLayerModules] FactorPlace
//
// Thread: made on any thread, then an immutable value.
// Ownership: descriptors of both memories, which live as long as somebody has one.
// Invariant: whoever reads a table believes nothing of it: every array is checked against
// the size of the memory, and every size against the shape (read_factor_table).
// Failure: make() says which array lies outside of the memory; read_factor_table() which
// pair is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapters/adapter.h"
#include "assist/assist_shape.h"
#include "base/result.h"
#include "sys/shared_memory.h"

namespace loralei {

// The arrays of one LoraPair that its sums are made of, as offsets in a memory.
struct FactorPlace {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t a = kNone, b_t = kNone;  // LoraPair::a, b_t
  uint64_t a_scale = kNone, b_scale = kNone, b_bias = kNone;
  int32_t rank = 0;  // 0: no product, and nothing else counts
  int32_t in = 0, out = 0;
  uint32_t dtype = 0;
};

// A pair of scaling 1 and no bias_delta: what raw sums are computed with.
LoraPair pair_of(const FactorPlace& place, const std::byte* memory);
// The places of a table, all of them inside `memory_bytes` and of this shape.
Result<std::vector<FactorPlace>> read_factor_table(std::span<const std::byte> table, int64_t memory_bytes,
                                                   const AssistShape& shape);
int64_t factor_table_bytes(int32_t layers);

class AssistFactors {
 public:
  // The pairs of `adapter`, whose arrays all lie in `memory`, which may go afterwards.
  static Result<AssistFactors> make(const Adapter& adapter, const SharedMemory& memory, int32_t layers);

  Status check(const AssistShape& shape) const;  // as helpers will
  int64_t memory_bytes() const { return parts_->memory_bytes; }
  int memory_descriptor() const { return parts_->memory.get(); }
  int table_descriptor() const { return parts_->table.descriptor(); }

 private:
  struct Parts {
    Descriptor memory{-1};
    int64_t memory_bytes = 0;
    SharedMemory table;
  };
  explicit AssistFactors(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

}  // namespace loralei
