// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace loralei {
namespace {

// Sizes and their layers, without places.
ExpertPlan sizes_of(std::span<const int64_t> layer_bytes) {
  ExpertPlan plan;
  for (size_t layer = 0; layer < layer_bytes.size(); ++layer) {
    auto size = std::find_if(plan.sizes.begin(), plan.sizes.end(),
                             [&](const ExpertPlan::Size& one) { return one.expert_bytes == layer_bytes[layer]; });
    if (size == plan.sizes.end()) size = plan.sizes.insert(size, {.expert_bytes = layer_bytes[layer]});
    size->layers.push_back(static_cast<int32_t>(layer));
    plan.size_of_layer.push_back(static_cast<int32_t>(size - plan.sizes.begin()));
  }
  return plan;
}

int64_t most_places(const ExpertPlan::Size& size, int32_t experts) { return std::ssize(size.layers) * experts; }

int64_t least_places(const ExpertPlan::Size& size, int32_t experts) {
  return std::min<int64_t>(kExpertPlacesLeast, most_places(size, experts));
}

}  // namespace

int64_t least_expert_bytes(std::span<const int64_t> layer_bytes, int32_t experts) {
  int64_t bytes = 0;
  for (const ExpertPlan::Size& size : sizes_of(layer_bytes).sizes)
    bytes += least_places(size, experts) * size.expert_bytes;
  return bytes;
}

int64_t most_expert_bytes(std::span<const int64_t> layer_bytes, int32_t experts) {
  int64_t bytes = 0;
  for (const int64_t of_expert : layer_bytes) bytes += of_expert * experts;
  return bytes;
}

Result<ExpertPlan> plan_experts(std::span<const int64_t> layer_bytes, int32_t experts, int64_t bytes) {
  CHECK(!layer_bytes.empty() && experts > 0);
  ExpertPlan plan = sizes_of(layer_bytes);
  const int64_t all = most_expert_bytes(layer_bytes, experts), least = least_expert_bytes(layer_bytes, experts);
  if (bytes < least) {
    return too_large("The experts of this model need " + format_bytes(least) + " of memory at least, and " +
                     format_bytes(std::max<int64_t>(bytes, 0)) + " are left for them; raise --memory-budget by " +
                     format_bytes(least - bytes) + ".");
  }
  // Each its share of what all have beyond the least.
  const double share =
      all == least ? 1 : static_cast<double>(std::min(bytes, all) - least) / static_cast<double>(all - least);
  for (ExpertPlan::Size& size : plan.sizes) {
    const int64_t few = least_places(size, experts), many = most_places(size, experts);
    size.places = static_cast<int32_t>(few + static_cast<int64_t>(share * static_cast<double>(many - few)));
    plan.bytes += size.places * size.expert_bytes;
  }
  for (ExpertPlan::Size& size : plan.sizes) {  // what rounding left
    while (size.places < most_places(size, experts) && plan.bytes + size.expert_bytes <= bytes) {
      ++size.places;
      plan.bytes += size.expert_bytes;
    }
  }
  return plan;
}

}  // namespace loralei
