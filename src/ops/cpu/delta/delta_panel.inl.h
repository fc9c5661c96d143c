// SPDX-License-Identifier: Apache-2.0
// The gated delta rule over some columns of a head's state. Columns do not meet: each is
// the same bits whichever others it is with. No include guard: see target.h.
//
// A row takes one pass over the state: while S is brought up to date, the row's own
// S^T q and the next row's S^T k are summed from what was just written. Every sum
// takes the keys in ascending order, one fused product after the other, so that
// passes over a row alone give the same bits.

// Keys that go through a column together.
constexpr int kKeysTogether = kManyRegisters ? 4 : 2;

struct DeltaPanel {
  float* state = nullptr;  // [keys, columns]
  int64_t stride = 0;      // from key to key
  int32_t keys = 0;
  int32_t columns = 0;
  float* recalled = nullptr;  // [columns] S^T k of the row to come
  float* delta = nullptr;     // [columns] of the row
};

// Of a row: its unit vectors, [keys] each; `next`: the k of the row behind it, or null.
struct DeltaRow {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* next = nullptr;
  float decay = 0, beta = 0;
};

template <bool kWhole>
LORALEI_INLINE F load_lanes(const float* p, int n) {
  return kWhole ? load(p) : load_n(p, n);
}
template <bool kWhole>
LORALEI_INLINE void store_lanes(float* p, F x, int n) {
  kWhole ? store(p, x) : store_n(p, x, n);
}

template <int kKeys, bool kWhole>
LORALEI_INLINE void recall_lanes(const DeltaPanel& panel, const float* state, const F (&k)[kKeys], int32_t c, int n) {
  F sum = load_lanes<kWhole>(panel.recalled + c, n);
  LORALEI_UNROLL
  for (int j = 0; j < kKeys; ++j) sum = fma(load_lanes<kWhole>(state + j * panel.stride + c, n), k[j], sum);
  store_lanes<kWhole>(panel.recalled + c, sum, n);
}

template <int kKeys>
LORALEI_INLINE void recall_keys(const DeltaPanel& panel, int32_t key, const float* k) {
  const float* const state = panel.state + key * panel.stride;
  F by[kKeys];
  LORALEI_UNROLL
  for (int j = 0; j < kKeys; ++j) by[j] = set1(k[key + j]);
  int32_t c = 0;
  for (; c + kLanes <= panel.columns; c += kLanes) recall_lanes<kKeys, true>(panel, state, by, c, kLanes);
  if (c < panel.columns) recall_lanes<kKeys, false>(panel, state, by, c, panel.columns - c);
}

// recalled = S^T k
void recall(const DeltaPanel& panel, const float* k) {
  constexpr int kKeys = 4;
  std::fill_n(panel.recalled, panel.columns, 0.0f);
  int32_t key = 0;
  for (; key + kKeys <= panel.keys; key += kKeys) recall_keys<kKeys>(panel, key, k);
  for (; key < panel.keys; ++key) recall_keys<1>(panel, key, k);
}

// What a row's keys bring to a vector of columns.
template <int kKeys>
struct KeyFactors {
  F q[kKeys], k[kKeys], next[kKeys];
  F decay;
};

template <int kKeys, bool kNext, bool kWhole>
LORALEI_INLINE void learn_lanes(const DeltaPanel& panel, float* state, const KeyFactors<kKeys>& by, float* out,
                                int32_t c, int n) {
  const F delta = load_lanes<kWhole>(panel.delta + c, n);
  F sum = load_lanes<kWhole>(out + c, n), recalled = zero();
  if constexpr (kNext) recalled = load_lanes<kWhole>(panel.recalled + c, n);
  LORALEI_UNROLL
  for (int j = 0; j < kKeys; ++j) {
    float* const at = state + j * panel.stride + c;
    const F s = fma(by.k[j], delta, mul(load_lanes<kWhole>(at, n), by.decay));
    store_lanes<kWhole>(at, s, n);
    sum = fma(s, by.q[j], sum);
    if constexpr (kNext) recalled = fma(s, by.next[j], recalled);
  }
  store_lanes<kWhole>(out + c, sum, n);
  if constexpr (kNext) store_lanes<kWhole>(panel.recalled + c, recalled, n);
}

template <int kKeys, bool kNext>
LORALEI_INLINE void learn_keys(const DeltaPanel& panel, int32_t key, const DeltaRow& row, float* out) {
  float* const state = panel.state + key * panel.stride;
  KeyFactors<kKeys> by;
  by.decay = set1(row.decay);
  LORALEI_UNROLL
  for (int j = 0; j < kKeys; ++j) {
    by.q[j] = set1(row.q[key + j]);
    by.k[j] = set1(row.k[key + j]);
    by.next[j] = kNext ? set1(row.next[key + j]) : zero();
  }
  int32_t c = 0;
  for (; c + kLanes <= panel.columns; c += kLanes) learn_lanes<kKeys, kNext, true>(panel, state, by, out, c, kLanes);
  if (c < panel.columns) learn_lanes<kKeys, kNext, false>(panel, state, by, out, c, panel.columns - c);
}

template <bool kNext>
void learn(const DeltaPanel& panel, const DeltaRow& row, float* out) {
  int32_t key = 0;
  for (; key + kKeysTogether <= panel.keys; key += kKeysTogether)
    learn_keys<kKeysTogether, kNext>(panel, key, row, out);
  for (; key < panel.keys; ++key) learn_keys<1, kNext>(panel, key, row, out);
}

// delta = beta (v - decay * recalled); the sums of the row begin. `out` may be v.
void begin_row(const DeltaPanel& panel, const DeltaRow& row, const float* v, float* out) {
  const F decay = set1(row.decay), beta = set1(row.beta);
  for (int32_t c = 0; c < panel.columns; c += kLanes) {
    const int n = panel.columns - c < kLanes ? panel.columns - c : kLanes;
    const F missing = sub(load_n(v + c, n), mul(decay, load_n(panel.recalled + c, n)));
    store_n(panel.delta + c, mul(missing, beta), n);
    store_n(panel.recalled + c, zero(), n);
    store_n(out + c, zero(), n);
  }
}

// One row, whose S^T k is in panel.recalled; that of the next row is there afterwards.
void delta_row(const DeltaPanel& panel, const DeltaRow& row, const float* v, float* out) {
  begin_row(panel, row, v, out);
  row.next != nullptr ? learn<true>(panel, row, out) : learn<false>(panel, row, out);
}
