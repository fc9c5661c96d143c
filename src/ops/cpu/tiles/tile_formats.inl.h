// SPDX-License-Identifier: Apache-2.0
// The quantised formats as the integer kernels see them in tiles (tensor/tile_layout.h):
// eight words of unsigned weights for a block of 32 inputs, and the scales that go with
// them. No include guard: see target.h.
//
// `lane` is the first of the kLanes outputs. Word j has inputs 4j .. 4j+3 of the block.
// kMin: a minimum for each scale. kHalves: a scale (and minimum) for each 16 numbers.
// k256: blocks of 256.

LORALEI_INLINE I load_words(const std::byte* section, int word, int lane) {
  return load_bits(section + (word * kRowTile + lane) * 4);
}
LORALEI_INLINE F load_scales(const std::byte* head, int number, int lane) {
  return from_f16(load_halves(head + (number * kRowTile + lane) * 2));
}
LORALEI_INLINE I low_nibbles(I words) { return iand(words, iset1(0x0F0F0F0F)); }
LORALEI_INLINE I high_nibbles(I words) { return iand(ishr_const<4>(words), iset1(0x0F0F0F0F)); }

template <int kHigh>
LORALEI_INLINE I nibbles(I words) {
  return kHigh != 0 ? high_nibbles(words) : low_nibbles(words);
}

// Word j of a block of nibbles: inputs 0..15 in the low ones of four words, 16..31
// in the high ones.
LORALEI_INLINE I nibble_word(const std::byte* quants, int lane, int j) {
  return j < 4 ? low_nibbles(load_words(quants, j, lane)) : high_nibbles(load_words(quants, j - 4, lane));
}
// Bit 4j+i of `bits` becomes bit 4 of byte i: the four copies of the nibble that the
// product makes never overlap.
LORALEI_INLINE I fifth_bits(I bits, int j) {
  const I nibble = iand(ishr(bits, 4 * j), iset1(0x0F));
  return iand(imul(nibble, iset1(0x02040810)), iset1(0x10101010));
}

// --- formats of 32 numbers: one scale, perhaps a minimum
struct TileQ8_0 {
  static constexpr int kHead = 32, kHigh = 0, kQuants = 512, kLargest = kUnsignedDot ? 255 : 128;
  static constexpr bool k256 = false, kMin = false, kHalves = false, kSigned = !kUnsignedDot;
  static constexpr ZeroPoint kZero = kUnsignedDot ? ZeroPoint::k128 : ZeroPoint::kNone;
  static LORALEI_INLINE F scale(const std::byte* head, int lane) { return load_scales(head, 0, lane); }
  static LORALEI_INLINE I word(const TileSections& at, int lane, int j) {
    const I words = load_words(at.quants, j, lane);
    return kUnsignedDot ? ixor(words, iset1(static_cast<int>(0x80808080))) : words;
  }
};
struct TileQ4_0 {
  static constexpr int kHead = 32, kHigh = 0, kQuants = 256, kLargest = 15;
  static constexpr bool k256 = false, kMin = false, kHalves = false, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::k8;
  static LORALEI_INLINE F scale(const std::byte* head, int lane) { return load_scales(head, 0, lane); }
  static LORALEI_INLINE I word(const TileSections& at, int lane, int j) { return nibble_word(at.quants, lane, j); }
};
struct TileQ4_1 : TileQ4_0 {
  static constexpr int kHead = 64;
  static constexpr bool kMin = true;
  static constexpr ZeroPoint kZero = ZeroPoint::kNone;
  static LORALEI_INLINE F min(const std::byte* head, int lane) { return load_scales(head, 1, lane); }
};
struct TileInt4G : TileQ4_1 {
  static LORALEI_INLINE F min(const std::byte* head, int lane) {
    return sub(zero(), mul(load_scales(head, 0, lane), load_scales(head, 1, lane)));
  }
};
struct TileQ5_0 {
  static constexpr int kHead = 32, kHigh = 64, kQuants = 256, kLargest = 31;
  static constexpr bool k256 = false, kMin = false, kHalves = false, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::k16;
  static LORALEI_INLINE F scale(const std::byte* head, int lane) { return load_scales(head, 0, lane); }
  static LORALEI_INLINE I word(const TileSections& at, int lane, int j) {
    return ior(nibble_word(at.quants, lane, j), fifth_bits(load_words(at.high, 0, lane), j));
  }
};
struct TileQ5_1 : TileQ5_0 {
  static constexpr int kHead = 64;
  static constexpr bool kMin = true;
  static constexpr ZeroPoint kZero = ZeroPoint::kNone;
  static LORALEI_INLINE F min(const std::byte* head, int lane) { return load_scales(head, 1, lane); }
};

