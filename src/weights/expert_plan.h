// SPDX-License-Identifier: Apache-2.0
// plan_experts: how many experts of a mixture have room in so many bytes. A pure
// function, any thread.
//
// Experts of one size share memory, cut into places of that size. What there is beyond
// the least is shared among the sizes in proportion to what each has in all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace loralei {

// One is read while another is used.
inline constexpr int32_t kExpertPlacesLeast = 2;

struct ExpertPlan {
  struct Size {
    int64_t expert_bytes = 0;  // of a place
    int32_t places = 0;
    std::vector<int32_t> layers;  // ascending
  };
  std::vector<Size> sizes;
  std::vector<int32_t> size_of_layer;
  int64_t bytes = 0;  // of all places
};

// `layer_bytes`: of an expert of each layer that has some; `experts`: of each layer. Too
// few bytes are refused with the least that would do.
Result<ExpertPlan> plan_experts(std::span<const int64_t> layer_bytes, int32_t experts, int64_t bytes);
int64_t least_expert_bytes(std::span<const int64_t> layer_bytes, int32_t experts);
int64_t most_expert_bytes(std::span<const int64_t> layer_bytes, int32_t experts);  // with places for all

}  // namespace loralei
