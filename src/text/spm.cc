// SPDX-License-Identifier: Apache-2.0
#include "text/spm.h"

#include <algorithm>

#include "base/utf8.h"

namespace loralei {

SpmBpeModel::SpmBpeModel(const TokenTable& table, std::vector<SpmPieceType> types, std::vector<float> scores,
                         Options options)
    : table_(table), types_(std::move(types)), scores_(std::move(scores)), options_(options) {
  std::vector<PrefixIndex::Entry> user_defined;
  for (TokenId id = 0; id < table_.size(); ++id) {
    if (table_.has(id) && types_[id] == SpmPieceType::kUserDefined) user_defined.push_back({table_.text(id), id});
  }
  user_defined_.build(std::move(user_defined));
  if (options_.byte_fallback) bytes_ = ByteTokens::find(table_);
}

TokenId SpmBpeModel::mergeable(std::string_view piece) const {
  const TokenId id = table_.find(piece).value_or(-1);
  if (id < 0) return -1;
  const SpmPieceType type = types_[id];
  return type == SpmPieceType::kNormal || type == SpmPieceType::kUserDefined || type == SpmPieceType::kUnused ? id : -1;
}

Status SpmBpeModel::first_symbols(std::string_view word, std::vector<Symbol>& symbols, Work& work) const {
  for (size_t pos = 0; pos < word.size();) {
    size_t length = 0;
    const size_t read =
        user_defined_.for_each_prefix(word.substr(pos), [&](size_t matched, int32_t) { length = matched; });
    if (!work.spend(kSymbolWork + PrefixIndex::kByteWork * static_cast<int64_t>(read))) return work.error();
    const bool frozen = length > 0;
    if (!frozen) length = static_cast<size_t>(utf8_step(word, pos).length);
    const int32_t index = static_cast<int32_t>(symbols.size());
    const bool last = pos + length >= word.size();
    symbols.push_back(
        {static_cast<uint32_t>(pos), static_cast<uint32_t>(pos + length), index - 1, last ? -1 : index + 1, frozen});
    pos += length;
  }
  return {};
}

Status SpmBpeModel::merge(std::string_view word, std::vector<Symbol>& symbols, Halves& halves, Work& work) const {
  struct Candidate {
    float score;
    int32_t left, right;
    uint32_t size;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  };
  std::vector<Candidate> heap;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0 || symbols[left].frozen || symbols[right].frozen) return;
    const uint32_t begin = symbols[left].begin, end = symbols[right].end;
    if (end - begin > kMaxPieceBytes) return;
    const std::string_view piece = word.substr(begin, end - begin);
    const TokenId id = mergeable(piece);
    if (id < 0) return;
    heap.push_back({scores_[id], left, right, end - begin});
    std::push_heap(heap.begin(), heap.end(), later);
    if (types_[id] == SpmPieceType::kUnused) halves[piece] = symbols[left].end - begin;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i), static_cast<int32_t>(i) + 1);
  const auto size_of = [&](int32_t at) { return symbols[at].end - symbols[at].begin; };
  while (!heap.empty()) {
    if (!work.spend(kSymbolWork)) return work.error();
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    if (size_of(top.left) == 0 || size_of(top.right) == 0 || size_of(top.left) + size_of(top.right) != top.size)
      continue;
    Symbol& left = symbols[top.left];
    Symbol& right = symbols[top.right];
    if (!work.spend(2 * (right.end - left.begin))) return work.error();  // to look up what it makes with its neighbours
    left.end = right.end;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].previous = top.left;
    right.begin = right.end;
    consider(left.previous, top.left);
    consider(top.left, left.next);
  }
  return {};
}

void SpmBpeModel::emit(std::string_view piece, const Halves& halves, std::vector<TokenId>& ids) const {
  // An unused piece is only a step towards longer ones: it falls apart into the halves
  // it was merged from.
  std::vector<std::string_view> rest{piece};
  while (!rest.empty()) {
    const std::string_view current = rest.back();
    rest.pop_back();
    const TokenId id = table_.find(current).value_or(-1);
    if (id >= 0 && types_[id] == SpmPieceType::kUnused) {
      if (const auto half = halves.find(current); half != halves.end()) {
        rest.push_back(current.substr(half->second));
        rest.push_back(current.substr(0, half->second));
        continue;
      }
    }
    if (id >= 0 && types_[id] != SpmPieceType::kUnknown) {
      ids.push_back(id);
    } else if (options_.byte_fallback && bytes_.covers(current)) {
      for (const char byte : current) ids.push_back(bytes_.ids[static_cast<unsigned char>(byte)]);
    } else if (ids.empty() || ids.back() != options_.unk) {
      ids.push_back(options_.unk);  // neighbouring unknown pieces are one
    }
  }
}

Status SpmBpeModel::encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  TRY(first_symbols(word, symbols, work));
  Halves halves;
  TRY(merge(word, symbols, halves, work));
  std::vector<TokenId> own;  // so that an unknown before this word is not merged with one inside
  for (int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbols[at].next) {
    emit(word.substr(symbols[at].begin, symbols[at].end - symbols[at].begin), halves, own);
  }
  ids.insert(ids.end(), own.begin(), own.end());
  return {};
}

size_t SpmBpeModel::longest_bytes(bool) const {
  if (!options_.byte_fallback || !bytes_.complete()) return 0;  // neighbouring unknown pieces are one
  return table_.longest();
}

}  // namespace loralei
