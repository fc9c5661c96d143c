// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_factors.h"

#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "ops/lora_factors.h"
#include "tensor/dtype.h"

namespace loralei {
namespace {

constexpr int64_t kHeadBytes = 8;
constexpr uint64_t kAlignment = 4;  // of every array: that of a float

std::string name_of(size_t index) {
  return "module " + std::to_string(index % kLayerModules) + " of layer " + std::to_string(index / kLayerModules);
}

bool is_factor_type(uint32_t dtype) {
  return dtype == static_cast<uint32_t>(DType::kF32) || dtype == static_cast<uint32_t>(DType::kF16) ||
         dtype == static_cast<uint32_t>(DType::kBF16);
}

// Bytes of the arrays of a pair whose sizes are in their limits.
struct ArrayBytes {
  int64_t a = 0, b_t = 0, a_scale = 0, b_scale = 0, b_bias = 0;
};
ArrayBytes array_bytes(const FactorPlace& place, bool scaled) {
  static constexpr float kScaled = 0;  // what makes a pair one of int8 factors
  const LoraPair pair{.dtype = static_cast<DType>(place.dtype),
                      .a_scale = scaled ? &kScaled : nullptr,
                      .b_scale = scaled ? &kScaled : nullptr,
                      .in = place.in,
                      .out = place.out};
  return {.a = place.rank * lora_a_stride_bytes(pair),
          .b_t = place.rank * lora_b_stride_bytes(pair),
          .a_scale = place.rank * lora_quant_groups(place.in) * 4,
          .b_scale = place.rank * lora_quant_groups(place.out) * 4,
          .b_bias = int64_t{place.out} * 4};
}

bool lies_inside(uint64_t offset, int64_t bytes, int64_t memory_bytes) {
  const auto size = static_cast<uint64_t>(bytes), all = static_cast<uint64_t>(memory_bytes);
  return offset % kAlignment == 0 && size <= all && offset <= all - size;
}

bool is_place(const FactorPlace& place, int64_t memory_bytes) {
  const auto lies = [&](uint64_t offset, int64_t bytes) { return lies_inside(offset, bytes, memory_bytes); };
  const bool scaled = place.a_scale != FactorPlace::kNone;
  const ArrayBytes bytes = array_bytes(place, scaled);
  if (scaled != (place.b_scale != FactorPlace::kNone)) return false;
  if (scaled && (!lies(place.a_scale, bytes.a_scale) || !lies(place.b_scale, bytes.b_scale))) return false;
  if (place.b_bias != FactorPlace::kNone && !lies(place.b_bias, bytes.b_bias)) return false;
  return lies(place.a, bytes.a) && lies(place.b_t, bytes.b_t);
}

// Offsets of arrays that somebody has as pointers.
class Places {
 public:
  explicit Places(const SharedMemory& memory) : memory_(memory) {}

  std::optional<FactorPlace> of(const LoraPair& pair) const {
    FactorPlace place;
    if (pair.rank == 0) return place;
    place.rank = pair.rank;
    place.in = pair.in;
    place.out = pair.out;
    place.dtype = static_cast<uint32_t>(pair.dtype);
    const ArrayBytes bytes = array_bytes(place, pair.a_scale != nullptr);
    const bool all = set(place.a, pair.a, bytes.a) && set(place.b_t, pair.b_t, bytes.b_t) &&
                     (pair.a_scale == nullptr || set(place.a_scale, pair.a_scale, bytes.a_scale)) &&
                     (pair.b_scale == nullptr || set(place.b_scale, pair.b_scale, bytes.b_scale)) &&
                     (pair.b_bias == nullptr || set(place.b_bias, pair.b_bias, bytes.b_bias));
    return all ? std::optional(place) : std::nullopt;
  }

 private:
  bool set(uint64_t& offset, const void* array, int64_t bytes) const {
    offset = reinterpret_cast<uintptr_t>(array) - reinterpret_cast<uintptr_t>(memory_.data());
    return lies_inside(offset, bytes, memory_.size_bytes());
  }

