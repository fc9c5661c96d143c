// SPDX-License-Identifier: Apache-2.0
// KvSpread: how far the numbers of every channel of a model's K and V lie apart, from
// blocks of a float cache; and the grid whose steps are so many spreads.
//
//   step(layer, K or V, channel) = factor(layer, K or V) * spread(layer, K or V, channel)
//
// The spread of a channel is the standard deviation of a sample of its numbers without
// the lowest and the highest eighth, divided by what that is of a normal number: so it is
// the standard deviation of a normal channel, wherever its mean lies, and the few tokens
// that others use as a sink, whose numbers are huge, change nothing. It is never 0, NaN
// or infinite; the least is the largest of
//
//   1/64 of the median spread of its layer's K or V      a dead channel among others
//   1/1024 of the largest |x| that is not left out       a constant one keeps integers
//   2^-24                                                nothing but zeros
//
// The sample is of kTokens tokens, each of those seen as likely as the next (algorithm R
// of Vitter, 1985), and the same ones on every machine.
//
// Thread: one at a time. Ownership: owns its sample, in f16, taken once when it is made
// (256 bytes a channel of every layer's K and V).
// Invariants: add() allocates nothing. Numbers that are not finite do not count.
// Failure: CHECKs that a view has the shape it was made for, of f32, f16 or bf16;
// kv_steps_from refuses sizes and factors with a sentence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "codec/kv_grid.h"
#include "ops/args.h"

namespace loralei {

// Of every layer's K and V where nothing was measured.
inline constexpr float kKvSafeFactor = 0.25f;

class KvSpread {
 public:
  static constexpr int32_t kTokens = 128;

  explicit KvSpread(const KvGridShape& shape);

  // The first `tokens` tokens of a block.
  void add(const KvView& view, int32_t block, int32_t tokens = kKvBlockTokens);
  int64_t tokens() const { return seen_; }
  // [layers][2][channels]. Sorts: some microseconds a channel.
  std::vector<float> spread() const;

 private:
  void keep(const KvView& view, int32_t block, int32_t token, int32_t slot);

  KvGridShape shape_;
  std::vector<uint16_t> sample_;  // f16 [kTokens][layers][2][channels]
  int64_t seen_ = 0;
  Prng prng_;
};

// `spread` [layers][2][channels] of a cache in f32, f16 or bf16, `factors` [layers][2].
Result<KvGrid> kv_steps_from(const KvGridShape& shape, std::span<const float> spread, std::span<const float> factors);
// One factor for all.
Result<KvGrid> kv_steps_from(const KvGridShape& shape, std::span<const float> spread, float factor = kKvSafeFactor);

}  // namespace loralei
