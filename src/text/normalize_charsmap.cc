// SPDX-License-Identifier: Apache-2.0
#include "text/normalize_charsmap.h"

#include "base/utf8.h"

namespace loralei {

namespace {

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = (value << 8) | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// The fields of a Darts-clone unit.
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) == 1; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Result<CharsMap> CharsMap::parse(std::string_view blob) {
  CharsMap map;
  if (blob.empty()) return map;
  if (blob.size() < 4) return corrupt("the precompiled charsmap of the tokenizer is shorter than its header");
  const uint64_t trie_bytes = read_u32(blob, 0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || 4 + trie_bytes > blob.size()) {
    return corrupt("the precompiled charsmap of the tokenizer states a trie of " + std::to_string(trie_bytes) +
                   " bytes, but has " + std::to_string(blob.size() - 4) + " bytes in all");
  }
  map.units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < map.units_.size(); ++i) map.units_[i] = read_u32(blob, 4 + 4 * i);
  map.replacements_.assign(blob.substr(4 + trie_bytes));
  if (!is_valid_utf8(map.replacements_)) {
    return corrupt("the precompiled charsmap of the tokenizer has replacements that are not UTF-8");
  }
  return map;
}

template <typename Visit>
void CharsMap::walk(std::string_view text, Visit&& visit) const {
  if (units_.empty()) return;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) return;  // NUL marks leaves and cannot be a label
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) return;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (node >= units_.size()) return;
    if (has_leaf(unit) && !visit(i + 1, value_of(units_[node]))) return;
  }
}

std::optional<CharsMap::Match> CharsMap::match_at(size_t length, uint32_t value) const {
  if (value >= replacements_.size()) return std::nullopt;
  const std::string_view rest = std::string_view(replacements_).substr(value);
  // An offset into the middle of a code point would cut it.
  if ((static_cast<unsigned char>(rest[0]) & 0xC0) == 0x80) return std::nullopt;
  return Match{length, rest.substr(0, rest.find('\0'))};
}

std::optional<CharsMap::Match> CharsMap::longest(std::string_view text) const {
  std::optional<Match> best;
  walk(text, [&](size_t length, uint32_t value) {
    best = match_at(length, value);
    return true;
  });
  return best;
}

std::optional<CharsMap::Match> CharsMap::shortest(std::string_view text) const {
  std::optional<Match> best;
  walk(text, [&](size_t length, uint32_t value) {
    best = match_at(length, value);
    return false;
  });
  return best;
}

}  // namespace loralei
