// SPDX-License-Identifier: Apache-2.0
// Random operations of a group against a naive twin, for every implementation: what each
// rank gives and what each must get follows from the seed, so that no rank needs to know
// what another did.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/prng.h"
#include "parallel/collective.h"

namespace loralei {

// What a rank gives to an operation: numbers whose sum depends on its order.
inline std::vector<float> given_numbers(uint64_t seed, uint32_t operation, int rank, size_t count) {
  Prng random(derived_seed(derived_seed(seed, operation), static_cast<uint32_t>(rank) + 1));
  std::vector<float> values(count);
  for (float& value : values) {
    const auto sign = random.below(2) == 0 ? 1.0f : -1.0f;
    value = sign * static_cast<float>(1 + random.below(1 << 20)) * (random.below(2) == 0 ? 1.0f : 0x1p-20f);
  }
  return values;
}

inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Answers what was wrong, empty if nothing.
inline std::string run_one_operation(Collective& group, uint64_t seed, uint32_t operation, size_t count_most) {
  Prng random(derived_seed(seed, operation));  // the same in every rank
  const uint64_t kind = random.below(4);
  const size_t count = random.below(8) == 0 ? 0 : 1 + random.below(count_most);
  const std::string what = "operation " + std::to_string(operation) + " of rank " + std::to_string(group.rank());
  const auto of = [&](int rank) { return given_numbers(seed, operation, rank, count); };
  std::vector<float> mine = of(group.rank());
  if (kind == 0) {
    std::vector<float> want = of(0);
    for (int rank = 1; rank < group.size(); ++rank) {
      const std::vector<float> more = of(rank);
      for (size_t i = 0; i < count; ++i) want[i] += more[i];
    }
    if (const Status status = group.all_reduce_sum(mine); !status.ok()) return what + ": " + status.error().message;
    return same_numbers(mine, want) ? "" : what + ": another sum";
  }
  if (kind == 1) {
    if (const Status status = group.broadcast(std::as_writable_bytes(std::span(mine))); !status.ok())
      return what + ": " + status.error().message;
    return same_numbers(mine, of(0)) ? "" : what + ": other bytes than rank 0's";
  }
  if (kind == 2) {
    std::vector<float> all(group.rank() == 0 ? count * static_cast<size_t>(group.size()) : 0), want;
    if (const Status status = group.gather(mine, all); !status.ok()) return what + ": " + status.error().message;
    for (int rank = 0; rank < group.size() && group.rank() == 0; ++rank) {
      const std::vector<float> part = of(rank);
      want.insert(want.end(), part.begin(), part.end());
    }
    return same_numbers(all, want) ? "" : what + ": other parts";
  }
  const Status status = group.barrier();
  return status.ok() ? "" : what + ": " + status.error().message;
}

}  // namespace loralei
