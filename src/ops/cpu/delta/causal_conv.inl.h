// SPDX-License-Identifier: Apache-2.0
// The causal convolution. Work is split into blocks of channels of one sequence; a block
// goes through all rows with its last rows and its weights in the first-level cache. No
// include guard: see target.h.

constexpr int32_t kConvChannels = 256;

struct ConvBlock {
  alignas(64) float taps[kConvKernelMax][kConvChannels];  // of each row, the oldest's first
  alignas(64) float rows[kConvKernelMax][kConvChannels];  // a ring
  int64_t channel = -1;                                   // the first; none yet
  int32_t count = 0;
};

// The weights of `block`'s channels, a vector for each row: [channels, kernel]
// transposed.
void load_taps(const CausalConvArgs& args, ConvBlock& block) {
  constexpr int kTaps = std::min(kLanes, kConvKernelMax);
  for (int32_t c = 0; c < block.count; c += kLanes) {
    for (int32_t j = 0; j < args.kernel; j += kLanes) {
      const int32_t n = args.kernel - j < kLanes ? args.kernel - j : kLanes;
      F lanes[kLanes];
      LORALEI_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        const bool there = c + i < block.count;
        lanes[i] = there ? load_n(args.weight + (block.channel + c + i) * args.kernel + j, n) : zero();
      }
      transpose(lanes);
      LORALEI_UNROLL
      for (int i = 0; i < kTaps; ++i) {
        if (i < n) store(block.taps[j + i] + c, lanes[i]);
      }
    }
  }
}

// One row: `recent` are its own x and those before it, the oldest first.
void convolve_row(const CausalConvArgs& args, const ConvBlock& block, const float* const* recent, float* y) {
  for (int32_t c = 0; c < block.count; c += kLanes) {
    const int32_t n = block.count - c < kLanes ? block.count - c : kLanes;
    F sum = args.bias != nullptr ? load_n(args.bias + block.channel + c, n) : zero();
    for (int32_t j = 0; j < args.kernel; ++j) sum = fma(load(block.taps[j] + c), load(recent[j] + c), sum);
    store_n(y + c, silu(sum), n);
  }
}

void convolve_rows(const CausalConvArgs& args, const StateRows& group, ConvBlock& block) {
  const size_t bytes = static_cast<size_t>(block.count) * sizeof(float);
  const int32_t kept = args.kernel - 1;
  float* recent[kConvKernelMax];
  for (int32_t j = 0; j < args.kernel; ++j) recent[j] = block.rows[j];
  for (int32_t j = 0; j < kept; ++j) {
    std::memcpy(recent[j], group.state + int64_t{j} * args.channels + block.channel, bytes);
  }
  for (int64_t row = group.row_begin; row < int64_t{group.row_begin} + group.row_count; ++row) {
    std::memcpy(recent[kept], args.x + row * args.x_stride + block.channel, bytes);
    convolve_row(args, block, recent, args.y + row * args.y_stride + block.channel);
    std::rotate(recent, recent + 1, recent + args.kernel);
  }
  for (int32_t j = 0; j < kept; ++j) {
    std::memcpy(group.state + int64_t{j} * args.channels + block.channel, recent[j], bytes);
  }
}

// Items are counted block by block, so that sequences that follow each other share
// a block's weights.
void convolve_items(const CausalConvArgs& args, int64_t begin, int64_t end) {
  const int64_t groups = static_cast<int64_t>(args.groups.size());
  ConvBlock block{};
  for (int64_t item = begin; item < end; ++item) {
    const StateRows& group = args.groups[static_cast<size_t>(item % groups)];
    if (group.row_count <= 0) continue;
    const int64_t channel = item / groups * kConvChannels;
    if (channel != block.channel) {
      block.channel = channel;
      block.count = static_cast<int32_t>(std::min<int64_t>(kConvChannels, args.channels - channel));
      load_taps(args, block);
    }
    convolve_rows(args, group, block);
  }
}

void causal_conv(OpContext& ctx, const CausalConvArgs& args) {
  DCHECK(args.kernel >= 2 && args.kernel <= kConvKernelMax);
  const int64_t rows = rows_of(args.groups);
  if (rows <= 0) return;
  ++ctx.op_count;
  const int64_t groups = static_cast<int64_t>(args.groups.size());
  const int64_t blocks = (args.channels + kConvChannels - 1) / kConvChannels;
  constexpr int64_t kWork = 8;  // an exp takes as long as that many cheaper elements
  const int64_t elements = kWork * kConvChannels * ((rows + groups - 1) / groups);
  ctx.pool->parallel_for(blocks * groups, delta_grain(elements),
                         [&](int64_t begin, int64_t end, int) { convolve_items(args, begin, end); });
}
