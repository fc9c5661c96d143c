// SPDX-License-Identifier: Apache-2.0
// A block a row. Numbers become keys that sort as integers, weights are integers
// (cuda_ops.h) whose sums are exact in any order, so atomics keep every result the same
// from run to run. What is cut off (top-k, top-p) is mostly found among the few tokens
// near the best, which are gathered and sorted; where they are too many or too few,
// by descending through the key's four bytes with a histogram of counts and weights,
// which sorts nothing. Both find the same token.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"

namespace loralei::cuda {
namespace {

using Mass = unsigned long long;
constexpr int kThreads = 256;

// 0: impossible (NaN or -inf). +inf counts as the largest number, -0 as 0.
DEVICE unsigned key_of(float logit) {
  if (!(logit > -INFINITY)) return 0;
  const unsigned bits = __float_as_uint(fminf(logit, 3.402823466e38f) + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
DEVICE float logit_of(unsigned key) { return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key); }

// Top-p: the least weight that what stays has together.
DEVICE Mass nucleus_goal(float top_p, Mass total) {
  const auto goal = static_cast<Mass>(static_cast<double>(fmaxf(0.0f, top_p)) * static_cast<double>(total));
  return goal > 0 ? goal : 1;
}

struct Row {
  const float* logits;
  int vocab;
  float top, temperature, per_temperature;
  DEVICE unsigned key(int id) const { return key_of(logits[id]); }
  DEVICE Mass weight(unsigned key) const {
    if (key == 0) return 0;
    return static_cast<Mass>(__expf((logit_of(key) - top) * per_temperature) * 2147483648.0f);
  }
};

// What is kept: keys above `key`, and of those equal to it the `ties` with
// the lowest ids.
struct Cut {
  unsigned key;
  Mass count_at, ties;  // how many have the key; how many of them stay
  Mass above;           // weight (or number) of what lies above the key
};

enum class Until { kCount, kMassReached, kMassPassed };

// Shared memory adds 32 bits in one instruction; sums of 64 are a loop of comparisons.
// So the lower half is added, and whoever makes it wrap adds one to the upper: the sum is
// exact in any order.
struct Histogram {
  unsigned count[256];
  unsigned mass_low[256], mass_high[256];
  DEVICE void add(unsigned digit, unsigned weight) {
    atomicAdd(&count[digit], 1u);
    const unsigned before = atomicAdd(&mass_low[digit], weight);
    if (before + weight < before) atomicAdd(&mass_high[digit], 1u);
  }
  DEVICE Mass mass(int digit) const { return static_cast<Mass>(mass_high[digit]) << 32 | mass_low[digit]; }
  DEVICE void take(unsigned digit, unsigned ties, Mass weight) {
    count[digit] -= ties;
    const Mass left = mass(static_cast<int>(digit)) - ties * weight;
    mass_low[digit] = static_cast<unsigned>(left), mass_high[digit] = static_cast<unsigned>(left >> 32);
  }
  unsigned prefix;
  Mass before, count_at;
};

// The key where the kept numbers, best first, reach `goal`: as many as that, a weight of
// that, or more weight than that.
DEVICE Cut descend(const Row& row, const Cut& kept, Until until, Mass goal, Histogram* h) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned prefix = 0;
  Mass before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    h->count[thread] = 0;
    h->mass_low[thread] = 0;
    h->mass_high[thread] = 0;
    __syncthreads();
    for (int id = thread; id < row.vocab; id += kThreads) {
      const unsigned key = row.key(id);
      if (key == 0 || key < kept.key) continue;
      if (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8)) continue;
      h->add(key >> shift & 255, static_cast<unsigned>(row.weight(key)));
    }
    __syncthreads();
    if (thread == 0) {
      const bool has_cut = kept.key != 0 && (shift == 24 || kept.key >> (shift + 8) == prefix >> (shift + 8));
      if (has_cut) {  // the ties that do not stay
        h->take(kept.key >> shift & 255, static_cast<unsigned>(kept.count_at - kept.ties), row.weight(kept.key));
      }
      int digit = 255, last = 255;
      for (; digit >= 0; --digit) {
        if (h->count[digit] == 0) continue;
        last = digit;
        const Mass here = until == Until::kCount ? h->count[digit] : h->mass(digit);
        if (until == Until::kMassPassed ? before + here > goal : before + here >= goal) break;
        before += here;
      }
      if (digit < 0) {  // the goal lies past the end: the last there is
        digit = last;
        before -= until == Until::kCount ? h->count[digit] : h->mass(digit);
      }
      h->prefix = prefix | static_cast<unsigned>(digit) << shift;
      h->before = before;
      h->count_at = h->count[digit];
    }
    __syncthreads();
    prefix = h->prefix;
    before = h->before;
    __syncthreads();
  }
  Cut cut{prefix, h->count_at, h->count_at, before};
  const Mass each = until == Until::kCount ? 1 : row.weight(prefix);
  if (until != Until::kMassPassed && each > 0) {
    const Mass wanted = goal > before ? (goal - before + each - 1) / each : 1;
    cut.ties = wanted < cut.ties ? wanted : cut.ties;
    if (cut.ties == 0) cut.ties = 1;
  }
  __syncthreads();
  return cut;
}

