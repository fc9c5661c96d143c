// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <algorithm>

namespace loralei {

std::shared_ptr<const StopStrings> compile_stop_strings(std::vector<std::string> stops) {
  auto compiled = std::make_shared<StopStrings>();
  for (std::string& stop : stops) {
    if (!stop.empty()) compiled->emplace_back(std::move(stop));
  }
  return compiled;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> stops, bool include_stop)
    : stops_(std::move(stops)), matched_(stops_->size()), include_stop_(include_stop) {}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Output output;
  if (stopped_) return output;
  for (const char c : text) {
    held_ += c;
    for (size_t i = 0; i < stops_->size(); ++i) {
      const KmpPattern& pattern = (*stops_)[i];
      matched_[i] = pattern.next(matched_[i], c);
      if (matched_[i] < pattern.text().size()) continue;
      if (output.stop == nullptr || output.stop->size() < pattern.text().size()) output.stop = &pattern.text();
    }
    if (output.stop == nullptr) continue;
    stopped_ = true;
    if (!include_stop_) held_.resize(held_.size() - output.stop->size());
    output.text = std::move(held_);
    held_.clear();
    return output;
  }
  const auto most = std::max_element(matched_.begin(), matched_.end());
  const size_t keep = most == matched_.end() ? 0 : *most;
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
