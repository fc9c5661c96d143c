// SPDX-License-Identifier: Apache-2.0
// The integer product of a layer input with all its projections: round once, then hand
// tiles out. No include guard: see target.h.

// Up to this many inputs the caller rounds them alone: waking the pool would take longer.
constexpr int64_t kRoundAlone = 4096;
constexpr int64_t kRoundSlice = 512;  // inputs of a work item

// The last runs of weights handed to a thread: short, so that all threads end together.
constexpr int64_t kGrainBytes = 64 << 10;
int64_t run_grain(const WeightView& w) {
  const int64_t runs = kGrainBytes / (tile_bytes(w.dtype, w.cols) * kTilesTogether);
  return runs < 1 ? 1 : runs;
}

// How many of the products at the front need no more than `most` forms of the rows; which
// forms: to `input`.
size_t choose_forms(std::span<const TileProduct> products, int most, RoundedInput& input) {
  for (size_t i = 0; i < products.size(); ++i) {
    const RowForm form = row_form(products[i].w.dtype);
    int known = 0;
    while (known < input.forms && input.groups[known].form != form) ++known;
    if (known < input.forms) continue;
    if (input.forms == most) return i;
    input.groups[input.forms++].form = form;
  }
  return products.size();
}

// Where the rows are rounded to, in all of input's forms; data: activation_bytes() for
// each.
void place_input(const OpContext& ctx, int32_t rows, int64_t cols, std::byte* data, RoundedInput& input) {
  for (int i = 0; i < input.forms; ++i) {
    RowGroups& groups = input.groups[i];
    groups.rows = rows;
    groups.cols = cols;
    groups.count = (rows + kGroupRows - 1) / kGroupRows;
    groups.full_bytes = cols / kActivationBlock * group_block_bytes(kGroupRows, has_halves(groups.form));
    groups.data = data + i * activation_bytes(rows, cols);
    groups.tuning = &ctx.tuning;
  }
}

// An item is a piece of all rows of a group: rows lie so close to each other there that
// two threads would write to the same lines.
int64_t round_slices(int64_t cols) { return (cols + kRoundSlice - 1) / kRoundSlice; }
int64_t round_items(const RoundedInput& input) {
  return input.forms * input.groups[0].count * round_slices(input.groups[0].cols);
}
void round_item(const float* x, int64_t x_stride, const RoundedInput& input, int64_t item) {
  const int64_t cols = input.groups[0].cols, slices = round_slices(cols), items_a_form = input.groups[0].count * slices;
  const RowGroups& groups = input.groups[item / items_a_form];
  const int64_t group = item % items_a_form / slices, first = item % slices * kRoundSlice;
  const int64_t count = cols - first < kRoundSlice ? cols - first : kRoundSlice;
  const int size = kGroupSizes[group_kind(groups.rows_of(group))];
  std::byte* const out = groups.at(group, size, first / kActivationBlock);
  const auto row_at = [&](int row) {
    const int64_t from = groups.first_row(group) + row;
    return from < groups.rows ? x + from * x_stride + first : nullptr;
  };
  for (int row = 0; row < size; ++row)
    round_row(row_at(row), row + 1 < size ? row_at(row + 1) : nullptr, count, {out, size, row, groups.form});
}

void round_input(OpContext& ctx, const TileMatmulArgs& args, int64_t cols, std::byte* data, RoundedInput& input) {
  place_input(ctx, args.rows, cols, data, input);
  const auto round = [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) round_item(args.x, args.x_stride, input, item);
  };
  const int64_t items = round_items(input);
  if (args.rows * cols <= kRoundAlone) {
    round(0, items, 0);
  } else {
    ctx.pool->parallel_for_runs(items, 1, round);
  }
}

int64_t tile_runs(int64_t tiles) { return (tiles + kTilesTogether - 1) / kTilesTogether; }

// Which tiles of a stretch go through the rows together. Few rows wait for memory,
// which gives two long streams faster than two that move on with every tile: one
// tile of the first half, one of the second. The results of many rows are written
// faster side by side.
enum class Together { kHalves, kNeighbours };

// Tiles [first, first + tiles) of a product.
struct Stretch {
  const TileProduct* product = nullptr;
  int64_t first = 0, tiles = 0;
  Together together = Together::kHalves;

