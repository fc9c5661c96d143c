// SPDX-License-Identifier: Apache-2.0
#include "kv/blob_arena.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace loralei {
namespace {

constexpr int64_t kLine = 64;

}  // namespace

BlobArena::BlobArena(std::byte* base, int64_t page_bytes)
    : base_(base),
      page_bytes_(page_bytes),
      chunk_bytes_(std::max(kLine, page_bytes / kChunksOfPage / kLine * kLine)),
      chunks_of_page_(static_cast<int32_t>(page_bytes / chunk_bytes_)) {
  CHECK(page_bytes >= kLine && page_bytes % kLine == 0);
}

void BlobArena::set_capacity(int32_t pages, int32_t blobs) {
  pages_.reserve(static_cast<size_t>(pages));
  states_.reserve(static_cast<size_t>(pages));
  chunks_.reserve(static_cast<size_t>(pages) * static_cast<size_t>(chunks_of_page_));
  const auto before = static_cast<int32_t>(blobs_.size());
  if (blobs <= before) return;
  blobs_.resize(static_cast<size_t>(blobs));
  for (int32_t blob = blobs - 1; blob >= before; --blob) {
    blobs_[static_cast<size_t>(blob)].first = free_blob_;
    free_blob_ = blob;
  }
}

std::byte* BlobArena::bytes_of(int32_t chunk) const {
  const int32_t block = pages_[static_cast<size_t>(chunk / chunks_of_page_)];
  return base_ + block * page_bytes_ + chunk % chunks_of_page_ * chunk_bytes_;
}

void BlobArena::add_page(int32_t block) {
  CHECK(pages_.size() < pages_.capacity());
  const auto first = static_cast<int32_t>(chunks_.size());
  pages_.push_back(block);
  states_.push_back({.first_free = first});
  for (int32_t i = 1; i <= chunks_of_page_; ++i) chunks_.push_back({.next = i < chunks_of_page_ ? first + i : -1});
  free_chunks_ += chunks_of_page_;
  filling_ = pages_.size() - 1;
}

int32_t BlobArena::take_chunk() {
  while (states_[filling_].first_free == -1) filling_ = (filling_ + 1) % pages_.size();
  Page& page = states_[filling_];
  const int32_t chunk = page.first_free;
  page.first_free = chunks_[static_cast<size_t>(chunk)].next;
  ++page.used;
  --free_chunks_;
  return chunk;
}

void BlobArena::free_chunk(int32_t chunk) {
  Page& page = states_[static_cast<size_t>(chunk / chunks_of_page_)];
  chunks_[static_cast<size_t>(chunk)] = {.next = page.first_free};
  page.first_free = chunk;
  --page.used;
  ++free_chunks_;
}

int32_t BlobArena::store(std::span<const std::byte> bytes, int32_t owner) {
  CHECK(!bytes.empty());
  if (chunks_for(std::ssize(bytes)) > free_chunks_ || free_blob_ == -1) return kNoBlob;
  const int32_t id = free_blob_;
  Blob& blob = blobs_[static_cast<size_t>(id)];
  free_blob_ = blob.first;
  blob = {.bytes = std::ssize(bytes), .first = -1, .owner = owner, .used = true};
  int32_t last = -1;
  while (!bytes.empty()) {
    const int32_t chunk = take_chunk();
    chunks_[static_cast<size_t>(chunk)] = {.blob = id, .next = -1, .prev = last};
    (last == -1 ? blob.first : chunks_[static_cast<size_t>(last)].next) = chunk;
    last = chunk;
    const size_t count = std::min(bytes.size(), static_cast<size_t>(chunk_bytes_));
    std::memcpy(bytes_of(chunk), bytes.data(), count);
    bytes = bytes.subspan(count);
  }
  ++used_blobs_;
  stored_bytes_ += blob.bytes;
  return id;
}

void BlobArena::load(int32_t blob, std::span<std::byte> out) const {
  const Blob& entry = blobs_[static_cast<size_t>(blob)];
  CHECK(entry.used && std::ssize(out) == entry.bytes);
  for (int32_t chunk = entry.first; !out.empty(); chunk = chunks_[static_cast<size_t>(chunk)].next) {
    const size_t count = std::min(out.size(), static_cast<size_t>(chunk_bytes_));
    std::memcpy(out.data(), bytes_of(chunk), count);
    out = out.subspan(count);
  }
}

void BlobArena::drop(int32_t blob) {
  Blob& entry = blobs_[static_cast<size_t>(blob)];
  CHECK(entry.used);
  stored_bytes_ -= entry.bytes;
  --used_blobs_;
  for (int32_t chunk = entry.first; chunk != -1;) {
    const int32_t next = chunks_[static_cast<size_t>(chunk)].next;
    free_chunk(chunk);
    chunk = next;
  }
  entry = {.first = free_blob_};
  free_blob_ = blob;
}

size_t BlobArena::emptiest() const {
  CHECK(!pages_.empty());
  const auto least =
      std::min_element(states_.begin(), states_.end(), [](const Page& a, const Page& b) { return a.used < b.used; });
  return static_cast<size_t>(least - states_.begin());
}

int32_t BlobArena::owner_in_emptiest() const {
  const auto page = static_cast<int32_t>(emptiest());
  CHECK(states_[static_cast<size_t>(page)].used > 0);
  int32_t chunk = page * chunks_of_page_;
  while (chunks_[static_cast<size_t>(chunk)].blob == kNoBlob) ++chunk;
  return owner_of(chunks_[static_cast<size_t>(chunk)].blob);
}

