// SPDX-License-Identifier: Apache-2.0
// Dot products of the rows of a group with multiply-add pairs, in the order written here
// (in_order.inl.h). No include guard: see target.h.
//
// Bytes can only be multiplied in pairs, whose sums take 16 bits. Small weights leave
// room there: the pairs of as many words as fit are added in 16 bits, exactly, and
// widened to 32 bits once. A block of 4-bit weights takes nine multiplications that way,
// where word by word it takes sixteen. Weights of q8_0 are signed and give their signs to
// the inputs: |w| <= 128 times 127, twice, just fits.

template <class Weights>
constexpr int words_in_16_bits() {
  return std::bit_floor(32767u / (2 * 127 * Weights::kLargest));
}

LORALEI_INLINE I multiply_pairs(I weights, I inputs) {
  I pairs;
  asm volatile("vpmaddubsw %2, %1, %0" : "=v"(pairs) : "v"(weights), "v"(inputs));
  return pairs;
}
LORALEI_INLINE I add_pairs(I a, I b) {
  asm volatile("vpaddw %1, %0, %0" : "+v"(a) : "v"(b));
  return a;
}
LORALEI_INLINE I widen_pairs(I pairs) {
  const I ones = iset1(0x00010001);
  asm volatile("vpmaddwd %1, %0, %0" : "+v"(pairs) : "v"(ones));
  return pairs;
}
LORALEI_INLINE I add_words(I a, I b) {
  asm volatile("vpaddd %1, %0, %0" : "+v"(a) : "v"(b));
  return a;
}
// pairs[i][v] = words [first, first + kFit) of vector v times row i, in 16 bits.
template <int kFit, int kRows, int kVectors, class Words>
LORALEI_INLINE void sum_pairs(const Words& words, int first, const std::byte* q, I (&pairs)[kRows][kVectors]) {
  LORALEI_UNROLL
  for (int j = first; j < first + kFit; ++j) {
    I magnitudes[kVectors];
    Signs signs[kVectors];
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      magnitudes[v] = words(v, j);
      if constexpr (Words::Weights::kSigned) {
        signs[v] = signs_of(magnitudes[v]);
        magnitudes[v] = magnitudes_of(magnitudes[v]);
      }
    }
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const I inputs = broadcast_word(q + i * kActivationBlock + 4 * j);
      LORALEI_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const I product =
            multiply_pairs(magnitudes[v], Words::Weights::kSigned ? give_signs(inputs, signs[v]) : inputs);
        pairs[i][v] = j == first ? product : add_pairs(pairs[i][v], product);
      }
    }
  }
}

// dots[i][v] = start of row i (0 where there are none) + words [kFirst, kFirst + kCount)
// of vector v times the row. An input word once broadcast serves all vectors.
// `words(v, j)` is word j of vector v, q int8 [kRows][32], start int32 [kRows].
template <bool kStarts, int kFirst, int kCount, int kRows, int kVectors, class Words>
LORALEI_INLINE void dots_in_order(const Words& words, const std::byte* q, const std::byte* start,
                                  I (&dots)[kRows][kVectors]) {
  constexpr int kMost = words_in_16_bits<typename Words::Weights>(), kFit = kMost < kCount ? kMost : kCount;
  // Rows whose pairs are held: where few words fit, there are others to hold.
  constexpr int kPass = kFit > 2 ? kRows : 1;
  static_assert(kFit >= 1 && kCount % kFit == 0);
  LORALEI_UNROLL
  for (int first = kFirst; first < kFirst + kCount; first += kFit) {
    LORALEI_UNROLL
    for (int row = 0; row < kRows; row += kPass) {
      I pairs[kPass][kVectors];
      sum_pairs<kFit>(words, first, q + row * kActivationBlock, pairs);
      LORALEI_UNROLL
      for (int i = 0; i < kPass; ++i) {
        LORALEI_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          I& dot = dots[row + i][v];
          const I sum = widen_pairs(pairs[i][v]);
          if (first != kFirst) {
            dot = add_words(dot, sum);
          } else {
            dot = kStarts ? add_words(sum, broadcast_word(start + 4 * (row + i))) : sum;
          }
        }
      }
    }
  }
}
