// SPDX-License-Identifier: Apache-2.0
#include "sampling/row_math.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace loralei {
namespace {

constexpr size_t kLanes = 4;  // every 64-bit processor has vectors of that many floats
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));

Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
// The first `count` of four; the rest is impossible.
Floats load_some(const float* from, size_t count) {
  float x[kLanes] = {kImpossible, kImpossible, kImpossible, kImpossible};
  std::memcpy(x, from, count * sizeof(float));
  return load(x);
}
Floats all(float x) { return Floats{x, x, x, x}; }

Floats clean(Floats x) {
  const Floats possible = x == x ? x : all(kImpossible);
  const Floats largest = all(std::numeric_limits<float>::max());
  return possible < largest ? possible : largest;
}

// e^x for x <= 0 (NaN and below -87: 0), after Cephes: x = n ln 2 + r, a polynomial for
// e^r, n into the exponent.
Floats exp_below_zero(Floats x) {
  const Floats least = all(-87.0f);
  const Ints counts = x > least;
  x = counts ? x : least;
  const Floats to_integer = all(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to an integer
  const Floats shifted = x * all(1.44269504088896341f) + to_integer;
  const Floats n = shifted - to_integer;
  const Floats r = (x - n * all(0.693359375f)) - n * all(-2.12194440e-4f);
  Floats p = all(1.9875691500e-4f);
  p = p * r + all(1.3981999507e-3f);
  p = p * r + all(8.3334519073e-3f);
  p = p * r + all(4.1665795894e-2f);
  p = p * r + all(1.6666665459e-1f);
  p = p * r + all(5.0000001201e-1f);
  p = p * (r * r) + r + all(1.0f);
  const Ints exponent = std::bit_cast<Ints>(shifted) - std::bit_cast<Ints>(to_integer);
  const auto power = std::bit_cast<Floats>((exponent + 127) << 23);
  return counts ? p * power : Floats{};
}

float highest_of(Floats x) {
  float best = x[0];
  for (size_t i = 1; i < kLanes; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

float block_maximum(std::span<const float> block) {
  Floats best[2] = {all(kImpossible), all(kImpossible)};
  size_t i = 0;
  for (; i + 2 * kLanes <= block.size(); i += 2 * kLanes) {
    for (size_t part = 0; part < 2; ++part) {
      const Floats x = load(block.data() + i + part * kLanes);
      best[part] = x > best[part] ? x : best[part];  // false for NaN
    }
  }
  for (; i < block.size(); i += kLanes) {
    const size_t rest = block.size() - i < kLanes ? block.size() - i : kLanes;
    const Floats x = load_some(block.data() + i, rest);
    best[0] = x > best[0] ? x : best[0];
  }
  return clean_logit(highest_of(best[0] > best[1] ? best[0] : best[1]));
}

Floats weights_of(Floats logits, float top, float temperature) {
  return exp_below_zero((clean(logits) - all(top)) / all(temperature));
}

double block_weights(std::span<const float> block, float top, float temperature, float* weights) {
  Doubles sum{};
  size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    const Floats w = weights_of(load(block.data() + i), top, temperature);
    std::memcpy(weights + i, &w, sizeof(w));
    sum += __builtin_convertvector(w, Doubles);
  }
  if (i < block.size()) {
    const Floats w = weights_of(load_some(block.data() + i, block.size() - i), top, temperature);
    std::memcpy(weights + i, &w, (block.size() - i) * sizeof(float));
    sum += __builtin_convertvector(w, Doubles);
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

}  // namespace

void clean_row(std::span<const float> row, float* out) {
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    const Floats x = clean(load(row.data() + i));
    std::memcpy(out + i, &x, sizeof(x));
  }
  for (; i < row.size(); ++i) out[i] = clean_logit(row[i]);
}

float block_maxima(std::span<const float> row, float* maxima) {
  float best = kImpossible;
  for (size_t block = 0; block < row_blocks(row.size()); ++block) {
    maxima[block] = block_maximum(row_block(row, block));
    best = maxima[block] > best ? maxima[block] : best;
  }
  return best;
}

double exp_weights(std::span<const float> row, float top, float temperature, float* weights, double* sums) {
  double total = 0;
  for (size_t block = 0; block < row_blocks(row.size()); ++block) {
    sums[block] = block_weights(row_block(row, block), top, temperature, weights + block * kRowBlock);
    total += sums[block];
  }
  return total;
}

}  // namespace loralei
