// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/step_graphs.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {

StepGraphs::StepGraphs(int32_t graphs_max, LogSink* log) : graphs_max_(graphs_max), log_(log) {
  CHECK(graphs_max >= 0);
  entries_.reserve(3 * static_cast<size_t>(graphs_max));  // seen, recorded, refused
}

int32_t StepGraphs::count(State state) const {
  return static_cast<int32_t>(
      std::count_if(entries_.begin(), entries_.end(), [state](const Entry& entry) { return entry.state == state; }));
}

int32_t StepGraphs::held() const { return count(State::kRecorded); }

StepGraphs::Entry* StepGraphs::oldest(State state) {
  Entry* found = nullptr;
  for (Entry& entry : entries_) {
    if (entry.state == state && (found == nullptr || entry.used < found->used)) found = &entry;
  }
  return found;
}

void StepGraphs::remember(const StepShape& shape, uint64_t hash) {
  Entry* entry = count(State::kSeen) < graphs_max_ ? &entries_.emplace_back() : oldest(State::kSeen);
  entry->shape = shape;
  entry->hash = hash;
  entry->used = uses_;
}

StepGraphs::Entry* StepGraphs::find(const StepShape& shape) {
  if (graphs_max_ == 0) return nullptr;
  ++uses_;
  const uint64_t hash = shape.hash();
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.hash == hash && entry.shape == shape; });
  const bool recording = count(State::kRefused) < graphs_max_;
  if (known == entries_.end()) {
    if (recording) remember(shape, hash);
    return nullptr;
  }
  known->used = uses_;
  if (known->state == State::kRecorded) return &*known;
  if (known->state == State::kRefused || !recording) return nullptr;
  // Forgotten altogether: among too many shapes every other step records, not every one.
  if (held() == graphs_max_) *oldest(State::kRecorded) = Entry();
  known->state = State::kRecorded;
  return &*known;
}

void StepGraphs::refuse(Entry& entry, const Error& why) {
  entry.graph = CudaGraph();
  entry.state = State::kRefused;
  if (!refusal_.empty()) return;
  refusal_ = "A step could not be run as a recorded graph (" + why.message +
             "): steps like it are launched kernel by kernel, which is slower; --enforce-eager does so from the start.";
  if (log_ != nullptr) log_->log(LogLevel::kWarning, refusal_);
}

}  // namespace loralei