// Where a nibble means what a table says: unsigned dot products want values above zero.
constexpr int32_t table_word(const int8_t (&values)[16], int word, int zero) {
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= static_cast<uint32_t>((values[4 * word + i] + zero) & 255) << (8 * i);
  return static_cast<int32_t>(bytes);
}
template <int kZero>
LORALEI_INLINE I iq4_values(I nibbles) {
  constexpr int32_t kWords[4] = {table_word(kIq4Values, 0, kZero), table_word(kIq4Values, 1, kZero),
                                 table_word(kIq4Values, 2, kZero), table_word(kIq4Values, 3, kZero)};
  return look_up(byte_table(kWords), nibbles);
}
LORALEI_INLINE I mxfp4_values(I nibbles) {
  constexpr int32_t kWords[4] = {table_word(kMxfp4Values, 0, 12), table_word(kMxfp4Values, 1, 12),
                                 table_word(kMxfp4Values, 2, 12), table_word(kMxfp4Values, 3, 12)};
  return look_up(byte_table(kWords), nibbles);
}
struct TileIQ4_NL : TileQ8_0 {
  static constexpr int kQuants = 256, kLargest = kUnsignedDot ? 241 : 127;
  static LORALEI_INLINE I word(const TileSections& at, int lane, int j) {
    return iq4_values<zero_value(kZero)>(nibble_word(at.quants, lane, j));
  }
};
struct TileMXFP4 : TileQ4_0 {
  static constexpr int kHead = 16, kLargest = 24;
  static constexpr ZeroPoint kZero = ZeroPoint::k12;
  // mxfp4_scale(): of two candidates the other one is too small.
  static LORALEI_INLINE F scale(const std::byte* head, int lane) {
    const I e = load_u8(head + lane);
    return float_of(imax(ishl_const<23>(isub(e, iset1(1))), ishl_const<21>(iadd(e, iset1(1)))));
  }
  static LORALEI_INLINE I word(const TileSections& at, int lane, int j) {
    return mxfp4_values(nibble_word(at.quants, lane, j));
  }
};

// --- formats of 256 numbers
// The block of 32 is part kPart of half `half`, whose sections half_of gives.

// The eight scales (and minima) of a block times d (and -dmin), [8][kLanes] each.
LORALEI_INLINE void k_tile_scales(const std::byte* head, int lane, float* scales, float* mins) {
  const F d = load_scales(head, 0, lane);
  const F dmin = load_scales(head, 1, lane);
  const std::byte* packed = head + 2 * kRowTile * 2;
  const I words[3] = {load_words(packed, 0, lane), load_words(packed, 1, lane), load_words(packed, 2, lane)};
  const I six = iset1(0x3F3F3F3F), four = iset1(0x0F0F0F0F), two = iset1(0x30303030);
  const I scale[2] = {iand(words[0], six), ior(iand(words[2], four), iand(ishr_const<2>(words[0]), two))};
  const I min[2] = {iand(words[1], six), ior(iand(ishr_const<4>(words[2]), four), iand(ishr_const<2>(words[1]), two))};
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) {
    store(scales + j * kLanes, mul(d, to_float(iand(ishr(scale[j / 4], 8 * (j % 4)), iset1(0xFF)))));
    store(mins + j * kLanes, sub(zero(), mul(dmin, to_float(iand(ishr(min[j / 4], 8 * (j % 4)), iset1(0xFF))))));
  }
}

