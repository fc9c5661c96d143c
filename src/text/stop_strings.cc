// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <algorithm>

namespace loralei {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) continue;
    stops_.push_back({KmpPattern(std::move(stops[i])), static_cast<int>(i)});
  }
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Output output;
  if (stopped_) return output;
  for (const char c : text) {
    held_ += c;
    const Stop* found = nullptr;
    for (Stop& stop : stops_) {
      stop.matched = stop.pattern.next(stop.matched, c);
      const size_t length = stop.pattern.text().size();
      if (stop.matched == length && (found == nullptr || length > found->pattern.text().size())) found = &stop;
    }
    if (found == nullptr) continue;
    stopped_ = true;
    output.stopped = true;
    output.which = found->index;
    if (!include_stop_) held_.resize(held_.size() - found->pattern.text().size());
    output.text = std::move(held_);
    held_.clear();
    return output;
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max<size_t>(keep, stop.matched);
  output.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return output;
}

std::string StopMatcher::flush() {
  if (stopped_) return {};
  stopped_ = true;
  return std::move(held_);
}

}  // namespace loralei
