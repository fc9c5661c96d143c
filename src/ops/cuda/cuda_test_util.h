// SPDX-License-Identifier: Apache-2.0
// What the tests of GPU kernels share. The same sources run on the emulated GPU
// (cuda_emulated_test) and on a real one (cuda_ops_test), where they skip with a sentence
// if there is none.
//
// Tolerances: the reference sums in double. A kernel's f32 sum of n terms in any order
// is within n * 2^-24 * sum|terms| (in practice far less); a result rounded to bf16 is
// within 2^-8 of its size, to f16 within 2^-11.
#pragma once

#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_test_util.h"
#include "ops/ref/ref_table.h"
#include "tensor/tile_layout.h"

namespace loralei::cuda {

inline double relative_error(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0;
}

// Memory of the GPU holding a vector's numbers.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(CudaStream& stream, const std::vector<T>& values) : stream_(&stream), count_(values.size()) {
    buffer_ = DeviceBuffer::allocate(static_cast<int64_t>(count_ * sizeof(T))).value();
    set(values);
  }
  void set(const std::vector<T>& values) {
    EXPECT_EQ(values.size(), count_);
    EXPECT_TRUE(copy_to_device(buffer_.data(), values.data(), buffer_.size_bytes(), *stream_).ok());
    EXPECT_TRUE(stream_->synchronize().ok());
  }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    EXPECT_TRUE(copy_to_host(values.data(), buffer_.data(), buffer_.size_bytes(), *stream_).ok());
    const Status done = stream_->synchronize();
    EXPECT_TRUE(done.ok()) << done.error().message;
    return values;
  }
  T* data() { return reinterpret_cast<T*>(buffer_.data()); }

 private:
  CudaStream* stream_;
  size_t count_;
  DeviceBuffer buffer_;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    stream_ = CudaStream::create().value();
  }
  void TearDown() override {
    if (stream_.handle() == nullptr) return;
    const Status done = stream_.synchronize();
    EXPECT_TRUE(done.ok()) << done.error().message;
  }
  template <typename T>
  DeviceArray<T> device(const std::vector<T>& values) {
    return DeviceArray<T>(stream_, values);
  }
  // `count` numbers of a format, undefined (NaN in f32, bf16 and f16).
  DeviceArray<std::byte> room(DType dtype, int64_t count) {
    return device(std::vector<std::byte>(static_cast<size_t>(row_bytes(dtype, count)), std::byte{0xFF}));
  }
  // The numbers of a plain format.
  static std::vector<float> decoded(DType dtype, const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / static_cast<size_t>(row_bytes(dtype, 1)));
    decode_row(dtype, bytes.data(), values.data(), static_cast<int64_t>(values.size()));
    return values;
  }
  static std::vector<std::byte> encoded(DType dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(row_bytes(dtype, 1)));
    encode_row(dtype, values.data(), bytes.data(), static_cast<int64_t>(values.size()));
    return bytes;
  }
  // What a product sees of x.
  static std::vector<float> rounded(DType dtype, const std::vector<float>& x) {
    return decoded(dtype, encoded(dtype, x));
  }

  CudaStream stream_;
};

// Rows in a format's own order, put into tiles.
inline std::vector<std::byte> in_tiles(DType dtype, const std::vector<std::byte>& rows, int32_t count, int32_t cols) {
  const int64_t stride = row_bytes(dtype, cols);
  std::vector<std::byte> tiles(static_cast<size_t>(matrix_bytes(dtype, LayoutId::kTile16, count, cols)));
  for (int32_t begin = 0; begin < count; begin += kRowTile) {
    std::array<const std::byte*, kRowTile> sixteen{};
    for (int32_t r = begin; r < std::min(count, begin + kRowTile); ++r)
      sixteen[static_cast<size_t>(r - begin)] = rows.data() + r * stride;
    pack_tile(dtype, sixteen, cols, tiles.data() + begin * stride);
  }
  return tiles;
}

// EXPECT that a launch was accepted.
#define LAUNCH_OK(call)                                     \
  do {                                                      \
    const ::loralei::Status launched = (call);              \
    ASSERT_TRUE(launched.ok()) << launched.error().message; \
  } while (false)

}  // namespace loralei::cuda
