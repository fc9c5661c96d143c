// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_weights.h"

#include <optional>
#include <string>

#include "model/cuda/cuda_kv.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 256;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Calls matrix(view, place) and vector(host, count, place) for every tensor,
// in one fixed order.
template <typename Matrix, typename Vector>
void walk(const ModelConfig& config, const LayerProgram& program, const WeightStore& weights, const RopeTable& rope,
          CudaWeights& to, Matrix&& matrix, Vector&& vector) {
  to.layers.resize(program.layers.size());
  for (size_t i = 0; i < program.layers.size(); ++i) {
    const LayerWeights& from = program.layers[i];
    CudaLayer& layer = to.layers[i];
    for (size_t m = 0; m < kLayerModules; ++m) {
      if (from.matrix[m] == kNoTensor) continue;  // kDecay
      matrix(weights.view(from.matrix[m]), layer.matrix[m]);
      vector(from.bias[m], module_out(config, static_cast<int>(i), static_cast<Module>(m)), layer.bias[m]);
    }
    const auto norm = [&](LayerNorm which, const float*& place) {
      vector(from.norm[static_cast<size_t>(which)], norm_width(config, which), place);
    };
    norm(LayerNorm::kInput, layer.input_norm);
    norm(LayerNorm::kFfnInput, layer.post_attention_norm);
    norm(LayerNorm::kQ, layer.q_norm);
    norm(LayerNorm::kK, layer.k_norm);
  }
  matrix(weights.view(program.embed), to.embed);
  if (program.head != program.embed) {
    matrix(weights.view(program.head), to.head);
  } else {
    to.head = to.embed;
  }
  vector(program.final_norm, config.hidden, to.final_norm);
  vector(rope.inv_freq.data(), static_cast<int64_t>(rope.inv_freq.size()), to.inv_freq);
}

int64_t walk_bytes(const ModelConfig& config, const LayerProgram& program, const WeightStore& weights,
                   const RopeTable& rope) {
  int64_t total = 0;
  CudaWeights places;
  walk(
      config, program, weights, rope, places,
      [&](const WeightView& view, cuda::DeviceWeight&) {
        total += aligned(matrix_bytes(view.dtype, view.layout, view.rows, view.cols));
      },
      [&](const float* host, int64_t count, const float*&) {
        if (host != nullptr) total += aligned(count * static_cast<int64_t>(sizeof(float)));
      });
  return total;
}

Status refuse_streams(const WeightStore& weights) {
  if (!weights.streams()) return {};
  return unsupported(
      "The weights are streamed from disk and a model on a GPU needs them whole: give --memory-budget room for the "
      "whole model, or run on the CPU.");
}

Status refuse_formats(const ModelConfig& config, const LayerProgram& program, const WeightStore& weights,
                      const RopeTable& rope) {
  CudaWeights places;
  std::optional<DType> unknown;
  walk(
      config, program, weights, rope, places,
      [&](const WeightView& view, cuda::DeviceWeight&) {
        if (!view.empty() && !cuda::reads_weights(view.dtype)) unknown = view.dtype;
      },
      [](const float*, int64_t, const float*&) {});
  if (!unknown) return {};
  return unsupported(std::string("Weights in ") + dtype_info(*unknown).name +
                     " cannot be computed on a GPU yet: take a file in q4_k or q8_0, or run it on the CPU "
                     "(--device cpu).");
}

}  // namespace

Result<int64_t> cuda_weight_bytes(const ModelConfig& config, const WeightStore& weights, const Shard& shard) {
  TRY(refuse_streams(weights));
  TRY_ASSIGN(const LayerProgram program, make_layer_program(config, weights, shard));
  const RopeTable rope = make_rope_table(config, 0);
  TRY(refuse_formats(config, program, weights, rope));
  return walk_bytes(config, program, weights, rope);
}

// A tied head is the embedding, of which every rank has all rows. Parts begin with a
// tile of rows.
cuda::DeviceWeight head_of_rank(const cuda::DeviceWeight& head, const Shard& shard, int32_t vocab) {
  const ShardPart part = tiled_part(shard, vocab, kRowTile);
  cuda::DeviceWeight own = head;
  if (shard.whole() || head.rows != vocab) return own;
  own.rows = static_cast<int32_t>(part.count);
  if (head.data != nullptr)
    own.data = static_cast<const std::byte*>(head.data) + part.begin * row_bytes(head.dtype, head.cols);
  return own;
}

Result<CudaWeights> upload_weights(const ModelConfig& config, const WeightStore& weights, const Shard& shard,
                                   int64_t max_model_len, CudaStream& stream) {
  TRY(refuse_streams(weights));
  TRY_ASSIGN(const LayerProgram program, make_layer_program(config, weights, shard));
  const RopeTable rope = make_rope_table(config, max_model_len);
  TRY(refuse_formats(config, program, weights, rope));
  CudaWeights to;
  TRY_ASSIGN(
      to.bytes,
      allocate_on_device(
          walk_bytes(config, program, weights, rope), "The model's weights",
          "use a file with fewer bits a weight, or --quant q8_0 or q4_0 for one of 16 bits, or run on the CPU."));
  to.rope_attention_scale = rope.attention_scale;
  std::byte* next = to.bytes.data();
  Status copied;
  const auto copy = [&](std::byte* at, const void* host, int64_t bytes) {
    if (copied.ok()) copied = copy_to_device(at, host, bytes, stream);
  };
  walk(
      config, program, weights, rope, to,
      [&](const WeightView& view, cuda::DeviceWeight& place) {
        place = {next, view.dtype, view.layout, view.rows, view.cols};
        for (const WeightPanel& panel : view.panels) {
          copy(next + panel.row_begin * row_bytes(view.dtype, view.cols), panel.data,
               matrix_bytes(view.dtype, view.layout, panel.row_count, view.cols));
        }
        next += aligned(matrix_bytes(view.dtype, view.layout, view.rows, view.cols));
      },
      [&](const float* host, int64_t count, const float*& place) {
        if (host == nullptr) return;
        place = reinterpret_cast<const float*>(next);
        const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
        copy(next, host, bytes);
        next += aligned(bytes);
      });
  const Status done = stream.synchronize();  // the host's side must live until here, failed or not
  TRY(copied);
  TRY(done);
  to.head = head_of_rank(to.head, shard, config.vocab);
  return to;
}

}  // namespace loralei
