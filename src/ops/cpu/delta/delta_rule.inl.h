// SPDX-License-Identifier: Apache-2.0
// The gated delta rule: a head of a sequence, or a part of its columns, is a work
// item, which goes through the sequence's rows in order. One or two rows meet the
// state where it lies. More meet panels of its columns copied together, which stay in
// the first-level cache while kDeltaRows rows go by. No include guard: see target.h.

constexpr int32_t kDeltaDirectRows = 2;

struct DeltaMemory {
  int64_t keys = 0;           // from row to row of q and k
  float* q = nullptr;         // [kDeltaRows, keys] unit vectors over sqrt(key_dim)
  float* k = nullptr;         // [kDeltaRows, keys] unit vectors
  float* decay = nullptr;     // [kDeltaRows]
  float* beta = nullptr;      // [kDeltaRows]
  float* panel = nullptr;     // [key_dim, kDeltaColumns]
  float* recalled = nullptr;  // [value_dim]
  float* delta = nullptr;     // [value_dim]

  DeltaMemory(const DeltaRuleArgs& args, float* memory) {
    const auto padded = [](int64_t n) { return (n + kDeltaPadding - 1) / kDeltaPadding * kDeltaPadding; };
    keys = padded(args.key_dim);
    q = memory;
    k = q + kDeltaRows * keys;
    decay = k + kDeltaRows * keys;
    beta = decay + kDeltaRows;
    panel = beta + kDeltaRows;
    recalled = panel + keys * kDeltaColumns;
    delta = recalled + padded(args.value_dim);
  }
};

// Some columns of one head of one sequence.
struct DeltaItem {
  const StateRows* group = nullptr;
  int64_t head = 0;
  int32_t column = 0, column_end = 0;
};

void unit_vector(const float* x, float* y, int32_t count, float scale) {
  const F by = set1(scale / std::sqrt(sum_of_squares(x, count) + kUnitEps));
  for (int32_t i = 0; i < count; i += kLanes) {
    const int n = count - i < kLanes ? count - i : kLanes;
    store_n(y + i, mul(load_n(x + i, n), by), n);
  }
}

// decay and beta of rows whose a and b lie there.
void turn_into_gates(float* decay, float* beta, int32_t rows, float a_log, float dt_bias) {
  const F rate = sub(zero(), exp_f32(set1(a_log))), bias = set1(dt_bias);
  for (int32_t i = 0; i < rows; i += kLanes) {
    const int n = rows - i < kLanes ? rows - i : kLanes;
    const F softplus = softplus_f32(add(load_n(decay + i, n), bias));
    store_n(decay + i, exp_f32(mul(rate, softplus)), n);
    store_n(beta + i, sigmoid_f32(load_n(beta + i, n)), n);
  }
}

// What all columns of the head need of rows [first, first + rows).
void prepare_rows(const DeltaRuleArgs& args, int64_t head, int64_t first, int32_t rows, const DeltaMemory& memory) {
  const int64_t key = args.key_head(head) * args.key_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.key_dim));
  for (int32_t i = 0; i < rows; ++i) {
    const int64_t row = first + i;
    unit_vector(args.q + row * args.stride + key, memory.q + i * memory.keys, args.key_dim, scale);
    unit_vector(args.k + row * args.stride + key, memory.k + i * memory.keys, args.key_dim, 1.0f);
    memory.decay[i] = args.a[row * args.a_stride + head];
    memory.beta[i] = args.b[row * args.b_stride + head];
  }
  turn_into_gates(memory.decay, memory.beta, rows, args.a_log[head], args.dt_bias[head]);
}

// From `column` on, through rows [first, first + rows), which are prepared.
void delta_rows(const DeltaRuleArgs& args, const DeltaItem& item, int64_t first, int32_t rows, int32_t column,
                const DeltaPanel& panel, const DeltaMemory& memory) {
  const int64_t at = item.head * args.value_dim + column;
  recall(panel, memory.k);
  for (int32_t i = 0; i < rows; ++i) {
    const DeltaRow row{.q = memory.q + i * memory.keys,
                       .k = memory.k + i * memory.keys,
                       .next = i + 1 < rows ? memory.k + (i + 1) * memory.keys : nullptr,
                       .decay = memory.decay[i],
                       .beta = memory.beta[i]};
    delta_row(panel, row, args.v + (first + i) * args.stride + at, args.out + (first + i) * args.out_stride + at);
  }
}

void copy_columns(const float* from, int64_t from_stride, float* to, int64_t to_stride, int32_t keys, int32_t columns) {
  for (int32_t key = 0; key < keys; ++key) {
    std::memcpy(to + key * to_stride, from + key * from_stride, static_cast<size_t>(columns) * sizeof(float));
  }
}

void delta_item(const DeltaRuleArgs& args, const DeltaItem& item, const DeltaMemory& memory) {
  float* const head = item.group->state + item.head * args.key_dim * args.value_dim;
  DeltaPanel panel{.keys = args.key_dim, .recalled = memory.recalled, .delta = memory.delta};
  for (int32_t done = 0; done < item.group->row_count; done += kDeltaRows) {
    const int64_t first = int64_t{item.group->row_begin} + done;
    const int32_t rows = std::min<int32_t>(kDeltaRows, item.group->row_count - done);
    prepare_rows(args, item.head, first, rows, memory);
    if (rows <= kDeltaDirectRows) {
      panel.state = head + item.column;
      panel.stride = args.value_dim;
      panel.columns = item.column_end - item.column;
      delta_rows(args, item, first, rows, item.column, panel, memory);
      continue;
    }
    panel.state = memory.panel;
    panel.stride = kDeltaColumns;
    for (int32_t column = item.column; column < item.column_end; column += kDeltaColumns) {
      panel.columns = std::min<int32_t>(kDeltaColumns, item.column_end - column);
      copy_columns(head + column, args.value_dim, panel.state, panel.stride, panel.keys, panel.columns);
      delta_rows(args, item, first, rows, column, panel, memory);
      copy_columns(panel.state, panel.stride, head + column, args.value_dim, panel.keys, panel.columns);
    }
  }
}

// Into how many parts the columns of a head are split, so that there is work for
// all threads.
int64_t delta_parts(const DeltaRuleArgs& args, int64_t items, int threads) {
  const int64_t panels = (args.value_dim + kDeltaColumns - 1) / kDeltaColumns;
  return std::min(panels, (4 * int64_t{threads} + items - 1) / items);
}

void delta_rule(OpContext& ctx, const DeltaRuleArgs& args) {
  const int64_t rows = rows_of(args.groups);
  if (rows <= 0) return;
  ++ctx.op_count;
  const Scratch scratch(ctx, 0, delta_worker_bytes(args.key_dim, args.value_dim));
  const int64_t heads = static_cast<int64_t>(args.groups.size()) * args.v_heads;
  const int64_t parts = delta_parts(args, heads, ctx.pool->threads());
  const int64_t panels = (args.value_dim + kDeltaColumns - 1) / kDeltaColumns;
  const auto column = [&](int64_t part) {
    return static_cast<int32_t>(std::min<int64_t>(args.value_dim, part * panels / parts * kDeltaColumns));
  };
  ctx.pool->parallel_for(heads * parts, 1, [&](int64_t begin, int64_t end, int worker) {
    const DeltaMemory memory(args, scratch.worker<float>(worker));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / parts, part = i % parts;
      delta_item(args,
                 {.group = &args.groups[static_cast<size_t>(head / args.v_heads)],
                  .head = head % args.v_heads,
                  .column = column(part),
                  .column_end = column(part + 1)},
                 memory);
    }
  });
}
