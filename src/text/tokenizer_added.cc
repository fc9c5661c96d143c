// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_added.h"

#include <algorithm>

#include "base/limits.h"
#include "base/utf8.h"
#include "text/char_classes.h"

namespace loralei {

namespace {

size_t previous_start(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_unicode_word(utf8_step(text, previous_start(text, text.size())).code_point);
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_unicode_word(utf8_step(text, 0).code_point); }

// The start of the white space that ends at `end`, not before `floor`.
size_t space_start(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const size_t start = previous_start(text, end);
    if (!is_unicode_space(utf8_step(text, start).code_point)) break;
    end = start;
  }
  return end;
}

size_t space_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = utf8_step(text, begin);
    if (!is_unicode_space(step.code_point)) break;
    begin += step.length;
  }
  return begin;
}

constexpr int64_t kTokenBytes = 512;   // the token, its piece, its bytes and its places in three indexes
constexpr int64_t kContentCopies = 8;  // as many of its text, and of its normalised form

}  // namespace

int64_t added_tokens_bytes(const std::vector<AddedToken>& tokens) {
  int64_t bytes = 0;
  for (const AddedToken& token : tokens)
    bytes += kTokenBytes + kContentCopies * static_cast<int64_t>(token.content.size());
  return bytes;
}

Result<std::shared_ptr<const AddedTokens>> AddedTokens::build(std::vector<AddedToken> tokens,
                                                              const Normalizer& normalizer, const TokenDecoder& decoder,
                                                              bool are_text) {
  auto added = std::make_shared<AddedTokens>();
  // The reference skips them, too.
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  added->tokens_ = std::move(tokens);
  Work work;
  std::vector<PrefixIndex::Entry> raw, normalized;
  const size_t count = added->tokens_.size();
  added->sought_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const AddedToken& token = added->tokens_[i];
    const std::string name = "the added token '" + utf8_repair(token.content.substr(0, 100)) + "'";
    if (token.id < 0 || token.id >= kMaxVocab) {
      return corrupt(name + " has the id " + std::to_string(token.id) + ", but ids must lie in 0.." +
                     std::to_string(kMaxVocab - 1));
    }
    if (token.content.size() > kMaxPieceBytes)
      return too_large(name + " is longer than " + std::to_string(kMaxPieceBytes) + " bytes");
    if (!is_valid_utf8(token.content)) return corrupt(name + " is not valid UTF-8");
    if (!added->by_id_.emplace(token.id, i).second) {
      return corrupt(name + " has the id " + std::to_string(token.id) + ", which another added token has already");
    }
    if (!added->by_content_.emplace(token.content, i).second)
      return corrupt(name + " is listed twice with different ids");
    std::string sought = token.content;
    if (token.normalized) {
      TRY_ASSIGN(sought, normalizer.apply(token.content, true, work));
    }
    added->pieces_.push_back(are_text ? decoder.piece_of(sought) : sought);
    added->sought_.push_back(std::move(sought));
    added->bytes_.push_back(decoder.piece_bytes(added->pieces_.back(), false));
    added->highest_id_ = std::max(added->highest_id_, token.id);
  }
  for (size_t i = 0; i < count; ++i) {
    auto& target = added->tokens_[i].normalized ? normalized : raw;
    target.push_back({added->sought_[i], static_cast<int32_t>(i)});
  }
  added->raw_.build(std::move(raw));
  added->normalized_.build(std::move(normalized));
  return std::shared_ptr<const AddedTokens>(std::move(added));
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::string_view AddedTokens::piece(const AddedToken& token) const { return pieces_[index_of(token)]; }
std::string_view AddedTokens::bytes(const AddedToken& token) const { return bytes_[index_of(token)]; }

Result<std::vector<AddedTokens::Part>> AddedTokens::split(std::string_view text, const PrefixIndex& index,
                                                          bool parse_special, Work& work) const {
  if (!work.spend(2 * static_cast<int64_t>(text.size()))) return work.error();
  std::vector<Part> parts;
  size_t plain = 0;  // start of the text that no token has taken
  if (!index.empty()) {
    for (size_t at = 0; at < text.size();) {
      size_t length = 0;
      int32_t which = -1;
      if (index.may_start(static_cast<unsigned char>(text[at]))) {
        const size_t read = index.for_each_prefix(text.substr(at), [&](size_t matched, int32_t value) {
          length = matched;
          which = value;
        });
        if (!work.spend(PrefixIndex::kByteWork * static_cast<int64_t>(read))) return work.error();
      }
      if (which < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(which)];
      size_t begin = at, end = at + length;
      at = end;  // also past a match that is not taken, as the reference's search goes on
      if (token.special && !parse_special) continue;
      if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
      if (end <= plain) continue;  // inside the white space that the token before took along
      begin = std::max(begin, plain);
      if (token.lstrip) begin = space_start(text, begin, plain);
      if (token.rstrip) end = space_end(text, end);
      if (!work.spend(8 * static_cast<int64_t>(end - begin))) return work.error();
      if (plain < begin) parts.push_back({plain, begin, -1});
      parts.push_back({begin, end, token.id});
      plain = end;
    }
  }
  if (plain < text.size()) parts.push_back({plain, text.size(), -1});
  return parts;
}

}  // namespace loralei
