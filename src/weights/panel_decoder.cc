// SPDX-License-Identifier: Apache-2.0
#include "weights/panel_decoder.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"

namespace loralei {

Result<std::unique_ptr<PanelDecoder>> PanelDecoder::create(int64_t bytes, size_t panels_max, ThreadPool* pool) {
  std::unique_ptr<PanelDecoder> decoder(new PanelDecoder(panels_max, pool));
  TRY_ASSIGN(decoder->memory_, HostBuffer::allocate(bytes));
  decoder->panels_.reserve(panels_max);
  return decoder;
}

void PanelDecoder::begin_round() {
  panels_.clear();
  used_bytes_ = 0;
}

bool PanelDecoder::fits(const PackedMatrix& matrix, int64_t tiles) const {
  return panels_.size() < panels_max_ && used_bytes_ + tiles * matrix.held_tile_bytes() <= memory_.size_bytes();
}

const std::byte* PanelDecoder::add(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles,
                                   const std::byte* stored) {
  CHECK(fits(matrix, tiles));
  std::byte* const out = memory_.data() + used_bytes_;
  used_bytes_ += tiles * matrix.held_tile_bytes();
  panels_.push_back({&matrix, stored, out, first_tile, (panels_.empty() ? 0 : panels_.back().end) + tiles});
  return out;
}

Status PanelDecoder::decode() {
  if (panels_.empty()) return {};
  std::atomic<int64_t> damaged{-1};
  Status failure;
  const auto decode_tiles = [&](int64_t begin, int64_t end, int) {
    auto panel = std::upper_bound(panels_.begin(), panels_.end(), begin,
                                  [](int64_t tile, const Panel& one) { return tile < one.end; });
    for (int64_t i = begin; i < end; ++i) {
      if (i == panel->end) ++panel;
      const PackedMatrix& matrix = *panel->matrix;
      const int64_t number = i - (panel == panels_.begin() ? 0 : (panel - 1)->end);  // within the panel
      const auto bytes = static_cast<size_t>(matrix.tile_bytes());
      Status status =
          matrix.restore_tile(panel->first_tile + number, {panel->stored + number * matrix.tile_bytes(), bytes},
                              panel->out + number * matrix.held_tile_bytes());
      int64_t none = -1;
      if (!status.ok() && damaged.compare_exchange_strong(none, i)) failure = std::move(status);
    }
  };
  const int64_t tiles = panels_.back().end;
  if (pool_ != nullptr) {
    pool_->parallel_for(tiles, 1, decode_tiles);
  } else {
    decode_tiles(0, tiles, 0);
  }
  panels_.clear();
  return failure;
}

}  // namespace loralei
