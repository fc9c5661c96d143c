// SPDX-License-Identifier: Apache-2.0
#include "tensor/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr DType kAll[] = {DType::kF32,  DType::kF16,   DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                          DType::kQ4_1, DType::kQ5_0,  DType::kQ5_1, DType::kQ4_K, DType::kQ5_K,
                          DType::kQ6_K, DType::kInt4G, DType::kF8G};

TEST(DType, NamesParseBackInAnyCase) {
  for (DType dtype : kAll) EXPECT_EQ(parse_dtype(dtype_info(dtype).name), dtype);
  EXPECT_EQ(parse_dtype("BF16"), DType::kBF16);
  EXPECT_EQ(parse_dtype("Q4_K"), DType::kQ4_K);
  EXPECT_EQ(parse_dtype("fp8"), DType::kF8);
  EXPECT_EQ(parse_dtype("q4_k_m"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DType, RowBytesCountsBlocks) {
  EXPECT_EQ(row_bytes(DType::kQ4_0, 64), 36);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420);
  EXPECT_EQ(row_bytes(DType::kBF16, 7), 14);
  EXPECT_FALSE(fits_blocks(DType::kQ4_K, 128));
}

TEST(Codec, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      EXPECT_EQ(f32_to_f16(value), bits);
    }
  }
}

TEST(Codec, HalfHasTheValuesOfTheStandard) {
  EXPECT_EQ(f16_to_f32(0x3C00), 1.0f);
  EXPECT_EQ(f16_to_f32(0xC000), -2.0f);
  EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x7C00), std::numeric_limits<float>::infinity());
}

// Between two neighbours the nearer one wins, and the even one in the middle; every gap
// of the positive halves is tried.
TEST(Codec, HalfRoundsToNearestEven) {
  for (uint16_t low = 0; low < 0x7BFF; ++low) {
    const uint16_t high = static_cast<uint16_t>(low + 1);
    const float middle = (f16_to_f32(low) + f16_to_f32(high)) / 2;  // exact in f32
    EXPECT_EQ(f32_to_f16(middle), (low & 1) == 0 ? low : high);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), high);
    EXPECT_EQ(f32_to_f16(-middle), ((low & 1) == 0 ? low : high) | 0x8000);
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(0x1p-26f), 0);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Codec, Bf16RoundsToNearestEven) {
  for (uint32_t low = 0; low < 0x7F7F; low += 3) {
    const float a = bf16_to_f32(static_cast<uint16_t>(low));
    const float middle = std::bit_cast<float>((low << 16) | 0x8000u);
    EXPECT_EQ(f32_to_bf16(a), low);
    EXPECT_EQ(f32_to_bf16(middle), (low & 1) == 0 ? low : low + 1);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>((low << 16) | 0x8001u)), low + 1);
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

void put_half(std::vector<std::byte>& block, float value) {
  const uint16_t bits = f32_to_f16(value);
  block.push_back(static_cast<std::byte>(bits & 255));
  block.push_back(static_cast<std::byte>(bits >> 8));
}
void put(std::vector<std::byte>& block, int value) { block.push_back(static_cast<std::byte>(value)); }

std::vector<float> decode(DType dtype, const std::vector<std::byte>& bytes) {
  const DTypeInfo info = dtype_info(dtype);
  const auto count = static_cast<int64_t>(bytes.size()) / info.block_bytes * info.block_elems;
  std::vector<float> out(static_cast<size_t>(count));
  decode_row(dtype, bytes.data(), out.data(), count);
  return out;
}

// e4m3 as its definition has it: (-1)^s 2^(e - 7) (1 + m / 8), or 2^-6
// m / 8 where e is 0.
double fp8_by_definition(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? size : -size;
}
// By looking at every code: the nearest, of two the even one, and the largest for
// what is beyond it.
int nearest_fp8(double x) {
  int best = 0;
  for (int code = 0; code < 0x7F; ++code) {
    const double apart = std::fabs(fp8_by_definition(code) - std::fabs(x));
    const double least = std::fabs(fp8_by_definition(best) - std::fabs(x));
    if (apart < least || (apart == least && code % 2 == 0)) best = code;
  }
  return std::signbit(x) ? best | 0x80 : best;
}

