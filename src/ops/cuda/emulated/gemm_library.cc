// SPDX-License-Identifier: Apache-2.0
// Products on the emulated GPU: a plain loop with f32 sums, in the order of the inputs.
#include <cmath>
#include <string>

#include "device/cuda/emulated/emulator.h"
#include "ops/cuda/gemm.h"
#include "tensor/codec.h"

namespace loralei::cuda::gemm_library {

Result<Library> open() { return static_cast<Library>(new int); }
void close(Library library) { delete static_cast<int*>(library); }

struct Planned {
  GemmShape shape;
  int32_t rows;
};
Result<Plan> make_plan(Library, const GemmShape& shape, int32_t rows, int64_t) {
  return static_cast<Plan>(new Planned{shape, rows});
}
void destroy(Library, Plan plan) { delete static_cast<Planned*>(plan); }

Status run(Library, Plan plan, const GemmArgs& args, void*, int64_t, void* stream) {
  const Planned& planned = *static_cast<Planned*>(plan);
  CHECK(planned.shape == args.shape && planned.rows >= args.rows);
  if (args.rows == cuda_emulated::refused_product_rows && planned.rows != args.rows) {
    return unsupported("The plan does not do for " + std::to_string(args.rows) + " rows.");
  }
  cuda_emulated::enqueue(stream, [args] {
    const auto number = [&](const void* base, int64_t i, DType dtype) {
      float value;
      decode_row(dtype, static_cast<const std::byte*>(base) + i * row_bytes(dtype, 1), &value, 1);
      return value;
    };
    const GemmShape& shape = args.shape;
    for (int64_t row = 0; row < args.rows; ++row) {
      for (int64_t o = 0; o < shape.out; ++o) {
        float sum = 0;
        for (int64_t k = 0; k < shape.in; ++k) {
          sum = std::fma(number(args.x, row * args.x_stride + k, shape.dtype),
                         number(args.w, o * shape.in + k, shape.dtype), sum);
        }
        const int64_t at = row * args.y_stride + o;
        if (args.accumulate) sum += number(args.y, at, shape.y_dtype);
        encode_row(shape.y_dtype, &sum, static_cast<std::byte*>(args.y) + at * row_bytes(shape.y_dtype, 1), 1);
      }
    }
  });
  return {};
}

}  // namespace loralei::cuda::gemm_library
