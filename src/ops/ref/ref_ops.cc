// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/limits.h"
#include "ops/lora_factors.h"
#include "ops/ref/ref_table.h"
#include "ops/tiles.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int kExpandChunk = 256;  // outputs of a low-rank expansion held on the stack at a time

int64_t aligned64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch is cut into equal parts, one a worker.
template <typename T>
T* worker_scratch(const OpContext& ctx, int worker) {
  const int64_t part = static_cast<int64_t>(ctx.scratch.size()) / ctx.pool->threads() / 64 * 64;
  return reinterpret_cast<T*>(ctx.scratch.data() + part * worker);
}

int64_t ref_scratch_bytes(const OpLimits& limits) {
  const int64_t matmul = aligned64(int64_t{limits.in_max} * 4);
  const int64_t lora = aligned64(int64_t{limits.rank_max} * 8) + matmul;
  const int64_t attention = aligned64(int64_t{limits.head_dim} * (8 + 8));
  return (std::max({matmul, lora, attention}) + 64) * limits.threads;
}

double dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

void ref_matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  ++ctx.op_count;
  const int64_t weight_stride = row_bytes(args.w.dtype, args.w.cols);
  for (const WeightPanel& panel : args.w.panels) {
    ctx.pool->parallel_for(panel.row_count, kRowTile, [&](int64_t begin, int64_t end, int worker) {
      float* weights = worker_scratch<float>(ctx, worker);  // [cols]
      for (int64_t i = begin; i < end; ++i) {
        decode_row(args.w.dtype, panel.data + i * weight_stride, weights, args.w.cols);
        const int64_t out = panel.row_begin + i;
        for (int32_t row = 0; row < args.rows; ++row) {
          double sum = dot(args.x + row * args.x_stride, weights, args.w.cols);
          if (args.bias != nullptr) sum += static_cast<double>(args.bias[out]);
          float& y = args.y[row * args.y_stride + out];
          y = static_cast<float>(args.accumulate ? static_cast<double>(y) + sum : sum);
        }
      }
    });
  }
}

// y += factor * sum + bias_delta
void add_sum(const LoraPair& pair, double factor, int32_t output, float sum, float* y) {
  double add = factor * static_cast<double>(sum);
  if (pair.bias_delta != nullptr) add += static_cast<double>(pair.bias_delta[output]);
  y[output] = static_cast<float>(static_cast<double>(y[output]) + add);
}

// y[0..out) += factor * (B v + b_bias) + bias_delta, for one row. The sums are rounded,
// so that they may be computed elsewhere (LoraSumArgs).
void expand_row(const LoraPair& pair, const double* v, float scale, float* y) {
  const double factor = static_cast<double>(scale) * static_cast<double>(pair.scaling);
  for (int32_t begin = 0; begin < pair.out; begin += kExpandChunk) {
    const int32_t count = std::min(kExpandChunk, pair.out - begin);
    double sum[kExpandChunk] = {};
    float b[kExpandChunk];
    for (int32_t r = 0; r < pair.rank; ++r) {
      decode_lora_b(pair, r, begin, count, b);
      for (int32_t i = 0; i < count; ++i) sum[i] += v[r] * static_cast<double>(b[i]);
    }
    for (int32_t i = 0; i < count; ++i) {
      if (pair.b_bias != nullptr && pair.rank > 0) sum[i] += static_cast<double>(pair.b_bias[begin + i]);
      add_sum(pair, factor, begin + i, static_cast<float>(sum[i]), y);
    }
  }
}

bool does_work(const LoraSegment& segment, const LoraSource& source) {
  return segment.row_count > 0 && source.pair != nullptr &&
         (source.pair->rank > 0 || source.pair->bias_delta != nullptr);
}

void ref_lora(OpContext& ctx, const LoraArgs& args) {
  bool worked = false;
  for (const LoraSegment& segment : args.segments) {
    for (const LoraTarget& target : args.targets) {
      const LoraSource& source = target.sources[segment.slot];
      if (!does_work(segment, source)) continue;
      const LoraPair& pair = *source.pair;
      worked = true;
      ctx.pool->parallel_for(segment.row_count, 1, [&](int64_t begin, int64_t end, int worker) {
        double* v = worker_scratch<double>(ctx, worker);                                 // [rank]
        float* a = reinterpret_cast<float*>(v + aligned64(int64_t{pair.rank} * 8) / 8);  // [in]
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = segment.row_begin + i;
          for (int32_t r = 0; r < pair.rank; ++r) {
            decode_lora_a(pair, r, a);
            v[r] = dot(args.x + row * args.x_stride, a, pair.in);
          }
          expand_row(pair, v, segment.scale, target.y + row * target.y_stride);
        }
      });
    }
  }
  if (worked) ++ctx.op_count;
}

