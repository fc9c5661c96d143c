// SPDX-License-Identifier: Apache-2.0
// Gemm over cuBLASLt, opened when first used. In the library's columns-first words y^T
// [out, rows] = W x^T, where W is given as its transpose [in, out].
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <string>

#include "ops/cuda/gemm.h"

namespace loralei::cuda::gemm_library {
namespace {

// The functions used, each with the type the header gives it.
struct Functions {
  void* file = nullptr;
  cublasLtHandle_t handle = nullptr;
#define LORALEI_CUBLASLT_FUNCTIONS(do_one)                                                                      \
  do_one(cublasLtCreate) do_one(cublasLtDestroy) do_one(cublasLtGetStatusString) do_one(cublasLtMatmul)         \
      do_one(cublasLtMatmulDescCreate) do_one(cublasLtMatmulDescDestroy) do_one(cublasLtMatmulDescSetAttribute) \
          do_one(cublasLtMatrixLayoutCreate) do_one(cublasLtMatrixLayoutDestroy)                                \
              do_one(cublasLtMatrixLayoutSetAttribute) do_one(cublasLtMatmulPreferenceCreate)                   \
                  do_one(cublasLtMatmulPreferenceDestroy) do_one(cublasLtMatmulPreferenceSetAttribute)          \
                      do_one(cublasLtMatmulAlgoGetHeuristic) do_one(cublasLtMatmulAlgoConfigGetAttribute)
#define DECLARE(name) decltype(&::name) name = nullptr;
  LORALEI_CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE
};

struct LtPlan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Functions& functions_of(Library library) { return *static_cast<Functions*>(library); }

Status check(const Functions& f, cublasStatus_t code, const std::string& what) {
  if (code == CUBLAS_STATUS_SUCCESS) return {};
  const std::string sentence = "cuBLASLt could not " + what + ": " + f.cublasLtGetStatusString(code) + ".";
  const bool refused = code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE;
  return refused ? Status(unsupported(sentence)) : Status(internal_error(sentence));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// A stride of results that keeps the shape's alignment and no more: run() comes with
// strides of its own.
int64_t least_stride(const GemmShape& shape) {
  const int64_t step = std::max<int64_t>(1, shape.alignment_bytes / row_bytes(shape.y_dtype, 1));
  const int64_t stride = (shape.out + step - 1) / step * step;
  return shape.alignment_bytes < 16 && stride / step % 2 == 0 ? stride + step : stride;
}

Status find_algorithm(const Functions& f, const GemmShape& shape, int32_t rows, int64_t workspace_bytes, LtPlan& plan) {
  TRY(check(f, f.cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product"));
  const int32_t transposed = CUBLAS_OP_T;
  TRY(check(f,
            f.cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
            "describe a product"));
  const auto in = static_cast<uint64_t>(shape.in), out = static_cast<uint64_t>(shape.out);
  const auto count = static_cast<uint64_t>(rows);
  const cudaDataType_t type = type_of(shape.dtype);
  TRY(check(f, f.cublasLtMatrixLayoutCreate(&plan.w, type, in, out, shape.in), "describe the weights"));
  TRY(check(f, f.cublasLtMatrixLayoutCreate(&plan.x, type, in, count, shape.in), "describe the inputs"));
  TRY(check(f, f.cublasLtMatrixLayoutCreate(&plan.y, type_of(shape.y_dtype), out, count, least_stride(shape)),
            "describe the results"));
  cublasLtMatmulPreference_t preference = nullptr;
  TRY(check(f, f.cublasLtMatmulPreferenceCreate(&preference), "take preferences"));
  const auto workspace = static_cast<size_t>(workspace_bytes);
  Status asked = check(f,
                       f.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                              &workspace, sizeof workspace),
                       "take a preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, uint32_t value) {
    if (!asked.ok()) return;
    asked =
        check(f, f.cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value), "take a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_NONE);
  for (const auto matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(matrix, static_cast<uint32_t>(shape.alignment_bytes));
  }
  constexpr int kAsked = 32;  // the first may all split their sums
  cublasLtMatmulHeuristicResult_t found[kAsked];
  int count_found = 0;
  if (asked.ok()) {
    asked = check(f,
                  f.cublasLtMatmulAlgoGetHeuristic(f.handle, plan.product, plan.w, plan.x, plan.y, plan.y, preference,
                                                   kAsked, found, &count_found),
                  "find an algorithm for a product of " + std::to_string(rows) + " rows with weights [" +
                      std::to_string(shape.out) + ", " + std::to_string(shape.in) + "]");
  }
  (void)f.cublasLtMatmulPreferenceDestroy(preference);
  TRY(std::move(asked));
  for (int i = 0; i < count_found; ++i) {
    int32_t splits = 1;
    size_t written = 0;
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    (void)f.cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                                 sizeof splits, &written);
    if (splits > 1) continue;
    plan.algorithm = found[i].algo;
    return {};
  }
  return unsupported("cuBLASLt has no algorithm with whole sums for a product of " + std::to_string(rows) +
                     " rows with weights [" + std::to_string(shape.out) + ", " + std::to_string(shape.in) + "].");
}

Status set_layout(const Functions& f, cublasLtMatrixLayout_t layout, int32_t rows, int64_t stride) {
  const auto columns = static_cast<uint64_t>(rows);
  TRY(check(f, f.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns),
            "take a number of rows"));
  return check(f, f.cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride),
               "take a stride");
}

}  // namespace

Result<Library> open() {
  auto f = std::make_unique<Functions>();
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // Where the system looks (LD_LIBRARY_PATH among it), then where the build found it.
  // To be opened again it stays: half a gigabyte is not read twice.
  std::string refused;
  for (const std::string& path : {name, LORALEI_CUBLASLT_DIR "/" + name}) {
    f->file = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (f->file != nullptr) break;
    refused += (refused.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (f->file == nullptr) {
    return unsupported("Products on the GPU need " + name + " of the CUDA toolkit (" + refused +
                       "): install it, or name its folder in LD_LIBRARY_PATH.");
  }
  const char* missing = nullptr;
#define LOOK_UP(name)                                                   \
  f->name = reinterpret_cast<decltype(f->name)>(dlsym(f->file, #name)); \
  if (f->name == nullptr) missing = #name;
  LORALEI_CUBLASLT_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
  Status opened;
  if (missing != nullptr) {
    opened = unsupported(name + " has no " + missing + ": install the one of CUDA " + std::to_string(CUBLAS_VER_MAJOR) +
                         ".");
  } else {
    opened = check(*f, f->cublasLtCreate(&f->handle), "start");
  }
  if (!opened.ok()) {
    dlclose(f->file);
    return std::move(opened).error();
  }
  return static_cast<Library>(f.release());
}

void close(Library library) {
  const std::unique_ptr<Functions> f(&functions_of(library));
  (void)f->cublasLtDestroy(f->handle);
  dlclose(f->file);
}

void destroy(Library library, Plan plan) {
  const Functions& f = functions_of(library);
  const std::unique_ptr<LtPlan> p(static_cast<LtPlan*>(plan));
  if (p->product != nullptr) (void)f.cublasLtMatmulDescDestroy(p->product);
  for (cublasLtMatrixLayout_t layout : {p->w, p->x, p->y}) {
    if (layout != nullptr) (void)f.cublasLtMatrixLayoutDestroy(layout);
  }
}

Result<Plan> make_plan(Library library, const GemmShape& shape, int32_t rows, int64_t workspace_bytes) {
  auto* plan = new LtPlan;
  Status found = find_algorithm(functions_of(library), shape, rows, workspace_bytes, *plan);
  if (found.ok()) return static_cast<Plan>(plan);
  destroy(library, plan);
  return std::move(found).error();
}

Status run(Library library, Plan plan, const GemmArgs& args, void* workspace, int64_t workspace_bytes, void* stream) {
  const Functions& f = functions_of(library);
  const LtPlan& p = *static_cast<LtPlan*>(plan);
  TRY(set_layout(f, p.x, args.rows, args.x_stride));
  TRY(set_layout(f, p.y, args.rows, args.y_stride));
  const float alpha = 1, beta = args.accumulate ? 1 : 0;
  return check(f,
               f.cublasLtMatmul(f.handle, p.product, &alpha, args.w, p.w, args.x, p.x, &beta, args.y, p.y, args.y, p.y,
                                &p.algorithm, workspace, static_cast<size_t>(workspace_bytes),
                                static_cast<cudaStream_t>(stream)),
               "multiply");
}

}  // namespace loralei::cuda::gemm_library
