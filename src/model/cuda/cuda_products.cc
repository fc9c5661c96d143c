// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_products.h"

#include <algorithm>
#include <array>

#include "model/cuda/cuda_kv.h"

namespace loralei {
namespace {

using cuda::DeviceWeight;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what cuBLASLt's documentation advises for this generation
constexpr int64_t kAlign = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool in_tiles(const DeviceWeight& w) { return w.layout == LayoutId::kTile16; }
// A GEMV reads it as it is.
bool read_plain(const DeviceWeight& w) { return !is_quantised(w.dtype); }
bool thin(const DeviceWeight& w, const CudaInput& input) {
  return input.dtype == DType::kBF16 && cuda::has_thin_gemm(w);
}
// Beyond these a Gemm takes such weights, unless every number of rows is few.
int32_t thin_rows_max(const DeviceWeight& w) { return w.dtype == DType::kF16 ? kFewRowsF16 : kFewRowsBf16; }
// How many of the first products one launch takes, of a kernel that takes such weights:
// those of the first one's format.
template <typename Takes>
size_t together(std::span<const CudaProduct> products, Takes takes) {
  size_t count = 0;
  while (count < std::min<size_t>(products.size(), cuda::kProductTargets) && takes(*products[count].w) &&
         products[count].w->dtype == products[0].w->dtype) {
    ++count;
  }
  return count;
}
// Its Gemm reads it as it is.
bool gemm_as_is(const DeviceWeight& w) { return w.dtype == DType::kBF16; }

// A product with `out` of the outputs. Results lie w.rows apart, or as far as keeps
// 16 bytes (logits_stride).
cuda::GemmShape gemm_shape(const DeviceWeight& w, int32_t out) {
  const auto kept = cuda::common_alignment(row_bytes(DType::kBF16, w.cols), row_bytes(DType::kF32, w.rows));
  return {w.cols, out, DType::kBF16, DType::kF32, kept};
}

// Outputs decoded at a time: whole row tiles.
int32_t panel_rows(const DeviceWeight& w, const CudaProducts::Options& options) {
  const int64_t fitting = options.decode_bytes_max / row_bytes(options.activation, w.cols) / kRowTile * kRowTile;
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, kRowTile, std::max(w.rows, kRowTile)));
}

bool decoded_ever(const DeviceWeight& w, const CudaProducts::Options& options) {
  if (options.one_class()) return !in_tiles(w) && !read_plain(w);
  return !gemm_as_is(w);
}

int64_t decoded_bytes(std::span<const DeviceWeight> weights, const CudaProducts::Options& options) {
  int64_t most = 0;
  for (const DeviceWeight& w : weights) {
    if (!decoded_ever(w, options)) continue;
    most = std::max(most, std::min(panel_rows(w, options), w.rows) * row_bytes(options.activation, w.cols));
  }
  return most;
}

struct RoundedSizes {
  int64_t rows = 0, in = 0;
  int64_t numbers() const { return aligned(rows * in); }
  int64_t scales() const { return aligned(rows * (in / kActivationBlock) * static_cast<int64_t>(sizeof(float))); }
  int64_t total() const { return numbers() + 2 * scales(); }
};

RoundedSizes rounded_sizes(std::span<const DeviceWeight> weights, const CudaProducts::Options& options) {
  RoundedSizes sizes;
  for (const DeviceWeight& w : weights) {
    if (in_tiles(w)) sizes.in = std::max<int64_t>(sizes.in, w.cols);
  }
  if (sizes.in == 0) return sizes;
  sizes.rows = options.one_class() ? options.rows_max : std::min(options.rows_max, kFewRowsTiles);
  return sizes;
}

}  // namespace

int64_t CudaProducts::device_bytes(std::span<const DeviceWeight> weights, const Options& options) {
  const int64_t workspace = options.one_class() ? 0 : kWorkspaceBytes;
  return decoded_bytes(weights, options) + rounded_sizes(weights, options).total() + workspace;
}

