// SPDX-License-Identifier: Apache-2.0
// What the tile registers of AMX hold: how many rows of how many bytes each. No include
// guard: see target.h.

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_a_row[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

LORALEI_INLINE void load_config(const TileConfig& config) {
  // The compiler believes that the instruction reads eight bytes; the barrier makes it
  // write all of them first.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}
