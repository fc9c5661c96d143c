// SPDX-License-Identifier: Apache-2.0
#include "weights/panel_decoder.h"

#include <utility>

#include "base/check.h"

namespace loralei {

Result<std::unique_ptr<PanelDecoder>> PanelDecoder::create(int64_t bytes, size_t panels_max, ThreadPool* pool) {
  std::unique_ptr<PanelDecoder> decoder(new PanelDecoder(panels_max, pool));
  TRY_ASSIGN(decoder->memory_, HostBuffer::allocate(bytes));
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
  panels_.add(matrix, first_tile, tiles, stored, out);
  return out;
}

Status PanelDecoder::decode() {
  return panels_.run(pool_, [](const TileRound::Panel& panel, int64_t number) {
    const PackedMatrix& matrix = *panel.matrix;
    const auto bytes = static_cast<size_t>(matrix.tile_bytes());
    return matrix.restore_tile(panel.first_tile + number, {panel.stored + number * matrix.tile_bytes(), bytes},
                               panel.out + number * matrix.held_tile_bytes());
  });
}

}  // namespace loralei
