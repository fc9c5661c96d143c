// SPDX-License-Identifier: Apache-2.0
// RecentUses: how often something was used within the last window of time, in constant
// space: the uses of this window and of the one before, of which as much counts as still
// lies within a window's length. Exact where uses come evenly.
//
// Thread: one. A plain value; time is an argument that does not go back (an earlier one
// counts as the latest).
#pragma once

#include <algorithm>
#include <cstdint>

namespace loralei {

class RecentUses {
 public:
  static constexpr int64_t kWindowNs = 300'000'000'000;  // as often as queues are laid out anew (Chameleon, §4.2)

  void add(int64_t now_ns) {
    advance(now_ns);
    ++current_;
  }
  double count(int64_t now_ns) const {
    RecentUses now = *this;
    now.advance(now_ns);
    const int64_t into_ns = std::max<int64_t>(0, now_ns - now.begin_ns_);
    return now.current_ + now.before_ * (1 - static_cast<double>(into_ns) / static_cast<double>(kWindowNs));
  }
  double per_s(int64_t now_ns) const { return count(now_ns) / (static_cast<double>(kWindowNs) * 1e-9); }
  // How often it will be used, of what was used last then: as often as lately; and what
  // was not, once in twice the time that it has waited already. So what was used before
  // the window is still told apart, the longer ago the less.
  double expected_per_s(int64_t now_ns, int64_t last_use_ns) const {
    const double idle_s = static_cast<double>(std::max<int64_t>(kWindowNs, now_ns - last_use_ns)) * 1e-9;
    return std::max(per_s(now_ns), 0.5 / idle_s);
  }
  // Of what this one replaces.
  void add(const RecentUses& other, int64_t now_ns) {
    RecentUses now = other;
    now.advance(now_ns);
    advance(now_ns);
    current_ += now.current_;
    before_ += now.before_;
  }

 private:
  // Windows begin at multiples of their length.
  void advance(int64_t now_ns) {
    const int64_t begin_ns = now_ns - now_ns % kWindowNs;
    if (begin_ns <= begin_ns_) return;  // times are not negative
    before_ = begin_ns - begin_ns_ == kWindowNs ? current_ : 0;
    current_ = 0;
    begin_ns_ = begin_ns;
  }

  double current_ = 0, before_ = 0;
  int64_t begin_ns_ = 0;  // of this window
};

}  // namespace loralei