TEST(Codec, Fp8IsItsDefinitionForAllCodes) {
  for (int code = 0; code < 256; ++code) {
    const float value = fp8_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(f32_to_fp8(value) & 0x7F, 0x7F) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), fp8_by_definition(code)) << code;
    EXPECT_EQ(f32_to_fp8(value), code);
  }
  EXPECT_EQ(fp8_to_f32(0x7E), 448.0f);
  EXPECT_EQ(fp8_to_f32(0x01), 0x1p-9f);
}

TEST(Codec, Fp8RoundsToNearestEvenAndSaturates) {
  const auto expect = [](float x) {
    EXPECT_EQ(f32_to_fp8(x), nearest_fp8(static_cast<double>(x))) << x;
    EXPECT_EQ(f32_to_fp8(-x), nearest_fp8(-static_cast<double>(x))) << -x;
  };
  for (uint8_t low = 0; low < 0x7E; ++low) {
    const float middle = (fp8_to_f32(low) + fp8_to_f32(static_cast<uint8_t>(low + 1))) / 2;
    EXPECT_EQ(f32_to_fp8(middle), low % 2 == 0 ? low : low + 1);
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) expect(x);
  }
  for (const float x : {448.0f, 449.0f, 464.0f, 480.0f, 1e9f, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::denorm_min(), 0x1p-10f, 0x1p-11f})
    expect(x);
  EXPECT_EQ(f32_to_fp8(std::numeric_limits<float>::infinity()), 0x7E);
  EXPECT_EQ(f32_to_fp8(-std::numeric_limits<float>::infinity()), 0xFE);
  const uint64_t seed = 12;
  Prng prng(seed);
  SCOPED_TRACE("seed 12");
  for (int i = 0; i < 20000; ++i) {
    expect(std::ldexp(static_cast<float>(prng.uniform()), static_cast<int>(prng.below(24)) - 13));
  }
}

TEST(Codec, AnFp8VectorIsCoveredByItsScale) {
  const std::vector<float> x = {896, -896, 2, 0.3f, -0.001f, 0};  // scale 2
  EXPECT_EQ(vector_scale(DType::kF8, x.data(), 6), 2.0f);
  std::vector<std::byte> q(6);
  quantise_vector(DType::kF8, x.data(), 2.0f, q.data(), 6);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(static_cast<int>(q[i]), nearest_fp8(static_cast<double>(x[i]) / 2));
  const std::vector<float> infinite = {1, std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(std::isnan(vector_scale(DType::kF8, infinite.data(), 2)));
  quantise_vector(DType::kF8, infinite.data(), std::numeric_limits<float>::quiet_NaN(), q.data(), 2);
  EXPECT_EQ(q[1], std::byte{0});
}

TEST(Codec, Int8IsNearestEvenOfItsScale) {
  std::vector<float> x = {254, -254, 1, 3, -1, -3, 5, 0.999f, 0, 127.9f};  // scale 2: halves are ties
  EXPECT_EQ(vector_scale(DType::kI8, x.data(), 10), 2.0f);
  std::vector<std::byte> q(10);
  quantise_vector(DType::kI8, x.data(), 2.0f, q.data(), 10);
  EXPECT_EQ(decode(DType::kI8, q), (std::vector<float>{127, -127, 0, 2, 0, -2, 2, 0, 0, 64}));
  x = {0, -0.0f, 1e-38f};
  EXPECT_EQ(vector_scale(DType::kI8, x.data(), 3), 0.0f) << "too small for a normal scale";
  x[1] = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isnormal(vector_scale(DType::kI8, x.data(), 3)));
  x[2] = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(vector_scale(DType::kI8, x.data(), 3)));
  quantise_vector(DType::kI8, x.data(), std::numeric_limits<float>::quiet_NaN(), q.data(), 3);
  EXPECT_EQ(q[1], std::byte{0});
  EXPECT_EQ(decode(DType::kI8, {std::byte{0x80}, std::byte{0x7F}}), (std::vector<float>{-128, 127}));
}

