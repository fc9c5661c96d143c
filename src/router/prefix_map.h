// SPDX-License-Identifier: Apache-2.0
// PrefixMap: how much of a request's text each replica has probably in its prefix cache,
// as far as a router can tell: from where it sent texts that begin alike. A guess: a
// replica may have let go of it, and a wrong one costs the seconds of a prompt.
//
// Thread: one. Ownership: values.
// Invariants: memory is what it was made with; an operation costs what the request's text
// has of pieces (kPrefixPiecesMost), whatever is remembered. What was used longest ago is
// forgotten first, of those that fall together.
// Failure: none. Of more than kPrefixReplicas replicas those behind are not remembered.
// Hashes are not made against those who want them to collide: such a request goes where
// it costs more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace loralei {

inline constexpr size_t kPrefixPieceBytes = 256;
inline constexpr size_t kPrefixPiecesMost = 256;
inline constexpr size_t kPrefixReplicas = 64;

// One hash for each whole piece of the text, of all that stands before its end; the same
// text of another identity has other ones.
std::vector<uint64_t> prefix_hashes(uint64_t identity, std::string_view text);

class PrefixMap {
 public:
  explicit PrefixMap(size_t entries = size_t{1} << 18);

  // Of these hashes, from the first on, how many each replica has: most[replica].
  void find(std::span<const uint64_t> hashes, std::span<int32_t> most) const;
  void sent(std::span<const uint64_t> hashes, size_t replica);
  void forget(size_t replica);  // it has begun anew
  size_t bytes() const { return entries_.size() * sizeof(Entry); }

 private:
  static constexpr size_t kWays = 8;
  struct Entry {
    uint64_t hash = 0, replicas = 0;  // a bit each; 0: free
    uint64_t used = 0;
  };
  size_t set_of(uint64_t hash) const { return (hash % (entries_.size() / kWays)) * kWays; }
  const Entry* entry_of(uint64_t hash) const;

  std::vector<Entry> entries_;
  uint64_t now_ = 0;  // calls of sent()
};

}  // namespace loralei
