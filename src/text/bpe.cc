// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "text/pretokenize.h"

namespace loralei {

ByteTokens ByteTokens::find(const TokenTable& table) {
  constexpr char kHex[] = "0123456789ABCDEF";
  ByteTokens tokens;
  for (int byte = 0; byte < 256; ++byte) {
    const std::array<char, 6> name{'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    tokens.ids[byte] = table.find({name.data(), name.size()}).value_or(-1);
  }
  return tokens;
}

bool ByteTokens::covers(std::string_view bytes) const {
  return std::all_of(bytes.begin(), bytes.end(), [&](char c) { return ids[static_cast<unsigned char>(c)] >= 0; });
}

bool ByteTokens::complete() const {
  return std::all_of(ids.begin(), ids.end(), [](TokenId id) { return id >= 0; });
}

MergeTable::MergeTable(size_t expected) {
  size_t capacity = 16;
  while (capacity < expected * 2) capacity *= 2;
  slots_.resize(capacity);
}

size_t MergeTable::probe(uint64_t key) const {
  uint64_t hash = key * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].key != key && slots_[at].key != ~uint64_t{0}) at = (at + 1) & mask;
  return at;
}

namespace {
uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}
}  // namespace

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  slots_[probe(key)] = {key, merge};
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  const uint64_t key = pair_key(left, right);
  const Slot& slot = slots_[probe(key)];
  return slot.key == key ? &slot.merge : nullptr;
}

BpeModel::BpeModel(const TokenTable& table, MergeTable merges, BpeOptions options)
    : table_(table), merges_(std::move(merges)), options_(options) {
  if (options_.byte_fallback) bytes_ = ByteTokens::find(table);
}

Status BpeModel::first_symbols(std::string_view word, std::vector<Symbol>& symbols, Work& work) const {
  bool unknown_waits = false;
  const auto add = [&](TokenId id) { symbols.push_back({id, 0, 0, false}); };
  for (size_t pos = 0; pos < word.size();) {
    const std::string_view c = word.substr(pos, utf8_step(word, pos).length);
    pos += c.size();
    if (!work.spend(kSymbolWork)) return work.error();
    if (const auto id = table_.find(c)) {
      if (unknown_waits) add(options_.unk);
      unknown_waits = false;
      add(*id);
    } else if (options_.byte_fallback && bytes_.covers(c)) {
      for (const char byte : c) add(bytes_.ids[static_cast<unsigned char>(byte)]);
    } else if (options_.unk >= 0) {
      if (unknown_waits && !options_.fuse_unk) add(options_.unk);
      unknown_waits = true;
    }
  }
  if (unknown_waits) add(options_.unk);
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  return {};
}

Status BpeModel::merge(std::vector<Symbol>& symbols, Work& work) const {
  struct Candidate {
    uint32_t rank;
    int32_t left;
    TokenId merged;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  std::vector<Candidate> heap;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const auto* merge = merges_.find(symbols[left].id, symbols[right].id))
      heap.push_back({merge->rank, left, merge->id});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i), static_cast<int32_t>(i) + 1);
  std::make_heap(heap.begin(), heap.end(), later);
  const auto consider_and_push = [&](int32_t left, int32_t right) {
    const size_t before = heap.size();
    consider(left, right);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    if (!work.spend(kSymbolWork)) return work.error();
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.left];
    if (left.dead || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const auto* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != top.merged) continue;
    left.id = merge->id;
    right.dead = true;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.left;
    consider_and_push(left.previous, top.left);
    consider_and_push(top.left, left.next);
  }
  return {};
}

Status BpeModel::encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const {
  if (options_.ignore_merges) {
    if (const auto id = table_.find(word)) {
      ids.push_back(*id);
      return {};
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  TRY(first_symbols(word, symbols, work));
  if (symbols.empty()) return {};
  TRY(merge(symbols, work));
  for (int32_t at = 0; at >= 0; at = symbols[at].next) ids.push_back(symbols[at].id);
  return {};
}

size_t BpeModel::longest_bytes(bool byte_level) const {
  bool knows_all = byte_level;
  for (int byte = 0; byte < 256 && knows_all; ++byte)
    knows_all = table_.find(byte_level_char(static_cast<unsigned char>(byte))).has_value();
  const bool counts_characters = knows_all;
  knows_all = knows_all || (options_.byte_fallback && bytes_.complete());
  // A character without a token is one unknown token, or goes with its neighbours
  // into one, or goes.
  if (!knows_all && (options_.unk < 0 || options_.fuse_unk)) return 0;
  size_t longest = 4;
  for (TokenId id = 0; id < table_.size(); ++id) {
    const std::string_view text = table_.text(id);
    size_t size = text.size();
    if (counts_characters) size = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    longest = std::max(longest, size);
  }
  // Merges may take an unknown token in, which stands for up to four bytes, as
  // one of its own text.
  return !knows_all && table_.text(options_.unk).size() < 4 ? 4 * longest : longest;
}

}  // namespace loralei
