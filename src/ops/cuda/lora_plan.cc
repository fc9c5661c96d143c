// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/lora_plan.h"

#include <algorithm>

namespace loralei::cuda {

LoraPlan::LoraPlan(const Limits& limits)
    : limits_(limits),
      segments_(static_cast<size_t>(limits.segments)),
      parts_(static_cast<size_t>(limits.entries)),
      runs_(static_cast<size_t>(limits.rows)),
      order_(static_cast<size_t>(limits.entries)) {}

bool LoraPlan::fill(std::span<const LoraSegment> segments, int32_t rows) {
  if (rows > limits_.rows || static_cast<int32_t>(segments.size()) > limits_.segments) return false;
  std::fill(segments_.begin(), segments_.end(), DeviceLoraSegment{});
  std::fill(parts_.begin(), parts_.end(), DeviceLoraPart{});
  std::fill(runs_.begin(), runs_.end(), DeviceLoraRun{});
  std::fill(order_.begin(), order_.end(), 0);
  int32_t entries = 0, part = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const LoraSegment& segment = segments[s];
    if (segment.row_count > limits_.entries - entries) return false;
    segments_[s] = {segment.row_begin, segment.row_count, segment.slot, segment.scale, entries};
    for (int32_t first = 0; first < segment.row_count; first += kLoraRunRows) {
      parts_[static_cast<size_t>(part++)] = {static_cast<int32_t>(s), first,
                                             std::min(kLoraRunRows, segment.row_count - first)};
    }
    entries += segment.row_count;
  }
  // A run ends where any segment begins or ends.
  int32_t ordered = 0, run = 0;
  for (int32_t row = 0; row < rows;) {
    int32_t end = std::min(rows, row + kLoraRunRows);
    const int32_t begin = ordered;
    for (size_t s = 0; s < segments.size(); ++s) {
      const int32_t from = segments[s].row_begin, to = from + segments[s].row_count;
      if (row < from) {
        if (to > from) end = std::min(end, from);
      } else if (row < to) {
        end = std::min(end, to);
        if (ordered == limits_.entries) return false;
        order_[static_cast<size_t>(ordered++)] = static_cast<int32_t>(s);
      }
    }
    if (ordered > begin) runs_[static_cast<size_t>(run++)] = {row, end - row, begin, ordered - begin};
    row = end;
  }
  return true;
}

}  // namespace loralei::cuda
