// SPDX-License-Identifier: Apache-2.0
// Products of many rows, one lane of their sums at a time. No include guard:
// see target.h.
//
// The number for (row, output) is kLanes sums, each over every kLanes-th input in
// ascending order, added in reduce4's fixed order (matmul.inl.h). Few rows have the lanes
// of one number side by side in a register. Here a register has one lane of many outputs,
// and meets one input of a row at a time, broadcast: fewer numbers are loaded for each
// product, and sums are added without shuffling. They are the same sums in the same order
// (batch invariance).
//
//   panel   the weights of kPanelOutputs outputs     [lane][step][output]
//   group   the inputs of up to kLaneGroupRows rows  [lane][step][row]
//
// A panel is packed by each worker when it takes it; groups are packed once and shared.
//
// A step is kLanes inputs, one for each lane. Lane after lane, a panel's weights of
// it stay in the first-level cache while all groups pass; finished lanes wait in the
// second-level one, at most one for each level of reduce4's tree.

constexpr int kPanelTiles = kLanes == 16 ? 2 : 1;
constexpr int kPanelOutputs = kPanelTiles * kRowTile;
constexpr int kPanelVectors = kPanelOutputs / kLanes;
constexpr int kLaneGroupRows = (kManyRegisters ? 24 : 12) / kPanelVectors;  // so many sums leave registers for operands
constexpr int kLaneLevels = std::bit_width(static_cast<unsigned>(kLanes)) - 1;
static_assert(kPanelOutputs <= kLanePanelOutputs && kLaneLevels <= kLaneLevelsMax);

// Numbers by lane: that of `row` at (lane, step) lies at data[lane * lane_stride + step *
// step_stride + row].
struct LaneMatrix {
  float* data = nullptr;
  int64_t lane_stride = 0;
  int64_t step_stride = 0;

  LaneMatrix from_row(int row) const { return {data + row, lane_stride, step_stride}; }
  LaneMatrix from_step(int64_t step) const { return {data + step * step_stride, lane_stride, step_stride}; }
};
// A step more than it needs keeps lanes from lying a power of two apart, where they would
// compete for the same sets of a cache.
LORALEI_INLINE LaneMatrix lane_matrix(float* data, int64_t steps, int64_t rows) {
  return {data, (steps + 1) * rows, rows};
}
LORALEI_INLINE int64_t lane_steps(int64_t cols) { return (cols + kLanes - 1) / kLanes; }

// Rows::at(p), at_n(p, n): kLanes numbers, or the first n, of a row of `cols`; zeros
// follow its last one.
template <class Rows>
LORALEI_INLINE F row_step(const std::byte* row, int64_t cols, int64_t step) {
  const int64_t k = step * kLanes;
  return k + kLanes <= cols ? Rows::at(row + k * Rows::kBytes)
                            : Rows::at_n(row + k * Rows::kBytes, static_cast<int>(cols - k));
}

// `count` <= kLanes rows in the order of lanes.
template <class Rows>
void pack_lanes(const std::byte* const* rows, int count, int64_t cols, const LaneMatrix& out) {
  for (int64_t step = 0; step < lane_steps(cols); ++step) {
    F numbers[kLanes];
    LORALEI_UNROLL
    for (int row = 0; row < kLanes; ++row) numbers[row] = row < count ? row_step<Rows>(rows[row], cols, step) : zero();
    transpose(numbers);
    float* const to = out.data + step * out.step_stride;
    if (count == kLanes) {
      LORALEI_UNROLL
      for (int lane = 0; lane < kLanes; ++lane) store(to + lane * out.lane_stride, numbers[lane]);
    } else {
      LORALEI_UNROLL
      for (int lane = 0; lane < kLanes; ++lane) store_n(to + lane * out.lane_stride, numbers[lane], count);
    }
  }
}

// Consecutive weights, asked for some lines at a time.
struct LinesAhead {
  const std::byte* at = nullptr;
  int64_t lines = 0;
  int64_t each = 0;

  LORALEI_INLINE void fetch() {
    for (int64_t i = 0; i < each && lines > 0; ++i, --lines, at += 64) __builtin_prefetch(at, 0, 2);
  }
};
constexpr int64_t kFetchSteps = 8;  // between two calls of fetch()

// One lane of a group's rows and a panel, step after step: sums [kRows][kPanelOutputs].
template <int kRows>
LORALEI_INLINE void multiply_lane(const float* weights, const float* inputs, int64_t steps, LinesAhead& ahead,
                                  F (&sums)[kRows][kPanelVectors]) {
  for (int64_t step = 0; step < steps;) {
    ahead.fetch();
    for (const int64_t end = std::min(step + kFetchSteps, steps); step < end; ++step) {
      F w[kPanelVectors];
      LORALEI_UNROLL
      for (int v = 0; v < kPanelVectors; ++v) w[v] = load(weights + step * kPanelOutputs + v * kLanes);
      LORALEI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F x = set1(inputs[step * kRows + r]);
        LORALEI_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = fma(x, w[v], sums[r][v]);
      }
    }
  }
}

