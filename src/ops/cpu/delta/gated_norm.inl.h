// SPDX-License-Identifier: Apache-2.0
// The gated norm. No include guard: see target.h.

void gated_norm_vector(const GatedNormArgs& args, const float* x, const float* z, float* y) {
  const float square = sum_of_squares(x, args.dim);
  const F inverse = set1(1.0f / std::sqrt(square / static_cast<float>(args.dim) + args.eps));
  for (int32_t i = 0; i < args.dim; i += kLanes) {
    const int n = args.dim - i < kLanes ? args.dim - i : kLanes;
    const F normed = mul(mul(load_n(x + i, n), inverse), load_n(args.weight + i, n));
    store_n(y + i, mul(normed, silu(load_n(z + i, n))), n);
  }
}

void gated_norm(OpContext& ctx, const GatedNormArgs& args) {
  if (args.rows <= 0) return;
  ++ctx.op_count;
  constexpr int64_t kWork = 4;  // an exp takes as long as that many cheaper elements
  const int64_t elements = kWork * args.vectors * args.dim;
  ctx.pool->parallel_for(args.rows, delta_grain(elements), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t vector = 0; vector < args.vectors; ++vector) {
        const int64_t at = vector * args.dim;
        gated_norm_vector(args, args.x + row * args.x_stride + at, args.z + row * args.z_stride + at,
                          args.y + row * args.y_stride + at);
      }
    }
  });
}