struct InOrder {
  Mass sums[kThreads];
  Mass target;
  int chunk, token;
};

DEVICE Mass shuffle_up(Mass x, unsigned by) {
  const unsigned low = __shfl_up_sync(kFullWarp, static_cast<unsigned>(x), by);
  const unsigned high = __shfl_up_sync(kFullWarp, static_cast<unsigned>(x >> 32), by);
  return static_cast<Mass>(high) << 32 | low;
}
DEVICE Mass shuffle_last(Mass x) {
  const unsigned low = __shfl_sync(kFullWarp, static_cast<unsigned>(x), 31);
  const unsigned high = __shfl_sync(kFullWarp, static_cast<unsigned>(x >> 32), 31);
  return static_cast<Mass>(high) << 32 | low;
}
// Sums of the lanes up to this one.
DEVICE Mass warp_prefix(Mass x) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned by = 1; by < 32; by *= 2) {
    const Mass other = shuffle_up(x, by);
    if (lane >= by) x += other;
  }
  return x;
}

constexpr int kWarps = kThreads / 32;

DEVICE int chunk_of(int vocab) { return ((vocab + kThreads - 1) / kThreads + 31) / 32 * 32; }

// The masses of each chunk of ids, and their sum.
template <typename MassOf>
DEVICE Mass sum_chunks(int vocab, MassOf mass_of, InOrder* s) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int chunk = chunk_of(vocab);
  for (int c = thread / 32; c < kThreads; c += kWarps) {
    Mass sum = 0;
    for (int i = lane; i < chunk; i += 32) {
      const int id = c * chunk + i;
      if (id < vocab) sum += mass_of(id);
    }
    sum = warp_prefix(sum);
    if (lane == 31) s->sums[c] = sum;
  }
  __syncthreads();
  Mass total = 0;
  for (int c = 0; c < kThreads; ++c) total += s->sums[c];
  return total;
}

// After sum_chunks() of the same masses: the first id at which they, added in the order
// of ids, pass `goal`, which is below their sum.
template <typename MassOf>
DEVICE int find_in_order(int vocab, Mass goal, MassOf mass_of, InOrder* s) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int chunk = chunk_of(vocab);
  if (thread == 0) {
    Mass before = 0;
    int c = 0;
    while (c < kThreads - 1 && before + s->sums[c] <= goal) before += s->sums[c++];
    s->chunk = c;
    s->target = goal - before;
    s->token = -1;
  }
  __syncthreads();
  if (thread < 32) {
    Mass before = 0;
    for (int i = lane; i < chunk; i += 32) {
      const int id = s->chunk * chunk + i;
      const Mass mine = id < vocab ? mass_of(id) : 0;
      const Mass upto = before + warp_prefix(mine);
      const bool passes = upto > s->target && upto - mine <= s->target;
      if (passes) s->token = id;
      before = shuffle_last(upto);
      if (__ballot_sync(kFullWarp, passes) != 0) break;
    }
  }
  __syncthreads();
  return s->token;
}

