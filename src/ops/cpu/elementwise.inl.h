// SPDX-License-Identifier: Apache-2.0
// Norms, rotation, activation, embedding, sums and cache writes. No include
// guard: see target.h.

// Rows a work item takes so that waking a thread pays.
LORALEI_INLINE int64_t row_grain(int64_t row_elements) {
  constexpr int64_t kElements = 16384;
  return row_elements >= kElements ? 1 : (kElements + row_elements) / (row_elements + 1);
}

// Adds up step(sum, x, lanes); lanes of step s go to sums[s % 4].
template <typename Step>
LORALEI_INLINE float sum_of(const float* x, int32_t dim, Step&& step) {
  F sums[4] = {zero(), zero(), zero(), zero()};
  int32_t i = 0;
  for (int s = 0; i + kLanes <= dim; i += kLanes, s = (s + 1) & 3) sums[s] = step(sums[s], load(x + i), kLanes);
  if (i < dim) sums[3] = step(sums[3], load_n(x + i, dim - i), dim - i);
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// As args.h says of a norm with a bias.
void layer_norm_vector(const float* x, const float* weight, const float* bias, float* y, int32_t dim, float eps) {
  const float mean = sum_of(x, dim, [&](F sum, F value, int) LORALEI_INLINE_LAMBDA { return add(sum, value); }) /
                     static_cast<float>(dim);
  const F middle = set1(mean);
  alignas(64) float means[kLanes];
  store(means, middle);
  const float square = sum_of(x, dim, [&](F sum, F value, int lanes) LORALEI_INLINE_LAMBDA {
    const F apart = sub(value, lanes == kLanes ? middle : load_n(means, lanes));  // 0 beyond the last
    return fma(apart, apart, sum);
  });
  const F inverse = set1(1.0f / std::sqrt(square / static_cast<float>(dim) + eps));
  for (int32_t i = 0; i < dim; i += kLanes) {
    const int n = dim - i < kLanes ? dim - i : kLanes;
    const F apart = mul(sub(load_n(x + i, n), middle), inverse);
    store_n(y + i, add(mul(apart, load_n(weight + i, n)), load_n(bias + i, n)), n);
  }
}

LORALEI_INLINE void rms_norm_vector(const float* x, const float* weight, float* y, int32_t dim, float eps) {
  const float square =
      sum_of(x, dim, [&](F sum, F value, int) LORALEI_INLINE_LAMBDA { return fma(value, value, sum); });
  const F inverse = set1(1.0f / std::sqrt(square / static_cast<float>(dim) + eps));
  int32_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) store(y + i, mul(mul(load(x + i), inverse), load(weight + i)));
  if (i < dim) store_n(y + i, mul(mul(load_n(x + i, dim - i), inverse), load_n(weight + i, dim - i)), dim - i);
}

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int32_t v = 0; v < args.vectors; ++v) {
      const int64_t offset = int64_t{v} * args.dim;
      const float* const x = args.x + row * args.x_stride + offset;
      float* const y = args.y + row * args.y_stride + offset;
      if (args.bias != nullptr) {
        layer_norm_vector(x, args.weight, args.bias, y, args.dim, args.eps);
      } else {
        rms_norm_vector(x, args.weight, y, args.dim, args.eps);
      }
    }
  }
}

void rms_norm(OpContext& ctx, const RmsNormArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  ctx.pool->parallel_for(args.rows, row_grain(int64_t{args.vectors} * args.dim),
                         [&](int64_t begin, int64_t end, int) { rms_norm_rows(args, begin, end); });
}

void rope_angles(OpContext& ctx, const RopeAnglesArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  constexpr int64_t kWork = 64;  // a sine takes as long as that many elements of the cheaper loops
  const int32_t half = args.head_dim / 2;
  ctx.pool->parallel_for(args.rows, row_grain(kWork * args.head_dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* const cosines = args.angles + row * args.head_dim;
      for (int32_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(args.positions[row]) * static_cast<double>(args.inv_freq[i]);
        cosines[i] = static_cast<float>(std::cos(angle) * static_cast<double>(args.attention_scale));
        cosines[half + i] = static_cast<float>(std::sin(angle) * static_cast<double>(args.attention_scale));
      }
    }
  });
}

