// SPDX-License-Identifier: Apache-2.0
#include "bench/generated_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tensor/codec.h"

namespace loralei {

Result<std::string> make_once(const std::string& path,
                              const std::function<Status(const std::string& unfinished)>& make) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(path, error)) return path;
  fs::create_directories(fs::path(path).parent_path(), error);
  const std::string unfinished = path + ".partial";
  fs::remove_all(unfinished, error);
  Status made = make(unfinished);
  if (!made.ok()) {
    fs::remove_all(unfinished, error);
    return std::move(made).error();
  }
  fs::rename(unfinished, path, error);
  if (error) return io_error("Cannot rename '" + unfinished + "': " + error.message() + ".");
  return path;
}
namespace {

// GGUF value types (specification of the format).
enum : uint32_t { kGgufU32 = 4, kGgufI32 = 5, kGgufF32 = 6, kGgufString = 8, kGgufArray = 9 };

uint32_t ggml_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
    case DType::kBF16:
      return 30;
    case DType::kQ2_K:
      return 10;
    case DType::kQ3_K:
      return 11;
    case DType::kIQ4_NL:
      return 20;
    case DType::kIQ4_XS:
      return 23;
    case DType::kMXFP4:
      return 39;
    case DType::kI8:  // of caches alone, both
    case DType::kF8:
    case DType::kInt4G:
    case DType::kF8G:
      break;
  }
  return 0;
}

// Where a block's f16 scales stand and what they are, so that values spread over about
// +-0.035 (k formats multiply a 6-bit scale of mean 32 in, q2_k one of 4 bits and mean 8;
// q6_k an 8-bit one, made positive and below 64; q3_k and iq4_xs one of both signs).
struct BlockScales {
  size_t at = 0;
  float scale = 0;
  float minimum = 0;  // 0: the format has none; stands behind the scale
};
BlockScales block_scales(DType dtype) {
  constexpr float kSpread = 0.035f;
  switch (dtype) {
    case DType::kQ8_0:
      return {0, kSpread / 127};
    case DType::kQ4_0:
      return {0, kSpread / 8};
    case DType::kQ4_1:
      return {0, 2 * kSpread / 15, -kSpread};
    case DType::kQ5_0:
      return {0, kSpread / 16};
    case DType::kQ5_1:
      return {0, 2 * kSpread / 31, -kSpread};
    case DType::kQ4_K:
      return {0, 2 * kSpread / (32 * 15), kSpread / 32};
    case DType::kQ5_K:
      return {0, 2 * kSpread / (32 * 31), kSpread / 32};
    case DType::kQ6_K:
      return {208, kSpread / (32 * 64)};
    case DType::kQ2_K:
      return {80, 2 * kSpread / (8 * 3), kSpread / 8};
    case DType::kQ3_K:
      return {108, kSpread / (16 * 4)};
    case DType::kIQ4_NL:
      return {0, kSpread / 127};
    case DType::kIQ4_XS:
      return {0, kSpread / (16 * 127)};
    default:
      CHECK(false);
  }
}

}  // namespace

