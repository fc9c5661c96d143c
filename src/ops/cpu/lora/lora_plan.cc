// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/lora/lora_plan.h"

#include <algorithm>
#include <atomic>

namespace loralei {
namespace {

constexpr int32_t kTileRanks = 8;
// An expansion item reads about this much of B, so that its runs are long and both ends
// of a call stay busy.
constexpr int64_t kExpandBytesMin = int64_t{16} << 10, kExpandBytesMax = int64_t{64} << 10;
constexpr int32_t kExpandOutputsMin = 256;
constexpr int32_t kItemsPerThread = 4;
constexpr int kSpins = 256;  // some microseconds: longer than a shrink item takes

bool same_format(const LoraPair& x, const LoraPair& y) {
  return (x.a_scale != nullptr) == (y.a_scale != nullptr) && (x.a_scale != nullptr || x.dtype == y.dtype);
}

bool same_a(const LoraPair& x, const LoraPair& y) { return x.a == y.a && x.rank == y.rank && same_format(x, y); }

// Calls body(first part, part after the last, ranks) for every run of parts whose
// A have one format.
template <typename Body>
void for_each_run(const LoraGroup& group, size_t parts, Body&& body) {
  for (size_t begin = 0; begin < parts;) {
    const LoraPair* format = nullptr;
    int32_t ranks = 0;
    size_t end = begin;
    for (; end < parts; ++end) {
      const LoraPart& part = group.parts[end];
      if (part.pair == nullptr || part.shares_a) continue;
      if (format != nullptr && !same_format(*format, *part.pair)) break;
      format = part.pair;
      ranks += part.pair->rank;
    }
    body(begin, end, ranks);
    begin = end;
  }
}

int32_t count_tiles(const LoraGroup& group, size_t parts, int32_t tile_ranks) {
  int32_t tiles = 0;
  for_each_run(group, parts, [&](size_t, size_t, int32_t ranks) { tiles += (ranks + tile_ranks - 1) / tile_ranks; });
  return tiles;
}

// Bytes an expansion reads for one output of a part.
int64_t expand_bytes_per_output(const LoraPart& part) {
  if (part.pair == nullptr) return 0;
  if (part.pair->rank == 0) return 4;
  return part.pair->rank * (part.pair->b_scale != nullptr ? 1 : row_bytes(part.pair->dtype, 1));
}

}  // namespace

LoraPlanner::LoraPlanner(std::span<const LoraSegment> segments, std::span<const LoraTarget> targets, int threads,
                         std::span<std::byte> shared)
    : segments_(segments),
      targets_(targets),
      threads_(threads),
      groups_(reinterpret_cast<LoraGroup*>(shared.data())),
      rows_(reinterpret_cast<LoraRow*>(shared.data() + lora_groups_bytes())),
      values_(reinterpret_cast<float*>(shared.data() + lora_groups_bytes() + lora_rows_bytes())),
      values_max_((static_cast<int64_t>(shared.size()) - lora_groups_bytes() - lora_rows_bytes()) / 4) {
  CHECK(targets.size() <= kLoraTargetsMax);
}

void LoraPlanner::enter_window() {
  window_ = segments_.first(std::min<size_t>(segments_.size(), kLoraSegments));
  segments_ = segments_.subspan(window_.size());
  std::fill_n(done_, window_.size(), 0);
}

LoraGroup& LoraPlanner::group_of(int32_t slot, LoraBatch& batch) {
  for (int32_t i = batch.group_count; i-- > 0;) {
    if (groups_[i].slot == slot) return groups_[i];
  }
  LoraGroup& group = groups_[batch.group_count++];
  group = LoraGroup{};
  group.slot = slot;
  for (size_t t = 0; t < targets_.size(); ++t) {
    const LoraPair* const pair = targets_[t].sources[slot].pair;
    LoraPart& part = group.parts[t];
    if (pair == nullptr || (pair->rank == 0 && pair->bias_delta == nullptr)) continue;
    CHECK(pair->out <= targets_[t].out);
    part.pair = pair;
    part.first = group.ranks;
    for (size_t earlier = 0; earlier < t && part.pair->rank > 0; ++earlier) {
      const LoraPart& other = group.parts[earlier];
      if (other.pair == nullptr || !same_a(*other.pair, *part.pair)) continue;
      part.first = other.first;
      part.shares_a = true;
      break;
    }
    if (!part.shares_a) group.ranks += part.pair->rank;
  }
  return group;
}

// Chooses rows for the batch: of every segment that no earlier unfinished one may
// overlap, as many as fit.
void LoraPlanner::take_rows(LoraBatch& batch) {
  int32_t rows_left = kLoraRows;
  int64_t values_left = values_max_;
  int32_t pending_end = INT32_MIN;  // behind the last row of all earlier unfinished segments
  taken_count_ = 0;
  for (size_t i = 0; i < window_.size(); ++i) {
    const LoraSegment& segment = window_[i];
    if (done_[i] >= segment.row_count) continue;
    const int32_t end = segment.row_begin + segment.row_count;
    if (segment.row_begin >= pending_end) {
      LoraGroup& group = group_of(segment.slot, batch);
      const bool work = std::any_of(group.parts, group.parts + targets_.size(),
                                    [](const LoraPart& part) { return part.pair != nullptr; });
      if (!work) {
        done_[i] = segment.row_count;
        continue;
      }
      const int64_t fit = group.ranks > 0 ? values_left / group.ranks : rows_left;
      const auto rows = static_cast<int32_t>(std::min<int64_t>({segment.row_count - done_[i], rows_left, fit}));
      if (rows > 0) {
        taken_[taken_count_++] = {static_cast<int32_t>(i), static_cast<int32_t>(&group - groups_), done_[i], rows};
        group.rows += rows;
        done_[i] += rows;
        rows_left -= rows;
        values_left -= int64_t{rows} * group.ranks;
      }
      if (done_[i] < segment.row_count) return;  // full
    }
    pending_end = std::max(pending_end, end);
  }
}

void LoraPlanner::place_rows(LoraBatch& batch) {
  float* values = values_;
  for (int32_t i = 0, begin = 0; i < batch.group_count; ++i) {
    LoraGroup& group = groups_[i];
    group.rows_begin = begin;
    group.values = values;
    begin += group.rows;
    values += int64_t{group.rows} * group.ranks;
    group.rows = 0;
  }
  for (const Taken& taken : std::span(taken_, static_cast<size_t>(taken_count_))) {
    LoraGroup& group = groups_[taken.group];
    const LoraSegment& segment = window_[static_cast<size_t>(taken.segment)];
    for (int32_t row = taken.row; row < taken.row + taken.rows; ++row)
      rows_[group.rows_begin + group.rows++] = {segment.row_begin + row, segment.scale};
  }
}

void LoraPlanner::count_items(LoraBatch& batch) {
  int64_t expand_bytes = 0;
  const auto shrink_items = [&](int32_t tile_ranks) {
    batch.tile_ranks = tile_ranks;
    batch.shrink_items = 0;
    for (int32_t i = 0; i < batch.group_count; ++i) {
      LoraGroup& group = groups_[i];
      group.tiles = count_tiles(group, targets_.size(), tile_ranks);
      group.row_blocks = (group.rows + kShrinkRows - 1) / kShrinkRows;
      batch.shrink_items += int64_t{group.tiles} * group.row_blocks;
      group.shrink_end = batch.shrink_items;
      group.shrinks_left = group.tiles * group.row_blocks;
    }
  };
  shrink_items(kTileRanks);
  if (threads_ > 1 && batch.shrink_items < 2 * threads_) shrink_items(kTileRanks / 2);
  for (int32_t i = 0; i < batch.group_count; ++i) {
    for (size_t t = 0; t < targets_.size(); ++t)
      expand_bytes += groups_[i].rows > 0 ? expand_bytes_per_output(groups_[i].parts[t]) * targets_[t].out : 0;
  }
  const int64_t item_bytes = std::clamp(expand_bytes / (kItemsPerThread * threads_), kExpandBytesMin, kExpandBytesMax);
  batch.expand_items = 0;
  for (int32_t i = 0; i < batch.group_count; ++i) {
    LoraGroup& group = groups_[i];
    for (size_t t = 0; t < targets_.size(); ++t) {
      LoraPart& part = group.parts[t];
      if (group.rows == 0 || part.pair == nullptr) continue;
      const int32_t out = part.pair->out;
      const int64_t outputs = item_bytes / expand_bytes_per_output(part) / 64 * 64;
      part.chunk =
          static_cast<int32_t>(std::max<int64_t>(kExpandOutputsMin, std::min<int64_t>(outputs, (out + 63) / 64 * 64)));
      part.chunks = (out + part.chunk - 1) / part.chunk;
      batch.expand_items += part.chunks;
    }
    group.expand_end = batch.expand_items;
  }
}

bool LoraPlanner::next(LoraBatch& batch) {
  batch = LoraBatch{groups_, 0, rows_};
  for (;;) {
    batch.group_count = 0;
    take_rows(batch);
    if (taken_count_ > 0) break;
    CHECK(batch.group_count == 0 ||
          std::all_of(groups_, groups_ + batch.group_count, [](const LoraGroup& group) { return group.ranks == 0; }));
    if (segments_.empty()) return false;
    enter_window();
  }
  place_rows(batch);
  count_items(batch);
  return true;
}

void mark_shrunk(LoraGroup& group) {
  std::atomic_ref<int32_t> left(group.shrinks_left);
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) left.notify_all();
}