// Where finished lanes wait for the one they are added to: [level][row of the
// part][kPanelOutputs]. Level n holds sums of 2^n lanes, the last one the results.
struct WaitingLanes {
  float* sums = nullptr;
  int64_t level_stride = 0;
};

// The lane that is the `turn`th in reduce4's order, added to those that wait for it.
template <int kRows>
void add_lane(const float* weights, const float* inputs, int64_t steps, LinesAhead& ahead, int turn,
              const WaitingLanes& waiting) {
  F sums[kRows][kPanelVectors];
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) {
    LORALEI_UNROLL
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = zero();
  }
  multiply_lane<kRows>(weights, inputs, steps, ahead, sums);
  float* held = waiting.sums;
  for (int lanes = turn + 1; lanes % 2 == 0; lanes /= 2, held += waiting.level_stride) {
    LORALEI_UNROLL
    for (int r = 0; r < kRows; ++r) {
      LORALEI_UNROLL
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = add(load(held + r * kPanelOutputs + v * kLanes), sums[r][v]);
    }
  }
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) {
    LORALEI_UNROLL
    for (int v = 0; v < kPanelVectors; ++v) store(held + r * kPanelOutputs + v * kLanes, sums[r][v]);
  }
}

template <size_t... kIndex>
constexpr auto add_lane_table(std::index_sequence<kIndex...>) {
  return std::array{&add_lane<static_cast<int>(kIndex) + 1>...};
}
constexpr auto kAddLane = add_lane_table(std::make_index_sequence<kLaneGroupRows>());  // by rows, less one

// The rows of a part in groups of sizes that differ by one at most, and their inputs in
// the order of lanes.
struct LaneGroups {
  float* inputs = nullptr;
  int64_t rows = 0;
  int64_t steps = 0;
  int64_t count = 0;

  LaneGroups(float* memory, int64_t part_rows, int64_t cols)
      : inputs(memory),
        rows(part_rows),
        steps(lane_steps(cols)),
        count((part_rows + kLaneGroupRows - 1) / kLaneGroupRows) {}
  int64_t first(int64_t group) const { return group * rows / count; }
  int rows_of(int64_t group) const { return static_cast<int>(first(group + 1) - first(group)); }
  LaneMatrix at(int64_t group) const {
    return lane_matrix(inputs + first(group) * (steps + 1) * kLanes, steps, rows_of(group));
  }
};

void pack_inputs(OpContext& ctx, const MatmulArgs& args, int64_t first_row, const LaneGroups& groups) {
  ctx.pool->parallel_for(groups.count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t group = begin; group < end; ++group) {
      const std::byte* rows[kLaneGroupRows];
      const int count = groups.rows_of(group);
      for (int row = 0; row < count; ++row)
        rows[row] =
            reinterpret_cast<const std::byte*>(args.x + (first_row + groups.first(group) + row) * args.x_stride);
      for (int row = 0; row < count; row += kLanes)
        pack_lanes<RowsF32>(rows + row, std::min(count - row, kLanes), args.w.cols, groups.at(group).from_row(row));
    }
  });
}

// All row tiles of a product, kPanelTiles to a panel.
struct Panel {
  RowTile tile[kPanelTiles];
  int tiles = 0;

  Panel(const WeightView& w, int64_t index, int64_t tile_count) {
    for (int64_t t = index * kPanelTiles; t < tile_count && tiles < kPanelTiles; ++t) tile[tiles++] = row_tile(w, t);
  }
  // Row tiles mostly follow each other; where they do not, what is asked for in
  // vain does no harm.
  LinesAhead ahead(const WeightView& w, int64_t calls) const {
    LinesAhead lines{.at = tile[0].data};
    for (int t = 0; t < tiles; ++t) lines.lines += tile[t].count * row_bytes(w.dtype, w.cols) / 64;
    lines.each = 1 + lines.lines / calls;
    return lines;
  }
};

