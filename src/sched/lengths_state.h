// SPDX-License-Identifier: Apache-2.0
// LengthsState: what was learned of answers' lengths as a value, and as bytes that
// outlive the process (--state-dir).
//
// The bytes, in the order of the machine's own:
//
//   "LORALEN\n", version, order mark, base (8 bytes), adapters, places, length classes,
//   classes of prompts; the common distributions, the adapters' (key and weights), the
//   weights of LearnedLengths; a checksum over all of it
//
// They hold numbers alone: no word of a prompt, no name. 520 KiB, and 328 bytes an
// adapter.
//
// Thread: plain values and pure functions, any thread. Invariants: adapters' keys ascend;
// what decode_lengths() answers is finite and within bounds. Failure: a sentence that
// says what is wrong with the bytes. Nothing is allocated from a number in them before
// their size agrees with it, and counts are bounded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/learned_lengths.h"
#include "sched/output_lengths.h"

namespace loralei {

struct LengthsState {
  static constexpr size_t kAdaptersMost = 4096;
  struct Adapter {
    uint64_t key = 0;  // LengthPredictor::key_of; 0: the base
    OutputLengths::Lengths lengths;
  };
  std::vector<Adapter> adapters;  // at most kAdaptersMost
  OutputLengths::Common common;
  std::vector<LearnedLengths::Weight> learned;  // of every place, or empty
};

// `base`: what identifies the base model; other lengths were learned of another.
std::string encode_lengths(const LengthsState& state, std::string_view base);
Result<LengthsState> decode_lengths(std::string_view bytes, std::string_view base);
inline constexpr int64_t kLengthsBytesMost = 4 << 20;  // no encoded state is larger

}  // namespace loralei