void wait_shrunk(LoraGroup& group) {
  std::atomic_ref<int32_t> left(group.shrinks_left);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (left.load(std::memory_order_acquire) == 0) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  for (int32_t seen = left.load(std::memory_order_acquire); seen != 0; seen = left.load(std::memory_order_acquire))
    left.wait(seen, std::memory_order_acquire);
}

ShrinkTile shrink_tile_at(const LoraGroup& group, std::span<const LoraTarget> targets, int32_t tile_ranks,
                          int32_t index) {
  ShrinkTile tile;
  for_each_run(group, targets.size(), [&](size_t begin, size_t end, int32_t ranks) {
    const int32_t tiles = (ranks + tile_ranks - 1) / tile_ranks;
    if (index < 0 || index >= tiles) {
      index -= tiles;
      return;
    }
    int32_t skip = index * tile_ranks;
    index = -1;
    for (size_t t = begin; t < end && tile.count < tile_ranks; ++t) {
      const LoraPart& part = group.parts[t];
      if (part.pair == nullptr || part.shares_a) continue;
      if (skip >= part.pair->rank) {
        skip -= part.pair->rank;
        continue;
      }
      if (tile.count == 0) tile.first = part.first + skip;
      for (; skip < part.pair->rank && tile.count < tile_ranks; ++skip) {
        tile.pairs[tile.count] = part.pair;
        tile.ranks[tile.count++] = skip;
      }
      skip = 0;
    }
  });
  return tile;
}

}  // namespace loralei
