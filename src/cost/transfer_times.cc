// SPDX-License-Identifier: Apache-2.0
#include "cost/transfer_times.h"

#include <algorithm>
#include <cmath>

namespace loralei {
namespace {

constexpr double kAlike = 1e-6;  // of one size, as far as the sums tell

}  // namespace

// Least squares of a * u + b * v against 1.
void TransferTimes::learn(int64_t bytes, double seconds) {
  if (bytes <= 0 || !(seconds > 0)) return;
  const double fade = std::exp2(-1 / kHalf), u = 1 / seconds, v = static_cast<double>(bytes) / seconds;
  u_ = u_ * fade + u;
  v_ = v_ * fade + v;
  uu_ = uu_ * fade + u * u;
  uv_ = uv_ * fade + u * v;
  vv_ = vv_ * fade + v * v;
}

double TransferTimes::predict_s(int64_t bytes) const {
  const auto size = static_cast<double>(std::max<int64_t>(0, bytes));
  if (vv_ == 0) return size / kFirstRate;
  const double determinant = uu_ * vv_ - uv_ * uv_;
  const double a = u_ * vv_ - v_ * uv_, b = uu_ * v_ - uv_ * u_;  // times the determinant
  if (!(determinant > kAlike * uu_ * vv_) || a < 0) return v_ / vv_ * size;
  if (b < 0) return u_ / uu_;
  return (a + b * size) / determinant;
}

}  // namespace loralei