void ref_lora_embed(OpContext& ctx, const LoraEmbedArgs& args) {
  bool worked = false;
  for (const LoraSegment& segment : args.segments) {
    const LoraSource& source = args.target.sources[segment.slot];
    if (!does_work(segment, source)) continue;
    const LoraPair& pair = *source.pair;
    worked = true;
    ctx.pool->parallel_for(segment.row_count, 1, [&](int64_t begin, int64_t end, int worker) {
      double* v = worker_scratch<double>(ctx, worker);  // [rank]
      const int64_t element_bytes = row_bytes(pair.dtype, 1);
      for (int64_t row = segment.row_begin + begin; row < segment.row_begin + end; ++row) {
        for (int32_t r = 0; r < pair.rank; ++r) {
          float a;
          decode_row(pair.dtype, pair.a + (int64_t{args.tokens[row]} * pair.rank + r) * element_bytes, &a, 1);
          v[r] = static_cast<double>(a);
        }
        expand_row(pair, v, segment.scale, args.target.y + row * args.target.y_stride);
      }
    });
  }
  if (worked) ++ctx.op_count;
}

void ref_lora_add(OpContext& ctx, const LoraSumArgs& args) {
  const LoraPair& pair = *args.pair;
  if (args.rows <= 0 || (pair.rank == 0 && pair.bias_delta == nullptr)) return;
  ++ctx.op_count;
  const double factor = static_cast<double>(args.scale) * static_cast<double>(pair.scaling);
  ctx.pool->parallel_for(args.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int32_t i = 0; i < pair.out; ++i)
        add_sum(pair, factor, i, pair.rank > 0 ? args.sums[row * args.sums_stride + i] : 0.0f,
                args.y + row * args.y_stride);
    }
  });
}

// The byte where number d of a position (inside its block) lies in a head of a slice.
std::byte* kv_element(const KvView& kv, std::byte* head, int32_t v, int32_t position, int32_t d) {
  const int64_t index = v == 0 ? int64_t{d} * kKvBlockTokens + position : int64_t{position} * kv.head_dim + d;
  return head + index * row_bytes(kv.dtype, 1);
}

void store_vector(const KvView& kv, const float* source, int32_t v, int32_t position, std::byte* head) {
  float scale = 0;
  const bool scaled = has_vector_scale(kv.dtype);
  if (scaled) kv.scales(head)[position] = scale = vector_scale(kv.dtype, source, kv.head_dim);
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    std::byte* out = kv_element(kv, head, v, position, d);
    if (scaled) {
      quantise_vector(kv.dtype, source + d, scale, out, 1);
    } else {
      encode_row(kv.dtype, source + d, out, 1);
    }
  }
}

void load_vector(const KvView& kv, std::byte* head, int32_t v, int32_t position, double* out) {
  const double scale = has_vector_scale(kv.dtype) ? static_cast<double>(kv.scales(head)[position]) : 1.0;
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    float value;
    decode_row(kv.dtype, kv_element(kv, head, v, position, d), &value, 1);
    out[d] = static_cast<double>(value) * scale;
  }
}

void ref_kv_store(OpContext& ctx, const KvStoreArgs& args) {
  bool worked = false;
  for (const RowGroup& group : args.groups) {
    for (int32_t i = 0; i < group.row_count; ++i) {
      worked = true;
      const int32_t position = group.position + i;
      for (int32_t v = 0; v < 2; ++v) {
        const float* source = (v == 0 ? args.k : args.v) + (group.row_begin + i) * args.stride;
        for (int32_t head = 0; head < args.kv.kv_heads; ++head) {
          store_vector(args.kv, source + int64_t{head} * args.kv.head_dim, v, position % kKvBlockTokens,
                       args.kv.head(group.blocks[position / kKvBlockTokens], args.layer, v, head));
        }
      }
    }
  }
  if (worked) ++ctx.op_count;
}

double capped(double x, double cap) { return cap * std::tanh(x / cap); }

