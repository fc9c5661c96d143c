// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_table.h"

#include <algorithm>
#include <functional>

#include "base/limits.h"

namespace loralei {

namespace {
constexpr size_t kMaxTableBytes = size_t{1} << 30;  // offsets are 32 bits; files are far smaller (kMaxJsonBytes)
}

Status TokenTable::add(TokenId id, std::string_view text) {
  if (id < 0 || id >= kMaxVocab) {
    return corrupt("a token has the id " + std::to_string(id) + ", but ids must lie in 0.." +
                   std::to_string(kMaxVocab - 1));
  }
  if (text.size() > kMaxPieceBytes) {
    return too_large("the token with id " + std::to_string(id) + " has " + std::to_string(text.size()) +
                     " bytes, but a token may have at most " + std::to_string(kMaxPieceBytes));
  }
  if (bytes_.size() + text.size() > kMaxTableBytes) return too_large("the vocabulary has more than 1 GiB of text");
  if (static_cast<size_t>(id) >= slots_.size()) slots_.resize(static_cast<size_t>(id) + 1);
  if (slots_[id].length != kHole) {
    return corrupt("two tokens share the id " + std::to_string(id));
  }
  slots_[id] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size())};
  bytes_.append(text);
  longest_ = std::max(longest_, text.size());
  ++used_;
  return {};
}

void TokenTable::finish() {
  size_t capacity = 16;
  while (capacity < used_ * 2) capacity *= 2;
  index_.assign(capacity, -1);
  for (TokenId id = 0; id < size(); ++id) {
    if (!has(id)) continue;
    const size_t at = probe(text(id));
    if (index_[at] < 0) index_[at] = id;
  }
}

size_t TokenTable::probe(std::string_view wanted) const {
  const size_t mask = index_.size() - 1;
  size_t at = std::hash<std::string_view>{}(wanted)&mask;
  while (index_[at] >= 0 && text(index_[at]) != wanted) at = (at + 1) & mask;
  return at;
}

std::optional<TokenId> TokenTable::find(std::string_view wanted) const {
  if (index_.empty()) return std::nullopt;
  const TokenId id = index_[probe(wanted)];
  return id < 0 ? std::nullopt : std::optional<TokenId>(id);
}

void PrefixIndex::build(std::vector<Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  entries.erase(
      std::unique(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.text == b.text; }),
      entries.end());
  std::erase_if(entries, [](const Entry& entry) { return entry.text.empty(); });
  entries_ = std::move(entries);
  size_t at = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    first_[byte] = static_cast<uint32_t>(at);
    while (at < entries_.size() && static_cast<unsigned char>(entries_[at].text[0]) == byte) ++at;
  }
  first_[256] = static_cast<uint32_t>(at);
}

void PrefixIndex::narrow(size_t depth, unsigned char byte, size_t& low, size_t& high) const {
  const auto byte_of = [&](const Entry& entry) { return static_cast<unsigned char>(entry.text[depth]); };
  const auto begin = entries_.begin();
  const auto first = std::lower_bound(begin + low, begin + high, byte,
                                      [&](const Entry& entry, unsigned char b) { return byte_of(entry) < b; });
  const auto last = std::upper_bound(first, begin + high, byte,
                                     [&](unsigned char b, const Entry& entry) { return b < byte_of(entry); });
  low = static_cast<size_t>(first - begin);
  high = static_cast<size_t>(last - begin);
}

}  // namespace loralei
