// SPDX-License-Identifier: Apache-2.0
#include "weights/disk_probe.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "device/host/arena.h"
#include "sys/block_reader.h"
#include "weights/streamer.h"

namespace loralei {

Result<double> probe_stream_gb_s(const std::string& path, double seconds, double from, int64_t memory_bytes) {
  const StreamerOptions streamer;
  BlockReaderOptions options;
  const auto depth = static_cast<size_t>(options.depth);
  const auto block = static_cast<size_t>(streamer.block_bytes);
  const size_t places = std::max(depth, static_cast<size_t>(memory_bytes) / block);
  TRY_ASSIGN(const HostBuffer memory, HostBuffer::allocate(static_cast<int64_t>(places * block)));
  options.memory = memory.bytes();
  TRY_ASSIGN(const std::unique_ptr<BlockReader> reader, open_block_reader(path, options));
  const int64_t blocks = reader->stamp().size_bytes / streamer.block_bytes;
  if (blocks < 1) return invalid_argument("'" + path + "' is too small to probe the disk with.");
  auto next = static_cast<int64_t>(from * static_cast<double>(blocks));
  std::deque<size_t> free;  // places, the one that has rested longest first
  for (size_t place = 0; place < places; ++place) free.push_back(place);
  const auto submit = [&] {
    const size_t place = free.front();
    free.pop_front();
    reader->submit(place, next++ % blocks * streamer.block_bytes, memory.bytes().subspan(place * block, block));
  };
  for (size_t under_way = 0; under_way < depth; ++under_way) submit();
  std::vector<BlockDone> done;
  const SteadyClock clock;
  const double begin_s = clock.now_s();
  for (double read_bytes = 0;;) {
    done.clear();
    reader->wait(done);
    const double taken_s = clock.now_s() - begin_s;
    for (const BlockDone& one : done) {
      TRY(one.status);
      read_bytes += static_cast<double>(block);
    }
    if (taken_s > seconds) return read_bytes / taken_s * 1e-9;
    for (const BlockDone& one : done) {
      free.push_back(static_cast<size_t>(one.tag));
      submit();
    }
  }
}

}  // namespace loralei