struct TileQ4_K {
  static constexpr int kHead = 256, kHigh = 0, kQuants = 2048, kLargest = 15;
  static constexpr bool k256 = true, kMin = true, kHalves = false, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::kNone;
  static LORALEI_INLINE void scales(const TileSections& at, int lane, float* scales, float* mins) {
    k_tile_scales(at.head, lane, scales, mins);
  }
  static LORALEI_INLINE TileSections half_of(const TileSections& at, int half) {
    return {at.head, at.high, at.quants + half * kQuants / 2};
  }
  template <int kPart>
  static LORALEI_INLINE I word(const TileSections& at, int lane, int, int j) {
    return nibbles<kPart % 2>(load_words(at.quants, kPart / 2 * 8 + j, lane));
  }
};
struct TileQ5_K {
  static constexpr int kHead = 256, kHigh = 512, kQuants = 2048, kLargest = 31;
  static constexpr bool k256 = true, kMin = true, kHalves = false, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::kNone;
  static LORALEI_INLINE void scales(const TileSections& at, int lane, float* scales, float* mins) {
    k_tile_scales(at.head, lane, scales, mins);
  }
  static LORALEI_INLINE TileSections half_of(const TileSections& at, int half) { return TileQ4_K::half_of(at, half); }
  template <int kPart>
  static LORALEI_INLINE I word(const TileSections& at, int lane, int half, int j) {
    const I bits = move_bit<4>(load_words(at.high, j, lane), 4 * half + kPart);
    return ior(TileQ4_K::word<kPart>(at, lane, half, j), iand(bits, iset1(0x10101010)));
  }
};
struct TileQ6_K {
  static constexpr int kHead = 288, kHigh = 1024, kQuants = 2048, kLargest = 63;
  static constexpr bool k256 = true, kMin = false, kHalves = true, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::k32;
  // [16][kLanes]: two for each block of 32
  static LORALEI_INLINE void scales(const TileSections& at, int lane, float* scales, float*) {
    const F d = load_scales(at.head, 0, lane);
    LORALEI_UNROLL
    for (int j = 0; j < 16; ++j) {
      const I words = load_words(at.head + kRowTile * 2, j / 4, lane);
      store(scales + j * kLanes, mul(d, to_float(isar_const<24>(ishl(words, 24 - 8 * (j % 4))))));
    }
  }
  static LORALEI_INLINE TileSections half_of(const TileSections& at, int half) {
    return {at.head, at.high + half * kHigh / 2, at.quants + half * kQuants / 2};
  }
  template <int kPart>
  static LORALEI_INLINE I word(const TileSections& at, int lane, int, int j) {
    const I low = nibbles<kPart / 2>(load_words(at.quants, 8 * (kPart % 2) + j, lane));
    const I words = load_words(at.high, j, lane);
    const I high = kPart < 2 ? ishl_const<4 - 2 * (kPart % 2)>(words) : ishr_const<2 * (kPart % 2)>(words);
    return ior(low, iand(high, iset1(0x30303030)));
  }
};

