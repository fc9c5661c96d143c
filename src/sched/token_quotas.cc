// SPDX-License-Identifier: Apache-2.0
#include "sched/token_quotas.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {
namespace {

constexpr double kRounding = 1e-6;  // a whole number that was computed is not one less

}  // namespace

double least_tokens(const QueueLoad& load) {
  CHECK(load.slo_s > 0 && load.largest_tokens >= 0 && load.duration_s >= 0 && load.arrivals_per_s >= 0);
  const double least = load.largest_tokens * load.duration_s * (load.arrivals_per_s + 1 / load.slo_s);
  return std::max(load.largest_tokens, least);
}

TokenQuotas share_tokens(std::span<const QueueLoad> queues, int64_t total_tokens) {
  CHECK(total_tokens >= 0 && !queues.empty());
  const auto total = static_cast<double>(total_tokens);
  double largest = 0, minima = 0;
  for (const QueueLoad& queue : queues) {
    largest += queue.largest_tokens;
    minima += least_tokens(queue);
  }
  TokenQuotas quotas{.short_of = minima > total};
  int64_t given = 0;
  for (const QueueLoad& queue : queues) {
    double share = 0;
    if (minima <= 0) {
      share = total / static_cast<double>(queues.size());
    } else if (!quotas.short_of) {
      share = total * least_tokens(queue) / minima;
    } else if (largest >= total) {
      share = total * queue.largest_tokens / largest;
    } else {
      const double above = least_tokens(queue) - queue.largest_tokens;
      share = queue.largest_tokens + (total - largest) * above / (minima - largest);
    }
    quotas.tokens.push_back(std::min(static_cast<int64_t>(share + kRounding), total_tokens - given));
    given += quotas.tokens.back();
  }
  quotas.tokens.back() += total_tokens - given;  // what rounding left
  return quotas;
}

}  // namespace loralei
