// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include "ops/ref/ref_table.h"

namespace loralei {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double sum_of_squares(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

bool any_rows(std::span<const StateRows> groups) {
  for (const StateRows& group : groups) {
    if (group.row_count > 0) return true;
  }
  return false;
}

// One channel of one sequence.
void convolve(const CausalConvArgs& args, const StateRows& group, int64_t channel) {
  const int64_t kept = args.kernel - 1;
  float window[kConvKernelMax] = {};  // the newest row's last
  for (int64_t j = 0; j < kept; ++j) window[j] = group.state[j * args.channels + channel];
  for (int64_t row = group.row_begin; row < group.row_begin + group.row_count; ++row) {
    window[kept] = args.x[row * args.x_stride + channel];
    double sum = args.bias != nullptr ? static_cast<double>(args.bias[channel]) : 0.0;
    for (int64_t j = 0; j < args.kernel; ++j) {
      sum += static_cast<double>(args.weight[channel * args.kernel + j]) * static_cast<double>(window[j]);
    }
    args.y[row * args.y_stride + channel] = static_cast<float>(sum * sigmoid(sum));
    for (int64_t j = 0; j < kept; ++j) window[j] = window[j + 1];
  }
  for (int64_t j = 0; j < kept; ++j) group.state[j * args.channels + channel] = window[j];
}

// One row of one value head; `state` is the head's.
void delta_row(const DeltaRuleArgs& args, int64_t row, int64_t head, float* state) {
  const int64_t keys = args.key_dim, values = args.value_dim, key_head = args.key_head(head);
  const float* const q = args.q + row * args.stride + key_head * keys;
  const float* const k = args.k + row * args.stride + key_head * keys;
  const float* const v = args.v + row * args.stride + head * values;
  float* const out = args.out + row * args.out_stride + head * values;
  const double eps = static_cast<double>(kUnitEps);
  const double by_q = 1.0 / std::sqrt((sum_of_squares(q, keys) + eps) * static_cast<double>(keys));
  const double by_k = 1.0 / std::sqrt(sum_of_squares(k, keys) + eps);
  const double a = static_cast<double>(args.a[row * args.a_stride + head]) + static_cast<double>(args.dt_bias[head]);
  const double softplus = (a > 0 ? a : 0.0) + std::log1p(std::exp(-std::fabs(a)));
  const double decay = std::exp(-std::exp(static_cast<double>(args.a_log[head])) * softplus);
  const double beta = sigmoid(static_cast<double>(args.b[row * args.b_stride + head]));
  for (int64_t c = 0; c < values; ++c) {
    double recalled = 0, sum = 0;
    for (int64_t i = 0; i < keys; ++i) {
      recalled += static_cast<double>(state[i * values + c]) * (static_cast<double>(k[i]) * by_k);
    }
    const double delta = beta * (static_cast<double>(v[c]) - decay * recalled);
    for (int64_t i = 0; i < keys; ++i) {
      float& s = state[i * values + c];
      s = static_cast<float>(decay * static_cast<double>(s) + static_cast<double>(k[i]) * by_k * delta);
      sum += static_cast<double>(s) * (static_cast<double>(q[i]) * by_q);
    }
    out[c] = static_cast<float>(sum);
  }
}

}  // namespace

void ref_causal_conv(OpContext& ctx, const CausalConvArgs& args) {
  if (!any_rows(args.groups)) return;
  ++ctx.op_count;
  for (const StateRows& group : args.groups) {
    if (group.row_count <= 0) continue;
    for (int64_t channel = 0; channel < args.channels; ++channel) convolve(args, group, channel);
  }
}

void ref_delta_rule(OpContext& ctx, const DeltaRuleArgs& args) {
  if (!any_rows(args.groups)) return;
  ++ctx.op_count;
  const int64_t items = static_cast<int64_t>(args.groups.size()) * args.v_heads;
  ctx.pool->parallel_for(items, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const StateRows& group = args.groups[static_cast<size_t>(item / args.v_heads)];
      const int64_t head = item % args.v_heads;
      float* const state = group.state + head * args.key_dim * args.value_dim;
      for (int64_t i = 0; i < group.row_count; ++i) delta_row(args, group.row_begin + i, head, state);
    }
  });
}

void ref_gated_norm(OpContext& ctx, const GatedNormArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t vector = 0; vector < args.vectors; ++vector) {
      const float* const x = args.x + row * args.x_stride + vector * args.dim;
      const float* const z = args.z + row * args.z_stride + vector * args.dim;
      float* const y = args.y + row * args.y_stride + vector * args.dim;
      const double inverse = 1.0 / std::sqrt(sum_of_squares(x, args.dim) / args.dim + static_cast<double>(args.eps));
      for (int64_t i = 0; i < args.dim; ++i) {
        const double gate = static_cast<double>(z[i]);
        y[i] = static_cast<float>(static_cast<double>(x[i]) * inverse * static_cast<double>(args.weight[i]) * gate *
                                  sigmoid(gate));
      }
    }
  }
}

}  // namespace loralei
