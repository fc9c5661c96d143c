// SPDX-License-Identifier: Apache-2.0
// GGUF vocabularies: "llama" (SentencePiece BPE by scores) and "gpt2" (byte-level
// BPE by merges).
#include <algorithm>

#include "base/limits.h"
#include "base/utf8.h"
#include "formats/gguf_vocab.h"
#include "text/spm.h"
#include "text/tokenizer_load.h"

namespace loralei {

namespace {

GgufTokenType type_of(const GgufVocab& vocab, size_t id) {
  return vocab.types.empty() ? GgufTokenType::kNormal : static_cast<GgufTokenType>(vocab.types[id]);
}

// A row of the embedding without a token, which converters fill with a text such
// as "[PAD151665]".
bool is_free_row(const GgufVocab& vocab, size_t id) { return type_of(vocab, id) == GgufTokenType::kUnused; }

std::string shown(const std::string& text) { return utf8_repair(text.substr(0, 100)); }

Status check_columns(const GgufVocab& vocab) {
  const size_t count = vocab.tokens.size();
  if (count == 0) return corrupt("the GGUF vocabulary has no tokens");
  if (count > static_cast<size_t>(kMaxVocab))
    return too_large("the GGUF vocabulary has more than " + std::to_string(kMaxVocab) + " tokens");
  if (!vocab.types.empty() && vocab.types.size() != count) {
    return corrupt("the GGUF vocabulary has " + std::to_string(count) + " tokens but " +
                   std::to_string(vocab.types.size()) + " token types");
  }
  if (!vocab.scores.empty() && vocab.scores.size() != count) {
    return corrupt("the GGUF vocabulary has " + std::to_string(count) + " tokens but " +
                   std::to_string(vocab.scores.size()) + " scores");
  }
  for (const int32_t type : vocab.types) {
    if (type < 0 || type > 6) return corrupt("the GGUF vocabulary has the unknown token type " + std::to_string(type));
  }
  return {};
}

// Tokens that are cut out of the text before the model sees it.
std::vector<AddedToken> added_tokens(const GgufVocab& vocab) {
  std::vector<AddedToken> added;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const GgufTokenType type = type_of(vocab, id);
    if (type != GgufTokenType::kControl && type != GgufTokenType::kUserDefined && type != GgufTokenType::kUnknown)
      continue;
    AddedToken token;
    token.id = static_cast<TokenId>(id);
    token.content = vocab.tokens[id];
    token.special = type != GgufTokenType::kUserDefined;
    added.push_back(std::move(token));
  }
  return added;
}

void name_specials(const GgufVocab& vocab, LoadedCore& loaded) {
  const auto name = [&](const char* key, int32_t id) {
    if (id >= 0 && loaded.core->table.has(id)) loaded.special_tokens[key] = utf8_repair(loaded.core->table.text(id));
  };
  name("bos_token", vocab.bos);
  name("eos_token", vocab.eos);
  name("unk_token", vocab.unk);
  name("sep_token", vocab.sep);
  name("pad_token", vocab.pad);
  for (const TokenId id : vocab.ends) {
    if (loaded.core->table.has(id)) loaded.more_end_ids.push_back(id);
  }
  loaded.chat_template = vocab.chat_template;
  loaded.tool_template = vocab.tool_template;
}

Result<LoadedCore> load_llama(const GgufVocab& vocab) {
  if (vocab.scores.empty()) return corrupt("the GGUF vocabulary is of the kind 'llama' but has no scores");
  SpmModel model;
  model.kind = SpmKind::kBpe;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    SpmPiece piece;
    if (!is_free_row(vocab, id)) piece.text = vocab.tokens[id];
    piece.score = vocab.scores[id];
    if (!(piece.score == piece.score))
      return corrupt("token " + std::to_string(id) + " of the GGUF vocabulary has no score (NaN)");
    const GgufTokenType type = type_of(vocab, id);
    piece.type = static_cast<int32_t>(type) == 0 ? SpmPieceType::kNormal : static_cast<SpmPieceType>(type);
    model.byte_fallback = model.byte_fallback || type == GgufTokenType::kByte;
    model.pieces.push_back(std::move(piece));
  }
  model.add_dummy_prefix = vocab.add_space_prefix != 0;
  model.remove_extra_whitespaces = vocab.remove_extra_whitespaces;
  TRY_ASSIGN(LoadedCore loaded, build_spm_core(std::move(model), /*prefix_every_part=*/true));
  loaded.added = added_tokens(vocab);
  if (loaded.core->unk < 0) loaded.core->unk = vocab.unk;
  name_specials(vocab, loaded);
  if (vocab.add_bos != 0 && vocab.bos >= 0) loaded.prefix_ids.push_back(vocab.bos);
  if (vocab.add_eos == 1 && vocab.eos >= 0) loaded.suffix_ids.push_back(vocab.eos);
  return loaded;
}

