// SPDX-License-Identifier: Apache-2.0
// Tables and groups of the stream: every path the same words, from any integers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "codec/codec_test_util.h"
#include "codec/path.h"

namespace loralei {
namespace {

TEST(RansTables, EachSharesOutAllSlotsSymmetrically) {
  for (const RansTable& table : rans_tables().tables) {
    uint32_t sum = 0;
    for (const uint32_t entry : table.encode) sum += entry & (kRansTotal - 1);
    EXPECT_EQ(sum, kRansTotal);
    EXPECT_GE(table.encode[128] & (kRansTotal - 1), 1u);  // the escape
    for (size_t k = 1; k < 127; ++k) {
      const uint32_t up = table.encode[k] & (kRansTotal - 1), down = table.encode[256 - k] & (kRansTotal - 1);
      EXPECT_LE(up > down ? up - down : down - up, 1u);
    }
  }
}

// Where this fails on a machine or compiler, its blobs are not those of others.
TEST(RansTables, AreTheSameEverywhere) { EXPECT_EQ(rans_tables_hash(), 0x30b11addc7cb6fa7u); }

TEST(RansTables, ReciprocalsDivideExactly) {
  Prng prng(5);
  for (const RansTable& table : rans_tables().tables) {
    for (size_t place = 0; place < 256; ++place) {
      const uint32_t frequency = table.encode[place] & (kRansTotal - 1);
      if (frequency < 2) continue;
      for (int i = 0; i < 200; ++i) {
        uint32_t x = static_cast<uint32_t>(prng()) >> 1;
        if (i % 4 == 0) x = x / frequency * frequency;
        if (i % 4 == 1) x = x / frequency * frequency + frequency - 1;
        if (x >> 31 != 0) continue;
        ASSERT_EQ((uint64_t{x} * table.reciprocal[place] >> 32) >> (table.encode[place] >> 25), x / frequency);
      }
    }
  }
}

TEST(RansChoice, EveryByteIsOneFormOrRefused) {
  int valid = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (!RansChoice::valid(static_cast<uint8_t>(byte))) continue;
    ++valid;
    const RansChoice choice = RansChoice::of(static_cast<uint8_t>(byte));
    EXPECT_LT(choice.table, kRansTables);
    EXPECT_LE(choice.bits, choice.table < 0 ? kRansWidthMax : kRansShiftMax);
  }
  EXPECT_EQ(valid, kRansChoices);
}

std::vector<int16_t> random_integers(Prng& prng, int64_t count) {
  std::vector<int16_t> integers(static_cast<size_t>(count));
  const double spread = std::exp2(prng.uniform() * 16 - 4);
  const int kind = static_cast<int>(prng.below(4));
  for (int16_t& integer : integers) {
    double x = static_cast<double>(normal(prng)) * spread;
    if (kind == 1) x = std::log(prng.uniform() + 1e-9) * spread * (prng.below(2) == 0 ? 1 : -1);
    if (kind == 2 && prng.below(50) == 0) x *= 300;
    if (kind == 3) x = static_cast<double>(static_cast<int16_t>(prng()));
    integer = static_cast<int16_t>(std::clamp(x, -32768.0, 32767.0));
  }
  return integers;
}

// Encodes in `room` bytes behind a gap; the words, or nothing where there was no room.
std::vector<std::byte> words_of(const KvCodecPath& path, uint8_t choice, const std::vector<int16_t>& integers,
                                size_t room, RansWriter& writer) {
  std::vector<std::byte> bytes(room + 64, std::byte{0x5A});
  writer.floor = bytes.data() + 64;
  writer.at = bytes.data() + bytes.size();
  if (!path.encode_group(writer, choice, integers.data(), static_cast<int64_t>(integers.size()))) return {};
  return {bytes.data() + (writer.at - bytes.data()), bytes.data() + bytes.size()};
}

TEST(RansGroup, EveryPathWritesTheSameWordsAndReadsThemBack) {
  Prng seeds(21);
  for (int round = 0; round < 400; ++round) {
    const uint64_t seed = seeds();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const auto count = static_cast<int64_t>(16 * (1 + prng.below(130)));
    const std::vector<int16_t> integers = random_integers(prng, count);
    const KvCodecPath& plain = kv_codec_paths().front();
    const uint8_t best = plain.choose(integers.data(), count);
    // Any choice codes anything but raw ones that are too narrow.
    std::vector<uint8_t> choices = {best};
    for (int i = 0; i < 3; ++i)
      choices.push_back(static_cast<uint8_t>(kRansFirstTable + prng.below(kRansChoices - kRansFirstTable)));
    choices.push_back(RansChoice::raw(16));
    for (const uint8_t choice : choices) {
      SCOPED_TRACE("choice " + std::to_string(choice));
      RansWriter start;
      for (uint32_t& x : start.x) x = kRansLow + static_cast<uint32_t>(prng.below((1u << 31) - kRansLow));
      RansWriter reference = start;
      const std::vector<std::byte> words = words_of(plain, choice, integers, 8 * integers.size() + 256, reference);
      for (const KvCodecPath& path : kv_codec_paths()) {
        SCOPED_TRACE(path.name);
        EXPECT_EQ(path.choose(integers.data(), count), best);
        for (const size_t room : {8 * integers.size() + 256, words.size()}) {
          RansWriter writer = start;
          EXPECT_EQ(words_of(path, choice, integers, room, writer), words);
          EXPECT_EQ(writer.x, reference.x);
        }
        RansWriter writer = start;
        if (words.size() >= 2) {
          EXPECT_TRUE(words_of(path, choice, integers, words.size() - 2, writer).empty());
        }

        std::vector<std::byte> padded = words;
        padded.resize(words.size() + kRansOverread);
        const auto held = exact_copy(padded);
        RansReader reader{.at = held.get(), .end = held.get() + words.size(), .x = reference.x};
        std::vector<int16_t> back(integers.size());
        ASSERT_TRUE(path.decode_group(reader, choice, count, back.data()));
        EXPECT_EQ(back, integers);
        EXPECT_EQ(reader.at, reader.end);
        EXPECT_EQ(reader.x, start.x);
      }
    }
  }
}

// Words that nobody wrote: every path says the same of them, and stays within its bounds.
TEST(RansGroup, AnyWordsAreReadAlikeOnEveryPath) {
  Prng seeds(22);
  for (int round = 0; round < 3000; ++round) {
    const uint64_t seed = seeds();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const auto count = static_cast<int64_t>(16 * (1 + prng.below(40)));
    const auto choice = static_cast<uint8_t>(prng.below(kRansChoices));
    std::vector<std::byte> bytes(2 * prng.below(300) + kRansOverread);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng());
    const auto held = exact_copy(bytes);
    RansReader start{.at = held.get(), .end = held.get() + bytes.size() - kRansOverread};
    for (uint32_t& x : start.x) x = kRansLow + static_cast<uint32_t>(prng.below((1u << 31) - kRansLow));
    RansReader reference = start;
    std::vector<int16_t> expected(static_cast<size_t>(count)), got(static_cast<size_t>(count));
    const bool ok = kv_codec_paths().front().decode_group(reference, choice, count, expected.data());
    for (const KvCodecPath& path : kv_codec_paths()) {
      SCOPED_TRACE(path.name);
      RansReader reader = start;
      ASSERT_EQ(path.decode_group(reader, choice, count, got.data()), ok);
      if (!ok) continue;
      EXPECT_EQ(got, expected);
      EXPECT_EQ(reader.at, reference.at);
      EXPECT_EQ(reader.x, reference.x);
    }
  }
}

