// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer_core.h"

namespace loralei {

Status TokenizerCore::finish_bytes() {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  ends_.clear();
  ends_.reserve(static_cast<size_t>(table.size()));
  for (TokenId id = 0; id < table.size(); ++id) {
    if (table.has(id)) bytes_ += decoder.piece_bytes(piece(id), false);
    if (bytes_.size() > kMaxBytes)
      return too_large("the decoder of the tokenizer turns the vocabulary into more than 1 GiB");
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  bound = TokenBound::of(*this);
  return {};
}

std::string_view TokenizerCore::bytes_of(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= ends_.size()) return {};
  const uint32_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(bytes_).substr(begin, ends_[id] - begin);
}

namespace {

// Usual texts need some 300 units a byte; tokens that nearly match at every
// byte far more.
constexpr int64_t kMaxByteWork = 4096, kLeastWork = 1 << 24;

}  // namespace

Tokenizer::Tokenizer(Parts&& parts)
    : core_(std::move(parts.core)),
      added_(std::move(parts.added)),
      prefix_ids_(std::move(parts.prefix_ids)),
      suffix_ids_(std::move(parts.suffix_ids)),
      settings_(std::move(parts.settings)),
      bound_(core_->bound.with(*added_)) {
  const auto id_of = [&](const char* name) -> std::optional<TokenId> {
    const auto text = settings_.special_tokens.find(name);
    return text == settings_.special_tokens.end() ? std::nullopt : find_token(text->second);
  };
  bos_ = id_of("bos_token");
  eos_ = id_of("eos_token");
  if (eos_) end_ids_.push_back(*eos_);
  for (const TokenId id : parts.more_end_ids) {
    if (std::find(end_ids_.begin(), end_ids_.end(), id) == end_ids_.end()) end_ids_.push_back(id);
  }
}

Tokenizer::~Tokenizer() = default;

int64_t Tokenizer::own_bytes() const {
  int64_t text = 0;
  const auto add = [&](const std::string& one) { text += static_cast<int64_t>(one.size()) + 64; };
  if (settings_.chat_template) add(*settings_.chat_template);
  for (const auto* named : {&settings_.named_templates, &settings_.special_tokens}) {
    for (const auto& [name, value] : *named) add(name), add(value);
  }
  for (const std::string& token : settings_.additional_special_tokens) add(token);
  return added_tokens_bytes(added_->tokens()) + 2 * text;
}

std::string Tokenizer::signature() const {
  std::string out;
  const auto add = [&](std::string_view text) { out.append(std::to_string(text.size()) + ':').append(text); };
  for (const size_t count :
       {added_->tokens().size(), settings_.special_tokens.size(), settings_.additional_special_tokens.size()})
    out += std::to_string(count) + ' ';
  std::vector<const AddedToken*> tokens;
  for (const AddedToken& token : added_->tokens()) tokens.push_back(&token);
  std::sort(tokens.begin(), tokens.end(), [](const AddedToken* a, const AddedToken* b) { return a->id < b->id; });
  for (const AddedToken* token : tokens) {
    add(std::to_string(token->id));
    add(token->content);
    for (const bool flag : {token->single_word, token->lstrip, token->rstrip, token->normalized, token->special})
      out += flag ? '1' : '0';
  }
  for (const auto& [name, text] : settings_.special_tokens) {
    add(name);
    add(text);
  }
  for (const std::string& text : settings_.additional_special_tokens) add(text);
  return out;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxEncodeBytes) {
    return too_large("the text has " + std::to_string(text.size()) + " bytes, but at most " +
                     std::to_string(kMaxEncodeBytes) + " can be tokenised");
  }
  Work own;
  Work& work = options.work != nullptr ? *options.work : own;
  const WorkLimit limit(work, kLeastWork + kMaxByteWork * static_cast<int64_t>(text.size()));
  if (!work.spend(2 * static_cast<int64_t>(text.size()))) return work.error();
  if (!is_valid_utf8(text)) return invalid_argument("the text is not valid UTF-8");
  std::vector<TokenId> ids;
  if (options.add_special) ids = prefix_ids_;
  TRY_ASSIGN(const auto raw_parts, added_->split_raw(text, options.parse_special, work));
  for (const AddedTokens::Part& raw : raw_parts) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    if (static_cast<int64_t>(ids.size()) > options.max_tokens) return ids;
    const bool starts_text = raw.begin == 0;
    TRY_ASSIGN(std::string normalized,
               core_->normalizer.apply(text.substr(raw.begin, raw.end - raw.begin), starts_text, work));
    if (!is_valid_utf8(normalized)) normalized = utf8_repair(normalized);
    TRY_ASSIGN(const auto parts, added_->split_normalized(normalized, options.parse_special, work));
    for (const AddedTokens::Part& part : parts) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      PreTokenized cut;
      cut.text = normalized.substr(part.begin, part.end - part.begin);
      cut.starts_text = starts_text && part.begin == 0;
      cut.pieces.push_back({0, static_cast<uint32_t>(cut.text.size())});
      TRY(core_->pre_tokenizer.apply(cut, work));
      for (const TextRange piece : cut.pieces) {
        TRY(core_->model->encode(std::string_view(cut.text).substr(piece.begin, piece.end - piece.begin), ids, work));
        if (static_cast<int64_t>(ids.size()) > options.max_tokens) return ids;
      }
    }
  }
  if (options.add_special) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, const DecodeOptions& options) const {
  std::vector<std::string_view> pieces;
  pieces.reserve(ids.size());
  for (const TokenId id : ids) {
    if (const AddedToken* token = added_->find(id)) {
      if (!token->special || !options.skips(id)) pieces.push_back(added_->piece(*token));
    } else if (core_->table.has(id)) {
      pieces.push_back(core_->piece(id));
    }
  }
  return core_->decoder.decode(pieces);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  const AddedToken* token = added_->find(id);
  return token != nullptr ? added_->bytes(*token) : core_->bytes_of(id);
}

std::string Tokenizer::first_token_bytes(TokenId id) const {
  const AddedToken* token = added_->find(id);
  if (token == nullptr && !core_->table.has(id)) return {};
  return core_->decoder.piece_bytes(token != nullptr ? added_->piece(*token) : core_->piece(id), true);
}

std::string Tokenizer::token_text(TokenId id) const { return utf8_repair(token_bytes(id)); }

std::string_view Tokenizer::token_piece(TokenId id) const {
  const AddedToken* token = added_->find(id);
  return token != nullptr ? std::string_view(token->content) : core_->table.text(id);
}

std::optional<TokenId> Tokenizer::find_token(std::string_view piece) const {
  const AddedToken* token = added_->find(piece);
  return token != nullptr ? std::optional<TokenId>(token->id) : core_->table.find(piece);
}

int Tokenizer::vocab_size() const { return std::max(core_->table.size(), added_->highest_id() + 1); }

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* token = added_->find(id);
  return token != nullptr && token->special;
}

bool Tokenizer::is_hole(TokenId id) const { return added_->find(id) == nullptr && !core_->table.has(id); }

bool Tokenizer::adds_bos() const {
  return bos_ && std::find(prefix_ids_.begin(), prefix_ids_.end(), *bos_) != prefix_ids_.end();
}
bool Tokenizer::adds_eos() const {
  return eos_ && std::find(suffix_ids_.begin(), suffix_ids_.end(), *eos_) != suffix_ids_.end();
}

}  // namespace loralei