// The tokens near the best, best first.
constexpr int kNearMost = 1024;
constexpr float kNear = 8.0f;  // in units of the temperature: weights from e^-8 of the best's on
struct Near {
  Mass order[kNearMost];  // key, then ids downwards: sorts as better() does
  Mass mass[kNearMost];
  int count, token;
  DEVICE unsigned key(int i) const { return static_cast<unsigned>(order[i] >> 32); }
  DEVICE int id(int i) const { return static_cast<int>(~static_cast<unsigned>(order[i])); }
};

// False: there are more than kNearMost.
DEVICE bool gather_near(const Row& row, Near* near) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) near->count = 0;
  __syncthreads();
  const unsigned least = key_of(row.top - kNear * row.temperature);
  for (int id = thread; id < row.vocab; id += kThreads) {
    const unsigned key = row.key(id);
    if (key == 0 || key < least) continue;
    const int place = atomicAdd(&near->count, 1);
    if (place < kNearMost) near->order[place] = static_cast<Mass>(key) << 32 | ~static_cast<unsigned>(id);
  }
  __syncthreads();
  const int count = near->count;
  if (count > kNearMost) return false;
  int padded = 2;
  while (padded < count) padded *= 2;
  for (int i = count + thread; i < padded; i += kThreads) near->order[i] = 0;
  __syncthreads();
  // Batcher's bitonic sort, descending.
  for (int size = 2; size <= padded; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int pair = thread; pair < padded / 2; pair += kThreads) {
        const int low = pair / step * 2 * step + pair % step, high = low + step;
        const Mass a = near->order[low], b = near->order[high];
        if ((a < b) == ((low & size) == 0)) near->order[low] = b, near->order[high] = a;
      }
      __syncthreads();
    }
  }
  for (int i = thread; i < count; i += kThreads) near->mass[i] = row.weight(near->key(i));
  __syncthreads();
  return true;
}

// The token that top-k, top-p and min-p leave at u, by one thread, from the tokens near
// the best; -1: they are not enough. `all` is the mass of all tokens.
DEVICE int draw_near(const Near& near, const RowChoice& p, bool cut_k, Mass all, unsigned floor_key, Mass u) {
  int kept = near.count;
  Mass total = all;
  if (cut_k) {
    if (kept < p.top_k) return -1;
    kept = p.top_k;
    total = 0;
    for (int i = 0; i < kept; ++i) total += near.mass[i];
  }
  if (p.top_p < 1.0f) {
    const Mass goal = nucleus_goal(p.top_p, total);
    Mass sum = 0;
    int count = 0;
    while (count < kept && sum < goal) sum += near.mass[count++];
    if (sum < goal) return -1;
    kept = count;
    total = sum;
  }
  while (near.key(kept - 1) < floor_key) total -= near.mass[--kept];
  const Mass target = __umul64hi(u, total);
  Mass sum = near.mass[0];
  int drawn = 0;
  while (sum <= target && drawn + 1 < kept) sum += near.mass[++drawn];
  return near.id(drawn);
}

// The upper 64 bits of Philox4x32-10's first two words, as base/prng.h has them.
DEVICE Mass philox_bits(uint64_t seed, uint32_t choice, uint64_t position) {
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0};
  uint32_t k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    c[0] = high1 ^ c[1] ^ k[0];
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k[1];
    c[3] = low0;
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return static_cast<Mass>(c[0]) << 32 | c[1];
}