// Of normal integers the stream takes hardly more than their entropy.
TEST(RansGroup, TakesHardlyMoreThanTheEntropy) {
  Prng prng(23);
  for (const double sigma : {0.3, 0.7, 1.0, 2.0, 4.0, 9.0, 30.0, 200.0}) {
    constexpr int64_t kCount = 1 << 16;
    std::vector<int16_t> integers(kCount);
    for (int16_t& integer : integers)
      integer = static_cast<int16_t>(std::lround(static_cast<double>(normal(prng)) * sigma));
    double entropy = 0;
    for (int k = -2000; k <= 2000; ++k) {
      const auto occurs = static_cast<double>(std::count(integers.begin(), integers.end(), static_cast<int16_t>(k)));
      if (occurs > 0) entropy -= occurs / kCount * std::log2(occurs / kCount);
    }
    RansWriter writer;
    writer.x.fill(kRansLow);
    const uint8_t choice = kv_codec_path().choose(integers.data(), kCount);
    const auto words = words_of(kv_codec_path(), choice, integers, 4 * kCount, writer);
    const double bits = 8.0 * static_cast<double>(words.size()) / kCount;
    EXPECT_LT(bits, entropy * 1.01 + 0.01) << sigma;
  }
}

}  // namespace
}  // namespace loralei
