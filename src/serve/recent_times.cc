// SPDX-License-Identifier: Apache-2.0
#include "serve/recent_times.h"

#include <algorithm>
#include <cmath>

namespace loralei {

void RecentTimes::add(int64_t now_ns, double seconds) {
  const std::lock_guard lock(mutex_);
  if (values_.size() < kKept) {
    values_.push_back({now_ns, seconds});
    return;
  }
  values_[next_] = {now_ns, seconds};
  next_ = (next_ + 1) % kKept;
}

RecentTimes::Shown RecentTimes::shown(int64_t now_ns) const {
  std::vector<double> in_window;
  int64_t oldest_ns = now_ns;
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    full = values_.size() == kKept;
    in_window.reserve(values_.size());
    for (const Value& value : values_) {
      if (value.at_ns <= now_ns - kWindowNs) continue;
      oldest_ns = std::min(oldest_ns, value.at_ns);
      in_window.push_back(value.seconds);
    }
  }
  Shown shown;
  shown.count = static_cast<int64_t>(in_window.size());
  const bool all_fit = !full || in_window.size() < kKept;
  shown.window_s = static_cast<double>(all_fit ? kWindowNs : now_ns - oldest_ns) * 1e-9;
  if (in_window.empty()) return shown;
  std::sort(in_window.begin(), in_window.end());
  const auto rank = [&](double part) {
    const auto at = static_cast<size_t>(std::ceil(part * static_cast<double>(in_window.size())));
    return in_window[std::max<size_t>(at, 1) - 1];
  };
  shown.p50 = rank(0.50);
  shown.p90 = rank(0.90);
  shown.p99 = rank(0.99);
  return shown;
}

}  // namespace loralei
