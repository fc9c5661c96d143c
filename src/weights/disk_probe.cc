// SPDX-License-Identifier: Apache-2.0
#include "weights/disk_probe.h"

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "device/host/arena.h"
#include "sys/block_reader.h"
#include "weights/streamer.h"

namespace loralei {
namespace {

using Block = std::span<std::byte>;

// Reads a word of every line of the blocks it is given and hands them back.
class Looker {
 public:
  explicit Looker(size_t blocks) : arrived_(blocks), looked_at_(blocks), thread_([this] { run(); }) {}
  ~Looker() {
    arrived_.close();
    thread_.join();
  }
  void give(Block block) { arrived_.try_push(std::move(block)); }
  Block take_back() { return *looked_at_.pop(); }

 private:
  void run() {
    volatile uint64_t seen = 0;  // so that nothing is left out
    while (std::optional<Block> block = arrived_.pop()) {
      uint64_t sum = 0;
      for (size_t at = 0; at < block->size(); at += 64) {
        uint64_t word;
        std::memcpy(&word, block->data() + at, sizeof word);
        sum += word;
      }
      seen = seen + sum;
      looked_at_.try_push(std::move(*block));
    }
  }
  BoundedQueue<Block> arrived_, looked_at_;
  std::thread thread_;
};

}  // namespace

Result<double> probe_stream_gb_s(const std::string& path, double seconds, double from, ProbedBlocks what) {
  const StreamerOptions streamer;
  BlockReaderOptions options;
  const auto depth = static_cast<size_t>(options.depth);
  const auto block_bytes = static_cast<size_t>(streamer.block_bytes);
  const size_t places = what == ProbedBlocks::kLookedAt ? 2 * depth : depth;
  TRY_ASSIGN(const HostBuffer memory, HostBuffer::allocate(static_cast<int64_t>(places * block_bytes)));
  options.memory = memory.bytes();
  TRY_ASSIGN(const std::unique_ptr<BlockReader> reader, open_block_reader(path, options));
  const int64_t blocks = reader->stamp().size_bytes / streamer.block_bytes;
  if (blocks < 1) return invalid_argument("'" + path + "' is too small to probe the disk with.");
  auto next = static_cast<int64_t>(from * static_cast<double>(blocks));
  const auto place = [&](uint64_t number) { return memory.bytes().subspan(number * block_bytes, block_bytes); };
  const auto submit = [&](Block dest) {
    const auto number = static_cast<uint64_t>(dest.data() - memory.data()) / block_bytes;
    reader->submit(number, next++ % blocks * streamer.block_bytes, dest);
  };
  std::deque<Block> free;  // the one that has rested longest first
  for (size_t number = 0; number < places; ++number) {
    if (number < depth) {
      submit(place(number));
    } else {
      free.push_back(place(number));
    }
  }
  std::unique_ptr<Looker> looker;
  if (what == ProbedBlocks::kLookedAt) looker = std::make_unique<Looker>(places);
  std::vector<BlockDone> done;
  const SteadyClock clock;
  const double begin_s = clock.now_s();
  for (double read_bytes = 0;;) {
    done.clear();
    reader->wait(done);
    const double taken_s = clock.now_s() - begin_s;
    for (const BlockDone& one : done) {
      TRY(one.status);
      read_bytes += static_cast<double>(block_bytes);
      if (looker != nullptr) {
        looker->give(place(one.tag));
      } else {
        free.push_back(place(one.tag));
      }
    }
    if (taken_s > seconds) return read_bytes / taken_s * 1e-9;
    for (size_t again = done.size(); again > 0; --again) {
      if (free.empty()) free.push_back(looker->take_back());
      submit(free.front());
      free.pop_front();
    }
  }
}

}  // namespace loralei
