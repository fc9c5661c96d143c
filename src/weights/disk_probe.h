// SPDX-License-Identifier: Apache-2.0
// How fast a file is read as weights are streamed: the streamer's blocks, as many under
// way, past the page cache.
//
// What becomes of the blocks counts. In a virtual machine the host writes them with its
// own cores, and a few blocks of memory that nobody looks at never leave its caches;
// once another core reads them, every line travels to it and back for the next block
// (measured: 2.4 GB/s untouched and 1.55 read once, in the same minute). So the probe can
// look at what it reads, as any use of it must.
//
// Thread: one caller; a thread of its own looks.
// Failure: a sentence when the file cannot be read or is smaller than a
// block.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace loralei {

enum class ProbedBlocks : uint8_t {
  kUntouched,  // a place in memory for every read under way
  kLookedAt,   // another thread reads every line once; twice the places, so that reading goes on meanwhile
};

// GB/s (1e9) over about `seconds`, from `from` (0 .. 1) of the file on and round its end.
Result<double> probe_stream_gb_s(const std::string& path, double seconds, double from = 0,
                                 ProbedBlocks blocks = ProbedBlocks::kUntouched);

}  // namespace loralei
