// SPDX-License-Identifier: Apache-2.0
#include "weights/streamer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "sys/threads.h"

namespace loralei {
namespace {

int64_t down(int64_t bytes) { return bytes / kDirectAlign * kDirectAlign; }
int64_t up(int64_t bytes) { return down(bytes + kDirectAlign - 1); }

// What is read for a panel: from page boundary to page boundary.
struct Extent {
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t skip = 0;  // to the panel's first byte
};
Extent extent_of(const PackedIndex& index, const StreamPanel& panel) {
  const PackedMatrix& matrix = index.matrices[static_cast<size_t>(panel.matrix)];
  const int64_t first = matrix.at + panel.first_tile * matrix.tile_bytes();
  const int64_t last = std::min(matrix.at + matrix.bytes(), first + panel.tiles * matrix.tile_bytes());
  return {down(first), up(last) - down(first), first - down(first)};
}

}  // namespace

// The reader's own state: panels that have memory and are not complete, and the blocks
// that are still to be asked for.
struct Streamer::Reading {
  struct Taken {
    int64_t begin = 0, end = 0;
    int64_t sequence = 0;
  };
  struct Panel {
    int64_t sequence = 0;
    std::byte* memory = nullptr;
    Extent extent;
    int64_t asked = 0;      // bytes
    int64_t under_way = 0;  // blocks
  };
  std::deque<Panel> panels;
  std::vector<Taken> taken;  // of the window, by address
  int64_t next = 0;          // sequence number of the next panel to be given memory
  int64_t blocks = 0;        // under way
  int64_t generation = 0;
  bool failed = false;  // nothing of this generation arrives any more

