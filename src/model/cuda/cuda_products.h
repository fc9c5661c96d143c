// SPDX-License-Identifier: Apache-2.0
// CudaProducts: which kernels multiply a layer's input with its weights, for any format
// and any number of rows.
//
// bf16 weights meet up to kFewRowsBf16 rows by thin_gemm, f16 ones up to kFewRowsF16.
// Others meet few rows
// (kFewRowsTiles, kFewRowsPlain) so: weights in tiles by tile_gemv with the input
// rounded to int8 (both take neighbours of one format in one launch); f32, and 16-bit
// weights that thin_gemm does not take or whose input is f32 for a neighbour in tiles, by
// plain_gemv; quantised weights that are not in tiles decoded to the activations' type,
// then as such. More rows: bf16 by Gemm, everything else decoded to bf16 first.
//
// With activations in f32 every number of rows is "few" (matrix units take 16-bit
// numbers only) and none goes through thin_gemm: exact, and slow for long prompts.
// With `batch_invariant` every number is few as well, so that there is one class. A row's
// bits are the same for any rows beside it within a class, in Gemm within a power of two
// of rows (gemm.h). Decoded weights pass through one scratch of bounded size, a panel of
// outputs after the other, so the head of a large vocabulary needs no room of its own.
// In class "many" weights in f32 and f16 are rounded to bf16.
//
// Thread: one, on one stream.
// Ownership: owns scratch and plans.
// Invariant: no allocation after create().
// Failure: Status of the launches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "ops/args.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm.h"

namespace loralei {

// Where one way begins to cost less than the other on an H200 (docs/benchmarks/gpu.md).
// A GEMV reads the weights once for up to kGemvRows rows. Weights in f32: decoding and a
// Gemm read them once as well, whatever the rows. Weights in tiles: decoding and a Gemm
// cost as much as two readings. bf16: a Gemm costs little more than thin_gemm of eight.
// f16: a Gemm would take weights rounded to bf16.
inline constexpr int32_t kFewRowsPlain = cuda::kGemvRows;
inline constexpr int32_t kFewRowsTiles = 2 * cuda::kGemvRows;
inline constexpr int32_t kFewRowsBf16 = 8;
inline constexpr int32_t kFewRowsF16 = cuda::kThinRows;

// One projection of a layer input.
struct CudaProduct {
  const cuda::DeviceWeight* w = nullptr;
  const float* bias = nullptr;  // [w->rows] or null
  float* y = nullptr;           // [rows, w->rows]
  int64_t y_stride = 0;
  const int32_t* columns = nullptr;  // of run_own() alone: output o is y's column columns[o]
};

// What projections share: [rows, in] in the type input_type() names.
struct CudaInput {
  const void* x = nullptr;
  DType dtype = DType::kF32;
  int32_t rows = 0;
  int32_t in = 0;  // and the stride
};

class CudaProducts {
 public:
  struct Options {
    DType activation = DType::kBF16;  // or f32
    int32_t rows_max = 0;
    int64_t decode_bytes_max = 0;
    bool batch_invariant = false;
    // Every number of rows is few.
    bool one_class() const { return batch_invariant || activation == DType::kF32; }
  };
  static int64_t device_bytes(std::span<const cuda::DeviceWeight> weights, const Options& options);
  CudaProducts() = default;
  // Makes the plans for all of `weights` and every class of rows.
  static Result<CudaProducts> create(std::span<const cuda::DeviceWeight> weights, const Options& options);

  // f32 where the rows go through integer products, else the activations' type.
  DType input_type(std::span<const CudaProduct> products, int32_t rows) const;
  // y = x W^T (+ bias), + y with `accumulate`, for every product.
  Status run(CudaStream& stream, const CudaInput& input, std::span<const CudaProduct> products, bool accumulate);
  // For weights that are not the model's: in f32, bf16 or f16, the input in the
  // activations' type. As few rows for any number of them, so that their class is one.
  Status run_own(CudaStream& stream, const CudaInput& input, const CudaProduct& product);
  DType activation() const { return options_.activation; }

 private:
  bool few(std::span<const CudaProduct> products, int32_t rows) const;
  Status run_thin(CudaStream& stream, const CudaInput& input, std::span<const cuda::ProductTarget> targets,
                  bool accumulate);
  Status run_tiles(CudaStream& stream, const CudaInput& input, std::span<const cuda::ProductTarget> targets,
                   bool accumulate);
  Status plain(CudaStream& stream, const CudaInput& input, const CudaProduct& product, const cuda::DeviceWeight& w,
               int32_t first_output, bool accumulate);
  Status gemv(CudaStream& stream, const CudaInput& input, const CudaProduct& product, bool accumulate);
  Status gemm(CudaStream& stream, const CudaInput& input, const CudaProduct& product, bool accumulate);
  template <typename Run>
  Status by_panels(CudaStream& stream, const CudaProduct& product, Run&& run);

  Options options_;
  DeviceBuffer decoded_, rounded_;
  cuda::RoundedRows rounded_rows_;
  cuda::Gemm gemm_;
};

}  // namespace loralei