// Formats of two and three bits: four numbers a byte, whose sixteen inputs of a scale lie
// side by side, 32 inputs of a part in eight words.
LORALEI_INLINE I two_bits(I words) { return iand(words, iset1(0x03030303)); }
struct TileQ2_K {
  static constexpr int kHead = 320, kHigh = 0, kQuants = 1024, kLargest = 3;
  static constexpr bool k256 = true, kMin = true, kHalves = true, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::kNone;
  // [16][kLanes] each
  static LORALEI_INLINE void scales(const TileSections& at, int lane, float* scales, float* mins) {
    const F d = load_scales(at.head, 0, lane), dmin = load_scales(at.head, 1, lane);
    LORALEI_UNROLL
    for (int j = 0; j < 16; ++j) {
      const I packed = ishr(load_words(at.head + 2 * kRowTile * 2, j / 4, lane), 8 * (j % 4));
      store(scales + j * kLanes, mul(d, to_float(iand(packed, iset1(15)))));
      store(mins + j * kLanes, sub(zero(), mul(dmin, to_float(iand(ishr_const<4>(packed), iset1(15))))));
    }
  }
  static LORALEI_INLINE TileSections half_of(const TileSections& at, int half) {
    return {at.head, at.high, at.quants + half * kQuants / 2};
  }
  template <int kPart>
  static LORALEI_INLINE I word(const TileSections& at, int lane, int, int j) {
    return two_bits(ishr_const<2 * kPart>(load_words(at.quants, j, lane)));
  }
};
struct TileQ3_K {
  static constexpr int kHead = 224, kHigh = 512, kQuants = 1024, kLargest = 7;
  static constexpr bool k256 = true, kMin = false, kHalves = true, kSigned = false;
  static constexpr ZeroPoint kZero = ZeroPoint::k4;
  // [16][kLanes]; q3_k_scale()
  static LORALEI_INLINE void scales(const TileSections& at, int lane, float* scales, float*) {
    const F d = load_scales(at.head, 0, lane);
    const std::byte* packed = at.head + kRowTile * 2;
    const I high = load_words(packed, 2, lane);
    LORALEI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const I low = load_words(packed, i % 2, lane);
      const I six = ior(i < 2 ? low_nibbles(low) : high_nibbles(low), ishl_const<4>(two_bits(ishr(high, 2 * i))));
      LORALEI_UNROLL
      for (int j = 0; j < 4; ++j) {
        const I scale = isub(iand(ishr(six, 8 * j), iset1(63)), iset1(32));
        store(scales + (4 * i + j) * kLanes, mul(d, to_float(scale)));
      }
    }
  }
  static LORALEI_INLINE TileSections half_of(const TileSections& at, int half) { return TileQ2_K::half_of(at, half); }
  template <int kPart>
  static LORALEI_INLINE I word(const TileSections& at, int lane, int half, int j) {
    const I bits = move_bit<2>(load_words(at.high, j, lane), 4 * half + kPart);
    return ior(TileQ2_K::word<kPart>(at, lane, half, j), iand(bits, iset1(0x04040404)));
  }
};

struct TileIQ4_XS {
  static constexpr int kHead = 128, kHigh = 0, kQuants = 2048, kLargest = TileIQ4_NL::kLargest;
  static constexpr bool k256 = true, kMin = false, kHalves = false, kSigned = TileIQ4_NL::kSigned;
  static constexpr ZeroPoint kZero = TileIQ4_NL::kZero;
  // [8][kLanes]; iq4_xs_scale()
  static LORALEI_INLINE void scales(const TileSections& at, int lane, float* scales, float*) {
    const F d = load_scales(at.head, 0, lane);
    const I high = load_u16(at.head + (kRowTile + lane) * 2), low = load_words(at.head + 2 * kRowTile * 2, 0, lane);
    LORALEI_UNROLL
    for (int j = 0; j < 8; ++j) {
      const I six = ior(iand(ishr(low, 4 * j), iset1(15)), ishl_const<4>(iand(ishr(high, 2 * j), iset1(3))));
      store(scales + j * kLanes, mul(d, to_float(isub(six, iset1(32)))));
    }
  }
  static LORALEI_INLINE TileSections half_of(const TileSections& at, int half) { return TileQ4_K::half_of(at, half); }
  template <int kPart>
  static LORALEI_INLINE I word(const TileSections& at, int lane, int, int j) {
    return iq4_values<zero_value(kZero)>(nibble_word(at.quants + kPart * 4 * 64, lane, j));
  }
};

// Of a block of 256: scales (and minima) for each 32 inputs, and in all.
template <class Format>
constexpr int kScalesOf32 = Format::kHalves ? 2 : 1;
template <class Format>
constexpr int kScalesOf256 = 8 * kScalesOf32<Format>;

// The eight words of a block of 32, and of part kPart of half `half` of a block
// of 256 at `at`.
template <class Format>
LORALEI_INLINE void block_words(const TileSections& at, int lane, I (&w)[8]) {
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) w[j] = Format::word(at, lane, j);
}
template <class Format, int kPart>
LORALEI_INLINE void part_words(const TileSections& at, int lane, int half, I (&w)[8]) {
  const TileSections of_half = Format::half_of(at, half);
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) w[j] = Format::template word<kPart>(of_half, lane, half, j);
}