Result<MergeTable> read_merges(const GgufVocab& vocab, const TokenTable& table) {
  MergeTable merges(vocab.merges.size());
  for (size_t rank = 0; rank < vocab.merges.size(); ++rank) {
    const std::string& text = vocab.merges[rank];
    const size_t space = text.find(' ', 1);  // a side may itself begin with a space
    const std::string_view left = std::string_view(text).substr(0, space);
    const std::string_view right =
        space == std::string::npos ? std::string_view() : std::string_view(text).substr(space + 1);
    const auto left_id = table.find(left), right_id = table.find(right);
    const auto whole = table.find(std::string(left) + std::string(right));
    if (space == std::string::npos || !left_id || !right_id || !whole) {
      return corrupt("merge " + std::to_string(rank) + " of the GGUF vocabulary ('" + shown(text) +
                     "') does not join two of its tokens to a third");
    }
    merges.set(*left_id, *right_id, {static_cast<uint32_t>(rank), *whole});
  }
  return merges;
}

Result<LoadedCore> load_gpt2(const GgufVocab& vocab) {
  if (vocab.merges.empty()) return corrupt("the GGUF vocabulary is of the kind 'gpt2' but has no merges");
  LoadedCore loaded;
  loaded.core = std::make_shared<TokenizerCore>();
  TokenizerCore& core = *loaded.core;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (!is_free_row(vocab, id)) TRY(core.table.add(static_cast<TokenId>(id), vocab.tokens[id]));
  }
  loaded.added = added_tokens(vocab);
  core.table.finish();
  TRY_ASSIGN(GgufPre pre, gguf_pre_tokenizer(vocab.pre));
  core.pre_tokenizer = std::move(pre.steps);
  ByteLevelStep bytes;
  bytes.add_prefix_space = vocab.add_space_prefix == 1;
  core.pre_tokenizer.add(std::move(bytes));
  TRY_ASSIGN(MergeTable merges, read_merges(vocab, core.table));
  BpeOptions options;
  options.ignore_merges = pre.ignore_merges;
  options.unk = vocab.unk >= 0 && core.table.has(vocab.unk) ? vocab.unk : -1;
  core.model = std::make_unique<BpeModel>(core.table, std::move(merges), options);
  DecoderPlan plan;
  plan.byte_level = true;
  core.decoder = TokenDecoder(std::move(plan));
  core.added_are_text = true;
  TRY(core.finish_bytes());
  name_specials(vocab, loaded);
  const bool add_bos = vocab.add_bos == 1 || (vocab.add_bos < 0 && pre.adds_bos);
  if (add_bos && vocab.bos >= 0) loaded.prefix_ids.push_back(vocab.bos);
  if (vocab.add_eos == 1 && vocab.eos >= 0) loaded.suffix_ids.push_back(vocab.eos);
  return loaded;
}

}  // namespace

Result<LoadedCore> load_gguf_vocab(const GgufVocab& vocab) {
  TRY(check_columns(vocab));
  if (vocab.model == "llama") return load_llama(vocab);
  if (vocab.model == "gpt2") return load_gpt2(vocab);
  return unsupported("the GGUF vocabulary is of the kind '" + shown(vocab.model) +
                     "', but only 'llama' and 'gpt2' are supported");
}

}  // namespace loralei
