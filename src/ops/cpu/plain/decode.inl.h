// SPDX-License-Identifier: Apache-2.0
// Decoding rows to f32, bit for bit as tensor/codec does (the same products and sums,
// without fusing). No include guard: see target.h.

LORALEI_INLINE uint16_t read_u16(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}
LORALEI_INLINE uint32_t read_u32(const std::byte* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}
LORALEI_INLINE float half_at(const std::byte* p) { return half_to_float(read_u16(p)); }

template <class Rows>
void decode_plain(const std::byte* source, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, Rows::at(source + i * Rows::kBytes));
  if (i < count)
    store_n(out + i, Rows::at_n(source + i * Rows::kBytes, static_cast<int>(count - i)), static_cast<int>(count - i));
}

void decode_q8_0_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 32, block += 34) {
    const F d = set1(half_at(block));
    for (int i = 0; i < 32; i += kLanes) store(out + b + i, mul(to_float(load_s8(block + 2 + i)), d));
  }
}

void decode_q4_0_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 32, block += 18) {
    const F d = set1(half_at(block));
    for (int i = 0; i < 16; i += kLanes) {
      const I q = load_u8(block + 2 + i);
      store(out + b + i, mul(to_float(isub(iand(q, iset1(15)), iset1(8))), d));
      store(out + b + 16 + i, mul(to_float(isub(ishr(q, 4), iset1(8))), d));
    }
  }
}

void decode_q4_1_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 32, block += 20) {
    const F d = set1(half_at(block));
    const F m = set1(half_at(block + 2));
    for (int i = 0; i < 16; i += kLanes) {
      const I q = load_u8(block + 4 + i);
      store(out + b + i, add(mul(to_float(iand(q, iset1(15))), d), m));
      store(out + b + 16 + i, add(mul(to_float(ishr(q, 4)), d), m));
    }
  }
}

void decode_int4g_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 32, block += 20) {
    const F d = set1(half_at(block));
    const F z = set1(half_at(block + 2));
    for (int i = 0; i < 16; i += kLanes) {
      const I q = load_u8(block + 4 + i);
      store(out + b + i, mul(sub(to_float(iand(q, iset1(15))), z), d));
      store(out + b + 16 + i, mul(sub(to_float(ishr(q, 4)), z), d));
    }
  }
}

void decode_fp8g_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 128, block += 132) {
    for (int i = 0; i < 128; i += kLanes) store(out + b + i, RowsF8G::at_input(block, i));
  }
}

void decode_q5_0_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 32, block += 22) {
    const F d = set1(half_at(block));
    const uint32_t high = read_u32(block + 2);
    for (int i = 0; i < 16; i += kLanes) {
      const I q = load_u8(block + 6 + i);
      const I q0 = ior(iand(q, iset1(15)), ishl(ibits(high, i), 4));
      const I q1 = ior(ishr(q, 4), ishl(ibits(high, 16 + i), 4));
      store(out + b + i, mul(to_float(isub(q0, iset1(16))), d));
      store(out + b + 16 + i, mul(to_float(isub(q1, iset1(16))), d));
    }
  }
}

void decode_q5_1_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 32, block += 24) {
    const F d = set1(half_at(block));
    const F m = set1(half_at(block + 2));
    const uint32_t high = read_u32(block + 4);
    for (int i = 0; i < 16; i += kLanes) {
      const I q = load_u8(block + 8 + i);
      const I q0 = ior(iand(q, iset1(15)), ishl(ibits(high, i), 4));
      const I q1 = ior(ishr(q, 4), ishl(ibits(high, 16 + i), 4));
      store(out + b + i, add(mul(to_float(q0), d), m));
      store(out + b + 16 + i, add(mul(to_float(q1), d), m));
    }
  }
}

// The eight scales and minima of a K block, times the block's d and dmin.
LORALEI_INLINE void k_scales(const std::byte* block, float* scales, float* mins) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  const std::byte* packed = block + 4;
  for (int j = 0; j < 4; ++j) {
    const int low = static_cast<int>(packed[j]), middle = static_cast<int>(packed[j + 4]),
              high = static_cast<int>(packed[j + 8]);
    scales[j] = d * static_cast<float>(low & 63);
    mins[j] = dmin * static_cast<float>(middle & 63);
    scales[j + 4] = d * static_cast<float>((high & 15) | ((low >> 6) << 4));
    mins[j + 4] = dmin * static_cast<float>((high >> 4) | ((middle >> 6) << 4));
  }
}