// The place `to` was taken for what is at `from`, which is free then.
void BlobArena::move_chunk(int32_t from, int32_t to) {
  const Chunk moved = chunks_[static_cast<size_t>(from)];
  std::memcpy(bytes_of(to), bytes_of(from), static_cast<size_t>(chunk_bytes_));
  chunks_[static_cast<size_t>(to)] = moved;
  (moved.prev == -1 ? blobs_[static_cast<size_t>(moved.blob)].first : chunks_[static_cast<size_t>(moved.prev)].next) =
      to;
  if (moved.next != -1) chunks_[static_cast<size_t>(moved.next)].prev = to;
  free_chunk(from);
}

// All that is known of the page at `from` stands at `to` then.
void BlobArena::move_page(size_t from, size_t to) {
  const auto before = static_cast<int32_t>(from) * chunks_of_page_, now = static_cast<int32_t>(to) * chunks_of_page_;
  pages_[to] = pages_[from];
  states_[to] = {.first_free = -1, .used = states_[from].used};
  for (int32_t i = 0; i < chunks_of_page_; ++i) {
    Chunk& chunk = chunks_[static_cast<size_t>(now + i)];
    chunk = chunks_[static_cast<size_t>(before + i)];
    if (chunk.blob == kNoBlob) {
      chunk.next = states_[to].first_free;
      states_[to].first_free = now + i;
    }
  }
  // Chains go from chunk to chunk of this page, too: first all are here, then the links.
  const auto renamed = [&](int32_t& link) {
    if (link >= before && link < before + chunks_of_page_) link += now - before;
  };
  for (int32_t i = 0; i < chunks_of_page_; ++i) {
    Chunk& chunk = chunks_[static_cast<size_t>(now + i)];
    if (chunk.blob == kNoBlob) continue;
    renamed(chunk.next);
    renamed(chunk.prev);
    (chunk.prev == -1 ? blobs_[static_cast<size_t>(chunk.blob)].first : chunks_[static_cast<size_t>(chunk.prev)].next) =
        now + i;
    if (chunk.next != -1) chunks_[static_cast<size_t>(chunk.next)].prev = now + i;
  }
}

std::optional<int32_t> BlobArena::release_page() {
  if (pages_.empty() || free_chunks_ < chunks_of_page_) return std::nullopt;
  const size_t page = emptiest();
  Page& state = states_[page];
  // None of its own free chunks is taken for what moves.
  for (int32_t chunk = state.first_free; chunk != -1; chunk = chunks_[static_cast<size_t>(chunk)].next) --free_chunks_;
  state.first_free = -1;
  for (int32_t i = 0; i < chunks_of_page_; ++i) {
    const int32_t from = static_cast<int32_t>(page) * chunks_of_page_ + i;
    if (chunks_[static_cast<size_t>(from)].blob == kNoBlob) continue;
    move_chunk(from, take_chunk());
    state.first_free = -1;
    --free_chunks_;
  }
  const int32_t block = pages_[page];
  if (page + 1 != pages_.size()) move_page(pages_.size() - 1, page);
  pages_.pop_back();
  states_.pop_back();
  chunks_.resize(chunks_.size() - static_cast<size_t>(chunks_of_page_));
  filling_ = 0;
  return block;
}

void BlobArena::rename_blocks(std::span<const int32_t> names) {
  for (int32_t& block : pages_) block = names[static_cast<size_t>(block)];
}

void BlobArena::check() const {
  std::vector<int32_t> chunks_of(blobs_.size(), 0);
  int32_t free = 0;
  CHECK(pages_.size() == states_.size() && chunks_.size() == pages_.size() * static_cast<size_t>(chunks_of_page_));
  for (size_t page = 0; page < pages_.size(); ++page) {
    int32_t used = 0, listed = 0;
    for (int32_t i = 0; i < chunks_of_page_; ++i) {
      const Chunk& chunk = chunks_[page * static_cast<size_t>(chunks_of_page_) + static_cast<size_t>(i)];
      if (chunk.blob == kNoBlob) continue;
      ++used;
      ++chunks_of[static_cast<size_t>(chunk.blob)];
    }
    for (int32_t chunk = states_[page].first_free; chunk != -1; chunk = chunks_[static_cast<size_t>(chunk)].next) {
      CHECK(chunks_[static_cast<size_t>(chunk)].blob == kNoBlob);
      CHECK(static_cast<size_t>(chunk / chunks_of_page_) == page);
      ++listed;
    }
    CHECK(used == states_[page].used && used + listed == chunks_of_page_);
    free += listed;
  }
  CHECK(free == free_chunks_);
  int32_t used = 0;
  int64_t bytes = 0;
  for (size_t id = 0; id < blobs_.size(); ++id) {
    const Blob& blob = blobs_[id];
    CHECK(blob.used || chunks_of[id] == 0);
    if (!blob.used) continue;
    ++used;
    bytes += blob.bytes;
    CHECK(chunks_of[id] == chunks_for(blob.bytes));
    int32_t chained = 0, last = -1;
    for (int32_t chunk = blob.first; chunk != -1; chunk = chunks_[static_cast<size_t>(chunk)].next, ++chained) {
      CHECK(chunks_[static_cast<size_t>(chunk)].blob == static_cast<int32_t>(id));
      CHECK(chunks_[static_cast<size_t>(chunk)].prev == last);
      last = chunk;
    }
    CHECK(chained == chunks_of[id]);
  }
  CHECK(used == used_blobs_ && bytes == stored_bytes_);
}

}  // namespace loralei