KERNEL void BLOCK_LIMIT(kThreads)
    sample_kernel(const float* logits, int64_t stride, const RowChoice* params, int32_t* tokens) {
  SHARED_ARRAY(Histogram, histogram, 1);
  SHARED_ARRAY(InOrder, in_order, 1);
  SHARED_ARRAY(Near, near, 1);
  SHARED_ARRAY(unsigned, best_keys, kThreads / 32);
  SHARED_ARRAY(int, best_ids, kThreads / 32);
  const RowChoice p = params[blockIdx.x];
  const int vocab = p.vocab;
  if (vocab <= 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  // Finite, so that the best token's weight is e^0 whatever the temperature.
  Row row{logits + blockIdx.x * stride, vocab, 0, p.temperature, fminf(1.0f / p.temperature, 3.402823466e38f)};

  // The best: the highest key, of those the lowest id.
  unsigned key = 0;
  int id = -1;
#pragma unroll 8
  for (int i = thread; i < vocab; i += kThreads) {
    const unsigned mine = row.key(i);
    if (mine > key) key = mine, id = i;
  }
  const auto take = [&](unsigned other, int other_id) {
    if (other > key || (other == key && other != 0 && other_id < id)) key = other, id = other_id;
  };
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    const unsigned other = __shfl_xor_sync(kFullWarp, key, bits);
    const int other_id = __shfl_xor_sync(kFullWarp, id, bits);
    take(other, other_id);
  }
  if (thread % 32 == 0) {
    best_keys[thread / 32] = key;
    best_ids[thread / 32] = id;
  }
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) take(best_keys[w], best_ids[w]);
  if (key == 0 || p.temperature <= 0 || p.top_k == 1) {
    if (thread == 0) tokens[blockIdx.x] = key == 0 ? -1 : id;
    return;
  }
  row.top = logit_of(key);

  // u in [0, 1) with 53 bits, times a total: the upper half of a product of integers.
  const Mass u = philox_bits(p.seed, p.choice, p.position) >> 11 << 11;
  const bool cut_k = p.top_k > 0 && p.top_k < vocab;
  const unsigned floor_key = p.min_p > 0.0f ? min(key, key_of(row.top + p.temperature * logf(p.min_p))) : 0;
  if (!cut_k && p.top_p >= 1.0f) {  // by id, like the host
    const auto weight = [&](int i) {
      const unsigned mine = row.key(i);
      return mine < floor_key ? Mass{0} : row.weight(mine);
    };
    const Mass total = sum_chunks(vocab, weight, in_order);
    const int token = find_in_order(vocab, __umul64hi(u, total), weight, in_order);
    if (thread == 0) tokens[blockIdx.x] = token;
    return;
  }
  if (gather_near(row, near)) {
    const auto weight = [&](int i) { return row.weight(row.key(i)); };
    const Mass all = cut_k ? 0 : sum_chunks(vocab, weight, in_order);
    if (thread == 0) near->token = draw_near(*near, p, cut_k, all, floor_key, u);
    __syncthreads();
    if (near->token >= 0) {
      if (thread == 0) tokens[blockIdx.x] = near->token;
      return;
    }
  }
  const Mass kEverything = ~Mass{0} >> 1;
  Cut kept{0, 0, 0, 0};
  if (cut_k) kept = descend(row, kept, Until::kCount, static_cast<Mass>(p.top_k), histogram);
  const auto total_of = [&] {  // of what is kept: descending past the end leaves all but the last key's behind
    const Cut end = descend(row, kept, Until::kMassPassed, kEverything, histogram);
    return end.above + end.count_at * row.weight(end.key);
  };
  Mass total = total_of();
  if (p.top_p < 1.0f) {
    const Cut nucleus = descend(row, kept, Until::kMassReached, nucleus_goal(p.top_p, total), histogram);
    kept = nucleus.key == kept.key ? Cut{kept.key, kept.count_at, min(kept.ties, nucleus.ties), 0} : nucleus;
    total = total_of();
  }
  if (floor_key > kept.key) {
    kept = Cut{floor_key, 0, 0, 0};
    total = total_of();
  }
  const Mass target = __umul64hi(u, total);
  const Cut drawn = descend(row, kept, Until::kMassPassed, target, histogram);
  const Mass each = row.weight(drawn.key);
  const Mass rank = each > 0 && target > drawn.above ? (target - drawn.above) / each : 0;
  const auto one_of_them = [&](int i) { return row.key(i) == drawn.key ? Mass{1} : Mass{0}; };
  sum_chunks(vocab, one_of_them, in_order);
  const int token = find_in_order(vocab, rank, one_of_them, in_order);
  if (thread == 0) tokens[blockIdx.x] = token;
}

}  // namespace

Status sample(CudaStream& stream, const SampleArgs& args) {
  if (args.rows <= 0) return {};
  return launch("sample", sample_kernel, {static_cast<unsigned>(args.rows), 1, 1}, {kThreads, 1, 1}, 0, stream.handle(),
                args.logits, args.stride, args.choices, args.tokens);
}

}  // namespace loralei::cuda
