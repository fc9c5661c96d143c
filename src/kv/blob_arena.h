// SPDX-License-Identifier: Apache-2.0
// BlobArena: blobs of any size in blocks of the pool, its pages. A page is cut into
// chunks, and a blob is a chain of chunks wherever these lie; so all but the last chunk
// of a blob is full, and any page can be emptied into the free chunks of others.
//
//   page 0   | a0 | a1 | b0 | a2 |        a: a0 a1 a2      b: b0 b1
//   page 1   | b1 |    |    |    |
//
// Thread: the engine's; load() may be called by several threads at once, while nothing
// else is.
// Ownership: pages are lent by whoever adds them, and given back by release_page(); the
// blobs are the arena's. Storage grows with set_capacity alone.
// Invariants (check()): a chunk is free or of one blob; a blob has as many as its bytes
// need.
// Failure: store() says kNoBlob where free_chunks() are too few.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace loralei {

inline constexpr int32_t kNoBlob = -1;

class BlobArena {
 public:
  static constexpr int32_t kChunksOfPage = 128;  // fewer where a chunk would be below a cache line

  // Page p lies at base + p * page_bytes, a multiple of 64.
  BlobArena(std::byte* base, int64_t page_bytes);
  // The most pages, and blobs, there will be; fewer than now changes nothing.
  void set_capacity(int32_t pages, int32_t blobs);

  void add_page(int32_t block);
  // A page that holds nothing any more: what it held was moved. nullopt: the free chunks
  // of all pages are fewer than one page has.
  std::optional<int32_t> release_page();
  // Block b is names[b] from now on, and its bytes are there. [blocks before]
  void rename_blocks(std::span<const int32_t> names);

  // `owner`: for owner_of and owner_in_emptiest.
  int32_t store(std::span<const std::byte> bytes, int32_t owner);
  void load(int32_t blob, std::span<std::byte> out) const;  // [size]
  void drop(int32_t blob);
  int32_t owner_of(int32_t blob) const { return blobs_[static_cast<size_t>(blob)].owner; }
  int64_t size(int32_t blob) const { return blobs_[static_cast<size_t>(blob)].bytes; }
  // Whose blob has a chunk in the page that is the least full. CHECKs that there is one.
  int32_t owner_in_emptiest() const;

  int32_t chunks_for(int64_t bytes) const { return static_cast<int32_t>((bytes + chunk_bytes_ - 1) / chunk_bytes_); }
  int32_t chunks_of_page() const { return chunks_of_page_; }
  int32_t pages() const { return static_cast<int32_t>(pages_.size()); }
  std::span<const int32_t> blocks() const { return pages_; }
  int32_t blobs() const { return used_blobs_; }
  int32_t free_chunks() const { return free_chunks_; }
  int64_t stored_bytes() const { return stored_bytes_; }  // of blobs alone
  void check() const;

 private:
  // Chunk c is the part c % chunks_of_page_ of pages_[c / chunks_of_page_].
  struct Chunk {
    int32_t blob = kNoBlob;        // kNoBlob: free
    int32_t next = -1, prev = -1;  // of the blob, or next of the page's free ones
  };
  struct Page {
    int32_t first_free = -1, used = 0;
  };
  struct Blob {
    int64_t bytes = 0;
    int32_t first = -1;  // chunk, or of a free one the next free
    int32_t owner = -1;
    bool used = false;
  };

  std::byte* bytes_of(int32_t chunk) const;
  int32_t take_chunk();
  void free_chunk(int32_t chunk);
  size_t emptiest() const;
  void move_chunk(int32_t from, int32_t to);
  void move_page(size_t from, size_t to);

  std::byte* base_;
  int64_t page_bytes_, chunk_bytes_;
  int32_t chunks_of_page_;
  std::vector<int32_t> pages_;  // blocks
  std::vector<Page> states_;    // beside pages_
  std::vector<Chunk> chunks_;   // [pages * chunks_of_page_]
  std::vector<Blob> blobs_;
  int32_t free_blob_ = -1;
  int32_t used_blobs_ = 0, free_chunks_ = 0;
  size_t filling_ = 0;  // a page that may have free chunks
  int64_t stored_bytes_ = 0;
};

}  // namespace loralei
