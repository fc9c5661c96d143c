// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <algorithm>

namespace loralei {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) continue;
    Stop stop{std::move(stops[i]), static_cast<int>(i), {}, 0};
    stop.failure.assign(stop.text.size(), 0);
    for (size_t at = 1; at < stop.text.size(); ++at) {
      uint32_t k = stop.failure[at - 1];
      while (k > 0 && stop.text[at] != stop.text[k]) k = stop.failure[k - 1];
      if (stop.text[at] == stop.text[k]) ++k;
      stop.failure[at] = k;
    }
    stops_.push_back(std::move(stop));
  }
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Output output;
  if (stopped_) return output;
  for (const char c : text) {
    held_ += c;
    const Stop* found = nullptr;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.failure[stop.matched - 1];
      if (stop.text[stop.matched] == c) ++stop.matched;
      if (stop.matched == stop.text.size() && (found == nullptr || stop.text.size() > found->text.size()))
        found = &stop;
    }
    if (found == nullptr) continue;
    stopped_ = true;
    output.stopped = true;
    output.which = found->index;
    if (!include_stop_) held_.resize(held_.size() - found->text.size());
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
