// SPDX-License-Identifier: Apache-2.0
// What a request's prompt is made of, where the workload says only how long it is: a
// random number for every position, of which a server's bench and the simulator make
// tokens. Requests of one prefix have the same numbers as far as it goes, others never,
// nor do those of another workload: so what a server has cached of one does not answer
// the next. The same file asked twice of one server finds its prompts there.
//
// Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/prng.h"
#include "workload/draws.h"
#include "workload/workload.h"

namespace loralei {

// Calls take(number) for every position of the prompt of the workload's request `index`.
template <typename Take>
void for_each_prompt_number(const WorkloadRequest& request, size_t index, const Take& take) {
  int32_t at = 0;
  const auto go_on = [&](uint64_t text, int32_t end) {
    for (; at < end; ++at) take(derived_seed(text, static_cast<uint32_t>(at)));
  };
  for (const WorkloadPrefix& prefix : request.prefixes) go_on(stream_seed(1, prefix.id), prefix.tokens);
  go_on(derived_seed(derived_seed(2, static_cast<uint32_t>(request.at_ns)), static_cast<uint32_t>(index)),
        request.prompt_tokens);
}

}  // namespace loralei