TEST(Codec, SmallBlocksMadeByHand) {
  std::vector<std::byte> q8, q4_0, q4_1, q5_0, q5_1;
  put_half(q8, 0.5f);
  for (int i = 0; i < 32; ++i) put(q8, i - 16);
  put_half(q4_0, 0.25f);
  put_half(q4_1, 0.25f), put_half(q4_1, -1.5f);
  put_half(q5_0, 0.25f);
  put_half(q5_1, 0.25f), put_half(q5_1, 3.0f);
  const uint32_t high = 0xA5C3'0F69u;
  for (int i = 0; i < 4; ++i)
    put(q5_0, static_cast<int>(high >> (8 * i) & 255)), put(q5_1, static_cast<int>(high >> (8 * i) & 255));
  for (int i = 0; i < 16; ++i) {
    for (auto* block : {&q4_0, &q4_1, &q5_0, &q5_1}) put(*block, i | ((15 - i) << 4));
  }
  for (int i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? i : 31 - i;
    const int five = nibble | static_cast<int>((high >> i & 1) << 4);
    EXPECT_EQ(decode(DType::kQ8_0, q8)[i], 0.5f * (i - 16));
    EXPECT_EQ(decode(DType::kQ4_0, q4_0)[i], 0.25f * (nibble - 8));
    EXPECT_EQ(decode(DType::kQ4_1, q4_1)[i], 0.25f * nibble - 1.5f);
    EXPECT_EQ(decode(DType::kQ5_0, q5_0)[i], 0.25f * (five - 16));
    EXPECT_EQ(decode(DType::kQ5_1, q5_1)[i], 0.25f * five + 3.0f);
  }
}

// An independent statement of the K formats: where the scale, minimum and quantum of
// element e lie, bit by bit.
int k_scale(const std::vector<int>& packed, int j) {
  return j < 4 ? packed[j] % 64 : packed[j + 4] % 16 + packed[j - 4] / 64 * 16;
}
int k_min(const std::vector<int>& packed, int j) {
  return j < 4 ? packed[j + 4] % 64 : packed[j + 4] / 16 + packed[j] / 64 * 16;
}

TEST(Codec, K4AndK5BlocksMadeByHand) {
  Prng prng(7);
  for (bool five : {false, true}) {
    std::vector<std::byte> block;
    std::vector<int> packed(12), qh(32), qs(128);
    for (auto* bytes : {&packed, &qh, &qs}) {
      for (int& byte : *bytes) byte = static_cast<int>(prng.below(256));
    }
    put_half(block, 0.125f), put_half(block, 0.5f);
    for (int byte : packed) put(block, byte);
    if (five) {
      for (int byte : qh) put(block, byte);
    }
    for (int byte : qs) put(block, byte);
    const std::vector<float> out = decode(five ? DType::kQ5_K : DType::kQ4_K, block);
    for (int e = 0; e < 256; ++e) {
      const int sub = e / 32;  // eight sub-blocks; pairs share 32 bytes of nibbles
      int q = qs[sub / 2 * 32 + e % 32] / (sub % 2 == 0 ? 1 : 16) % 16;
      if (five) q += (qh[e % 32] >> sub & 1) * 16;
      EXPECT_EQ(out[e], 0.125f * k_scale(packed, sub) * q - 0.5f * k_min(packed, sub)) << e;
    }
  }
}

TEST(Codec, K6BlockMadeByHand) {
  Prng prng(8);
  std::vector<int> ql(128), qh(64), scales(16);
  for (auto* bytes : {&ql, &qh, &scales}) {
    for (int& byte : *bytes) byte = static_cast<int>(prng.below(256));
  }
  std::vector<std::byte> block;
  for (auto* bytes : {&ql, &qh, &scales}) {
    for (int byte : *bytes) put(block, byte);
  }
  put_half(block, 0.25f);
  const std::vector<float> out = decode(DType::kQ6_K, block);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, quarter = e % 128 / 32, l = e % 32;
    const int low = ql[half * 64 + quarter % 2 * 32 + l] / (quarter < 2 ? 1 : 16) % 16;
    const int high = qh[half * 32 + l] >> (2 * quarter) & 3;
    const int scale = static_cast<int8_t>(scales[e / 16]);
    EXPECT_EQ(out[e], 0.25f * scale * (low + 16 * high - 32)) << e;
  }
}

