// SPDX-License-Identifier: Apache-2.0
// From a number format known at run time to a kernel made for it. Host code
// of ops/cuda alone.
#pragma once

#include "base/check.h"
#include "base/result.h"
#include "ops/cuda/numbers.cuh"

namespace loralei::cuda {

template <DType kType>
struct TypeTag {
  static constexpr DType kValue = kType;
};

inline Status no_kernel(const char* what, DType dtype) {
  return unsupported(std::string("There is no GPU kernel for ") + what + " in " + dtype_info(dtype).name + ".");
}

// run(T{}) with T the plain format's type.
template <typename Run>
Status for_plain(const char* what, DType dtype, Run run) {
  switch (dtype) {
    case DType::kF32:
      return run(float{});
    case DType::kBF16:
      return run(BF16{});
    case DType::kF16:
      return run(F16{});
    default:
      return no_kernel(what, dtype);
  }
}

// run(TypeTag<the quantised format>{}).
template <typename Run>
Status for_quantised(const char* what, DType dtype, Run run) {
  switch (dtype) {
    case DType::kQ8_0:
      return run(TypeTag<DType::kQ8_0>{});
    case DType::kQ4_0:
      return run(TypeTag<DType::kQ4_0>{});
    case DType::kQ4_1:
      return run(TypeTag<DType::kQ4_1>{});
    case DType::kQ5_0:
      return run(TypeTag<DType::kQ5_0>{});
    case DType::kQ5_1:
      return run(TypeTag<DType::kQ5_1>{});
    case DType::kQ4_K:
      return run(TypeTag<DType::kQ4_K>{});
    case DType::kQ5_K:
      return run(TypeTag<DType::kQ5_K>{});
    case DType::kQ6_K:
      return run(TypeTag<DType::kQ6_K>{});
    default:
      return no_kernel(what, dtype);
  }
}

// What kernels that load 16 bytes at a time take.
inline bool is_aligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace loralei::cuda
