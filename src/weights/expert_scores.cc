// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_scores.h"

#include <cmath>

#include "base/check.h"

namespace loralei {
namespace {

// Of an expert that was never used: less than any use leaves.
constexpr double kNever = -1e300;
// Scores as near as this are equal (they are sums of rounded powers).
constexpr double kSame = 1e-6;

}  // namespace

ExpertScores::ExpertScores(int32_t layers, int32_t experts, double half_life)
    : experts_(experts),
      half_life_(half_life),
      keys_(static_cast<size_t>(layers) * static_cast<size_t>(experts), kNever),
      place_(keys_.size(), -1),
      steps_(static_cast<size_t>(layers)),
      steps_of_late_(static_cast<size_t>(layers)),
      last_(static_cast<size_t>(layers)),
      heaps_(static_cast<size_t>(layers)) {
  CHECK(layers > 0 && experts > 0 && half_life > 0);
  for (std::vector<int32_t>& heap : heaps_) heap.reserve(static_cast<size_t>(experts));
}

void ExpertScores::used(int32_t layer, std::span<const int32_t> ids) {
  ++steps_[static_cast<size_t>(layer)];
  last_[static_cast<size_t>(layer)] = ++uses_;
  double& steps = steps_of_late_[static_cast<size_t>(layer)];
  steps = steps * std::exp2(-1 / half_life_) + 1;
  const double now = time(layer);
  for (const int32_t id : ids) {
    DCHECK(id / experts_ == layer);
    double& key = keys_[static_cast<size_t>(id)];
    key = std::log2(1 + (key == kNever ? 0 : std::exp2(key - now))) + now;
    if (kept(id)) sink(heap_of(id), static_cast<size_t>(place_[static_cast<size_t>(id)]));
  }
}

void ExpertScores::keep(int32_t id) {
  DCHECK(!kept(id));
  std::vector<int32_t>& heap = heap_of(id);
  heap.push_back(id);
  place_[static_cast<size_t>(id)] = static_cast<int32_t>(heap.size()) - 1;
  lift(heap, heap.size() - 1);
}

void ExpertScores::drop(int32_t id) {
  DCHECK(kept(id));
  std::vector<int32_t>& heap = heap_of(id);
  const auto place = static_cast<size_t>(place_[static_cast<size_t>(id)]);
  place_[static_cast<size_t>(id)] = -1;
  const int32_t moved = heap.back();
  heap.pop_back();
  if (moved == id) return;
  put(heap, place, moved);
  lift(heap, place);
  sink(heap, static_cast<size_t>(place_[static_cast<size_t>(moved)]));
}

int32_t ExpertScores::take_first(std::span<const int32_t> layers) {
  int32_t first = -1;
  double lowest = 0;
  int64_t last = 0;
  for (const int32_t layer : layers) {
    const std::vector<int32_t>& heap = heaps_[static_cast<size_t>(layer)];
    if (heap.empty()) continue;
    const double score = rate(heap.front(), layer);
    const int64_t used = last_[static_cast<size_t>(layer)];
    const bool lower = score < lowest - kSame || (score <= lowest + kSame && used > last);
    if (first >= 0 && !lower) continue;
    first = heap.front();
    lowest = score;
    last = used;
  }
  if (first >= 0) drop(first);
  return first;
}

double ExpertScores::rate(int32_t id, int32_t layer) const {
  if (key(id) == kNever) return kNever;
  return key(id) - time(layer) - std::log2(steps_of_late_[static_cast<size_t>(layer)]);
}

double ExpertScores::score(int32_t id) const { return std::exp2(rate(id, id / experts_)); }

void ExpertScores::put(std::vector<int32_t>& heap, size_t place, int32_t id) {
  heap[place] = id;
  place_[static_cast<size_t>(id)] = static_cast<int32_t>(place);
}

void ExpertScores::lift(std::vector<int32_t>& heap, size_t place) {
  const int32_t id = heap[place];
  while (place > 0) {
    const size_t above = (place - 1) / 2;
    if (key(heap[above]) <= key(id)) break;
    put(heap, place, heap[above]);
    place = above;
  }
  put(heap, place, id);
}

void ExpertScores::sink(std::vector<int32_t>& heap, size_t place) {
  const int32_t id = heap[place];
  for (;;) {
    size_t below = 2 * place + 1;
    if (below >= heap.size()) break;
    if (below + 1 < heap.size() && key(heap[below + 1]) < key(heap[below])) ++below;
    if (key(heap[below]) >= key(id)) break;
    put(heap, place, heap[below]);
    place = below;
  }
  put(heap, place, id);
}

}  // namespace loralei
