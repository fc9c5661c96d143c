// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of unsigned weights and signed inputs with AVX-512 VNNI. No
// include guard: see target.h.

constexpr bool kUnsignedDot = true;  // any unsigned byte times any signed byte, exact
constexpr int kGroupRows = 16;       // rows rounded together
constexpr int kPackedRows = 8;       // groups of more rows get the weights written out, unless few_rows() says else
constexpr int kWideRows = 8;         // whose sums of two tiles registers hold

// sum += weights times the four inputs at `inputs`. Written out because the compiler
// would spend a register on the broadcast.
template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, const std::byte* inputs) {
  static_assert(!kSigned);
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(inputs)));
  return sum;
}

// The same with inputs that are there already, or a word of them, where the order of
// instructions is ours.
LORALEI_INLINE void add_dots(I& sum, I weights, I inputs) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(inputs));
}
LORALEI_INLINE void add_dots(I& sum, I weights, const std::byte* word) {
  asm volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(word)));
}