TEST(Codec, RoundTripStaysWithinHalfAStep) {
  Prng prng(3);
  std::vector<float> x(4096), back(4096);
  for (float& value : x) value = static_cast<float>(prng.uniform() * 4 - 2);
  for (DType dtype : kAll) {
    EXPECT_EQ(can_encode(dtype), dtype <= DType::kQ4_0);
    if (!can_encode(dtype)) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(dtype, 4096)));
    encode_row(dtype, x.data(), bytes.data(), 4096);
    decode_row(dtype, bytes.data(), back.data(), 4096);
    for (size_t block = 0; block < 4096; block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
      for (size_t i = block; i < block + 32; ++i) {
        // Distance of neighbouring codes; q4_0 cuts one step off at the side opposite the
        // largest element.
        float step = 0;
        if (dtype == DType::kF16) step = std::fabs(x[i]) * 0x1p-10f;
        if (dtype == DType::kBF16) step = std::fabs(x[i]) * 0x1p-7f;
        if (dtype == DType::kQ8_0) step = largest / 127 * 1.1f;  // the scale itself is rounded to f16
        if (dtype == DType::kQ4_0) step = 2 * largest / 8 * 1.01f;
        EXPECT_LE(std::fabs(back[i] - x[i]), step / 2) << dtype_info(dtype).name;
      }
    }
  }
}

TEST(Codec, Q4_0KeepsTheLargestElementAndRoundsAsGgml) {
  std::vector<float> x(32, 0.0f);
  x[3] = -4.0f;  // d = 0.5
  x[4] = 0.25f;  // 0.5 + 8.5 = 9.0 -> 9: ties go up
  x[20] = 3.9f;  // 7.8 + 8.5 = 16.3 -> clamped to 15
  std::vector<std::byte> block(18);
  encode_row(DType::kQ4_0, x.data(), block.data(), 32);
  const std::vector<float> out = decode(DType::kQ4_0, block);
  EXPECT_EQ(out[3], -4.0f);
  EXPECT_EQ(out[4], 0.5f);
  EXPECT_EQ(out[20], 3.5f);
  EXPECT_EQ(out[0], 0.0f);
}

TEST(Codec, Q8_0RoundsHalvesAwayFromZero) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f, x[1] = 0.5f, x[2] = -1.5f, x[3] = 1.49f;
  std::vector<std::byte> block(34);
  encode_row(DType::kQ8_0, x.data(), block.data(), 32);
  const std::vector<float> out = decode(DType::kQ8_0, block);
  EXPECT_EQ(out[0], 127.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], -2.0f);
  EXPECT_EQ(out[3], 1.0f);
}

// Each block has its own scale, and int4g its own zero point, which need not be whole.
TEST(Codec, OwnBlocksOfCheckpointsHaveTheirValues) {
  std::vector<std::byte> int4(20), fp8(132);
  const uint16_t d = f32_to_f16(0.25f), z = f32_to_f16(3.5f);
  std::memcpy(int4.data(), &d, 2);
  std::memcpy(int4.data() + 2, &z, 2);
  for (size_t i = 0; i < 16; ++i) int4[4 + i] = static_cast<std::byte>(i | (15 - i) << 4);
  std::vector<float> out(128);
  decode_row(DType::kInt4G, int4.data(), out.data(), 32);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], 0.25f * (static_cast<float>(i) - 3.5f));
    EXPECT_EQ(out[16 + i], 0.25f * (static_cast<float>(15 - i) - 3.5f));
  }
  const float scale = 0.1f;  // of no other format
  std::memcpy(fp8.data(), &scale, 4);
  for (size_t i = 0; i < 128; ++i) fp8[4 + i] = static_cast<std::byte>(2 * i);
  decode_row(DType::kF8G, fp8.data(), out.data(), 128);
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(out[i], 0.1f * fp8_to_f32(static_cast<uint8_t>(2 * i))) << i;
}

TEST(Codec, AnyInputIsDefined) {
  Prng prng(5);
  for (DType dtype : kAll) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(dtype, 1024)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng());
    std::vector<float> out(1024);
    decode_row(dtype, bytes.data(), out.data(), 1024);
    if (!can_encode(dtype)) continue;
    const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -3e38f,
                         1e-45f};
    for (size_t i = 0; i < out.size(); ++i) out[i] = bad[i % 4];
    encode_row(dtype, out.data(), bytes.data(), 1024);
  }
}

}  // namespace
}  // namespace loralei
