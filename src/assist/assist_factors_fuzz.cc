// SPDX-License-Identifier: Apache-2.0
// Any bytes as the table of an adapter's factors, as a helper reads it: refused with a
// sentence, or every number of every pair can be read. The first four bytes say how large
// the memory is, up to 64 KiB.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "assist/assist_factors.h"
#include "base/check.h"
#include "base/printable.h"
#include "ops/lora_factors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  uint32_t bytes = 0;
  if (size < sizeof bytes) return 0;
  std::memcpy(&bytes, data, sizeof bytes);
  bytes %= 65'537;
  // Of exactly this size, so that a read behind its end is seen.
  const std::unique_ptr<std::byte[]> owned(new std::byte[bytes]());
  const std::byte* const memory = owned.get();
  const AssistShape shape{
      .layers = 1, .rank_max = 16, .ins = {64, 64, 64, 32, 64, 64, 96, 64}, .outs = {64, 32, 32, 64, 96, 96, 64, 8}};
  const std::span<const std::byte> table(reinterpret_cast<const std::byte*>(data) + sizeof bytes, size - sizeof bytes);
  const auto places = read_factor_table(table, bytes, shape);
  if (!places.ok()) {
    CHECK(!places.error().message.empty() && is_printable(places.error().message));
    return 0;
  }
  CHECK(places->size() == kLayerModules);
  std::vector<float> numbers(96);
  for (const FactorPlace& place : *places) {
    const LoraPair pair = pair_of(place, memory);
    CHECK(pair.rank >= 0 && pair.rank <= shape.rank_max);
    for (int32_t rank = 0; rank < pair.rank; ++rank) {
      decode_lora_a(pair, rank, numbers.data());
      decode_lora_b(pair, rank, 0, pair.out, numbers.data());
    }
    if (pair.rank > 0 && pair.b_bias != nullptr)
      std::memcpy(numbers.data(), pair.b_bias, static_cast<size_t>(pair.out) * 4);
  }
  return 0;
}
