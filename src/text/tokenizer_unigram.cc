// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_unigram.h"

#include <algorithm>

#include "base/utf8.h"

namespace loralei {

namespace {
constexpr double kUnknownPenalty = 10.0;
}

UnigramModel::UnigramModel(const TokenTable& table, const std::vector<UnigramPiece>& pieces, UnigramOptions options)
    : table_(table), pieces_(pieces), options_(options) {
  std::vector<PrefixIndex::Entry> entries;
  entries.reserve(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) entries.push_back({table.text(pieces_[i].id), static_cast<int32_t>(i)});
  index_.build(std::move(entries));
  if (options_.byte_fallback) bytes_ = ByteTokens::find(table);
  unk_score_ = sum(options_.min_score, -kUnknownPenalty);
}

double UnigramModel::sum(double a, double b) const {
  return options_.width == ScoreWidth::kFloat ? static_cast<double>(static_cast<float>(a) + static_cast<float>(b))
                                              : a + b;
}

Status UnigramModel::emit_unknown(std::string_view span, std::vector<TokenId>& ids) const {
  if (options_.byte_fallback && bytes_.covers(span)) {
    for (const char byte : span) ids.push_back(bytes_.ids[static_cast<unsigned char>(byte)]);
    return {};
  }
  if (options_.unk < 0) {
    return invalid_argument(
        "the text has a character that the tokenizer's vocabulary lacks, and it has no unknown token");
  }
  ids.push_back(options_.unk);
  return {};
}

size_t UnigramModel::longest_bytes(bool) const {
  if (!options_.byte_fallback || !bytes_.complete()) return 0;  // neighbouring unknowns are one
  return table_.longest();
}

Status UnigramModel::encode(std::string_view word, std::vector<TokenId>& ids, Work& work) const {
  constexpr TokenId kUnknown = -2;  // a character that no piece covers
  std::vector<Node> best(word.size() + 1);
  best[0].start = 0;
  const auto offer = [&](size_t end, double score, TokenId id, size_t start) {
    Node& node = best[end];
    if (node.start >= 0 && score <= node.score) return;
    node = {score, id, static_cast<int32_t>(start)};
  };
  for (size_t start = 0; start < word.size();) {
    const size_t length = static_cast<size_t>(utf8_step(word, start).length);
    const double so_far = best[start].score;
    bool covered = false;
    const size_t read = index_.for_each_prefix(word.substr(start), [&](size_t piece_length, int32_t piece) {
      offer(start + piece_length, sum(pieces_[piece].score, so_far), pieces_[piece].id, start);
      covered = covered || piece_length == length;
    });
    if (!work.spend(kSymbolWork + PrefixIndex::kByteWork * static_cast<int64_t>(read))) return work.error();
    if (!covered) offer(start + length, sum(unk_score_, so_far), kUnknown, start);
    start += length;
  }
  // Walk back; a run of unknowns is one span.
  struct Span {
    size_t begin, end;
    TokenId id;
  };
  std::vector<Span> spans;
  for (size_t end = word.size(); end > 0;) {
    const Node& node = best[end];
    const TokenId id = node.id == options_.unk ? kUnknown : node.id;
    const size_t start = static_cast<size_t>(node.start);
    if (id == kUnknown && !spans.empty() && spans.back().id == kUnknown) {
      spans.back().begin = start;
    } else {
      spans.push_back({start, end, id});
    }
    end = start;
  }
  std::reverse(spans.begin(), spans.end());
  for (const Span& span : spans) {
    if (span.id != kUnknown) {
      ids.push_back(span.id);
      continue;
    }
    const std::string_view text = word.substr(span.begin, span.end - span.begin);
    // The reference looks a fused span up once more before it gives up.
    if (const auto id = options_.width == ScoreWidth::kDouble ? table_.find(text) : std::nullopt) {
      ids.push_back(*id);
    } else {
      TRY(emit_unknown(text, ids));
    }
  }
  return {};
}

}  // namespace loralei
