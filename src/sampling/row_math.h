// SPDX-License-Identifier: Apache-2.0
// Passes over one row of logits that take four numbers at a time and look at a vocabulary
// in blocks, so that what comes after a pass reads the few blocks that matter.
//
// Pure functions, any thread, no allocation. The same bits on every machine: the order
// of sums is fixed and nothing is fused. NaN counts as impossible (-inf) and +inf as the
// largest float, everywhere.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace loralei {

inline constexpr float kImpossible = -std::numeric_limits<float>::infinity();
inline constexpr size_t kRowBlock = 256;  // numbers; the last block of a row may be shorter

constexpr size_t row_blocks(size_t count) { return (count + kRowBlock - 1) / kRowBlock; }
inline std::span<const float> row_block(std::span<const float> row, size_t block) {
  const size_t begin = block * kRowBlock;
  return row.subspan(begin, row.size() - begin < kRowBlock ? row.size() - begin : kRowBlock);
}

inline float clean_logit(float logit) {
  if (std::isnan(logit)) return kImpossible;
  return logit < std::numeric_limits<float>::max() ? logit : std::numeric_limits<float>::max();
}
void clean_row(std::span<const float> row, float* out);  // [row.size()]

// maxima[b] = the highest of block b, [row_blocks(row.size())]; returns
// the highest of all.
float block_maxima(std::span<const float> row, float* maxima);

// weights[i] = exp((row[i] - top) / temperature) to 3e-7 of itself plus the rounding of
// the quotient, and 0 from -87 on; sums[b] = those of block b added up in double. `top`
// is the highest of the row, temperature > 0. Returns the sum of all. One number alone
// gives the same weight as in a row.
double exp_weights(std::span<const float> row, float top, float temperature, float* weights, double* sums);

}  // namespace loralei
