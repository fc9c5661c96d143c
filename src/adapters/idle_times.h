// SPDX-License-Identifier: Apache-2.0
// IdleTimes: how long an adapter rests between two uses, and what that says of the next:
// the histogram of the hybrid policy of "Serverless in the Wild" (Shahrad et al., ATC
// 2020, §4.2).
//
// Idle times are counted in bins of one minute up to kBins minutes; those that are longer
// are counted together. Of a histogram that is representative
//
//   head   5th percentile, rounded down to its minute
//   tail  99th percentile, rounded up
//   soon  from  head - kMargin * head  to  tail + kMargin * tail  behind the last use
//
// A histogram is representative where the coefficient of variation of its bins' counts is
// at least kVariationLeast (the paper's test), at least kSamplesLeast idle times are
// counted, and most of all idle times lie within its bins. The paper predicts those that
// mostly lie beyond with a time series (ARIMA): that is left out, and nothing is said of
// them.
//
// Counts are bytes. Where one is full all are halved, so that older ones fade.
//
// Thread: one. A plain value of kBins + 1 bytes; no clock, no allocation. No failure: an
// idle time that is negative (a clock that went back) is none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace loralei {

class IdleTimes {
 public:
  static constexpr int32_t kBins = 240;
  static constexpr int64_t kBinNs = 60'000'000'000;
  static constexpr int32_t kSamplesLeast = 5;
  static constexpr int64_t kVariationLeast = 2;
  static constexpr int64_t kMarginPercent = 10, kHeadPercent = 5, kTailPercent = 99;

  // When the next use is to be expected, behind the end of the last one.
  struct Window {
    int64_t from_ns = 0, until_ns = 0;
    friend bool operator==(const Window&, const Window&) = default;
  };

  // From the end of a use to the next one's arrival.
  void add(int64_t idle_ns);
  std::optional<Window> window() const;  // nothing: the histogram is not representative

 private:
  void halve();
  int32_t percentile_bin(int64_t percent, int64_t sum) const;

  std::array<uint8_t, kBins> counts_{};
  uint8_t beyond_ = 0;
};

}  // namespace loralei
