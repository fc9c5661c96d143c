// SPDX-License-Identifier: Apache-2.0
#include "codec/rans_tables.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>

#include "base/check.h"
#include "base/fast_hash.h"

namespace loralei {
namespace {

// --- tails of the shapes, in units of 2^-32, at kGrid points to a standard deviation

constexpr int kGrid = 64;
constexpr int kReach = 20;  // standard deviations; beyond: nothing
constexpr int kPoints = kGrid * kReach;
constexpr uint64_t kOne = uint64_t{1} << 32;
// Rounded to 2^-32, h = 1 / kGrid:
constexpr uint64_t kExpH2 = 0xfff00080;        // exp(-h^2)
constexpr uint64_t kExpH2Eighth = 0xfffe0002;  // exp(-h^2 / 8)
constexpr uint64_t kExpSqrt2H = 0xfa67ba65;    // exp(-sqrt(2) h)

using Tail = std::array<uint64_t, kPoints + 1>;  // the share of |x| beyond i / kGrid

constexpr uint64_t times(uint64_t a, uint64_t b) { return (a * b + (kOne >> 1)) >> 32; }  // of at most 1 each

// The density at the middle of each interval, by the ratio from one to the next, which
// itself shrinks by a constant; then summed from the far end.
Tail gaussian_tail() {
  std::array<uint64_t, kPoints> density{};
  uint64_t value = kExpH2Eighth, ratio = kExpH2;
  for (uint64_t& at : density) {
    at = value;
    value = times(value, ratio);
    ratio = times(ratio, kExpH2);
  }
  Tail tail{};
  for (int i = kPoints; i-- > 0;)
    tail[static_cast<size_t>(i)] = tail[static_cast<size_t>(i) + 1] + density[static_cast<size_t>(i)];
  const uint64_t sum = tail[0];  // below 2^39
  for (uint64_t& at : tail) at = at * (kOne >> 8) / (sum >> 8);
  return tail;
}

Tail laplace_tail() {
  Tail tail{};
  uint64_t value = kOne - 1;
  for (uint64_t& at : tail) {
    at = value;
    value = times(value, kExpSqrt2H);
  }
  return tail;
}

// Linear between the points; `at` in 2^-16 points.
uint64_t tail_at(const Tail& tail, uint64_t at) {
  const uint64_t point = at >> 16, part = at & 0xFFFF;
  if (point >= kPoints) return 0;
  const uint64_t here = tail[point], next = tail[point + 1];
  return here - ((here - next) * part >> 16);
}

// --- frequencies

// Standard deviations in 2^-16: 1/8 times powers of the fourth root of 2.
uint64_t scale_of(int index) {
  constexpr uint64_t kRoots[4] = {65536, 77936, 92682, 110218};
  return (kRoots[index % 4] << (index / 4)) >> 3;
}

using Frequencies = std::array<uint32_t, 256>;

// Each symbol's share, at least 1, by largest remainder: what is missing goes to those
// that lack most, what is too much comes from those that have most beyond their share.
void share_out(const std::array<uint64_t, 256>& weights, const std::array<uint8_t, 256>& order, int symbols,
               Frequencies& frequencies) {
  uint64_t sum = 0;
  for (const uint64_t weight : weights) sum += weight;
  int64_t left = kRansTotal;
  for (int i = 0; i < symbols; ++i) {
    const size_t symbol = order[static_cast<size_t>(i)];
    frequencies[symbol] = std::max<uint32_t>(1, static_cast<uint32_t>(weights[symbol] * kRansTotal / sum));
    left -= frequencies[symbol];
  }
  while (left != 0) {
    size_t best = 256;
    int64_t most = 0;
    for (int i = 0; i < symbols; ++i) {
      const size_t symbol = order[static_cast<size_t>(i)];
      if (left < 0 && frequencies[symbol] == 1) continue;
      const int64_t lacks =
          static_cast<int64_t>(weights[symbol] * kRansTotal) - static_cast<int64_t>(frequencies[symbol] * sum);
      const int64_t want = left > 0 ? lacks : -lacks;
      if (best == 256 || want > most) {
        best = symbol;
        most = want;
      }
    }
    frequencies[best] = left > 0 ? frequencies[best] + 1 : frequencies[best] - 1;
    left += left > 0 ? -1 : 1;
  }
}

Frequencies frequencies_of(const Tail& tail, uint64_t scale) {
  // The share beyond |x| = k - 1/2, in the tail's units.
  const auto beyond = [&](uint64_t k) { return tail_at(tail, ((2 * k - 1) * kGrid << 31) / scale); };
  constexpr uint64_t kRare = kOne >> (kRansBits + 2);  // what is beyond is escaped
  std::array<uint64_t, 256> weights{};
  std::array<uint8_t, 256> order{};  // 0, 1, -1, 2, -2, ... escape
  int symbols = 0;
  uint64_t k = 1;
  weights[0] = kOne - beyond(1);
  order[static_cast<size_t>(symbols++)] = 0;
  for (; k <= 127 && beyond(k) > kRare; ++k) {
    const uint64_t share = beyond(k) - beyond(k + 1);
    for (const int symbol : {static_cast<int>(k), -static_cast<int>(k)}) {
      const auto place = static_cast<uint8_t>(symbol);
      weights[place] = share / 2;
      order[static_cast<size_t>(symbols++)] = place;
    }
  }
  constexpr auto kEscapePlace = static_cast<uint8_t>(kRansEscape);
  weights[kEscapePlace] = beyond(k);
  order[static_cast<size_t>(symbols++)] = kEscapePlace;
  Frequencies frequencies{};
  share_out(weights, order, symbols, frequencies);
  return frequencies;
}

// --- what coding needs of them

// Bits of 4096 / frequency in kRansCostUnits, rounded down: the logarithm by squaring.
uint32_t cost_of(uint32_t frequency) {
  const int whole = std::bit_width(frequency) - 1;
  uint64_t x = (uint64_t{frequency} << 31) >> whole;  // 1 .. 2 in 2^-31
  uint32_t log = 0;
  for (int bit = 0; bit < 8; ++bit) {
    x = x * x >> 31;
    log <<= 1;
    if (x >= uint64_t{1} << 32) {
      log |= 1;
      x >>= 1;
    }
  }
  return static_cast<uint32_t>(kRansBits - whole) * kRansCostUnit - log;
}

void fill(const Frequencies& frequencies, RansTable& table) {
  uint32_t start = 0;
  for (size_t place = 0; place < 256; ++place) {
    const uint32_t frequency = frequencies[place];
    if (frequency == 0) continue;
    for (uint32_t i = 0; i < frequency; ++i)
      table.decode[start + i] = static_cast<uint32_t>(place) << 24 | frequency << 12 | i;
    uint32_t bias = start, shift = 0;
    if (frequency == 1) {
      table.reciprocal[place] = ~0u;
      bias += kRansTotal - 1;
    } else {
      const int bits = std::bit_width(frequency - 1);
      table.reciprocal[place] = static_cast<uint32_t>(((uint64_t{1} << (bits + 31)) + frequency - 1) / frequency);
      shift = static_cast<uint32_t>(bits - 1);
    }
    table.encode[place] = frequency | bias << 12 | shift << 25;
    start += frequency;
  }
  CHECK(start == kRansTotal);
}

std::unique_ptr<RansTables> make_tables() {
  auto made = std::make_unique<RansTables>();
  const Tail gaussian = gaussian_tail(), laplace = laplace_tail();
  Tail between{};
  for (size_t i = 0; i < between.size(); ++i) between[i] = (gaussian[i] + laplace[i]) / 2;
  const Tail* const shapes[kRansShapes] = {&gaussian, &laplace, &between};
  for (int t = 0; t < kRansTables; ++t) {
    const auto at = static_cast<size_t>(t);
    const Frequencies frequencies = frequencies_of(*shapes[t / kRansScales], scale_of(t % kRansScales));
    fill(frequencies, made->tables[at]);
    constexpr auto kEscapePlace = static_cast<uint8_t>(kRansEscape);
    const uint32_t escape = cost_of(frequencies[kEscapePlace]) + kRansEscapeBits * kRansCostUnit;
    for (size_t place = 0; place < 256; ++place) {
      const bool coded = frequencies[place] > 0 && place != kEscapePlace;
      made->costs[place][at] = static_cast<uint16_t>(coded ? cost_of(frequencies[place]) : escape);
    }
  }
  return made;
}

}  // namespace

const RansTables& rans_tables() {
  static const std::unique_ptr<const RansTables> tables = make_tables();
  return *tables;
}

uint64_t rans_tables_hash() {
  uint64_t hash = 0;
  for (const RansTable& table : rans_tables().tables) {
    std::array<uint32_t, 256> frequencies;
    for (size_t i = 0; i < 256; ++i) frequencies[i] = table.encode[i] & (kRansTotal - 1);
    hash = fast_hash(reinterpret_cast<const std::byte*>(frequencies.data()), sizeof frequencies, hash);
  }
  return hash;
}

}  // namespace loralei
