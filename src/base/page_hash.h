// SPDX-License-Identifier: Apache-2.0
// PageHash: a name for long texts that is made fast. The SHA-256 over the SHA-256s of the
// text's pages of 4 KiB, of which the last one may be shorter; pages wait for no others,
// so sixteen are hashed at a time where the processor has vectors of 512 bits, else two.
//
// One object per text, one thread at a time; update() any number of times, then finish()
// once. The result depends on neither the pieces nor the processor. No allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"
#include "base/sha256.h"

namespace loralei {

inline constexpr size_t kHashPageBytes = 4096;

// How pages are hashed: the best way first, the last one runs everywhere.
struct PageHashWay {
  const char* name = nullptr;
  // Of any number of pages, the SHA-256 of each.
  void (*pages)(std::span<const std::byte* const> pages, std::span<Digest> digests) = nullptr;
};
std::span<const PageHashWay> page_hash_ways();

class PageHash {
 public:
  // The next bytes of a text.
  struct Piece {
    PageHash* hash = nullptr;
    std::span<const std::byte> bytes;
  };

  void update(std::span<const std::byte> bytes);
  // update() of every piece, their pages together; each is another text's.
  static void update_all(std::span<const Piece> pieces, const PageHashWay& way = page_hash_ways().front());
  Digest finish();

 private:
  struct Batch;
  void take(std::span<const std::byte> bytes, Batch& batch);

  Sha256 pages_;            // over the hashes of those that are whole
  Sha256 page_;             // of the one that is not
  size_t page_filled_ = 0;  // its bytes
};

}  // namespace loralei
