// SPDX-License-Identifier: Apache-2.0
// What keeps a loop to the order it is written in, and what such loops over blocks have
// in common. No include guard: see target.h.

// The compiler would hold the sums of several blocks in registers and spill what
// is used more often.
LORALEI_INLINE void keep_in_memory(float* sums) { asm volatile("" : : "r"(sums) : "memory"); }
// Everything read from here on is addressed from this pointer, with constant offsets.
template <class T>
LORALEI_INLINE const T* as_base(const T* p) {
  asm volatile("" : "+r"(p));
  return p;
}
LORALEI_INLINE I broadcast_word(const std::byte* word) {
  I words;
  asm volatile("vpbroadcastd %1, %0" : "=v"(words) : "m"(*reinterpret_cast<const int32_t*>(word)));
  return words;
}

LORALEI_INLINE F broadcast_number(const std::byte* number) {
  float value;
  std::memcpy(&value, number, sizeof value);
  return set1(value);
}

// What scales the dots of some rows: of the blocks, and f32 [kRows] of the
// rows (ops/args.h).
template <int kBlocks>
struct BlockScales {
  F scale[kBlocks], min[kBlocks];
  const std::byte *d = nullptr, *s = nullptr;
};
