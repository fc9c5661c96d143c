// SPDX-License-Identifier: Apache-2.0
// Token quotas: which part of a server's memory the requests of each size group may take
// (Chameleon, §4.2, "Assigning Quotas per Queue"; mechanisms §4).
//
// Tokens count prompt, predicted answer, and the adapter's bytes by what a token of KV
// takes. A queue of largest request S, expected duration D, arrivals lambda and a wanted
// time in the system SLO is taken for an M/M/1 queue with service rate Tok / (S * D), so
//
//   Tok_min = S * D * (lambda + 1 / SLO)
//
// It is never less than S, so that no request is too large for its own queue. What is
// left after all minima is shared in proportion to them; where they exceed the total,
// what is above S is scaled down in proportion (`short_of`).
//
// Pure functions. Invariants: the quotas add up to the total; each holds its largest
// request, as long as all of those fit together: where they do not, quotas are in
// proportion to S.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loralei {

struct QueueLoad {
  double largest_tokens = 0;  // S
  double duration_s = 0;      // D: from admission to the end
  double arrivals_per_s = 0;  // lambda
  double slo_s = 0;           // wanted, from arrival to the end; above 0
};

struct TokenQuotas {
  std::vector<int64_t> tokens;  // [queues]
  bool short_of = false;        // the minima exceed the total
};

double least_tokens(const QueueLoad& load);
TokenQuotas share_tokens(std::span<const QueueLoad> queues, int64_t total_tokens);

}  // namespace loralei
