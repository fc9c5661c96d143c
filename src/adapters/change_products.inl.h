// SPDX-License-Identifier: Apache-2.0
// Sums of products on vectors of type F, of kLanes numbers. No include guard: see
// ops/cpu/target.h.

// kRows rows of x by four of y, whose sums are in registers.
void add_products(const float* x, int64_t x_rows, const float* y, int64_t y_rows, ChangeSquare& square) {
  static_assert(kChangeRanks % kRows == 0);
  for (int64_t i = 0; i < x_rows; i += kRows) {  // rows behind the last are there, whatever they hold
    const int64_t end = x == y ? std::min(i + kRows, x_rows) : y_rows;
    for (int64_t j = 0; j < end; j += 4) {
      const float* const from = x + i * kChangeColumns;
      const float* const by = y + j * kChangeColumns;
      F sums[kRows][4] = {};
      for (int64_t column = 0; column < kChangeColumns; column += kLanes) {
        F ours[kRows], theirs[4];
        LORALEI_UNROLL
        for (int r = 0; r < kRows; ++r) ours[r] = load(from + r * kChangeColumns + column);
        LORALEI_UNROLL
        for (int s = 0; s < 4; ++s) theirs[s] = load(by + s * kChangeColumns + column);
        LORALEI_UNROLL
        for (int r = 0; r < kRows; ++r) {
          LORALEI_UNROLL
          for (int s = 0; s < 4; ++s) sums[r][s] = fma(ours[r], theirs[s], sums[r][s]);
        }
      }
      LORALEI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        LORALEI_UNROLL
        for (int s = 0; s < 4; ++s)
          square[static_cast<size_t>((i + r) * kChangeRanks + j + s)] += static_cast<double>(sum_of(sums[r][s]));
      }
    }
  }
}
