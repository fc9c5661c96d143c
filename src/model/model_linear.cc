// SPDX-License-Identifier: Apache-2.0
// Model: layers of gated linear attention, and gates of attention.
//
//   mixed, value_gates, beta, decay = input W^T
//   mixed = silu(convolution over the sequence's rows)     the state's first part
//   v of mixed = delta rule of q, k and v                  its second part
//   v of mixed = gated norm of it by value_gates
//   x += v of mixed W^T
//
// What says how much a state keeps and takes up (beta, decay) is computed in f32.
#include <cstring>

#include "model/linear_state.h"
#include "model/model_state.h"

namespace loralei {

namespace {

constexpr int64_t kRowsTogether = 4;  // of a thread

}  // namespace

std::span<const StateRows> Model::State::states_at(const ModelBatch& batch, int64_t offset) {
  state_rows.clear();
  for (size_t group = 0; group < batch.groups.size(); ++group) {
    const RowGroup& rows = batch.groups[group];
    state_rows.push_back({rows.row_begin, rows.row_count, batch.states[group] + offset});
  }
  return state_rows;
}

Status Model::State::linear_inputs(const ModelBatch& batch, int layer) {
  static constexpr Module kInputs[] = {Module::kQ, Module::kK, Module::kV, Module::kDecay};
  float* const outputs[] = {mixed, value_gates, beta, decay};
  const float* const input = block_input(batch, LayerNorm::kInput, layer);
  LayerInput published{layer, kInputs, input, config.hidden, config.hidden, batch.segments};
  TRY(publish(batch, published));
  published.modules = std::span(kInputs).first(2);
  TRY(multiply(batch, published, std::span(outputs).first(2), false));
  published.modules = kInputs;
  const LinearWeights& linear = program.layers[static_cast<size_t>(layer)].linear;
  const float* const matrices[] = {linear.beta, linear.decay};
  for (size_t i = 0; i < 2; ++i) {
    const Timed timed(times.products_ns);
    const ResidentMatrix held(matrices[i], config.linear.v_heads, config.hidden);
    MatmulArgs args;
    args.x = input;
    args.x_stride = config.hidden;
    args.rows = static_cast<int32_t>(batch.tokens.size());
    args.w = held.view();
    args.y = outputs[2 + i];
    args.y_stride = config.linear.v_heads;
    ops->matmul(context, args);
  }
  return add_lora(batch, published, outputs);
}

// Of q, k and v in `mixed`; the result takes v's place.
void Model::State::run_delta_rule(const ModelBatch& batch, int layer) {
  const LinearConfig& linear = config.linear;
  const LinearWeights& layer_weights = program.layers[static_cast<size_t>(layer)].linear;
  const LinearStateAt at = linear_state_at(config, layer);
  const Timed timed(times.attention_ns);
  CausalConvArgs conv;
  conv.x = conv.y = mixed;
  conv.x_stride = conv.y_stride = conv.channels = linear.channels();
  conv.weight = layer_weights.conv;
  conv.kernel = linear.kernel;
  conv.groups = states_at(batch, at.conv);
  ops->causal_conv(context, conv);
  DeltaRuleArgs delta;
  delta.q = mixed;
  delta.k = mixed + linear.key_width();
  delta.v = delta.out = mixed + 2 * linear.key_width();
  delta.stride = delta.out_stride = linear.channels();
  delta.a = decay;
  delta.b = beta;
  delta.a_stride = delta.b_stride = linear.v_heads;
  delta.a_log = layer_weights.a_log.data();
  delta.dt_bias = layer_weights.dt_bias;
  delta.k_heads = linear.k_heads;
  delta.v_heads = linear.v_heads;
  delta.key_dim = linear.key_dim;
  delta.value_dim = linear.value_dim;
  delta.tiled = linear.tiled;
  delta.groups = states_at(batch, at.delta);
  ops->delta_rule(context, delta);
}

Status Model::State::linear_block(const ModelBatch& batch, int layer) {
  const LinearConfig& linear = config.linear;
  TRY(linear_inputs(batch, layer));
  run_delta_rule(batch, layer);
  float* const values = mixed + 2 * linear.key_width();
  GatedNormArgs norm;
  norm.x = norm.y = values;
  norm.x_stride = norm.y_stride = linear.channels();
  norm.z = value_gates;
  norm.z_stride = linear.value_width();
  norm.weight = program.layers[static_cast<size_t>(layer)].linear.norm;
  norm.rows = static_cast<int32_t>(batch.tokens.size());
  norm.vectors = linear.v_heads;
  norm.dim = linear.value_dim;
  norm.eps = static_cast<float>(config.rms_eps);
  ops->gated_norm(context, norm);
  return project_to_stream(batch, layer, Module::kO, values, linear.channels());
}

void Model::State::split_gates(int32_t rows) {
  const auto bytes = static_cast<size_t>(config.head_dim) * sizeof(float);
  const int64_t heads = config.heads, dim = config.head_dim;
  context.pool->parallel_for(rows, kRowsTogether, [&](int64_t begin, int64_t end, int) {
    for (int64_t head = begin * heads; head < end * heads; ++head) {
      std::memcpy(q + head * dim, gated_q + 2 * head * dim, bytes);
      std::memcpy(q_gates + head * dim, gated_q + (2 * head + 1) * dim, bytes);
    }
  });
}

// In the gates' place.
const float* Model::State::gate_attended(int32_t rows) {
  SwigluArgs args;
  args.gate = q_gates;
  args.up = attended;
  args.stride = args.dim = q_width();
  args.rows = rows;
  args.activation = Activation::kSigmoid;
  ops->swiglu(context, args);
  return q_gates;
}

}  // namespace loralei
