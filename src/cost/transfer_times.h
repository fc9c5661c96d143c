// SPDX-License-Identifier: Apache-2.0
// TransferTimes: how long bytes take to come, learned from those that came:
//
//   seconds = a + bytes * b
//
// fitted with relative errors, of which older ones fade (a half after kHalf transfers).
// Before anything has come, and where all were of one size, what is known of a rate alone
// speaks; a guess of kFirstRate before that.
//
// Thread: one. A plain value; no clock. Invariant: neither a nor b is negative.
#pragma once

#include <cstdint>

namespace loralei {

class TransferTimes {
 public:
  static constexpr double kHalf = 64;
  static constexpr double kFirstRate = 1e9;  // bytes a second

  void learn(int64_t bytes, double seconds);
  double predict_s(int64_t bytes) const;

 private:
  // Sums, of which older parts have faded, over u = 1 / seconds and v = bytes / seconds.
  double u_ = 0, v_ = 0, uu_ = 0, uv_ = 0, vv_ = 0;
};

}  // namespace loralei