// One (row, head): scores are computed twice rather than stored, so that scratch does not
// grow with the context.
void attend(const AttentionArgs& args, const RowGroup& group, int32_t i, int32_t head, double* sum, double* decoded) {
  const int32_t head_dim = args.kv.head_dim;
  const int32_t kv_head = head / (args.heads / args.kv.kv_heads);
  const float* q = args.q + (group.row_begin + i) * args.q_stride + int64_t{head} * head_dim;
  float* out = args.out + (group.row_begin + i) * args.out_stride + int64_t{head} * head_dim;
  const int32_t last = group.position + i;
  const int32_t first = args.window > 0 ? std::max(0, last - args.window + 1) : 0;
  const auto load = [&](int32_t position, int32_t v) {
    load_vector(args.kv, args.kv.head(group.blocks[position / kKvBlockTokens], args.layer, v, kv_head), v,
                position % kKvBlockTokens, decoded);
    return decoded;
  };
  const auto score = [&](int32_t position) {
    const double* key = load(position, 0);
    double sum_of_products = 0;
    for (int32_t d = 0; d < head_dim; ++d) sum_of_products += static_cast<double>(q[d]) * key[d];
    const double scaled = static_cast<double>(args.scale) * sum_of_products;
    return args.cap > 0 ? capped(scaled, static_cast<double>(args.cap)) : scaled;
  };
  double largest = -std::numeric_limits<double>::infinity();
  for (int32_t p = first; p <= last; ++p) largest = std::max(largest, score(p));
  double weights = 0;
  std::fill_n(sum, head_dim, 0.0);
  for (int32_t p = first; p <= last; ++p) {
    const double weight = std::exp(score(p) - largest);
    weights += weight;
    const double* value = load(p, 1);
    for (int32_t d = 0; d < head_dim; ++d) sum[d] += weight * value[d];
  }
  if (args.sinks != nullptr) {
    const double sink = static_cast<double>(args.sinks[head]), most = std::max(largest, sink);
    const double factor = std::exp(largest - most);
    weights = weights * factor + std::exp(sink - most);
    for (int32_t d = 0; d < head_dim; ++d) sum[d] *= factor;
  }
  for (int32_t d = 0; d < head_dim; ++d) out[d] = static_cast<float>(sum[d] / weights);
}

void ref_attention(OpContext& ctx, const AttentionArgs& args) {
  bool worked = false;
  for (const RowGroup& group : args.groups) {
    if (group.row_count > 0) worked = true;
    ctx.pool->parallel_for(int64_t{group.row_count} * args.heads, 1, [&](int64_t begin, int64_t end, int worker) {
      double* sum = worker_scratch<double>(ctx, worker);  // [head_dim]
      double* decoded = sum + args.kv.head_dim;           // [head_dim]
      for (int64_t item = begin; item < end; ++item) {
        attend(args, group, static_cast<int32_t>(item / args.heads), static_cast<int32_t>(item % args.heads), sum,
               decoded);
      }
    });
  }
  if (worked) ++ctx.op_count;
}

void ref_rms_norm(OpContext& ctx, const RmsNormArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int32_t row = 0; row < args.rows; ++row) {
    for (int32_t v = 0; v < args.vectors; ++v) {
      const float* x = args.x + row * args.x_stride + int64_t{v} * args.dim;
      float* y = args.y + row * args.y_stride + int64_t{v} * args.dim;
      double mean = 0, square = 0;  // RMS norm: of what is not centred
      if (args.bias != nullptr) mean = std::accumulate(x, x + args.dim, 0.0) / args.dim;
      for (int32_t i = 0; i < args.dim; ++i) square += std::pow(static_cast<double>(x[i]) - mean, 2);
      const double inverse = 1.0 / std::sqrt(square / args.dim + static_cast<double>(args.eps));
      for (int32_t i = 0; i < args.dim; ++i) {
        const double bias = args.bias != nullptr ? static_cast<double>(args.bias[i]) : 0;
        y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * inverse * static_cast<double>(args.weight[i]) +
                                  bias);
      }
    }
  }
}

void ref_rope_angles(OpContext& ctx, const RopeAnglesArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  const int32_t half = args.head_dim / 2;
  for (int32_t row = 0; row < args.rows; ++row) {
    for (int32_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(args.positions[row]) * static_cast<double>(args.inv_freq[i]);
      float* const at = args.angles + int64_t{row} * args.head_dim + i;
      at[0] = static_cast<float>(std::cos(angle) * static_cast<double>(args.attention_scale));
      at[half] = static_cast<float>(std::sin(angle) * static_cast<double>(args.attention_scale));
    }
  }
}

