// SPDX-License-Identifier: Apache-2.0
// A pass over the weights and its rounds (WeightPass, WeightUse): which panels
// are handed out next.
#include "base/check.h"
#include "weights/weight_store_state.h"

namespace loralei {

Status WeightStore::State::check_arrived() {
  return arrived.run(nullptr, [this](const TileRound::Panel& panel, int64_t number) {
    const std::byte* const tile = panel.stored + number * panel.matrix->tile_bytes();
    return check_tiles(packed, *panel.matrix, panel.first_tile + number, 1, tile);
  });
}

void WeightStore::begin_pass() {
  State& state = *state_;
  state.pass_failure = {};
  if (state.stream_failure.ok()) return;
  state.stream_failure = state.start_streams();
  // Another file has its name, or none has: one is found or made for it.
  if (!state.stream_failure.ok() && state.stream_failure.error().code == ErrorCode::kCorrupt &&
      state.damage == PackedDamage::kNone)
    state.damage = PackedDamage::kRemoved;
}

void WeightStore::end_pass(bool done) {
  if (state_->streamer == nullptr) return;
  if (done) {
    state_->streamer->end_pass();
  } else {
    state_->streamer->restart();
  }
}

WeightPass::WeightPass(WeightStore& store) : store_(store) { store_.begin_pass(); }
WeightPass::~WeightPass() {
  if (!done_) store_.end_pass(false);
}
void WeightPass::done() {
  done_ = true;
  store_.end_pass(true);
}

WeightUse::WeightUse(WeightStore& store, std::span<const TensorSlot> slots) : store_(store), count_(slots.size()) {
  CHECK(count_ > 0 && count_ <= kMatricesMax);
  for (size_t i = 0; i < count_; ++i) {
    slots_[i] = slots[i];
    views_[i] = store.view(slots[i]);
    views_[i].panels = {};
  }
  ++store_.state_->open_uses;
}
WeightUse::~WeightUse() { --store_.state_->open_uses; }

// Finds the streamed panel that comes next; false: none is left.
bool WeightUse::awaits_streamed() {
  for (; matrix_ < count_; ++matrix_, panel_ = 0) {
    const WeightStore::State::Matrix& matrix = store_.state_->matrices[static_cast<size_t>(slots_[matrix_])];
    if (panel_ < std::ssize(matrix.panels) - static_cast<int64_t>(matrix.locked_panels)) return true;
  }
  return false;
}

Result<bool> WeightUse::next() {
  WeightStore::State& state = *store_.state_;
  for (size_t i = 0; i < count_; ++i) views_[i].panels = {};
  if (!state.pass_failure.ok()) return state.pass_failure.error();
  if (streamed_end_ > 0) state.streamer->release(streamed_end_);
  if (!awaits_streamed()) return next_locked(INT64_MAX);
  if (state.streamer != nullptr) {
    const WeightStore::State::Matrix& matrix = state.matrices[static_cast<size_t>(slots_[matrix_])];
    if (state.streamer->ready(matrix.first_streamed + panel_)) return next_sound();
  }
  if (next_locked(state.locked_round_bytes)) return true;
  if (state.streamer == nullptr) return state.stream_failure.error();
  return next_sound();
}

// Streamed panels, checked and decoded. Where one is damaged none is handed out.
Result<bool> WeightUse::next_sound() {
  WeightStore::State& state = *store_.state_;
  Result<bool> any = next_streamed();
  if (any.ok()) return any;
  for (size_t i = 0; i < count_; ++i) views_[i].panels = {};
  state.pass_failure = state.packed_failure(std::move(any).error());
  return state.pass_failure.error();
}

bool WeightUse::next_locked(int64_t most_bytes) {
  int64_t bytes = 0;
  for (; locked_matrix_ < count_ && bytes < most_bytes; ++locked_matrix_, locked_panel_ = 0) {
    const WeightStore::State::Matrix& matrix = store_.state_->matrices[static_cast<size_t>(slots_[locked_matrix_])];
    const std::span<const WeightPanel> locked = std::span(matrix.panels).first(matrix.locked_panels);
    const size_t first = locked_panel_;
    for (; locked_panel_ < locked.size() && bytes < most_bytes; ++locked_panel_)
      bytes += matrix.bytes(locked[locked_panel_].row_count);
    views_[locked_matrix_].panels = locked.subspan(first, locked_panel_ - first);
    if (locked_panel_ < locked.size()) break;
  }
  return bytes > 0;
}

// Streamed panels in the order in which they arrive: waits for one, takes those
// that are there.
Result<bool> WeightUse::next_streamed() {
  WeightStore::State& state = *store_.state_;
  bool any = false;
  int64_t bytes = 0;
  int64_t decoded_end = 0;  // of the pass's panels: what is decoded need not stay in the window
  state.arrived.clear();
  if (state.decoder != nullptr) state.decoder->begin_round();
  for (; matrix_ < count_; ++matrix_, panel_ = 0) {
    WeightStore::State::Matrix& matrix = state.matrices[static_cast<size_t>(slots_[matrix_])];
    const int64_t count = std::ssize(matrix.panels) - static_cast<int64_t>(matrix.locked_panels);
    const int64_t first = panel_;
    for (; panel_ < count; ++panel_) {
      const int64_t number = matrix.first_streamed + panel_;
      WeightPanel& panel = matrix.panels[matrix.locked_panels + static_cast<size_t>(panel_)];
      const int64_t tiles = matrix.tiles(panel.row_count);
      const bool shrunk = matrix.packed.shrunk.has_value();
      if (any && (bytes >= state.round_bytes || !state.streamer->ready(number))) break;
      if (any && shrunk && !state.decoder->fits(matrix.packed, tiles)) break;
      const auto stored = state.streamer->wait(number);
      if (!stored.ok()) return stored.error();
      panel.data = *stored;
      state.arrived.add(matrix.packed, panel.row_begin / kRowTile, tiles, *stored);
      if (shrunk) panel.data = state.decoder->add(matrix.packed, panel.row_begin / kRowTile, tiles, panel.data);
      bytes += tiles * matrix.packed.tile_bytes();
      decoded_end = shrunk && decoded_end >= 0 ? number + 1 : -1;
      streamed_end_ = number + 1;
      any = true;
    }
    views_[matrix_].panels =
        std::span(matrix.panels)
            .subspan(matrix.locked_panels + static_cast<size_t>(first), static_cast<size_t>(panel_ - first));
    if (panel_ < count) break;
  }
  TRY(state.check_arrived());
  if (decoded_end != 0 && state.decoder != nullptr) {
    TRY(state.decoder->decode());
    if (decoded_end > 0) state.streamer->release(decoded_end);
  }
  return any;
}

}  // namespace loralei
