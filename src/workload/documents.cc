// SPDX-License-Identifier: Apache-2.0
#include "workload/documents.h"

#include <algorithm>
#include <cstdio>

#include "workload/spec.h"

namespace loralei {

Result<SharedDocuments> SharedDocuments::open(const std::string& text, int64_t prompt_max) {
  constexpr const char* kWhat = "prefixes";
  const WorkloadSpec spec = parse_workload_spec(text, 3);
  if (!spec.file.empty() || spec.numbers.size() != 3) return wrong_spec(kWhat, spec, "write documents:N:TOKENS:ALPHA.");
  TRY_ASSIGN(const int64_t count, spec_count(kWhat, spec, 0, "N", 1, 1'000'000));
  TRY_ASSIGN(const int64_t tokens, spec_count(kWhat, spec, 1, "TOKENS", 1, prompt_max - 1));
  TRY_ASSIGN(const double alpha, spec_number(kWhat, spec, 2, "ALPHA", 0, 20));
  return SharedDocuments(WeightedDraw(power_law(static_cast<size_t>(count), alpha)), static_cast<int32_t>(tokens),
                         prompt_max);
}

void SharedDocuments::add(Prng& random, WorkloadRequest& request) const {
  char id[24];
  std::snprintf(id, sizeof(id), "d%03zu", draw_.draw(random));
  const int64_t prompt = std::min(int64_t{request.prompt_tokens} + tokens_, prompt_max_);
  request.prompt_tokens = static_cast<int32_t>(prompt);
  request.prefixes.push_back({id, tokens_});
}

}  // namespace loralei
