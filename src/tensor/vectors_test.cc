// SPDX-License-Identifier: Apache-2.0
// The codecs against blocks and values of the reference package (tests/vectors/quant,
// see its README).
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tensor/codec.h"

namespace loralei {
namespace {

// One file of vectors: an 8-byte length, a JSON header that names byte ranges, then the
// bytes. The files are our own, so a search for the name does for a parser here.
class VectorFile {
 public:
  explicit VectorFile(const std::string& name) {
    std::ifstream stream(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/quant/" + name + ".safetensors",
                         std::ios::binary);
    contents_.assign(std::istreambuf_iterator<char>(stream), {});
    if (contents_.size() < 8) return;
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, contents_.data(), 8);
    data_ = 8 + static_cast<size_t>(header_bytes);
    header_ = contents_.substr(8, static_cast<size_t>(header_bytes));
  }
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const size_t entry = header_.find("\"" + name + "\":");
    const size_t offsets = header_.find("\"data_offsets\":[", entry);
    if (entry == std::string::npos || offsets == std::string::npos) return {};
    const size_t comma = header_.find(',', offsets);
    const size_t begin = std::stoul(header_.substr(offsets + 16)), end = std::stoul(header_.substr(comma + 1));
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), contents_.data() + data_ + begin, end - begin);
    return values;
  }

 private:
  std::string contents_, header_;
  size_t data_ = 0;
};

TEST(Vectors, BlocksMeanWhatTheReferenceSays) {
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K,
                      DType::kQ6_K, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4}) {
    const VectorFile file(dtype_info(dtype).name);
    const auto blocks = file.read<std::byte>("blocks");
    const auto values = file.read<float>("values");
    ASSERT_FALSE(values.empty()) << dtype_info(dtype).name;
    ASSERT_EQ(static_cast<int64_t>(blocks.size()), row_bytes(dtype, static_cast<int64_t>(values.size())));
    std::vector<float> decoded(values.size());
    decode_row(dtype, blocks.data(), decoded.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(decoded[i], values[i]) << dtype_info(dtype).name << " " << i;
  }
}

TEST(Vectors, QuantisingMakesTheBlocksOfTheReference) {
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    const VectorFile file(dtype_info(dtype).name);
    const auto source = file.read<float>("source");
    const auto expected = file.read<std::byte>("source_blocks");
    ASSERT_FALSE(source.empty());
    std::vector<std::byte> encoded(expected.size());
    encode_row(dtype, source.data(), encoded.data(), static_cast<int64_t>(source.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(static_cast<int>(encoded[i]), static_cast<int>(expected[i])) << dtype_info(dtype).name << " byte " << i;
    }
  }
}

TEST(Vectors, HalvesAreThoseOfTheReference) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const VectorFile file(dtype_info(dtype).name);
    const auto bits = file.read<uint16_t>("bits"), source_bits = file.read<uint16_t>("source_bits");
    const auto values = file.read<float>("values"), source = file.read<float>("source");
    ASSERT_FALSE(bits.empty());
    ASSERT_EQ(source.size(), source_bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      const float value = dtype == DType::kF16 ? f16_to_f32(bits[i]) : bf16_to_f32(bits[i]);
      ASSERT_EQ(value, values[i]) << i;
    }
    for (size_t i = 0; i < source.size(); ++i) {
      ASSERT_EQ(dtype == DType::kF16 ? f32_to_f16(source[i]) : f32_to_bf16(source[i]), source_bits[i]) << i;
    }
  }
}

}  // namespace
}  // namespace loralei