void decode_q4_k_row(const std::byte* block, float* out, int64_t count) {
  float scales[8], mins[8];
  for (int64_t b = 0; b < count; b += 256, block += 144) {
    k_scales(block, scales, mins);
    for (int group = 0; group < 4; ++group) {
      const F d0 = set1(scales[2 * group]), m0 = set1(mins[2 * group]);
      const F d1 = set1(scales[2 * group + 1]), m1 = set1(mins[2 * group + 1]);
      float* y = out + b + 64 * group;
      for (int i = 0; i < 32; i += kLanes) {
        const I q = load_u8(block + 16 + 32 * group + i);
        store(y + i, sub(mul(d0, to_float(iand(q, iset1(15)))), m0));
        store(y + 32 + i, sub(mul(d1, to_float(ishr(q, 4))), m1));
      }
    }
  }
}

void decode_q5_k_row(const std::byte* block, float* out, int64_t count) {
  float scales[8], mins[8];
  for (int64_t b = 0; b < count; b += 256, block += 176) {
    k_scales(block, scales, mins);
    for (int group = 0; group < 4; ++group) {
      const F d0 = set1(scales[2 * group]), m0 = set1(mins[2 * group]);
      const F d1 = set1(scales[2 * group + 1]), m1 = set1(mins[2 * group + 1]);
      float* y = out + b + 64 * group;
      for (int i = 0; i < 32; i += kLanes) {
        const I bits = ishr(load_u8(block + 16 + i), 2 * group);
        const I q = load_u8(block + 48 + 32 * group + i);
        const I q0 = ior(iand(q, iset1(15)), ishl(iand(bits, iset1(1)), 4));
        const I q1 = ior(ishr(q, 4), ishl(iand(bits, iset1(2)), 3));
        store(y + i, sub(mul(d0, to_float(q0)), m0));
        store(y + 32 + i, sub(mul(d1, to_float(q1)), m1));
      }
    }
  }
}

void decode_q6_k_row(const std::byte* block, float* out, int64_t count) {
  for (int64_t b = 0; b < count; b += 256, block += 210) {
    const float d = half_at(block + 208);
    for (int half = 0; half < 2; ++half) {
      const std::byte* ql = block + 64 * half;
      const std::byte* qh = block + 128 + 32 * half;
      const std::byte* scales = block + 192 + 8 * half;
      float* y = out + b + 128 * half;
      for (int i = 0; i < 32; i += kLanes) {
        const I low0 = load_u8(ql + i), low1 = load_u8(ql + 32 + i), high = load_u8(qh + i);
        const I q[4] = {ior(iand(low0, iset1(15)), ishl(iand(high, iset1(3)), 4)),
                        ior(iand(low1, iset1(15)), ishl(iand(high, iset1(12)), 2)),
                        ior(ishr(low0, 4), iand(high, iset1(48))), ior(ishr(low1, 4), ishr(iand(high, iset1(192)), 2))};
        for (int part = 0; part < 4; ++part) {
          const F scale = set1(d * static_cast<float>(static_cast<int8_t>(scales[2 * part + i / 16])));
          store(y + 32 * part + i, mul(scale, to_float(isub(q[part], iset1(32)))));
        }
      }
    }
  }
}

void decode_to_f32(DType dtype, const std::byte* source, float* out, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return decode_plain<RowsF32>(source, out, count);
    case DType::kF16:
      return decode_plain<RowsF16>(source, out, count);
    case DType::kBF16:
      return decode_plain<RowsBF16>(source, out, count);
    case DType::kI8:
      return decode_plain<RowsI8>(source, out, count);
    case DType::kF8:
      return decode_plain<RowsF8>(source, out, count);
    case DType::kQ8_0:
      return decode_q8_0_row(source, out, count);
    case DType::kQ4_0:
      return decode_q4_0_row(source, out, count);
    case DType::kQ4_1:
      return decode_q4_1_row(source, out, count);
    case DType::kQ5_0:
      return decode_q5_0_row(source, out, count);
    case DType::kQ5_1:
      return decode_q5_1_row(source, out, count);
    case DType::kQ4_K:
      return decode_q4_k_row(source, out, count);
    case DType::kQ5_K:
      return decode_q5_k_row(source, out, count);
    case DType::kQ6_K:
      return decode_q6_k_row(source, out, count);
    case DType::kInt4G:
      return decode_int4g_row(source, out, count);
    case DType::kF8G:
      return decode_fp8g_row(source, out, count);
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
      return decode_row(dtype, source, out, count);
  }
}