  const SharedMemory& memory_;
};

}  // namespace

LoraPair pair_of(const FactorPlace& place, const std::byte* memory) {
  const auto floats = [&](uint64_t offset) {
    return offset == FactorPlace::kNone
               ? nullptr
               : reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(offset));
  };
  LoraPair pair{.dtype = static_cast<DType>(place.dtype), .rank = place.rank, .in = place.in, .out = place.out};
  pair.scaling = 1.0f;
  if (place.rank == 0) return pair;
  pair.a = reinterpret_cast<const std::byte*>(floats(place.a));
  pair.b_t = reinterpret_cast<const std::byte*>(floats(place.b_t));
  pair.a_scale = floats(place.a_scale);
  pair.b_scale = floats(place.b_scale);
  pair.b_bias = floats(place.b_bias);
  return pair;
}

int64_t factor_table_bytes(int32_t layers) {
  return kHeadBytes + int64_t{layers} * kLayerModules * static_cast<int64_t>(sizeof(FactorPlace));
}

Result<std::vector<FactorPlace>> read_factor_table(std::span<const std::byte> table, int64_t memory_bytes,
                                                   const AssistShape& shape) {
  uint64_t layers = 0;
  if (table.size() >= kHeadBytes) std::memcpy(&layers, table.data(), sizeof layers);
  if (layers != static_cast<uint64_t>(shape.layers) ||
      table.size() != static_cast<size_t>(factor_table_bytes(shape.layers)))
    return corrupt("the table of an adapter's factors has " + std::to_string(table.size()) + " bytes for " +
                   std::to_string(layers) + " layers, but the model has " + std::to_string(shape.layers));
  std::vector<FactorPlace> places(static_cast<size_t>(shape.layers) * kLayerModules);
  std::memcpy(places.data(), table.data() + kHeadBytes, places.size() * sizeof(FactorPlace));
  for (size_t i = 0; i < places.size(); ++i) {
    FactorPlace& place = places[i];
    if (place.rank == 0) {
      place = FactorPlace{};
      continue;
    }
    if (place.rank < 0 || place.rank > shape.rank_max)
      return corrupt("the rank " + std::to_string(place.rank) + " of " + name_of(i) + " is not within 1 and " +
                     std::to_string(shape.rank_max));
    if (place.in != shape.ins[i % kLayerModules] || place.out < 1 || place.out > shape.outs[i % kLayerModules])
      return corrupt(name_of(i) + " has " + std::to_string(place.in) + " inputs and " + std::to_string(place.out) +
                     " outputs, which the model has not");
    if (!is_factor_type(place.dtype) || !is_place(place, memory_bytes))
      return corrupt("the factors of " + name_of(i) + " do not lie within the adapter's memory of " +
                     std::to_string(memory_bytes) + " bytes");
  }
  return places;
}

Result<AssistFactors> AssistFactors::make(const Adapter& adapter, const SharedMemory& memory, int32_t layers) {
  const size_t count = static_cast<size_t>(layers) * kLayerModules;
  CHECK(layers > 0 && adapter.pairs.size() >= count);
  const Places places(memory);
  const auto parts = std::make_shared<Parts>();
  TRY_ASSIGN(parts->table, SharedMemory::create("adapter-table", factor_table_bytes(layers)));
  const auto head = static_cast<uint64_t>(layers);
  std::memcpy(parts->table.data(), &head, sizeof head);
  for (size_t i = 0; i < count; ++i) {
    const std::optional<FactorPlace> place = places.of(adapter.pairs[i]);
    if (!place) return invalid_argument("the factors of " + name_of(i) + " lie outside of the memory that is shared");
    std::memcpy(parts->table.data() + kHeadBytes + i * sizeof *place, &*place, sizeof *place);
  }
  TRY_ASSIGN(parts->memory, memory.read_only_descriptor());
  parts->memory_bytes = memory.size_bytes();
  return AssistFactors(parts);
}

Status AssistFactors::check(const AssistShape& shape) const {
  TRY(read_factor_table(parts_->table.bytes(), parts_->memory_bytes, shape));
  return {};
}

}  // namespace loralei