  // The lowest free place of the window, or -1. Low places first: while the disk is what
  // is waited for, few panels are there at a time, and memory that was used a moment ago
  // is still in the caches when the next panel is written to it.
  int64_t take(int64_t bytes, int64_t window_bytes) {
    int64_t begin = 0;
    auto at = taken.begin();
    for (; at != taken.end() && at->begin - begin < bytes; ++at) begin = at->end;
    if (at == taken.end() && window_bytes - begin < bytes) return -1;
    taken.insert(at, {begin, begin + bytes, next});
    return begin;
  }
  // What was released; but a pass that ended early leaves reads under way, and
  // these still write.
  void give_back(int64_t released_end) {
    const int64_t end = panels.empty() ? released_end : std::min(released_end, panels.front().sequence);
    std::erase_if(taken, [&](const Taken& one) { return one.sequence < end; });
  }
};

Streamer::Streamer(const PackedIndex& index, std::vector<StreamPanel> panels, StreamerOptions options)
    : index_(index), panels_(std::move(panels)), options_(std::move(options)) {}

Result<std::unique_ptr<Streamer>> Streamer::create(const PackedIndex& index, std::vector<StreamPanel> panels,
                                                   StreamerOptions options) {
  CHECK(!panels.empty() && options.block_bytes % kDirectAlign == 0);
  std::unique_ptr<Streamer> streamer(new Streamer(index, std::move(panels), std::move(options)));
  int64_t largest = 0, smallest = INT64_MAX;
  for (const StreamPanel& panel : streamer->panels_) {
    const int64_t bytes = extent_of(index, panel).bytes;
    largest = std::max(largest, bytes);
    smallest = std::min(smallest, bytes);
  }
  const int64_t window = down(streamer->options_.window_bytes);
  if (window < 2 * largest) {
    return too_large("The stream window of " + format_bytes(window) + " cannot hold two panels of " +
                     format_bytes(largest) + "; raise --prefetch-window.");
  }
  TRY_ASSIGN(streamer->window_, HostBuffer::allocate(window));
  TRY_ASSIGN(streamer->reader_, streamer->options_.open(streamer->window_.bytes()));
  streamer->places_.resize(static_cast<size_t>(window / smallest + 2));
  TRY_ASSIGN(streamer->thread_, start_thread([raw = streamer.get()] { raw->run(); }));
  return streamer;
}

Streamer::~Streamer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<const std::byte*> Streamer::wait(int64_t number) {
  const int64_t sequence = pass_begin_ + number;
  if (arrived_end_.load(std::memory_order_acquire) <= sequence) {
    const int64_t begin_ns = SteadyClock().now_ns();
    std::unique_lock lock(mutex_);
    wanted_end_ = sequence + 1;
    if (!options_.read_ahead) wanted_.notify_one();
    arrived_.wait(lock, [&] { return arrived_end_.load() > sequence || !failure_.ok(); });
    totals_.waited_ns += SteadyClock().now_ns() - begin_ns;
    if (arrived_end_.load() <= sequence) return failure_.error();
  }
  const std::lock_guard lock(mutex_);
  return places_[static_cast<size_t>(sequence) % places_.size()];
}

bool Streamer::ready(int64_t number) const {
  return arrived_end_.load(std::memory_order_acquire) > pass_begin_ + number;
}

void Streamer::release(int64_t end) {
  {
    const std::lock_guard lock(mutex_);
    if (pass_begin_ + end <= released_end_) return;
    released_end_ = pass_begin_ + end;
  }
  wanted_.notify_one();
}

void Streamer::end_pass() {
  release(std::ssize(panels_));
  const std::lock_guard lock(mutex_);
  pass_begin_ += std::ssize(panels_);
}

void Streamer::restart() {
  {
    const std::lock_guard lock(mutex_);
    ++generation_;
    // The numbers go on from a multiple of the pass, beyond everything that
    // was under way.
    const int64_t count = std::ssize(panels_);
    pass_begin_ = (std::max(arrived_end_.load(), pass_begin_) / count + 2) * count;
    released_end_ = pass_begin_;
    arrived_end_.store(pass_begin_);
    failure_ = {};
  }
  wanted_.notify_one();
}

StreamerTotals Streamer::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

const std::string& Streamer::how() const { return reader_->how(); }

void Streamer::run() {
  name_this_thread("loralei-disk");
  favour_this_thread();  // every millisecond between a finished read and the next one is lost to the disk
  const int64_t count = std::ssize(panels_);
  Reading reading;
  struct Block {
    uint64_t tag = 0;
    int64_t offset_bytes = 0;
    std::span<std::byte> dest;
  };
  std::vector<Block> asked;  // to be submitted once the lock is released
  std::vector<BlockDone> done;

  std::unique_lock lock(mutex_);
  for (;;) {
    if (stop_) return;
    if (reading.generation != generation_) {
      // What is under way still writes to the window: let it end first.
      if (reading.blocks > 0) {
        lock.unlock();
        done.clear();
        reader_->wait(done);
        reading.blocks -= std::ssize(done);
        lock.lock();
        continue;
      }
      reading.panels.clear();
      reading.failed = false;
      reading.generation = generation_;
      reading.next = pass_begin_;
      reading.taken.clear();
    }
    // Blocks up to the depth, in order; a panel is given memory when its first block can
    // be asked for, not before.
    reading.give_back(released_end_);
    while (failure_.ok() && reading.blocks < reader_->depth()) {
      if (reading.panels.empty() || reading.panels.back().asked == reading.panels.back().extent.bytes) {
        // What the consumer passed over need not be read; it never waits for it.
        reading.next = std::max(reading.next, released_end_);
        if (!options_.read_ahead && reading.next >= wanted_end_) break;
        const auto number = static_cast<size_t>(reading.next % count);
        const Extent extent = extent_of(index_, panels_[number]);
        if (reading.next - released_end_ >= std::ssize(places_)) break;
        const int64_t place = reading.take(extent.bytes, window_.size_bytes());
        if (place < 0) break;
        if (number == 0) ++totals_.passes;
        std::byte* const memory = window_.data() + place;
        places_[static_cast<size_t>(reading.next) % places_.size()] = memory + extent.skip;
        reading.panels.push_back({reading.next, memory, extent});
        ++reading.next;
      }
      Reading::Panel& panel = reading.panels.back();
      const int64_t bytes = std::min(options_.block_bytes, panel.extent.bytes - panel.asked);
      asked.push_back({static_cast<uint64_t>(panel.sequence),
                       panel.extent.begin + panel.asked,
                       {panel.memory + panel.asked, static_cast<size_t>(bytes)}});
      panel.asked += bytes;
      ++panel.under_way;
      ++reading.blocks;
      totals_.read_bytes += bytes;
    }
    if (reading.blocks == 0) {
      wanted_.wait(lock);
      continue;
    }
    lock.unlock();
    for (const Block& block : asked) reader_->submit(block.tag, block.offset_bytes, block.dest);
    asked.clear();
    done.clear();
    reader_->wait(done);
    Status failure;
    for (BlockDone& block : done) {
      --reading.blocks;
      for (Reading::Panel& panel : reading.panels) {
        if (static_cast<uint64_t>(panel.sequence) == block.tag) --panel.under_way;
      }
      if (!block.status.ok() && failure.ok()) failure = std::move(block.status);
    }
    reading.failed |= !failure.ok();
    int64_t complete = 0;
    while (!reading.failed && complete < std::ssize(reading.panels)) {
      const Reading::Panel& panel = reading.panels[static_cast<size_t>(complete)];
      if (panel.under_way > 0 || panel.asked < panel.extent.bytes) break;
      ++complete;
    }
    lock.lock();
    if (reading.generation != generation_) continue;
    for (; complete > 0; --complete) {
      arrived_end_.store(reading.panels.front().sequence + 1, std::memory_order_release);
      reading.panels.pop_front();
    }
    if (!failure.ok()) failure_ = std::move(failure);
    if (arrived_end_.load() >= wanted_end_ || !failure_.ok()) arrived_.notify_all();
  }
}

}  // namespace loralei
