// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/gemm.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

namespace loralei::cuda {

int32_t common_alignment(int64_t x_bytes, int64_t y_bytes) {
  return 1 << std::countr_zero(static_cast<uint64_t>(x_bytes | y_bytes | 16));
}

namespace {

bool keeps_alignment(const GemmArgs& args) {
  const auto at = [](const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); };
  const int64_t x_bytes = row_bytes(args.shape.dtype, 1), y_bytes = row_bytes(args.shape.y_dtype, 1);
  const int32_t kept = common_alignment(at(args.x) | at(args.w) | args.x_stride * x_bytes | args.shape.in * x_bytes,
                                        at(args.y) | args.y_stride * y_bytes);
  return kept >= args.shape.alignment_bytes;
}

}  // namespace

Result<Gemm> Gemm::open(int64_t workspace_bytes) {
  Gemm gemm;
  TRY_ASSIGN(gemm.library_, gemm_library::open());
  TRY_ASSIGN(gemm.workspace_, DeviceBuffer::allocate(workspace_bytes));
  return gemm;
}

Gemm::~Gemm() {
  for (const Entry& entry : plans_) gemm_library::destroy(library_, entry.plan);
  if (library_ != nullptr) gemm_library::close(library_);
}

Gemm::Gemm(Gemm&& other) noexcept
    : library_(std::exchange(other.library_, nullptr)),
      workspace_(std::move(other.workspace_)),
      plans_(std::exchange(other.plans_, {})) {}

Gemm& Gemm::operator=(Gemm&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(workspace_, other.workspace_);
  std::swap(plans_, other.plans_);
  return *this;
}

// The latest: what was made for rows whose class's plan was refused comes after that.
const Gemm::Entry* Gemm::find(const GemmShape& shape, int32_t rows) const {
  const auto found = std::find_if(plans_.rbegin(), plans_.rend(), [&](const Entry& entry) {
    return entry.shape == shape && entry.rows_first <= rows && rows <= entry.rows_last;
  });
  return found == plans_.rend() ? nullptr : &*found;
}

Result<Gemm::Entry> Gemm::make(const GemmShape& shape, int32_t rows_first, int32_t rows_last) {
  TRY_ASSIGN(const gemm_library::Plan plan,
             gemm_library::make_plan(library_, shape, rows_last, workspace_.size_bytes()));
  return plans_.emplace_back(Entry{shape, rows_first, rows_last, plan});
}

Result<Gemm::Entry> Gemm::plan_for(const GemmShape& shape, int32_t rows) {
  if (const Entry* const known = find(shape, rows)) return *known;
  if ((shape.dtype != DType::kBF16 && shape.dtype != DType::kF16) ||
      (shape.y_dtype != DType::kF32 && shape.y_dtype != shape.dtype)) {
    return unsupported(std::string("Products of ") + dtype_info(shape.dtype).name + " into " +
                       dtype_info(shape.y_dtype).name + " are not made on a GPU: decode the weights to bf16 or f16.");
  }
  if (rows <= kLeastClassRows) return make(shape, 1, kLeastClassRows);
  const auto rows_class = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows)));
  return make(shape, rows_class / 2 + 1, rows_class);
}

Status Gemm::prepare(const GemmShape& shape, int32_t rows) {
  CHECK(rows > 0);
  const Result<Entry> entry = plan_for(shape, rows);
  if (!entry.ok()) return entry.error();
  return {};
}

Status Gemm::run(CudaStream& stream, const GemmArgs& args) {
  if (args.rows <= 0) return {};
  if (!keeps_alignment(args)) {
    return internal_error("A product on the GPU is not aligned as its shape says: [" + std::to_string(args.shape.out) +
                          ", " + std::to_string(args.shape.in) + "], results " + std::to_string(args.y_stride) +
                          " apart.");
  }
  const auto run_with = [&](const Entry& entry) {
    return gemm_library::run(library_, entry.plan, args, workspace_.data(), workspace_.size_bytes(), stream.handle());
  };
  TRY_ASSIGN(const Entry entry, plan_for(args.shape, args.rows));
  Status status = run_with(entry);
  if (status.ok() || status.error().code != ErrorCode::kUnsupported || entry.rows_first == entry.rows_last) {
    return status;
  }
  TRY_ASSIGN(const Entry own, make(args.shape, args.rows, args.rows));
  return run_with(own);
}

}  // namespace loralei::cuda
