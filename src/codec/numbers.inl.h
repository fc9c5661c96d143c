// SPDX-License-Identifier: Apache-2.0
// Heads of a cache to integers and back, over read16 and write16 of the path that
// includes this. Inner loops are of 16, which compilers turn into vectors of the region's
// set.

// kOne: the 16 numbers have one step (K), else 16 in a row (V).
template <DType kType>
bool read_floats(const KvHeadForm& form, const std::byte* head, int16_t* out) {
  constexpr int kBytes = kNumberBytes<kType>;
  const int32_t dim = form.head_dim;
  if (!form.is_v) {
    bool good = true;
    for (int32_t d = 0; d < dim; ++d)
      good &= read16<kType, true>(head + 16 * kBytes * d, form.inv_steps + d, out + 16 * d);
    return good;
  }
  bool good = true;
  const int32_t whole = dim / 16 * 16;
  for (int token = 0; token < 16; ++token, head += kBytes * dim, out += dim) {
    for (int32_t d = 0; d < whole; d += 16)
      good &= read16<kType, false>(head + kBytes * d, form.inv_steps + d, out + d);
    for (int32_t d = whole; d < dim; ++d) good &= read_number<kType>(head + kBytes * d, form.inv_steps[d], out[d]);
  }
  return good;
}

template <DType kType>
void write_floats(const KvHeadForm& form, const int16_t* in, std::byte* head) {
  constexpr int kBytes = kNumberBytes<kType>;
  const int32_t dim = form.head_dim;
  if (!form.is_v) {
    for (int32_t d = 0; d < dim; ++d) write16<kType, true>(in + 16 * d, form.steps + d, head + 16 * kBytes * d);
    return;
  }
  const int32_t whole = dim / 16 * 16;
  for (int token = 0; token < 16; ++token, head += kBytes * dim, in += dim) {
    for (int32_t d = 0; d < whole; d += 16) write16<kType, false>(in + d, form.steps + d, head + kBytes * d);
    for (int32_t d = whole; d < dim; ++d) write_number<kType>(in[d], form.steps[d], head + kBytes * d);
  }
}

inline void read_bytes(DType dtype, const std::byte* head, int64_t count, int16_t* out) {
  for (int64_t at = 0; at < count; at += 16) {
    int8_t codes[16];
    std::memcpy(codes, head + at, sizeof codes);
    int16_t integers[16];
    if (dtype == DType::kI8) {
      for (int i = 0; i < 16; ++i) integers[i] = codes[i];
    } else {
      for (int i = 0; i < 16; ++i) {
        const int code = codes[i], magnitude = code & 0x7F;
        const int integer = code < 0 ? -magnitude : magnitude;
        integers[i] = static_cast<int16_t>(code == -128 ? -128 : integer);
      }
    }
    std::memcpy(out + at, integers, sizeof integers);
  }
}

inline void write_bytes(DType dtype, const int16_t* in, int64_t count, std::byte* head) {
  for (int64_t at = 0; at < count; at += 16) {
    int16_t integers[16];
    std::memcpy(integers, in + at, sizeof integers);
    int8_t codes[16];
    for (int i = 0; i < 16; ++i) {
      const int integer = integers[i];
      const int fp8 = integer >= 0 ? (integer & 0x7F) : (-integer & 0x7F) - 128;
      codes[i] = static_cast<int8_t>(dtype == DType::kI8 ? integer : fp8);
    }
    std::memcpy(head + at, codes, sizeof codes);
  }
}

bool read_head(const KvHeadForm& form, const std::byte* head, int16_t* out) {
  switch (form.dtype) {
    case DType::kF32:
      return read_floats<DType::kF32>(form, head, out);
    case DType::kF16:
      return read_floats<DType::kF16>(form, head, out);
    case DType::kBF16:
      return read_floats<DType::kBF16>(form, head, out);
    default:
      read_bytes(form.dtype, head, int64_t{16} * form.head_dim, out);
      return true;
  }
}

void write_head(const KvHeadForm& form, const int16_t* in, std::byte* head) {
  switch (form.dtype) {
    case DType::kF32:
      return write_floats<DType::kF32>(form, in, head);
    case DType::kF16:
      return write_floats<DType::kF16>(form, in, head);
    case DType::kBF16:
      return write_floats<DType::kBF16>(form, in, head);
    default:
      return write_bytes(form.dtype, in, int64_t{16} * form.head_dim, head);
  }
}

void subtract(const int16_t* __restrict a, const int16_t* __restrict b, int64_t count, int16_t* __restrict out) {
  for (int64_t at = 0; at < count; at += 16) {
    for (int i = 0; i < 16; ++i) out[at + i] = static_cast<int16_t>(a[at + i] - b[at + i]);
  }
}

void add(const int16_t* __restrict b, int64_t count, int16_t* __restrict in_out) {
  for (int64_t at = 0; at < count; at += 16) {
    for (int i = 0; i < 16; ++i) in_out[at + i] = static_cast<int16_t>(in_out[at + i] + b[at + i]);
  }
}