  int64_t runs() const { return tile_runs(tiles); }
  TileRun run(int64_t index) const {
    const bool halves = together == Together::kHalves;
    const int64_t begin = halves ? index : index * kTilesTogether, step = halves ? runs() : 1;
    TileRun run{.dtype = product->w.dtype};
    for (int64_t tile = begin; tile < tiles && run.count < kTilesTogether; tile += step) {
      run.tile[run.count++] = row_tile(product->w, first + tile);
    }
    return run;
  }
};
// What of the runs [begin, end) lies in the first product that has any.
Stretch first_stretch(std::span<const TileProduct> products, const RoundedInput& input, int64_t begin, int64_t end) {
  const TileProduct* product = products.data();
  int64_t tiles = tile_count(product->w);
  for (int64_t own = tile_runs(tiles); begin >= own; own = tile_runs(tiles)) {
    begin -= own;
    end -= own;
    tiles = tile_count((++product)->w);
  }
  const int64_t first = begin * kTilesTogether, last = end * kTilesTogether;
  return {product, first, (last < tiles ? last : tiles) - first,
          few_rows(input.of(product->w.dtype), product->w.dtype) ? Together::kHalves : Together::kNeighbours};
}

// How many forms of an input of so many bytes the scratch holds: at least one
// (cpu_scratch_bytes).
int forms_that_fit(const OpContext& ctx, int64_t form_bytes) {
  int forms = kRowFormsTogether;
  const auto fits = static_cast<int64_t>(ctx.scratch.size());
  while (forms > 1 && scratch_bytes(forms * form_bytes, tile_worker_bytes(), ctx.pool->threads()) > fits) --forms;
  return forms;
}

constexpr int64_t kGroupsInCache = kRowsInCache / kGroupRows;

// Pairs of tiles that meet so many groups together.
int64_t multiply_items(std::span<const TileProduct> products, const RoundedInput& input) {
  int64_t runs = 0;
  for (const TileProduct& product : products) runs += tile_runs(tile_count(product.w));
  return runs * ((input.groups[0].count + kGroupsInCache - 1) / kGroupsInCache);
}

// Items [begin, end) of a call's products; `after`: the tiles that the thread takes next,
// if it knows.
void multiply_run(const TileMatmulArgs& args, std::span<const TileProduct> products, const RoundedInput& input,
                  int64_t begin, int64_t end, const TileRun& after, std::byte* memory) {
  const int64_t groups = input.groups[0].count;
  int64_t runs = 0;
  for (const TileProduct& product : products) runs += tile_runs(tile_count(product.w));
  while (begin < end) {
    const int64_t group = begin / runs * kGroupsInCache, first = begin % runs;
    const int64_t group_end = group + kGroupsInCache < groups ? group + kGroupsInCache : groups;
    const int64_t left_in_round = end - begin < runs - first ? end - begin : runs - first;
    const Stretch stretch = first_stretch(products, input, first, first + left_in_round);
    const int64_t count = stretch.runs();
    begin += count;
    TileRun tiles = stretch.run(0);
    for (int64_t i = 0; i < count; ++i) {
      TileRun next = after;
      if (i + 1 < count) {
        next = stretch.run(i + 1);
      } else if (begin < end) {
        next = first_stretch(products, input, begin % runs, begin % runs + 1).run(0);
      }
      tiles_times_groups(args, *stretch.product, tiles, next, input.of(tiles.dtype), group, group_end, memory);
      tiles = next;
    }
  }
}

// Multiplies those of the products left that come first and find their forms of the rows
// together; returns how many.
size_t multiply_front(OpContext& ctx, const TileMatmulArgs& args, std::span<const TileProduct> left) {
  RoundedInput input;
  const int64_t cols = left[0].w.cols, form_bytes = activation_bytes(args.rows, cols);
  const std::span<const TileProduct> products = left.first(choose_forms(left, forms_that_fit(ctx, form_bytes), input));
  const Scratch scratch(ctx, input.forms * form_bytes, tile_worker_bytes());
  round_input(ctx, args, cols, scratch.shared<std::byte>(), input);
  ctx.pool->parallel_for_runs(multiply_items(products, input), run_grain(products[0].w),
                              [&](int64_t begin, int64_t end, int worker) {
                                multiply_run(args, products, input, begin, end, {}, scratch.worker<std::byte>(worker));
                                if (input.groups[0].count == 1 && !args.accumulate)
                                  end_stream();  // few rows are one group
                              });
  return products.size();
}

void matmul_tiles(OpContext& ctx, const TileMatmulArgs& args) {
  if (args.rows <= 0 || args.products.empty()) return;
  ++ctx.op_count;
  for (std::span<const TileProduct> left = args.products; !left.empty();) {
    left = left.subspan(multiply_front(ctx, args, left));
  }
}
