// SPDX-License-Identifier: Apache-2.0
// Gemm: products of many rows with plain 16-bit weights, by cuBLASLt.
//
// The library is opened when the first Gemm is made (dlopen) and stays, so a program
// starts without it.
// Thread: one.
// Ownership: a Gemm owns the library's handle, its workspace and its plans; one Gemm a
// stream, since the workspace is shared.
// Invariants: for each (weight shape, class of row counts: the next power of two, and one
// for all up to kLeastClassRows)
// one algorithm is asked for once and kept, and none that splits the sum (split-K),
// so a row's bits do not depend on its neighbours within a class; but rows for which the
// library refuses their class's algorithm have one of their own from then on. prepare()
// asks; run() asks where prepare() was not called, which allocates: prepare before
// capturing a graph.
// Failure: open() says how to get the library; a shape the library has no algorithm for
// is an error, and so are addresses or strides that do not keep the shape's alignment.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "tensor/dtype.h"

namespace loralei::cuda {

struct GemmShape {
  int32_t in = 0, out = 0;
  DType dtype = DType::kBF16;   // of x and of the weights: bf16 or f16
  DType y_dtype = DType::kF32;  // f32, or dtype
  // Of x, y, the weights and the strides, a power of two of at most 16: algorithms are
  // chosen by it, so it must hold for every call.
  int32_t alignment_bytes = 16;
  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

// What addresses and strides of so many bytes keep, at most 16.
int32_t common_alignment(int64_t x_bytes, int64_t y_bytes);

// y [rows, out] = x [rows, in] W^T, W [out, in]; with `accumulate`, adds to
// y. Sums are f32.
struct GemmArgs {
  GemmShape shape;
  const void* x = nullptr;
  int64_t x_stride = 0;
  int32_t rows = 0;
  const void* w = nullptr;
  void* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

// Behind Gemm: real/cublaslt.cc, or a plain loop on the emulated GPU.
namespace gemm_library {
using Library = void*;
using Plan = void*;
Result<Library> open();
void close(Library library);
Result<Plan> make_plan(Library library, const GemmShape& shape, int32_t rows, int64_t workspace_bytes);
void destroy(Library library, Plan plan);
// kUnsupported: the plan does not do for these rows, another may; nothing
// is on the stream.
Status run(Library library, Plan plan, const GemmArgs& args, void* workspace, int64_t workspace_bytes, void* stream);
}  // namespace gemm_library

// What the library offers for fewer rows may take ten times as long as what it offers for
// these (an H200, cuBLASLt 13.1, 32 rows of weights [4096, 11008]), which reads the
// weights as fast as memory does.
inline constexpr int32_t kLeastClassRows = 64;

class Gemm {
 public:
  static Result<Gemm> open(int64_t workspace_bytes = int64_t{32} << 20);
  Gemm() = default;
  ~Gemm();
  Gemm(Gemm&& other) noexcept;
  Gemm& operator=(Gemm&& other) noexcept;

  Status prepare(const GemmShape& shape, int32_t rows);
  Status run(CudaStream& stream, const GemmArgs& args);
  size_t plan_count() const { return plans_.size(); }

 private:
  struct Entry {
    GemmShape shape;
    int32_t rows_first, rows_last;
    gemm_library::Plan plan;
  };
  const Entry* find(const GemmShape& shape, int32_t rows) const;
  Result<Entry> plan_for(const GemmShape& shape, int32_t rows);
  Result<Entry> make(const GemmShape& shape, int32_t rows_first, int32_t rows_last);

  gemm_library::Library library_ = nullptr;
  DeviceBuffer workspace_;
  std::vector<Entry> plans_;
};

}  // namespace loralei::cuda
