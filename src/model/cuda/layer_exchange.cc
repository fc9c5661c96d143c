// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/layer_exchange.h"

#include <cstring>

#include "ops/cuda/cuda_ops.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kAlignFloats = 4;  // what kernels load at a time
int64_t aligned(int64_t floats) { return (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats; }

int64_t row_floats(const LayerExchange::Options& options) {
  return int64_t{options.rows_max} * aligned(options.in_max);
}
// Every module of every part begins at a multiple of kAlignFloats.
int64_t result_floats(const LayerExchange::Options& options) {
  constexpr auto kMost = static_cast<int64_t>(LayerExchange::kModules);
  return int64_t{options.rows_max} * (options.outs_max + kMost * kAlignFloats);
}

}  // namespace

int64_t LayerExchange::host_bytes(const Options& options) {
  if (options.rows_max == 0) return 0;
  return kFloat * (2 * row_floats(options) + result_floats(options)) + StreamGates::bytes(kGates);
}

Result<LayerExchange> LayerExchange::create(const Options& options) {
  LayerExchange made;
  made.options_ = options;
  if (options.rows_max == 0) return made;
  TRY_ASSIGN(made.gates_, StreamGates::create(kGates));
  made.out_ = &made.gates_[kPublished];
  TRY_ASSIGN(made.rows_, PinnedBuffer::allocate(kFloat * row_floats(options)));
  TRY_ASSIGN(made.results_, PinnedBuffer::allocate(kFloat * result_floats(options)));
  made.x_.resize(static_cast<size_t>(row_floats(options)));
  for (Exchange& exchange : made.exchanges_) exchange.parts.reserve(static_cast<size_t>(options.rows_max));
  made.asked_.reserve(static_cast<size_t>(options.rows_max));
  return made;
}

void LayerExchange::begin(LayerSums* sums) {
  sums_ = sums;
  opened_ = served_ = 0;
  for (int32_t i = 0; i < gates_.count(); ++i) gates_[i].there.store(0, std::memory_order_release);
}

// --- the stream's side

void LayerExchange::open(int32_t layer, const CudaInput& input) {
  CHECK(opened_ - served_ < 2);
  ++opened_;
  Exchange& exchange = latest();
  exchange.layer = layer;
  exchange.input = input;
  exchange.parts.clear();
  exchange.x_bytes = exchange.floats = 0;
}

void LayerExchange::take(AdapterVersionId version, const LoraSegment& segment, std::span<const CudaProduct> products,
                         std::span<const int> modules) {
  CHECK(products.size() == modules.size() && products.size() <= kModules);
  Exchange& exchange = latest();
  Part& part = exchange.parts.emplace_back();
  part.version = version;
  part.rows = segment;
  part.own_rows = {0, segment.row_count, 0, segment.scale};
  part.x_bytes = exchange.x_bytes;
  exchange.x_bytes += segment.row_count * row_bytes(exchange.input.dtype, exchange.input.in);
  CHECK(exchange.x_bytes <= rows_.size_bytes());
  for (size_t i = 0; i < products.size(); ++i) {
    if (modules[i] == kNone) continue;
    const int32_t out = products[i].w->rows;
    part.modules[part.count] = static_cast<Module>(modules[i]);
    part.products[part.count] = i;
    part.targets[part.count++] = {reinterpret_cast<float*>(results_.data()) + exchange.floats, out, nullptr, out};
    exchange.floats += aligned(int64_t{segment.row_count} * out);
  }
  CHECK(exchange.floats * kFloat <= results_.size_bytes());
}

Status LayerExchange::publish(CudaStream& stream) {
  const Exchange& exchange = latest();
  const int64_t bytes_of_row = row_bytes(exchange.input.dtype, exchange.input.in);
  const auto* const x = static_cast<const std::byte*>(exchange.input.x);
  for (const Part& part : exchange.parts) {
    TRY(copy_to_host(rows_.data() + part.x_bytes, x + part.rows.row_begin * bytes_of_row,
                     part.rows.row_count * bytes_of_row, stream));
  }
  return stream.write(out_->there, opened_);
}

Status LayerExchange::add(CudaStream& stream, std::span<const CudaProduct> products) {
  TRY(stream.wait_for(gates_[kSummed], opened_));
  for (const Part& part : latest().parts) {
    for (size_t i = 0; i < part.count; ++i) {
      const CudaProduct& product = products[part.products[i]];
      const LoraTarget& sums = part.targets[i];
      TRY(cuda::add(stream, {.x = sums.y,
                             .x_stride = sums.y_stride,
                             .y = product.y + part.rows.row_begin * product.y_stride,
                             .y_stride = product.y_stride,
                             .rows = part.rows.row_count,
                             .dim = sums.out}));
    }
  }
  return {};
}

// --- the host's side

void LayerExchange::compute(const Exchange& exchange) {
  const DType dtype = exchange.input.dtype;
  const int32_t in = exchange.input.in;
  const auto* x = reinterpret_cast<const float*>(rows_.data());
  if (dtype != DType::kF32) {
    decode_row(dtype, rows_.data(), x_.data(), exchange.x_bytes / row_bytes(dtype, in) * in);
    x = x_.data();
  }
  std::memset(results_.data(), 0, static_cast<size_t>(exchange.floats * kFloat));
  asked_.clear();
  for (const Part& part : exchange.parts) {
    const LayerInput input{.layer = exchange.layer,
                           .modules = {part.modules.data(), part.count},
                           .x = x,
                           .x_stride = in,
                           .in = in,
                           .segments = {&part.own_rows, 1}};
    asked_.push_back({part.version, input, {part.targets.data(), part.count}});
    x += int64_t{part.rows.row_count} * in;
  }
  sums_->add(asked_);
}

void LayerExchange::end() const {
  if (gates_.count() > 0) gates_[kSummed].end();
}

void LayerExchange::close() {
  if (gates_.count() > 0) gates_[kSummed].ended.store(0, std::memory_order_release);
  sums_ = nullptr;
}

}  // namespace loralei