Result<CudaProducts> CudaProducts::create(std::span<const DeviceWeight> weights, const Options& options) {
  CHECK(options.activation == DType::kF32 || options.activation == DType::kBF16);
  CudaProducts made;
  made.options_ = options;
  constexpr const char* kRemedy = "give the model fewer rows a step, or a smaller format.";
  TRY_ASSIGN(made.decoded_,
             allocate_on_device(decoded_bytes(weights, options), "Weights decoded for products", kRemedy));
  const RoundedSizes sizes = rounded_sizes(weights, options);
  TRY_ASSIGN(made.rounded_, allocate_on_device(sizes.total(), "Rounded inputs of products", kRemedy));
  if (sizes.in > 0) {
    std::byte* at = made.rounded_.data();
    made.rounded_rows_ = {reinterpret_cast<int8_t*>(at), reinterpret_cast<float*>(at + sizes.numbers()),
                          reinterpret_cast<float*>(at + sizes.numbers() + sizes.scales())};
  }
  if (options.one_class()) return made;

  TRY_ASSIGN(made.gemm_, cuda::Gemm::open(kWorkspaceBytes));
  for (const DeviceWeight& w : weights) {
    const int32_t panel = gemm_as_is(w) ? w.rows : std::min(panel_rows(w, options), w.rows);
    const int32_t few = cuda::has_thin_gemm(w) ? thin_rows_max(w) : kFewRowsPlain;
    for (int64_t rows = 2 * few; rows / 2 < options.rows_max; rows *= 2) {
      for (const int32_t out : {panel, w.rows % panel}) {
        if (out == 0) continue;
        TRY(made.gemm_.prepare(gemm_shape(w, out), static_cast<int32_t>(rows)));
      }
    }
  }
  return made;
}

bool CudaProducts::few(std::span<const CudaProduct> products, int32_t rows) const {
  if (options_.one_class() || rows <= kFewRowsPlain) return true;
  return rows <= kFewRowsTiles &&
         std::any_of(products.begin(), products.end(), [](const CudaProduct& product) { return in_tiles(*product.w); });
}

DType CudaProducts::input_type(std::span<const CudaProduct> products, int32_t rows) const {
  const bool rounded = few(products, rows) && std::any_of(products.begin(), products.end(),
                                                          [](const auto& product) { return in_tiles(*product.w); });
  return rounded ? DType::kF32 : options_.activation;
}

namespace {

// Of a launch whose first row is `row` of theirs. Args: ThinGemmArgs, TileGemvArgs.
template <class Args>
void put_targets(std::span<const cuda::ProductTarget> targets, int32_t row, Args& args) {
  for (cuda::ProductTarget target : targets) {
    target.y += row * target.y_stride;
    args.targets[args.target_count++] = target;
  }
}

}  // namespace

Status CudaProducts::run_thin(CudaStream& stream, const CudaInput& input, std::span<const cuda::ProductTarget> targets,
                              bool accumulate) {
  for (int32_t row = 0; row < input.rows; row += cuda::kThinRows) {
    cuda::ThinGemmArgs args{.x = static_cast<const std::byte*>(input.x) + row * row_bytes(input.dtype, input.in),
                            .x_stride = input.in,
                            .rows = std::min(cuda::kThinRows, input.rows - row),
                            .accumulate = accumulate};
    put_targets(targets, row, args);
    TRY(cuda::thin_gemm(stream, args));
  }
  return {};
}

// After round_rows() of the input.
Status CudaProducts::run_tiles(CudaStream& stream, const CudaInput& input, std::span<const cuda::ProductTarget> targets,
                               bool accumulate) {
  for (int32_t row = 0; row < input.rows; row += cuda::kGemvRows) {
    const int64_t blocks = int64_t{row} * (input.in / kActivationBlock);
    cuda::TileGemvArgs args{
        .x = {rounded_rows_.q + int64_t{row} * input.in, rounded_rows_.d + blocks, rounded_rows_.sums + blocks},
        .rows = std::min(cuda::kGemvRows, input.rows - row),
        .accumulate = accumulate};
    put_targets(targets, row, args);
    TRY(cuda::tile_gemv(stream, args));
  }
  return {};
}

// run(panel, first) for panels of the weights, decoded to the activations'
// type, in order.
template <typename Run>
Status CudaProducts::by_panels(CudaStream& stream, const CudaProduct& product, Run&& run) {
  const DeviceWeight& w = *product.w;
  const int32_t step = panel_rows(w, options_);
  for (int32_t first = 0; first < w.rows; first += step) {
    DeviceWeight part = w;
    part.rows = std::min(step, w.rows - first);
    part.data = static_cast<const std::byte*>(w.data) + first * row_bytes(w.dtype, w.cols);
    TRY(cuda::decode_weights(stream, {part, decoded_.data(), options_.activation}));
    part.data = decoded_.data();
    part.dtype = options_.activation;
    part.layout = LayoutId::kPlain;
    TRY(run(part, first));
  }
  return {};
}