void ref_rope(OpContext& ctx, const RopeArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  const int32_t turned = args.rotary_dim > 0 ? args.rotary_dim : args.head_dim, half = turned / 2;
  for (int32_t row = 0; row < args.rows; ++row) {
    for (int32_t head = 0; head < args.heads; ++head) {
      float* x = args.x + row * args.stride + int64_t{head} * args.head_dim;
      for (int32_t i = 0; i < half; ++i) {
        const float* const at = args.angles + int64_t{row} * turned + i;
        const double c = static_cast<double>(at[0]), s = static_cast<double>(at[half]);
        const double x1 = static_cast<double>(x[i]), x2 = static_cast<double>(x[i + half]);
        x[i] = static_cast<float>(x1 * c - x2 * s);
        x[i + half] = static_cast<float>(x2 * c + x1 * s);
      }
    }
  }
}

double activated(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1.0 + std::exp(-x));
  if (activation == Activation::kSigmoid) return 1.0 / (1.0 + std::exp(-x));
  const double u = std::sqrt(2.0 * std::numbers::inv_pi) * (x + 0.044715 * x * x * x);
  return x / (1.0 + std::exp(-2.0 * u));  // x / 2 (1 + tanh u)
}

double clamped(const GateClamp& clamp, double gate, double up) {
  const double limit = static_cast<double>(clamp.limit);
  const double g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1.0 + std::exp(-static_cast<double>(clamp.alpha) * g)) * (u + 1.0);
}

void ref_swiglu(OpContext& ctx, const SwigluArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int32_t row = 0; row < args.rows; ++row) {
    float* gate = args.gate + row * args.stride;
    const float* up = args.up == nullptr ? nullptr : args.up + row * args.stride;
    for (int32_t i = 0; i < args.dim; ++i) {
      if (args.activation == Activation::kClamped) {
        gate[i] = static_cast<float>(clamped(args.clamp, static_cast<double>(gate[i]), static_cast<double>(up[i])));
        continue;
      }
      const double g = activated(args.activation, static_cast<double>(gate[i]));
      gate[i] = static_cast<float>(args.up == nullptr ? g : g * static_cast<double>(up[i]));
    }
  }
}

void ref_embed(OpContext& ctx, const EmbedArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int32_t row = 0; row < args.rows; ++row) {
    float* y = args.y + row * args.y_stride;
    if (args.w.layout == LayoutId::kTile16) {
      const RowTile tile = tile_of_row(args.w, args.tokens[row]);
      decode_tile_row(args.w.dtype, tile.data, static_cast<int>(args.tokens[row] - tile.output), args.w.cols, y);
    } else {
      decode_row(args.w.dtype, weight_row(args.w, args.tokens[row]), y, args.w.cols);
    }
  }
}

void ref_add(OpContext& ctx, const AddArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int32_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* y = args.y + row * args.y_stride;
    for (int32_t i = 0; i < args.dim; ++i) y[i] += args.scale * x[i];
  }
}

void ref_scale(OpContext& ctx, const ScaleArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int32_t row = 0; row < args.rows; ++row) {
    float* y = args.y + row * args.y_stride;
    for (int32_t i = 0; i < args.dim; ++i) y[i] *= args.factor;
  }
}

void ref_cap(OpContext& ctx, const CapArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  for (int32_t row = 0; row < args.rows; ++row) {
    float* y = args.y + row * args.y_stride;
    for (int32_t i = 0; i < args.dim; ++i)
      y[i] = static_cast<float>(capped(static_cast<double>(y[i]), static_cast<double>(args.cap)));
  }
}

}  // namespace

const OpTable& ref_op_table() {
  static constexpr OpTable table{
      .name = "ref",
      .matmul = ref_matmul,
      .matmul_tiles = ref_matmul_tiles,
      .matmul_tile_runs = ref_matmul_tile_runs,
      .lora = ref_lora,
      .lora_embed = ref_lora_embed,
      .lora_add = ref_lora_add,
      .kv_store = ref_kv_store,
      .attention = ref_attention,
      .rms_norm = ref_rms_norm,
      .rope_angles = ref_rope_angles,
      .rope = ref_rope,
      .swiglu = ref_swiglu,
      .embed = ref_embed,
      .add = ref_add,
      .scale = ref_scale,
      .cap = ref_cap,
      .causal_conv = ref_causal_conv,
      .delta_rule = ref_delta_rule,
      .gated_norm = ref_gated_norm,
      .scratch_bytes = ref_scratch_bytes,
  };
  return table;
}

}  // namespace loralei
