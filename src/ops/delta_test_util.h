// SPDX-License-Identifier: Apache-2.0
// What the tests of gated linear attention share: rows of several sequences portion
// into calls in any way, and twins of the operations in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/op_test_util.h"

namespace loralei {

// Rows of one sequence that go into a call together: `count` of them, the sequence's
// next.
struct Portion {
  int sequence = 0;
  int32_t count = 0;
};
using Call = std::vector<Portion>;

// All rows of all sequences, each one row a call, alone.
inline std::vector<Call> row_by_row(const std::vector<int32_t>& lengths) {
  std::vector<Call> calls;
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t i = 0; i < lengths[s]; ++i) calls.push_back({{static_cast<int>(s), 1}});
  }
  return calls;
}

// All rows in one call.
inline std::vector<Call> all_at_once(const std::vector<int32_t>& lengths) {
  Call call;
  for (size_t s = 0; s < lengths.size(); ++s) call.push_back({static_cast<int>(s), lengths[s]});
  return {call};
}

// Calls of chunks of up to `most` rows of some of the sequences, empty ones among them.
inline std::vector<Call> chunks(Prng& prng, std::vector<int32_t> lengths, int32_t most) {
  std::vector<Call> calls;
  while (std::any_of(lengths.begin(), lengths.end(), [](int32_t left) { return left > 0; })) {
    Call call;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto wanted = static_cast<int32_t>(prng.below(static_cast<uint64_t>(most) + 1));
      const int32_t count = std::min(lengths[s], wanted);
      lengths[s] -= count;
      call.push_back({static_cast<int>(s), count});
    }
    calls.push_back(call);
  }
  return calls;
}

// Rows of sequence s lie from first_row(lengths, s) on.
inline int64_t first_row(const std::vector<int32_t>& lengths, int sequence) {
  int64_t row = 0;
  for (int s = 0; s < sequence; ++s) row += lengths[static_cast<size_t>(s)];
  return row;
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// sin(step * i + phase) * scale: numbers that another program makes as well.
inline std::vector<float> wave(int64_t count, double step, double phase, double scale = 1) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(scale * std::sin(step * static_cast<double>(i) + phase)));
  }
  return values;
}

}  // namespace loralei