// Outputs [first_output, first_output + w.rows) of a product, from plain weights `w`.
Status CudaProducts::plain(CudaStream& stream, const CudaInput& input, const CudaProduct& product,
                           const DeviceWeight& w, int32_t first_output, bool accumulate) {
  const float* const bias = product.bias == nullptr ? nullptr : product.bias + first_output;
  if (product.columns == nullptr && thin(w, input)) {
    const cuda::ProductTarget target{w, bias, product.y + first_output, product.y_stride};
    return run_thin(stream, input, {&target, 1}, accumulate);
  }
  for (int32_t row = 0; row < input.rows; row += cuda::kGemvRows) {
    TRY(cuda::plain_gemv(stream, {.x = static_cast<const std::byte*>(input.x) + row * row_bytes(input.dtype, input.in),
                                  .x_dtype = input.dtype,
                                  .x_stride = input.in,
                                  .rows = std::min(cuda::kGemvRows, input.rows - row),
                                  .w = w,
                                  .bias = bias,
                                  .y = product.y + row * product.y_stride + first_output,
                                  .y_stride = product.y_stride,
                                  .accumulate = accumulate,
                                  .columns = product.columns}));
  }
  return {};
}

Status CudaProducts::run_own(CudaStream& stream, const CudaInput& input, const CudaProduct& product) {
  CHECK(input.dtype == options_.activation && read_plain(*product.w));
  return plain(stream, input, product, *product.w, 0, false);
}

Status CudaProducts::gemv(CudaStream& stream, const CudaInput& input, const CudaProduct& product, bool accumulate) {
  const auto by_plain = [&](const DeviceWeight& w, int32_t first_output) {
    return plain(stream, input, product, w, first_output, accumulate);
  };
  if (read_plain(*product.w)) return by_plain(*product.w, 0);
  return by_panels(stream, product, by_plain);
}

Status CudaProducts::gemm(CudaStream& stream, const CudaInput& input, const CudaProduct& product, bool accumulate) {
  const auto multiply = [&](const DeviceWeight& w, int32_t first_output) {
    return gemm_.run(stream, {.shape = gemm_shape(*product.w, w.rows),
                              .x = input.x,
                              .x_stride = input.in,
                              .rows = input.rows,
                              .w = w.data,
                              .y = product.y + first_output,
                              .y_stride = product.y_stride,
                              .accumulate = accumulate});
  };
  TRY(gemm_as_is(*product.w) ? multiply(*product.w, 0) : by_panels(stream, product, multiply));
  if (product.bias == nullptr) return {};
  return cuda::add(stream, {.x = product.bias,
                            .x_stride = 0,
                            .y = product.y,
                            .y_stride = product.y_stride,
                            .rows = input.rows,
                            .dim = product.w->rows});
}

Status CudaProducts::run(CudaStream& stream, const CudaInput& input, std::span<const CudaProduct> products,
                         bool accumulate) {
  CHECK(input.rows > 0 && input.rows <= options_.rows_max && input.dtype == input_type(products, input.rows));
  const bool use_gemv = few(products, input.rows);
  if (use_gemv && std::any_of(products.begin(), products.end(), [](const auto& p) { return in_tiles(*p.w); })) {
    TRY(cuda::round_rows(stream, {.x = static_cast<const float*>(input.x),
                                  .x_stride = input.in,
                                  .rows = input.rows,
                                  .in = input.in,
                                  .to = rounded_rows_}));
  }
  const auto takes_thin = [&](const DeviceWeight& w) {
    return thin(w, input) && (options_.one_class() || input.rows <= thin_rows_max(w));
  };
  while (!products.empty()) {
    const size_t in_thin = together(products, takes_thin);
    const size_t in_tile = use_gemv ? together(products, in_tiles) : 0;
    const size_t count = std::max<size_t>(1, in_thin + in_tile);
    std::array<cuda::ProductTarget, cuda::kProductTargets> targets;
    for (size_t i = 0; i < count; ++i) {
      targets[i] = {*products[i].w, products[i].bias, products[i].y, products[i].y_stride};
    }
    if (in_thin > 0) {
      TRY(run_thin(stream, input, {targets.data(), count}, accumulate));
    } else if (in_tile > 0) {
      TRY(run_tiles(stream, input, {targets.data(), count}, accumulate));
    } else {
      TRY(use_gemv ? gemv(stream, input, products[0], accumulate) : gemm(stream, input, products[0], accumulate));
    }
    products = products.subspan(count);
  }
  return {};
}

}  // namespace loralei
