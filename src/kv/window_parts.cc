// SPDX-License-Identifier: Apache-2.0
#include "kv/window_parts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {

void WindowParts::set_capacity(int32_t holdings) {
  if (holdings <= static_cast<int32_t>(parts_.size())) return;
  parts_.resize(static_cast<size_t>(holdings));
  blocks_.resize(first_of(holdings), kNoBlock);
}

void WindowParts::add(int32_t holding, std::span<const int32_t> blocks) {
  Part& part = at(holding);
  CHECK(!part.there && std::ssize(blocks) == width_);
  part = {.there = true, .pins = 1};
  std::copy(blocks.begin(), blocks.end(), blocks_.begin() + static_cast<int64_t>(first_of(holding)));
}

void WindowParts::pin(int32_t holding) {
  CHECK(has(holding));
  if (at(holding).pins++ == 0) unlink(holding);
}

void WindowParts::unpin(int32_t holding, int64_t now_ns) {
  Part& part = at(holding);
  CHECK(part.there && part.pins > 0);
  if (--part.pins > 0) return;
  part.released_ns = now_ns;
  part.newer = kNoHolding;
  part.older = std::exchange(newest_, holding);
  (part.older == kNoHolding ? oldest_ : at(part.older).newer) = holding;
  ++unpinned_;
}

void WindowParts::unlink(int32_t holding) {
  Part& part = at(holding);
  (part.older == kNoHolding ? oldest_ : at(part.older).newer) = part.newer;
  (part.newer == kNoHolding ? newest_ : at(part.newer).older) = part.older;
  part.older = part.newer = kNoHolding;
  --unpinned_;
}

void WindowParts::remove(int32_t holding) {
  CHECK(has(holding) && pins(holding) == 0);
  unlink(holding);
  at(holding) = {};
}

void WindowParts::rename_blocks(std::span<const int32_t> names) {
  for (int32_t holding = 0; holding < static_cast<int32_t>(parts_.size()); ++holding) {
    if (!has(holding)) continue;
    for (size_t i = 0; i < static_cast<size_t>(width_); ++i) {
      int32_t& block = blocks_[first_of(holding) + i];
      block = names[static_cast<size_t>(block)];
    }
  }
}

void WindowParts::check() const {
  int32_t listed = 0, unpinned = 0, older = kNoHolding;
  for (int32_t holding = oldest_; holding != kNoHolding; older = holding, holding = at(holding).newer) {
    CHECK(has(holding) && pins(holding) == 0 && at(holding).older == older);
    ++listed;
  }
  CHECK(older == newest_ && listed == unpinned_);
  for (const Part& part : parts_) {
    CHECK(part.there || part.pins == 0);
    unpinned += part.there && part.pins == 0 ? 1 : 0;
  }
  CHECK(unpinned == unpinned_);
}

}  // namespace loralei