void rope_row(const RopeArgs& args, int64_t row) {
  const int32_t turned = args.rotary_dim > 0 ? args.rotary_dim : args.head_dim, half = turned / 2;
  const float* const cosines = args.angles + row * turned;
  const float* const sines = cosines + half;
  for (int32_t head = 0; head < args.heads; ++head) {
    float* x1 = args.x + row * args.stride + int64_t{head} * args.head_dim;
    float* x2 = x1 + half;
    for (int32_t i = 0; i < half; i += kLanes) {
      const int n = half - i < kLanes ? half - i : kLanes;
      const F a = load_n(x1 + i, n), b = load_n(x2 + i, n), c = load_n(cosines + i, n), s = load_n(sines + i, n);
      store_n(x1 + i, sub(mul(a, c), mul(b, s)), n);
      store_n(x2 + i, add(mul(b, c), mul(a, s)), n);
    }
  }
}

void rope(OpContext& ctx, const RopeArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  ctx.pool->parallel_for(args.rows, row_grain(int64_t{args.heads} * args.head_dim),
                         [&](int64_t begin, int64_t end, int) {
                           for (int64_t row = begin; row < end; ++row) rope_row(args, row);
                         });
}

// x / (1 + e^-z): silu with z = x, the sigmoid with 1 in front instead of x. GELU by tanh
// is that as well, with z = 2u, since (1 + tanh u) / 2 = 1 / (1 + e^-2u).
template <Activation kOf>
LORALEI_INLINE F activate(F x) {
  F minus_z = sub(zero(), x);
  if constexpr (kOf == Activation::kGeluTanh)  // -2 sqrt(2 / pi) (x + 0.044715 x^3)
    minus_z = mul(x, fma(mul(x, x), set1(-0.0713548163f), set1(-1.59576912f)));
  return div(kOf == Activation::kSigmoid ? set1(1.0f) : x, add(set1(1.0f), exp_f32(minus_z)));
}

template <Activation kOf>
void activate_row(float* gate, const float* up, int32_t dim) {
  for (int32_t i = 0; i < dim; i += kLanes) {
    const int n = dim - i < kLanes ? dim - i : kLanes;
    const F active = activate<kOf>(load_n(gate + i, n));
    store_n(gate + i, up == nullptr ? active : mul(active, load_n(up + i, n)), n);
  }
}

// What is no number stays none.
void clamped_row(const GateClamp& clamp, float* gate, const float* up, int32_t dim) {
  const F limit = set1(clamp.limit), low = set1(-clamp.limit), minus_alpha = set1(-clamp.alpha), one = set1(1.0f);
  for (int32_t i = 0; i < dim; i += kLanes) {
    const int n = dim - i < kLanes ? dim - i : kLanes;
    const F g = min(limit, load_n(gate + i, n));
    const F active = div(g, add(one, exp_f32(mul(minus_alpha, g))));
    const F u = max(low, min(limit, load_n(up + i, n)));
    store_n(gate + i, mul(active, add(u, one)), n);
  }
}

void swiglu(OpContext& ctx, const SwigluArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  using RowOf = void (*)(float*, const float*, int32_t);
  static constexpr RowOf kRowOf[] = {activate_row<Activation::kSilu>, activate_row<Activation::kGeluTanh>,
                                     activate_row<Activation::kSigmoid>};
  const RowOf row_of = kRowOf[static_cast<size_t>(args.activation)];
  ctx.pool->parallel_for(args.rows, row_grain(int64_t{args.dim} * 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* const gate = args.gate + row * args.stride;
      const float* const up = args.up == nullptr ? nullptr : args.up + row * args.stride;
      if (args.activation == Activation::kClamped) {
        clamped_row(args.clamp, gate, up, args.dim);
      } else {
        row_of(gate, up, args.dim);
      }
    }
  });
}

void embed_row(const EmbedArgs& args, int64_t row) {
  float* y = args.y + row * args.y_stride;
  if (args.w.layout == LayoutId::kTile16) {
    const RowTile tile = tile_of_row(args.w, args.tokens[row]);
    decode_tile_row(args.w.dtype, tile.data, static_cast<int>(args.tokens[row] - tile.output), args.w.cols, y);
  } else {
    decode_to_f32(args.w.dtype, weight_row(args.w, args.tokens[row]), y, args.w.cols);
  }
}

void embed(OpContext& ctx, const EmbedArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  ctx.pool->parallel_for(args.rows, row_grain(args.w.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) embed_row(args, row);
  });
}

