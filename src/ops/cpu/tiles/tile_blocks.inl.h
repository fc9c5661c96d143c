// SPDX-License-Identifier: Apache-2.0
// What all kernels for tiles share: a tile's blocks one after the other, how they
// are asked for before they are needed, and the sizes groups of rows have. No include
// guard: see target.h.

template <class Format>
constexpr int block_bytes() {
  return Format::kHead + Format::kHigh + Format::kQuants;
}
template <class Format>
LORALEI_INLINE TileSections first_block(const std::byte* tile) {
  return {tile, tile + Format::kHead, tile + Format::kHead + Format::kHigh};
}
template <class Format>
LORALEI_INLINE void step_block(TileSections& at) {
  at.head += block_bytes<Format>();
  at.high += block_bytes<Format>();
  at.quants += block_bytes<Format>();
}

// How weights are asked for before they are needed. The processors' own prefetchers bring
// a stream to the second-level cache, but each page of 4 KiB is a new stream to them,
// which they notice some lines late. So each page's first lines are asked for while the
// page before it is read, a few with each block so that they do not compete for places on
// the way; nobody should ask for the lines between (that is slower). What arrives there
// is called to the first level later. All of it is inlined by force: GCC drops calls of
// a function (a lambda too) that does nothing but prefetch.
constexpr uintptr_t kPage = 4096;
constexpr int kPageStart = 8;  // lines

// `at` moves on by kBytes a call.
template <int kBytes>
LORALEI_INLINE void prefetch_next_page(const std::byte* at) {
  constexpr int kLines = kBytes < 512 ? 1 : 2;  // a call: about half a page for all
  constexpr uintptr_t kBegin = kPage / 4;
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto in_page = static_cast<uint32_t>((address - kBegin) & (kPage - 1));
  const uint32_t call = in_page / kBytes;  // of 32 bits: by one multiplication
  if (call >= kPageStart / kLines) return;
  const auto* const line = reinterpret_cast<const std::byte*>((address & ~(kPage - 1)) + kPage + call * kLines * 64);
  LORALEI_UNROLL
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(line + 64 * i, 0, 2);
}
template <int kBytes>
LORALEI_INLINE void bring_lines(const std::byte* at) {  // to the second-level cache
  LORALEI_UNROLL
  for (int i = 0; i < (kBytes + 63) / 64; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
}
template <int kBytes>
LORALEI_INLINE void call_lines(const std::byte* at) {
  LORALEI_UNROLL
  for (int i = 0; i < (kBytes + 63) / 64; ++i) __builtin_prefetch(at + 64 * i, 0, 3);
}
template <int kBytes>
LORALEI_INLINE void prefetch_lines(const std::byte* at) {
  call_lines<kBytes>(at);
  prefetch_next_page<kBytes>(at);
}

// Sizes a group may have: full groups have the last one, what is left of the rows the
// smallest that holds them.
constexpr int kGroupSizes[] = {1, 2, 3, 4, 6, 8, 12, 16};
static_assert(kGroupRows == 8 || kGroupRows == 16);
constexpr int kGroupKinds = kGroupRows == 16 ? 8 : 6;

int group_kind(int rows) {
  int kind = 0;
  while (kind + 1 < kGroupKinds && kGroupSizes[kind] < rows) ++kind;
  return kind;
}