template <typename T>
void GgufMetadata::append(T number) {
  bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void GgufMetadata::append_text(const std::string& value) {
  append<uint64_t>(value.size());
  bytes_ += value;
}
void GgufMetadata::begin(const char* key, uint32_t type) {
  append_text(key);
  append(type);
  ++count_;
}
void GgufMetadata::begin_array(const char* key, uint32_t item_type, size_t count) {
  begin(key, kGgufArray);
  append(item_type);
  append<uint64_t>(count);
}
void GgufMetadata::u32(const char* key, uint32_t value) { begin(key, kGgufU32), append(value); }
void GgufMetadata::f32(const char* key, float value) { begin(key, kGgufF32), append(value); }
void GgufMetadata::text(const char* key, const std::string& value) { begin(key, kGgufString), append_text(value); }
void GgufMetadata::texts(const char* key, const std::vector<std::string>& values) {
  begin_array(key, kGgufString, values.size());
  for (const std::string& value : values) append_text(value);
}
void GgufMetadata::f32s(const char* key, const std::vector<float>& values) {
  begin_array(key, kGgufF32, values.size());
  for (const float value : values) append(value);
}
void GgufMetadata::i32s(const char* key, const std::vector<int32_t>& values) {
  begin_array(key, kGgufI32, values.size());
  for (const int32_t value : values) append(value);
}

int64_t write_gguf_head(Writer& out, const GgufMetadata& metadata, const std::vector<OutTensor>& tensors) {
  out.bytes("GGUF", 4);
  out.value<uint32_t>(3);
  out.value<uint64_t>(tensors.size());
  out.value<uint64_t>(metadata.count());
  out.bytes(metadata.bytes().data(), metadata.bytes().size());
  int64_t offset = 0;
  for (const OutTensor& tensor : tensors) {
    out.text(tensor.name);
    const bool is_vector = tensor.rows == 1;
    out.value<uint32_t>(is_vector ? 1 : tensor.stacked > 1 ? 3 : 2);
    out.value<uint64_t>(static_cast<uint64_t>(tensor.cols));
    if (!is_vector) out.value<uint64_t>(static_cast<uint64_t>(tensor.rows / tensor.stacked));
    if (tensor.stacked > 1) out.value<uint64_t>(static_cast<uint64_t>(tensor.stacked));
    out.value<uint32_t>(ggml_type(tensor.dtype));
    out.value<uint64_t>(static_cast<uint64_t>(offset));
    offset += (tensor.bytes() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }
  out.pad_to(kGgufAlignment);
  return offset;
}

WeightSource::WeightSource(uint64_t seed, bool f16_of_bf16) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const float value = (static_cast<float>(i) - 32767.5f) / 32768.0f * 0.035f;
    bf16_[i] = f32_to_bf16(value);
    f16_[i] = f32_to_f16(f16_of_bf16 ? bf16_to_f32(bf16_[i]) : value);
    f32_[i] = value;
  }
}

template <typename T>
void WeightSource::table(const std::vector<T>& values, std::byte* out, size_t bytes) {
  T* const numbers = reinterpret_cast<T*>(out);
  const size_t count = bytes / sizeof(T);
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t word = next();
    for (size_t j = 0; j < 4 && i + j < count; ++j) numbers[i + j] = values[(word >> (16 * j)) & 0xffff];
  }
}

void WeightSource::random_bytes(std::byte* out, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = next();
    std::memcpy(out + i, &word, std::min<size_t>(8, bytes - i));
  }
}

void WeightSource::fill(DType dtype, std::byte* out, size_t bytes) {
  if (dtype == DType::kF32) return table(f32_, out, bytes);
  if (dtype == DType::kF16) return table(f16_, out, bytes);
  if (dtype == DType::kBF16) return table(bf16_, out, bytes);
  random_bytes(out, bytes);
  if (dtype == DType::kMXFP4) {  // 2^-9 times numbers up to twelve
    for (size_t block = 0; block < bytes; block += 17) out[block] = std::byte{119};
    return;
  }
  const BlockScales scales = block_scales(dtype);
  const uint16_t scale = f32_to_f16(scales.scale), minimum = f32_to_f16(scales.minimum);
  const auto block_bytes = static_cast<size_t>(dtype_info(dtype).block_bytes);
  for (std::byte* block = out; block + block_bytes <= out + bytes; block += block_bytes) {
    std::memcpy(block + scales.at, &scale, 2);
    if (scales.minimum != 0) std::memcpy(block + scales.at + 2, &minimum, 2);
    if (dtype != DType::kQ6_K) continue;
    for (size_t i = 192; i < 208; ++i) block[i] &= std::byte{0x3f};
  }
}

}  // namespace loralei