// y += scale * x
void add_floats(const float* x, float* y, int64_t count, float scale) {
  const F by = set1(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, add(load(y + i), mul(by, load(x + i))));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_n(y + i, add(load_n(y + i, rest), mul(by, load_n(x + i, rest))), rest);
}

void scale_floats(float* y, int64_t count, float factor) {
  const F by = set1(factor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, mul(load(y + i), by));
  const int rest = static_cast<int>(count - i);
  if (rest > 0) store_n(y + i, mul(load_n(y + i, rest), by), rest);
}

void add_rows(OpContext& ctx, const AddArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  ctx.pool->parallel_for(args.rows, row_grain(args.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      add_floats(args.x + row * args.x_stride, args.y + row * args.y_stride, args.dim, args.scale);
  });
}

void scale_rows(OpContext& ctx, const ScaleArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  ctx.pool->parallel_for(args.rows, row_grain(args.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) scale_floats(args.y + row * args.y_stride, args.dim, args.factor);
  });
}

void cap_row(float* y, int32_t dim, float cap) {
  const F by = set1(cap), inverse = set1(1.0f / cap);
  for (int32_t i = 0; i < dim; i += kLanes) {
    const int n = dim - i < kLanes ? dim - i : kLanes;
    store_n(y + i, mul(by, tanh_f32(mul(load_n(y + i, n), inverse))), n);
  }
}

void cap_rows(OpContext& ctx, const CapArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  ctx.pool->parallel_for(args.rows, row_grain(int64_t{args.dim} * 2), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) cap_row(args.y + row * args.y_stride, args.dim, args.cap);
  });
}

// As encode_row, bit for bit.
void encode_plain(DType dtype, const float* source, std::byte* out, int32_t count) {
  int32_t i = 0;
  if (dtype == DType::kF16) {
    for (; i + kLanes <= count; i += kLanes) store_f16(out + 2 * i, load(source + i));
  } else if (dtype == DType::kBF16) {
    for (; i + kLanes <= count; i += kLanes) store_bf16(out + 2 * i, load(source + i));
  }
  if (i < count) encode_row(dtype, source + i, out + row_bytes(dtype, i), count - i);
}

// One vector into its place in a block: V side by side, K kKvBlockTokens apart.
void kv_store_vector(const KvView& kv, const float* source, int v, int64_t position, std::byte* head) {
  constexpr int32_t kPart = 64;
  const int64_t element_bytes = row_bytes(kv.dtype, 1);
  const bool scaled = has_vector_scale(kv.dtype);
  float scale = 0;
  if (scaled) {
    scale = vector_scale(kv.dtype, source, kv.head_dim);
    kv.scales(head)[position] = scale;
  }
  alignas(64) std::byte encoded[kPart * 4];
  for (int32_t d = 0; d < kv.head_dim; d += kPart) {
    const int32_t count = std::min(kPart, kv.head_dim - d);
    std::byte* out = v == 0 ? encoded : head + (position * kv.head_dim + d) * element_bytes;
    if (scaled) {
      quantise_vector(kv.dtype, source + d, scale, out, count);
    } else {
      encode_plain(kv.dtype, source + d, out, count);
    }
    if (v != 0) continue;
    for (int32_t i = 0; i < count; ++i) {
      std::memcpy(head + ((d + i) * int64_t{kKvBlockTokens} + position) * element_bytes, encoded + i * element_bytes,
                  static_cast<size_t>(element_bytes));
    }
  }
}

void kv_store_row(const KvStoreArgs& args, const RowGroup& group, int64_t i) {
  const int64_t position = group.position + i;
  const int32_t block = group.blocks[position / kKvBlockTokens];
  for (int32_t v = 0; v < 2; ++v) {
    const float* source = (v == 0 ? args.k : args.v) + (group.row_begin + i) * args.stride;
    for (int32_t head = 0; head < args.kv.kv_heads; ++head) {
      kv_store_vector(args.kv, source + int64_t{head} * args.kv.head_dim, v, position % kKvBlockTokens,
                      args.kv.head(block, args.layer, v, head));
    }
  }
}

void kv_store(OpContext& ctx, const KvStoreArgs& args) {
  bool worked = false;
  const int64_t grain = row_grain(int64_t{2} * args.kv.kv_heads * args.kv.head_dim);
  for (const RowGroup& group : args.groups) {
    worked = worked || group.row_count > 0;
    ctx.pool->parallel_for(group.row_count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) kv_store_row(args, group, i);
    });
  }
  if (worked) ++ctx.op_count;
}
