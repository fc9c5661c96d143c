// SPDX-License-Identifier: Apache-2.0
// Rates of the multiply-add pairs of bytes, on vectors of type I. No include guard:
// see ops/cpu/target.h.

constexpr int kPairsSums = 8;

// kWords words of four weights are multiplied, their pairs added in 16 bits, then
// widened and added to a sum: all that is left of a product where weights of so few bits
// leave room for it.
template <int kWords>
float pairs_chunk() {
  static_assert(kLoops % kWords == 0);
  I sums[kPairsSums];
  LORALEI_UNROLL
  for (int i = 0; i < kPairsSums; ++i) sums[i] = I{i};
  const I weights = all_bytes(3), inputs = all_bytes(-5), ones = all_pairs(1);
  for (int64_t loop = 0; loop < kLoops / kWords; ++loop) {
    LORALEI_UNROLL
    for (I& sum : sums) {
      I pairs, product;
      asm volatile("vpmaddubsw %2, %1, %0" : "=v"(pairs) : "v"(weights), "v"(inputs));
      LORALEI_UNROLL
      for (int word = 1; word < kWords; ++word) {
        asm volatile("vpmaddubsw %2, %1, %0" : "=v"(product) : "v"(weights), "v"(inputs));
        asm volatile("vpaddw %1, %0, %0" : "+v"(pairs) : "v"(product));
      }
      asm volatile("vpmaddwd %1, %0, %0" : "+v"(pairs) : "v"(ones));
      asm volatile("vpaddd %1, %0, %0" : "+v"(sum) : "v"(pairs));
    }
  }
  int64_t total = 0;
  LORALEI_UNROLL
  for (const I& sum : sums) total += sum[0];
  return static_cast<float>(total);
}

// By the bits of the weights.
ArithmeticChunk pairs_chunk_of(int bits) {
  return bits <= 4 ? pairs_chunk<8> : bits == 5 ? pairs_chunk<4> : bits == 6 ? pairs_chunk<2> : pairs_chunk<1>;
}
// Of a chunk, whatever the words: they divide kLoops.
constexpr double kPairsOps = static_cast<double>(kLoops) * 2 * kPairsSums * sizeof(I);
