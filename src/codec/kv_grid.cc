// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_grid.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/fast_hash.h"

namespace loralei {
namespace {

constexpr uint64_t kDigestSeed = 0x6b762d67726964;
constexpr float kStepMin = 0x1p-100f, kStepMax = 0x1p100f;

Status check_shape(const KvGridShape& shape) {
  const auto text = [&] {
    return std::to_string(shape.layers) + " layers, " + std::to_string(shape.kv_heads) + " KV heads of " +
           std::to_string(shape.head_dim);
  };
  const bool is_cache = shape.dtype == DType::kF32 || shape.dtype == DType::kF16 || shape.dtype == DType::kBF16 ||
                        has_vector_scale(shape.dtype);
  if (!is_cache)
    return invalid_argument(std::string("a KV cache in ") + dtype_info(shape.dtype).name +
                            " cannot be encoded; choose f32, f16, bf16, int8 or fp8.");
  if (shape.layers < 1 || shape.kv_heads < 1 || shape.head_dim < 1)
    return invalid_argument("a KV cache of " + text() + " has no numbers to encode; state each of them as 1 or more.");
  if (shape.layers > kMaxLayers || shape.kv_heads > kKvCodecMaxHeads || shape.head_dim > kKvCodecMaxHeadDim ||
      shape.numbers() > kKvCodecMaxNumbers)
    return too_large("a KV cache of " + text() + " is too large to encode; keep its blocks raw (at most " +
                     std::to_string(kMaxLayers) + " layers, " + std::to_string(kKvCodecMaxHeads) + " KV heads of " +
                     std::to_string(kKvCodecMaxHeadDim) + ", " + std::to_string(kKvCodecMaxNumbers) +
                     " numbers a block).");
  return {};
}

}  // namespace

float kv_rounded_step(float step) {
  constexpr uint32_t kDropped = 16;  // of the 23 bits of the mantissa
  const uint32_t bits = std::bit_cast<uint32_t>(step);
  const uint32_t odd = bits >> kDropped & 1;
  return std::bit_cast<float>((bits + (1u << (kDropped - 1)) - 1 + odd) >> kDropped << kDropped);
}

double kv_error_bound(DType dtype, float rounded_step, float x) {
  const double step = rounded_step, size = std::fabs(static_cast<double>(x));
  if (has_vector_scale(dtype)) return 0;
  const double exact = 0.5 * step + size * 0x1p-22;
  const double decoded = size + exact;
  if (dtype == DType::kF16) return exact + std::fmax(decoded * 0x1p-11, 0x1p-25);
  if (dtype == DType::kBF16) return exact + decoded * 0x1p-8;
  return exact;
}

int16_t kv_fp8_to_integer(uint8_t code) {
  const int magnitude = code & 0x7F;
  if ((code & 0x80) == 0) return static_cast<int16_t>(magnitude);
  return static_cast<int16_t>(magnitude == 0 ? -128 : -magnitude);
}

uint8_t kv_integer_to_fp8(int16_t integer) {
  if (integer >= 0) return static_cast<uint8_t>(integer & 0x7F);
  return static_cast<uint8_t>(0x80 | (-integer & 0x7F));
}

std::span<const float> KvGrid::row(const std::vector<float>& all, int32_t layer, int32_t v) const {
  if (all.empty()) return {};
  const auto channels = static_cast<size_t>(shape_.channels());
  return std::span(all).subspan((2 * static_cast<size_t>(layer) + static_cast<size_t>(v)) * channels, channels);
}

Result<KvGrid> KvGrid::create(const KvGridShape& shape, std::span<const float> steps) {
  TRY(check_shape(shape));
  const size_t expected =
      has_vector_scale(shape.dtype) ? 0 : 2 * static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.channels());
  if (steps.size() != expected)
    return invalid_argument("a KV cache in " + std::string(dtype_info(shape.dtype).name) + " of this shape takes " +
                            std::to_string(expected) + " steps, not " + std::to_string(steps.size()) +
                            "; calibrate the steps for this model.");
  KvGrid grid;
  grid.shape_ = shape;
  grid.steps_.reserve(expected);
  grid.inv_steps_.reserve(expected);
  for (size_t i = 0; i < expected; ++i) {
    if (!(steps[i] >= kStepMin && steps[i] <= kStepMax))
      return invalid_argument("step " + std::to_string(i) +
                              " of a KV cache is not a positive number that can be used (2^-100 to 2^100); calibrate "
                              "the steps anew.");
    const float step = kv_rounded_step(steps[i]);
    grid.steps_.push_back(step);
    grid.inv_steps_.push_back(1.0f / step);
  }
  const int32_t fields[5] = {shape.layers, shape.kv_heads, shape.head_dim, static_cast<int32_t>(shape.dtype),
                             kKvBlockTokens};
  std::byte bytes[sizeof fields];
  std::memcpy(bytes, fields, sizeof fields);
  grid.digest_ = fast_hash(bytes, sizeof bytes, kDigestSeed);
  grid.digest_ =
      fast_hash(reinterpret_cast<const std::byte*>(grid.steps_.data()), expected * sizeof(float), grid.digest_);
  return grid;
}

}  // namespace loralei
