// SPDX-License-Identifier: Apache-2.0
#include "weights/disk_probe.h"

#include <memory>
#include <vector>

#include "base/clock.h"
#include "device/host/arena.h"
#include "sys/block_reader.h"
#include "weights/streamer.h"

namespace loralei {

Result<double> probe_stream_gb_s(const std::string& path, double seconds, double from) {
  const StreamerOptions streamer;
  BlockReaderOptions options;
  const auto depth = static_cast<size_t>(options.depth);
  const auto block = static_cast<size_t>(streamer.block_bytes);
  TRY_ASSIGN(const HostBuffer memory, HostBuffer::allocate(static_cast<int64_t>(depth * block)));
  options.memory = memory.bytes();
  TRY_ASSIGN(const std::unique_ptr<BlockReader> reader, open_block_reader(path, options));
  const int64_t blocks = reader->stamp().size_bytes / streamer.block_bytes;
  if (blocks < 1) return invalid_argument("'" + path + "' is too small to probe the disk with.");
  auto next = static_cast<int64_t>(from * static_cast<double>(blocks));
  const auto submit = [&](size_t slot) {
    reader->submit(slot, next++ % blocks * streamer.block_bytes, memory.bytes().subspan(slot * block, block));
  };
  for (size_t slot = 0; slot < depth; ++slot) submit(slot);
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
    for (const BlockDone& one : done) submit(static_cast<size_t>(one.tag));
  }
}

}  // namespace loralei
