// SPDX-License-Identifier: Apache-2.0
// Which table a group of integers takes: from its histogram, by the exact cost of each.
// The inner loops have constant bounds, which compilers turn into vectors of the region's
// set.

// counts[uint8_t(symbol)] of the integers >> shift, escapes at their own place.
inline void count_integers(const int16_t* integers, int64_t count, int shift, uint32_t* counts) {
  uint32_t parts[4][256] = {};  // equal neighbours do not wait for each other
  for (int64_t at = 0; at < count; at += 16) {
    uint8_t places[16];
    for (int i = 0; i < 16; ++i) {
      const auto symbol = static_cast<int16_t>(integers[at + i] >> shift);
      const bool coded = symbol >= -127 && symbol <= 127;
      places[i] = static_cast<uint8_t>(coded ? symbol : int16_t{kRansEscape});
    }
    for (int i = 0; i < 16; ++i) ++parts[i & 3][places[i]];
  }
  for (int i = 0; i < 256; ++i) counts[i] = parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i];
}

// Bits that hold every integer in two's complement; 0: all are zero.
inline int integer_width(const int16_t* integers, int64_t count) {
  uint16_t bits[16] = {}, any[16] = {};
  for (int64_t at = 0; at < count; at += 16) {
    for (int i = 0; i < 16; ++i) {
      bits[i] = static_cast<uint16_t>(bits[i] | (integers[at + i] ^ (integers[at + i] >> 15)));
      any[i] = static_cast<uint16_t>(any[i] | integers[at + i]);
    }
  }
  uint32_t all_bits = 0, all_any = 0;
  for (int i = 0; i < 16; ++i) {
    all_bits |= bits[i];
    all_any |= any[i];
  }
  return all_any == 0 ? 0 : std::bit_width(all_bits) + 1;
}

inline void sum_costs(const uint32_t* counts, uint32_t* sums) {
  constexpr int kStride = RansTables::kCostStride;
  const auto& costs = rans_tables().costs;
  for (int t = 0; t < kStride; ++t) sums[t] = 0;
  for (size_t place = 0; place < 256; ++place) {
    const uint32_t occurs = counts[place];
    if (occurs == 0) continue;
    const uint16_t* const row = costs[place].data();
    for (int t = 0; t < kStride; ++t) sums[t] += occurs * row[t];
  }
}

uint8_t choose(const int16_t* integers, int64_t count) {
  const int width = integer_width(integers, count);
  if (width == 0) return RansChoice::raw(0);
  uint8_t best = RansChoice::raw(width);
  int64_t least = kRansCostUnit * width * count;
  const auto offer = [&](uint8_t choice, int64_t cost) {
    if (cost >= least) return;
    least = cost;
    best = choice;
  };
  uint32_t counts[256], sums[RansTables::kCostStride];
  count_integers(integers, count, 0, counts);
  sum_costs(counts, sums);
  for (int t = 0; t < kRansTables; ++t) offer(RansChoice::plain(t), sums[t]);
  constexpr auto kEscapePlace = static_cast<uint8_t>(kRansEscape);
  if (int64_t{counts[kEscapePlace]} * 256 <= count) return best;  // few: low bits gain nothing
  for (int shift = 1; shift <= kRansShiftMax; ++shift) {
    count_integers(integers, count, shift, counts);
    sum_costs(counts, sums);
    const int64_t low = kRansCostUnit * shift * count;
    for (int i = 0; i < kRansShiftTables; ++i) {
      const uint8_t choice = RansChoice::shifted(i, shift);
      offer(choice, low + sums[RansChoice::of(choice).table]);
    }
    if (counts[kEscapePlace] == 0) break;
  }
  return best;
}
