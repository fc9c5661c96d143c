// SPDX-License-Identifier: Apache-2.0
// How long stored blocks stay and how soon they are found again, counted by time: plain
// values that allocate nothing. Thread: as their owner. Failure: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace loralei {

// Upper limits of the classes in seconds (vLLM's buckets); the last class is
// above all of them.
inline constexpr std::array<double, 21> kBlockTimeLimits = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,   2,
                                                            5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800};

struct TimeCounts {
  std::array<uint64_t, kBlockTimeLimits.size() + 1> counts{};
  double sum_s = 0;

  void add(int64_t time_ns) {
    const double time_s = static_cast<double>(time_ns) / 1e9;
    const auto* const limit = std::lower_bound(kBlockTimeLimits.begin(), kBlockTimeLimits.end(), time_s);
    ++counts[static_cast<size_t>(limit - kBlockTimeLimits.begin())];
    sum_s += time_s;
  }
};

// Of every block in the prefix cache. It is used when it is stored, when a sequence finds
// it, and until the last that holds it lets go.
struct BlockTimes {
  TimeCounts lifetime;           // from stored to evicted
  TimeCounts idle_before_evict;  // from used last to evicted
  TimeCounts reuse_gap;          // from used last to found again
};

}  // namespace loralei
