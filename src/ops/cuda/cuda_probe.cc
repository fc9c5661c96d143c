// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_probe.h"

#include <cstring>
#include <limits>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "ops/cuda/gemm.h"
#include "tensor/codec.h"

namespace loralei::cuda {
namespace {

class Probe {
 public:
  explicit Probe(const CudaProbeSizes& sizes) : sizes_(sizes) {}

  Status open() {
    TRY_ASSIGN(stream_, CudaStream::create());
    TRY_ASSIGN(from_, CudaEvent::create(true));
    TRY_ASSIGN(to_, CudaEvent::create(true));
    TRY_ASSIGN(pinned_, PinnedBuffer::allocate(sizes_.upload_bytes));
    TRY_ASSIGN(memory_, DeviceBuffer::allocate(sizes_.bytes()));
    TRY_ASSIGN(sum_, DeviceBuffer::allocate(sizeof(uint32_t)));
    TRY_ASSIGN(gemm_, Gemm::open());
    fill_pinned();
    for (int64_t at = 0; at < memory_.size_bytes(); at += sizes_.upload_bytes) {
      TRY(copy_to_device(memory_.data() + at, pinned_.data(), std::min(sizes_.upload_bytes, memory_.size_bytes() - at),
                         stream_));
    }
    return stream_.synchronize();
  }

  Result<DeviceRates> rates() {
    DeviceRates rates;
    TRY_ASSIGN(const double read_s, seconds([&] {
                 return read_words(stream_, memory_.data(), sizes_.read_bytes,
                                   reinterpret_cast<uint32_t*>(sum_.data()));
               }));
    rates.read_gb_s = static_cast<double>(sizes_.read_bytes) / read_s * 1e-9;
    TRY_ASSIGN(const double upload_s,
               seconds([&] { return copy_to_device(memory_.data(), pinned_.data(), sizes_.upload_bytes, stream_); }));
    rates.upload_gb_s = static_cast<double>(sizes_.upload_bytes) / upload_s * 1e-9;
    const int64_t n = sizes_.product;
    std::byte* const x = memory_.data();
    const GemmArgs args{.shape = {sizes_.product, sizes_.product},
                        .x = x,
                        .x_stride = n,
                        .rows = sizes_.product,
                        .w = x + 2 * n * n,
                        .y = x + 4 * n * n,
                        .y_stride = n};
    TRY(gemm_.prepare(args.shape, args.rows));
    TRY_ASSIGN(const double product_s, seconds([&] { return gemm_.run(stream_, args); }));
    rates.product_tflop_s =
        2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / product_s * 1e-12;
    return rates;
  }

 private:
  // Random bf16 numbers in [-1, 1), the same ones again and again.
  void fill_pinned() {
    const int64_t bytes = pinned_.size_bytes();
    int64_t filled = std::min(bytes, int64_t{4} << 20);
    Prng prng(20261122);
    for (int64_t at = 0; at < filled; at += 2) {
      const uint16_t number = f32_to_bf16(static_cast<float>(prng.uniform() * 2 - 1));
      std::memcpy(pinned_.data() + at, &number, sizeof number);
    }
    for (; filled < bytes; filled *= 2)
      std::memcpy(pinned_.data() + filled, pinned_.data(), static_cast<size_t>(std::min(filled, bytes - filled)));
  }
  // Least seconds of one call.
  template <typename Call>
  Result<double> seconds(Call&& call) {
    double least_ms = std::numeric_limits<double>::infinity();
    for (int round = 0; round <= sizes_.rounds; ++round) {
      TRY(stream_.record(from_));
      for (int i = 0; i < sizes_.calls; ++i) TRY(call());
      TRY(stream_.record(to_));
      TRY(stream_.synchronize());
      TRY_ASSIGN(const double ms, elapsed_ms(from_, to_));
      if (round > 0) least_ms = std::min(least_ms, ms);
    }
    return least_ms * 1e-3 / sizes_.calls;
  }

  const CudaProbeSizes sizes_;
  CudaStream stream_;
  CudaEvent from_, to_;
  PinnedBuffer pinned_;
  DeviceBuffer memory_, sum_;
  Gemm gemm_;
};

}  // namespace

Result<DeviceRates> probe_cuda(int ordinal, const CudaProbeSizes& sizes) {
  CHECK(sizes.rounds > 0 && sizes.calls > 0 && sizes.upload_bytes % 2 == 0);
  TRY(set_cuda_device(ordinal));
  Probe probe(sizes);
  TRY(probe.open());
  return probe.rates();
}

}  // namespace loralei::cuda