// A row tile's weights, `rows` [kRowTile], in the order of lanes: plain ones of one kind,
// or quantised ones.
template <class Rows>
struct PlainTile {
  static void pack(const WeightView& w, const std::byte* const* rows, const LaneMatrix& out, float*) {
    for (int row = 0; row < kRowTile; row += kLanes) pack_lanes<Rows>(rows + row, kLanes, w.cols, out.from_row(row));
  }
};
struct QuantisedTile {
  // decoded: kRowTile * kLaneDecodedCols numbers
  static void pack(const WeightView& w, const std::byte* const* rows, const LaneMatrix& out, float* decoded) {
    const std::byte* decoded_rows[kRowTile];
    for (int o = 0; o < kRowTile; ++o)
      decoded_rows[o] = reinterpret_cast<const std::byte*>(decoded + o * kLaneDecodedCols);
    for (int64_t k = 0; k < w.cols; k += kLaneDecodedCols) {
      const int64_t cols = std::min(w.cols - k, kLaneDecodedCols);
      for (int o = 0; o < kRowTile; ++o)
        decode_to_f32(w.dtype, rows[o] + row_bytes(w.dtype, k), decoded + o * kLaneDecodedCols, cols);
      for (int row = 0; row < kRowTile; row += kLanes)
        pack_lanes<RowsF32>(decoded_rows + row, kLanes, cols, out.from_step(k / kLanes).from_row(row));
    }
  }
};

// Behind a tile's last output lies its row again.
template <class Tile>
void pack_panel(const WeightView& w, const Panel& panel, const LaneMatrix& out, float* spare) {
  for (int t = 0; t < panel.tiles; ++t) {
    const RowTile& tile = panel.tile[t];
    const std::byte* rows[kRowTile];
    for (int o = 0; o < kRowTile; ++o) rows[o] = tile.data + std::min(o, tile.count - 1) * row_bytes(w.dtype, w.cols);
    Tile::pack(w, rows, out.from_row(t * kRowTile), spare);
  }
}

// Results of some rows and a panel.
void write_panel(const MatmulArgs& args, const Panel& panel, const float* results, int64_t row, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int t = 0; t < panel.tiles; ++t) {
      const RowTile& tile = panel.tile[t];
      write_outputs(results + r * kPanelOutputs + t * kRowTile, tile.count, row + r, product_out(args, tile));
    }
  }
}

// A packed panel and the groups [begin, end) of a part that begins at first_row.
void multiply_panel(const MatmulArgs& args, const Panel& panel, const LaneMatrix& weights, const LaneGroups& groups,
                    int64_t begin, int64_t end, int64_t first_row, float* waiting, LinesAhead ahead) {
  const int64_t part_first = groups.first(begin);
  const int64_t level_stride = (groups.first(end) - part_first) * kPanelOutputs;
  for (int turn = 0; turn < kLanes; ++turn) {
    const int lane = kLaneOrder[turn];
    for (int64_t group = begin; group < end; ++group) {
      const int rows = groups.rows_of(group);
      const LaneMatrix inputs = groups.at(group);
      kAddLane[rows - 1](weights.data + lane * weights.lane_stride, inputs.data + lane * inputs.lane_stride,
                         groups.steps, ahead, turn,
                         {waiting + (groups.first(group) - part_first) * kPanelOutputs, level_stride});
    }
  }
  write_panel(args, panel, waiting + kLaneLevels * level_stride, first_row + part_first,
              groups.first(end) - part_first);
}

template <class Tile>
void matmul_lanes(OpContext& ctx, const MatmulArgs& args) {
  ++ctx.op_count;
  const int64_t steps = lane_steps(args.w.cols);
  const int64_t tiles = tile_count(args.w), panels = (tiles + kPanelTiles - 1) / kPanelTiles;
  const int64_t parts = (args.rows + kLanePartRows - 1) / kLanePartRows;
  const Scratch scratch(ctx, lane_input_bytes(std::min<int64_t>(args.rows, kLanePartRows), args.w.cols),
                        lane_worker_bytes(args.w.cols));
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first_row = part * args.rows / parts, end_row = (part + 1) * args.rows / parts;
    const LaneGroups groups(scratch.shared<float>(), end_row - first_row, args.w.cols);
    pack_inputs(ctx, args, first_row, groups);
    const int64_t splits = std::min(row_splits(panels, groups.rows, ctx.pool->threads()), groups.count);
    const int64_t calls = groups.count / splits * kLanes * ((steps + kFetchSteps - 1) / kFetchSteps);
    ctx.pool->parallel_for_runs(panels * splits, 1, [&](int64_t begin, int64_t end, int worker) {
      float* const memory = scratch.worker<float>(worker);
      const LaneMatrix weights = lane_matrix(memory, steps, kPanelOutputs);
      float* const waiting = memory + kLanes * weights.lane_stride;
      for (int64_t item = begin; item < end; ++item) {
        const Panel panel(args.w, item % panels, tiles);
        const int64_t split = item / panels;
        LinesAhead ahead;
        if (item + 1 < end) ahead = Panel(args.w, (item + 1) % panels, tiles).ahead(args.w, calls);
        pack_panel<Tile>(args.w, panel, weights, waiting);
        multiply_panel(args, panel, weights, groups, split * groups.count / splits, (split + 1) * groups.count / splits,
                       first_row, waiting, ahead);
      }
    });
  }
}
