// SPDX-License-Identifier: Apache-2.0
// What both sides of a helper know of the model: sizes of modules, and which modules read
// one layer input. Plain values, any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/result.h"
#include "ops/args.h"

namespace loralei {

constexpr uint32_t module_bit(Module module) { return uint32_t{1} << static_cast<int>(module); }

// Modules that read one layer input: a message is about some of one group.
inline constexpr std::array<uint32_t, 4> kAssistGroups = {
    module_bit(Module::kQ) | module_bit(Module::kK) | module_bit(Module::kV), module_bit(Module::kO),
    module_bit(Module::kGate) | module_bit(Module::kUp), module_bit(Module::kDown)};
inline constexpr size_t kAssistTargetsMax = 3;

constexpr bool is_assist_mask(uint32_t modules) {
  return modules != 0 && std::any_of(kAssistGroups.begin(), kAssistGroups.end(),
                                     [&](uint32_t group) { return (modules & ~group) == 0; });
}

struct AssistShape {
  int32_t layers = 0;
  int32_t rank_max = 0;
  std::array<int32_t, kLayerModules> ins{}, outs{};  // of a layer's modules; of those in no group nothing is read

  int32_t in(Module module) const { return ins[static_cast<size_t>(module)]; }
  int32_t out(Module module) const { return outs[static_cast<size_t>(module)]; }
  int32_t in_max() const { return *std::max_element(ins.begin(), ins.end()); }
};

// Every number is in its limits, and modules of a group read the same input.
Status check_assist_shape(const AssistShape& shape);

}  // namespace loralei
