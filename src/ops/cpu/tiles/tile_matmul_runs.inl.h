// SPDX-License-Identifier: Apache-2.0
// Many small products, each of a run of rows with weights of its own, in one call: all
// rows are rounded, then all tiles handed out, so that threads meet twice and not twice
// for every run. No include guard: see target.h.

constexpr size_t kRunsTogether = 128;      // rounded and multiplied together, at most
constexpr int64_t kRoundRunsAlone = 8192;  // as kRoundAlone

struct RoundedRun {
  TileMatmulArgs args;
  RoundedInput input;
  int64_t round_end = 0, multiply_end = 0;  // items of it and of all before
};

// The run that has item `at`; ends are those of RoundedRun.
size_t run_of(std::span<const RoundedRun> runs, int64_t RoundedRun::*end, int64_t at) {
  size_t low = 0, high = runs.size() - 1;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (at < runs[middle].*end) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Calls body(run, begin, end) with items of each run that has some of [begin, end).
template <typename Body>
void for_runs(std::span<const RoundedRun> runs, int64_t RoundedRun::*ends, int64_t begin, int64_t end, Body&& body) {
  for (size_t index = run_of(runs, ends, begin); begin < end; ++index) {
    const int64_t first = index == 0 ? 0 : runs[index - 1].*ends;
    const int64_t last = end < runs[index].*ends ? end : runs[index].*ends;
    if (begin < last) body(index, begin - first, last - first);
    begin = last;
  }
}

// Those at the front that find room in the scratch together, rounded to there; none: the
// first one has no room for all its forms.
size_t place_front(OpContext& ctx, const TileRunsArgs& args, std::span<const TileRows> left,
                   std::span<RoundedRun> runs) {
  const auto fits = static_cast<int64_t>(ctx.scratch.size());
  int64_t bytes = 0;
  size_t count = 0;
  while (count < left.size() && count < runs.size()) {
    const TileRows& rows = left[count];
    RoundedRun& run = runs[count];
    run.args = {.x = args.x + rows.row_begin * args.x_stride,
                .x_stride = args.x_stride,
                .rows = rows.row_count,
                .products = rows.products};
    run.input = {};
    if (choose_forms(rows.products, kRowFormsTogether, run.input) < rows.products.size()) break;
    const int64_t cols = rows.products[0].w.cols, own = run.input.forms * activation_bytes(rows.row_count, cols);
    if (scratch_bytes(bytes + own, tile_worker_bytes(), ctx.pool->threads()) > fits) break;
    place_input(ctx, rows.row_count, cols, ctx.scratch.data() + bytes, run.input);
    run.round_end = (count == 0 ? 0 : runs[count - 1].round_end) + round_items(run.input);
    run.multiply_end = (count == 0 ? 0 : runs[count - 1].multiply_end) + multiply_items(rows.products, run.input);
    bytes += round_up64(own);
    ++count;
  }
  return count;
}

void multiply_placed(OpContext& ctx, std::span<const RoundedRun> runs) {
  const RoundedRun& last = runs.back();
  const int64_t shared = reinterpret_cast<std::byte*>(last.input.groups[0].data) - ctx.scratch.data() +
                         last.input.forms * activation_bytes(last.args.rows, last.input.groups[0].cols);
  const Scratch scratch(ctx, shared, tile_worker_bytes());
  const auto round = [&](int64_t begin, int64_t end, int) {
    for_runs(runs, &RoundedRun::round_end, begin, end, [&](size_t index, int64_t first, int64_t last_item) {
      const RoundedRun& run = runs[index];
      for (int64_t item = first; item < last_item; ++item) round_item(run.args.x, run.args.x_stride, run.input, item);
    });
  };
  int64_t inputs = 0;
  for (const RoundedRun& run : runs) inputs += run.args.rows * run.input.groups[0].cols;
  if (inputs <= kRoundRunsAlone) {
    round(0, last.round_end, 0);
  } else {
    ctx.pool->parallel_for_runs(last.round_end, 1, round);
  }
  const auto multiply = [&](int64_t begin, int64_t end, int worker) {
    bool streamed = false;
    for_runs(runs, &RoundedRun::multiply_end, begin, end, [&](size_t index, int64_t first, int64_t last_item) {
      const RoundedRun& run = runs[index];
      TileRun after;
      if (index + 1 < runs.size() && run.multiply_end < end)
        after = first_stretch(runs[index + 1].args.products, runs[index + 1].input, 0, 1).run(0);
      multiply_run(run.args, run.args.products, run.input, first, last_item, after, scratch.worker<std::byte>(worker));
      streamed = streamed || run.input.groups[0].count == 1;
    });
    if (streamed) end_stream();
  };
  ctx.pool->parallel_for_runs(last.multiply_end, run_grain(runs[0].args.products[0].w), multiply);
}

void matmul_tile_runs(OpContext& ctx, const TileRunsArgs& args) {
  RoundedRun runs[kRunsTogether];
  for (std::span<const TileRows> left = args.runs; !left.empty();) {
    const size_t count = place_front(ctx, args, left, runs);
    if (count == 0) {
      matmul_tiles(ctx, runs[0].args);
      left = left.subspan(1);
      continue;
    }
    ++ctx.op_count;
    multiply_placed(ctx, {runs, count});
    left = left.subspan(count);
  }
}
