// SPDX-License-Identifier: Apache-2.0
// How fast a file is read as weights are streamed: the streamer's blocks, as many under way, past the page cache.
//
// Thread: one caller. Failure: a sentence when the file cannot be read or is smaller than a block.
#pragma once

#include <string>

#include "base/result.h"

namespace loralei {

// GB/s (1e9) over about `seconds`, from `from` (0 .. 1) of the file on and round its end.
Result<double> probe_stream_gb_s(const std::string& path, double seconds, double from = 0);

}  // namespace loralei
