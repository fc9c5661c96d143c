// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_spread.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/check.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr uint64_t kSeed = 0x6b767370726561;
constexpr size_t kLeftOutPart = 8;      // at either end
constexpr double kNormalPart = 0.6070;  // standard deviation of a normal number within +-1.1503, three quarters of them
constexpr float kLeastOfMedian = 1.0f / 64, kLeastOfLargest = 1.0f / 1024, kLeast = 0x1p-24f;
constexpr float kLargestF16 = 65504;

size_t channels_of(const KvGridShape& shape) { return static_cast<size_t>(shape.channels()); }
size_t numbers_of_token(const KvGridShape& shape) { return 2 * static_cast<size_t>(shape.layers) * channels_of(shape); }

// Of one channel.
struct Trimmed {
  float deviation = 0;
  float largest = 0;  // |x|
};
Trimmed trimmed(std::span<float> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const size_t left_out = numbers.size() / kLeftOutPart;
  const std::span<const float> kept = std::span<const float>(numbers).subspan(left_out, numbers.size() - 2 * left_out);
  if (kept.empty()) return {};
  double mean = 0, squares = 0;
  for (const float x : kept) mean += static_cast<double>(x);
  mean /= static_cast<double>(kept.size());
  for (const float x : kept) squares += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(kept.size())) / kNormalPart;
  return {static_cast<float>(deviation), std::max(std::fabs(kept.front()), std::fabs(kept.back()))};
}

float median_of_positive(std::span<const float> row) {
  std::vector<float> positive;
  for (const float x : row)
    if (x > 0) positive.push_back(x);
  if (positive.empty()) return 0;
  const auto middle = positive.begin() + static_cast<int64_t>(positive.size() / 2);
  std::nth_element(positive.begin(), middle, positive.end());
  return *middle;
}

}  // namespace

KvSpread::KvSpread(const KvGridShape& shape) : shape_(shape), sample_(kTokens * numbers_of_token(shape)), prng_(kSeed) {
  CHECK(!has_vector_scale(shape.dtype));
}

void KvSpread::add(const KvView& view, int32_t block, int32_t tokens) {
  CHECK(view.dtype == shape_.dtype && view.kv_heads == shape_.kv_heads && view.head_dim == shape_.head_dim);
  CHECK(tokens >= 0 && tokens <= kKvBlockTokens);
  for (int32_t token = 0; token < tokens; ++token, ++seen_) {
    const uint64_t slot =
        seen_ < kTokens ? static_cast<uint64_t>(seen_) : prng_.below(static_cast<uint64_t>(seen_) + 1);
    if (slot < static_cast<uint64_t>(kTokens)) keep(view, block, token, static_cast<int32_t>(slot));
  }
}

void KvSpread::keep(const KvView& view, int32_t block, int32_t token, int32_t slot) {
  uint16_t* to = sample_.data() + static_cast<size_t>(slot) * numbers_of_token(shape_);
  std::array<float, kKvCodecMaxHeadDim> row;
  const int64_t number_bytes = row_bytes(view.dtype, 1);
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    for (int32_t v = 0; v < 2; ++v) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        const std::byte* const from = view.head(block, layer, v, head);
        if (v == 1) decode_row(view.dtype, from + token * shape_.head_dim * number_bytes, row.data(), shape_.head_dim);
        for (int32_t d = 0; d < shape_.head_dim; ++d) {
          float& x = row[static_cast<size_t>(d)];
          if (v == 0) decode_row(view.dtype, from + (d * kKvBlockTokens + token) * number_bytes, &x, 1);
          *to++ = f32_to_f16(std::isfinite(x) ? std::clamp(x, -kLargestF16, kLargestF16) : NAN);
        }
      }
    }
  }
}

std::vector<float> KvSpread::spread() const {
  const size_t numbers = numbers_of_token(shape_), channels = channels_of(shape_);
  std::vector<float> spread(numbers), least(numbers);
  std::array<float, kTokens> sample;
  const auto held = static_cast<size_t>(std::min<int64_t>(seen_, kTokens));
  for (size_t at = 0; at < numbers; ++at) {
    size_t count = 0;
    for (size_t token = 0; token < held; ++token) {
      const float x = f16_to_f32(sample_[token * numbers + at]);
      if (!std::isnan(x)) sample[count++] = x;
    }
    const Trimmed found = trimmed(std::span(sample).first(count));
    spread[at] = found.deviation;
    least[at] = std::max(kLeast, kLeastOfLargest * found.largest);
  }
  for (size_t row = 0; row < numbers; row += channels) {
    const float median = median_of_positive(std::span(spread).subspan(row, channels));
    for (size_t at = row; at < row + channels; ++at)
      spread[at] = std::max({spread[at], least[at], kLeastOfMedian * median});
  }
  return spread;
}

Result<KvGrid> kv_steps_from(const KvGridShape& shape, std::span<const float> spread, std::span<const float> factors) {
  if (has_vector_scale(shape.dtype)) {
    return invalid_argument(std::string("a KV cache in ") + dtype_info(shape.dtype).name +
                            " has no steps; its integers are what it holds.");
  }
  const size_t rows = 2 * static_cast<size_t>(std::max(0, shape.layers));
  if (factors.size() != rows) {
    return invalid_argument("steps of " + std::to_string(shape.layers) + " layers take " + std::to_string(rows) +
                            " factors, one each for K and V, not " + std::to_string(factors.size()) +
                            "; calibrate the steps for this model.");
  }
  std::vector<float> steps(spread.begin(), spread.end());
  const size_t channels = rows == 0 ? 0 : steps.size() / rows;
  for (size_t at = 0; channels > 0 && at < steps.size(); ++at) steps[at] *= factors[std::min(at / channels, rows - 1)];
  return KvGrid::create(shape, steps);  // which counts them
}

Result<KvGrid> kv_steps_from(const KvGridShape& shape, std::span<const float> spread, float factor) {
  return kv_steps_from(shape, spread, std::vector<float>(2 * static_cast<size_t>(std::max(0, shape.layers)), factor));
}

}  // namespace loralei
