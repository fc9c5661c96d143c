// SPDX-License-Identifier: Apache-2.0
// TokenTable: the pieces of a vocabulary by id and by text; PrefixIndex: which of some
// texts begin here.
//
// Thread: built by one thread, then read by any.
// Ownership: TokenTable owns the bytes; a PrefixIndex views bytes that its
// owner keeps alive.
// Invariants: an id has one text; ids are below kMaxVocab; holes are allowed.
// Failure: add() refuses a second text for an id, an id out of range and a piece longer
// than kMaxPieceBytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace loralei {

// Longer than any piece of a real vocabulary (they reach 1,024 bytes of spaces); keeps
// prefix walks short.
inline constexpr size_t kMaxPieceBytes = 16384;

class TokenTable {
 public:
  // A text may be added under a second id (some files have such copies): look-up
  // gives the lowest.
  Status add(TokenId id, std::string_view text);
  // Builds the look-up by text; call once after the last add().
  void finish();

  std::optional<TokenId> find(std::string_view text) const;
  bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < slots_.size() && slots_[id].length != kHole;
  }
  std::string_view text(TokenId id) const {
    return has(id) ? std::string_view(bytes_).substr(slots_[id].offset, slots_[id].length) : std::string_view();
  }
  int size() const { return static_cast<int>(slots_.size()); }  // highest id + 1
  size_t longest() const { return longest_; }                   // bytes of a piece

 private:
  static constexpr uint32_t kHole = ~uint32_t{0};
  struct Slot {
    uint32_t offset = 0;
    uint32_t length = kHole;
  };
  size_t probe(std::string_view text) const;

  std::string bytes_;
  std::vector<Slot> slots_;     // [highest id + 1]
  std::vector<TokenId> index_;  // open addressing, a power of two; -1 = empty
  size_t used_ = 0;
  size_t longest_ = 0;
};

class PrefixIndex {
 public:
  struct Entry {
    std::string_view text;  // not empty
    int32_t value;
  };
  // Of entries with the same text the first stays.
  void build(std::vector<Entry> entries);
  bool empty() const { return entries_.empty(); }
  bool may_start(unsigned char byte) const { return first_[byte] != first_[byte + 1]; }

  // Calls visit(length, value) for every entry that is a prefix of `text`, shortest
  // first. Returns how many bytes of it were compared.
  template <typename Visit>
  size_t for_each_prefix(std::string_view text, Visit&& visit) const {
    if (text.empty()) return 0;
    const unsigned char start = static_cast<unsigned char>(text[0]);
    size_t low = first_[start], high = first_[start + 1];
    size_t depth = 1;
    for (; low < high; ++depth) {
      if (entries_[low].text.size() == depth) {
        visit(depth, entries_[low].value);
        ++low;
      }
      if (depth >= text.size() || low >= high) break;
      narrow(depth, static_cast<unsigned char>(text[depth]), low, high);
    }
    return depth;
  }
  static constexpr int64_t kByteWork = 32;  // a byte compared: two binary searches

 private:
  void narrow(size_t depth, unsigned char byte, size_t& low, size_t& high) const;

  std::vector<Entry> entries_;  // sorted by text
  std::array<uint32_t, 257> first_{};
};

}  // namespace loralei
