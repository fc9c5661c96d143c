// SPDX-License-Identifier: Apache-2.0
#include "adapters/idle_times.h"

namespace loralei {

void IdleTimes::add(int64_t idle_ns) {
  if (idle_ns < 0) return;
  const int64_t bin = idle_ns / kBinNs;
  uint8_t& count = bin < kBins ? counts_[static_cast<size_t>(bin)] : beyond_;
  if (count == UINT8_MAX) halve();
  ++count;
}

void IdleTimes::halve() {
  for (uint8_t& count : counts_) count /= 2;
  beyond_ /= 2;
}

// The first bin up to which so many percent are counted.
int32_t IdleTimes::percentile_bin(int64_t percent, int64_t sum) const {
  int64_t counted = 0;
  int32_t bin = 0;
  for (; bin + 1 < kBins; ++bin) {
    counted += counts_[static_cast<size_t>(bin)];
    if (counted * 100 >= percent * sum) break;
  }
  return bin;
}

// With n bins of the sum s and the sum of squares q the variation's square is
// n q / s^2 - 1.
std::optional<IdleTimes::Window> IdleTimes::window() const {
  int64_t sum = 0, squares = 0;
  for (const int64_t count : counts_) {
    sum += count;
    squares += count * count;
  }
  if (sum < kSamplesLeast || beyond_ > sum) return std::nullopt;
  if (kBins * squares < (kVariationLeast * kVariationLeast + 1) * sum * sum) return std::nullopt;
  const int64_t head_ns = percentile_bin(kHeadPercent, sum) * kBinNs;
  const int64_t tail_ns = (percentile_bin(kTailPercent, sum) + 1) * kBinNs;
  return Window{.from_ns = head_ns / 100 * (100 - kMarginPercent), .until_ns = tail_ns / 100 * (100 + kMarginPercent)};
}

}  // namespace loralei
