// SPDX-License-Identifier: Apache-2.0
// Model: products with the base's matrices that share an input, and what adapters add.
#include <array>

#include "model/model_state.h"

namespace loralei {

Status Model::State::project(const ModelBatch& batch, int layer, std::span<const Module> modules, const float* input,
                             int64_t input_stride, std::span<float* const> outputs, bool accumulate) {
  const LayerInput published{layer, modules, input, input_stride, module_in(config, layer, modules[0]), batch.segments};
  TRY(publish(batch, published));
  TRY(multiply(batch, published, outputs, accumulate));
  return add_lora(batch, published, outputs);
}

Status Model::State::publish(const ModelBatch& batch, const LayerInput& input) {
  return batch.inputs == nullptr || batch.segments.empty() ? Status() : batch.inputs->publish(input);
}

Status Model::State::multiply(const ModelBatch& batch, const LayerInput& input, std::span<float* const> outputs,
                              bool accumulate) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const std::span<const Module> modules = input.modules;
  const LayerWeights& layer_weights = program.layers[static_cast<size_t>(input.layer)];
  std::array<TensorSlot, WeightUse::kMatricesMax> slots;
  for (size_t i = 0; i < modules.size(); ++i) slots[i] = layer_weights.matrix[static_cast<size_t>(modules[i])];
  WeightUse use(*weights, {slots.data(), modules.size()});
  for (;;) {
    TRY_ASSIGN(const bool more, use.next());
    if (!more) break;
    std::array<TileProduct, WeightUse::kMatricesMax> tiled;  // projections with tiles go through one product
    size_t tiled_count = 0;
    const Timed timed(times.products_ns);
    for (size_t i = 0; i < modules.size(); ++i) {
      const WeightView& w = use.view(i);
      const float* const bias = layer_weights.bias[static_cast<size_t>(modules[i])];
      if (w.panels.empty()) continue;
      if (w.layout == LayoutId::kTile16) {
        tiled[tiled_count++] = {w, bias, outputs[i], w.rows};
        continue;
      }
      MatmulArgs args;
      args.x = input.x;
      args.x_stride = input.x_stride;
      args.rows = rows;
      args.w = w;
      args.bias = bias;
      args.y = outputs[i];
      args.y_stride = w.rows;
      args.accumulate = accumulate;
      ops->matmul(context, args);
    }
    if (tiled_count == 0) continue;
    TileMatmulArgs args;
    args.x = input.x;
    args.x_stride = input.x_stride;
    args.rows = rows;
    args.products = {tiled.data(), tiled_count};
    args.accumulate = accumulate;
    ops->matmul_tiles(context, args);
  }
  return {};
}

Status Model::State::add_lora(const ModelBatch& batch, const LayerInput& input, std::span<float* const> outputs) {
  if (batch.segments.empty()) return {};
  const LayerWeights& layer_weights = program.layers[static_cast<size_t>(input.layer)];
  std::array<LoraTarget, WeightUse::kMatricesMax> targets;
  for (size_t i = 0; i < input.modules.size(); ++i) {
    const auto module = static_cast<size_t>(input.modules[i]);
    const TensorSlot slot = layer_weights.matrix[module];
    targets[i].y = outputs[i];
    targets[i].out = slot == kNoTensor ? module_out(config, input.layer, input.modules[i]) : weights->view(slot).rows;
    targets[i].y_stride = targets[i].out;
    targets[i].sources =
        batch.sources == nullptr
            ? nullptr
            : batch.sources +
                  (static_cast<int64_t>(input.layer) * kLayerModules + static_cast<int64_t>(module)) * batch.slots;
  }
  const Timed timed(times.lora_ns);
  const std::span<const LoraTarget> used = std::span(targets).first(input.modules.size());
  if (batch.inputs != nullptr) return batch.inputs->add(*ops, context, input, used);
  LoraArgs lora;
  lora.x = input.x;
  lora.x_stride = input.x_stride;
  lora.in = input.in;
  lora.segments = batch.segments;
  lora.targets = used;
  ops->lora(context, lora);
  return {};
}

}  // namespace loralei
