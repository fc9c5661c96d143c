// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/device_adapter.h"

#include "base/check.h"
#include "ops/lora_factors.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 16;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Of a row of `count` numbers of a factor.
int64_t factor_bytes(const LoraPair& pair, int64_t count) {
  return pair.a_scale != nullptr ? lora_quant_row_bytes(count) : row_bytes(pair.dtype, count);
}

const std::byte* data_of(const WeightView& view) { return view.panels.empty() ? nullptr : view.panels[0].data; }

}  // namespace

const void* AdapterLayout::bytes_of(const void* host, int64_t bytes) {
  if (host == nullptr) return nullptr;
  const int64_t at = bytes_;
  bytes_ += aligned(bytes);
  if (upload_ == nullptr) return nullptr;
  upload_->parts.push_back({host, at, bytes});
  return upload_->to + at;
}

const float* AdapterLayout::floats(const float* host, int64_t count) {
  return static_cast<const float*>(bytes_of(host, count * static_cast<int64_t>(sizeof(float))));
}

const void* AdapterLayout::rows_of(const void* host, int64_t rows, int64_t bytes, int64_t stride) {
  if (host == nullptr || bytes == stride) return bytes_of(host, rows * bytes);
  const int64_t at = bytes_;
  bytes_ += aligned(rows * bytes);
  if (upload_ == nullptr) return nullptr;
  for (int64_t row = 0; row < rows; ++row)
    upload_->parts.push_back({static_cast<const std::byte*>(host) + row * stride, at + row * bytes, bytes});
  return upload_->to + at;
}

cuda::DeviceLora AdapterLayout::put(const LoraPair& pair) {
  cuda::DeviceLora lora;
  lora.scaling = pair.scaling;
  lora.rank = pair.rank;
  lora.in = pair.in;
  lora.out = pair.out;
  lora.dtype = pair.a_scale != nullptr ? DType::kI8 : pair.dtype;
  lora.present = 1;
  if (pair.rank > 0) {
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    lora.a = rows_of(pair.a, pair.rank, factor_bytes(pair, pair.in), lora_a_stride_bytes(pair));
    lora.b_t = rows_of(pair.b_t, pair.rank, factor_bytes(pair, pair.out), lora_b_stride_bytes(pair));
    lora.a_scale = static_cast<const float*>(rows_of(pair.a_scale, pair.rank, lora_quant_groups(pair.in) * kFloat,
                                                     lora_quant_groups(lora_a_width(pair)) * kFloat));
    lora.b_scale = floats(pair.b_scale, pair.rank * lora_quant_groups(pair.out));
  }
  lora.b_bias = floats(pair.b_bias, pair.out);
  lora.bias_delta = floats(pair.bias_delta, pair.out);
  return lora;
}

cuda::DeviceWeight AdapterLayout::matrix(const WeightView& view) {
  if (view.empty()) return {};
  CHECK(view.panels.size() == 1 && view.layout == LayoutId::kPlain && !is_quantised(view.dtype));
  const void* data = bytes_of(data_of(view), matrix_bytes(view.dtype, view.layout, view.rows, view.cols));
  return {data, view.dtype, view.layout, view.rows, view.cols};
}

cuda::DeviceWeight AdapterLayout::rows(const float* host, size_t count) {
  if (count == 0) return {};
  const auto rows = static_cast<int32_t>(count);
  return {floats(host, int64_t{rows} * shape_.hidden), DType::kF32, LayoutId::kPlain, rows, shape_.hidden};
}

void AdapterLayout::put_embedding(const SavedTensors& saved, DeviceSaved& to) {
  to.embed = matrix(saved.embed);
  if (!saved.embed.empty() && data_of(saved.lm_head) == data_of(saved.embed)) to.lm_head = to.embed;
  to.embed_rows = rows(saved.embed_rows, saved.embed_tokens.size());
}

void AdapterLayout::put_layer(const SavedTensors& saved, size_t layer, DeviceSaved& to) {
  const auto put_norm = [&](LayerNorm which, int64_t count, std::vector<const float*>& places) {
    const auto& host = saved.norms[static_cast<size_t>(which)];
    if (!host.empty()) places.push_back(floats(host[layer], count));
  };
  put_norm(LayerNorm::kInput, shape_.hidden, to.input_norm);
  put_norm(LayerNorm::kFfnInput, shape_.hidden, to.post_attention_norm);
  put_norm(LayerNorm::kQ, shape_.head_dim, to.q_norm);
  put_norm(LayerNorm::kK, shape_.head_dim, to.k_norm);
}

void AdapterLayout::put_head(const SavedTensors& saved, const TokenId* head_tokens, DeviceSaved& to) {
  to.final_norm = floats(saved.final_norm, shape_.hidden);
  if (to.lm_head.rows == 0) to.lm_head = matrix(saved.lm_head);
  to.head_rows = rows(saved.head_rows, saved.head_tokens.size());
  if (saved.head_tokens.empty()) return;
  const auto bytes = static_cast<int64_t>(saved.head_tokens.size() * sizeof(TokenId));
  to.head_tokens = static_cast<const int32_t*>(bytes_of(head_tokens, bytes));
}

DevicePlaces AdapterLayout::put(std::span<const ModulePair> pairs, const SavedTensors* saved,
                                const TokenId* head_tokens) {
  DevicePlaces to;
  to.pairs.resize(pairs.size());
  const int32_t embed = shape_.layers * kLayerModules + 1;  // behind the head's
  const bool has_embed = !pairs.empty() && pairs.back().module == embed;
  if (has_embed) to.pairs.back() = put(*pairs.back().pair);
  const size_t others = pairs.size() - (has_embed ? 1 : 0);
  if (saved != nullptr) put_embedding(*saved, to.saved);
  size_t next = 0;
  const auto put_below = [&](int64_t module) {
    for (; next < others && pairs[next].module < module; ++next) to.pairs[next] = put(*pairs[next].pair);
  };
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    if (saved != nullptr) put_layer(*saved, static_cast<size_t>(layer), to.saved);
    put_below((layer + 1) * kLayerModules);
    to.piece_ends.push_back(bytes_);
  }
  put_below(INT32_MAX);
  if (saved != nullptr) put_head(*saved, head_tokens, to.saved);
  to.piece_ends.push_back(bytes_);
  return to;
}

}  // namespace loralei
