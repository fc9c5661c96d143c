// SPDX-License-Identifier: Apache-2.0
// Whether 16-bit weights are shrunk for streaming (tensor/shrink.h): as asked, or where
// decoding keeps up with the disk.
//
// Thread: measure_shrink is called by one thread and starts its own; the rest is pure.
// Failure: sentences.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "formats/packed_index.h"

namespace loralei {

enum class StreamShrink : uint8_t { kAuto, kOn, kOff };
Result<StreamShrink> parse_stream_shrink(const std::string& name);

struct ShrinkRates {
  double decode_gb_s = 0;  // of decoded numbers, all threads
  double disk_gb_s = 0;
  bool worth_it() const { return decode_gb_s >= 2 * disk_gb_s; }
};
// Decodes tiles of `matrix`, which is shrunk, as they are streamed, and reads `path`,
// which lies on the disk in question, past the page cache; some tens of milliseconds
// each. `tiles` are the first tiles of the matrix as stored.
Result<ShrinkRates> measure_shrink(const PackedMatrix& matrix, std::span<const std::byte> tiles,
                                   const std::string& path, int threads);
// The memory that takes beside the tiles, which are decoded to `held_bytes`.
int64_t measure_shrink_memory(int64_t held_bytes);

}  // namespace loralei
