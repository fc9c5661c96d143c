// SPDX-License-Identifier: Apache-2.0
// How fast a file is read as weights are streamed: the streamer's blocks, as many under way, past the page cache.
//
// Where the blocks land counts: in a virtual machine the host writes them with its own cores, and a few blocks of
// memory that are written again and again stay in its caches (measured: 3.2 GB/s into 4 MiB, 2.2 into 36). So the
// memory may be as large as a stream window, whose places are used in turn.
//
// Thread: one caller. Failure: a sentence when the file cannot be read or is smaller than a block.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace loralei {

// GB/s (1e9) over about `seconds`, from `from` (0 .. 1) of the file on and round its end, into so many bytes of memory
// or, where that is more, a block for every read under way.
Result<double> probe_stream_gb_s(const std::string& path, double seconds, double from = 0, int64_t memory_bytes = 0);

}  // namespace loralei
