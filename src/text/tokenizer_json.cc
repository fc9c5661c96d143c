// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: the model (BPE or Unigram) and its frame; the other components are in
// tokenizer_components.cc.
#include <cmath>
#include <utility>

#include "base/limits.h"
#include "text/tokenizer_components.h"
#include "text/tokenizer_load.h"
#include "text/tokenizer_unigram.h"

namespace loralei {

namespace {

Result<TokenId> vocab_id(const Json& value, const std::string& token) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocab)) {
    return corrupt("the token '" + token.substr(0, 100) + "' of the tokenizer has no id in 0.." +
                   std::to_string(kMaxVocab - 1));
  }
  return static_cast<TokenId>(value.get<uint64_t>());
}

Status read_bpe_vocab(const Json& model, TokenTable& table) {
  const Json* vocab = json_find(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return corrupt("the BPE model of the tokenizer has no object 'vocab'");
  for (const auto& [token, value] : vocab->items()) {
    TRY_ASSIGN(const TokenId id, vocab_id(value, token));
    TRY(table.add(id, token));
  }
  table.finish();
  return {};
}

// A merge is "left right" or ["left", "right"].
Result<std::pair<std::string_view, std::string_view>> merge_sides(const Json& merge, size_t rank) {
  using Sides = std::pair<std::string_view, std::string_view>;
  const Error bad = corrupt("merge " + std::to_string(rank) + " of the tokenizer is not a pair of tokens");
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return bad;
    return Sides(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
  }
  if (!merge.is_string()) return bad;
  const std::string_view text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return bad;
  return Sides(text.substr(0, space), text.substr(space + 1));
}

Result<MergeTable> read_merges(const Json& model, const TokenTable& table) {
  const Json* merges = json_find(model, "merges");
  if (merges == nullptr || !merges->is_array()) return corrupt("the BPE model of the tokenizer has no list 'merges'");
  MergeTable ranks(merges->size());
  std::string joined;
  uint32_t rank = 0;
  for (const Json& merge : *merges) {
    TRY_ASSIGN(const auto sides, merge_sides(merge, rank));
    joined.assign(sides.first);
    joined += sides.second;
    const auto left = table.find(sides.first), right = table.find(sides.second), whole = table.find(joined);
    if (!left || !right || !whole) {
      const std::string_view missing = !left ? sides.first : !right ? sides.second : std::string_view(joined);
      return corrupt("merge " + std::to_string(rank) + " of the tokenizer needs the token '" +
                     std::string(missing.substr(0, 100)) + "', which its vocabulary lacks");
    }
    ranks.set(*left, *right, {rank, *whole});
    ++rank;
  }
  return ranks;
}

Status load_bpe(const Json& json, TokenizerCore& core) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    TRY_ASSIGN(const std::string affix, field_string(json, key, ""));
    if (!affix.empty()) return refuse_component("BPE option", key);
  }
  if (const Json* dropout = json_find(json, "dropout");
      dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    return refuse_component("BPE option", "dropout");
  }
  TRY(read_bpe_vocab(json, core.table));
  BpeOptions options;
  TRY_ASSIGN(options.byte_fallback, field_bool(json, "byte_fallback", false));
  TRY_ASSIGN(options.ignore_merges, field_bool(json, "ignore_merges", false));
  TRY_ASSIGN(options.fuse_unk, field_bool(json, "fuse_unk", false));
  TRY_ASSIGN(const std::string unk, field_string(json, "unk_token", ""));
  if (!unk.empty()) {
    const auto id = core.table.find(unk);
    if (!id) return corrupt("the unknown token '" + unk.substr(0, 100) + "' of the tokenizer is not in its vocabulary");
    options.unk = *id;
  }
  TRY_ASSIGN(MergeTable merges, read_merges(json, core.table));
  core.model = std::make_unique<BpeModel>(core.table, std::move(merges), options);
  return {};
}

Status load_unigram(const Json& json, TokenizerCore& core) {
  const Json* vocab = json_find(json, "vocab");
  if (vocab == nullptr || !vocab->is_array() || vocab->empty())
    return corrupt("the Unigram model of the tokenizer has no list 'vocab'");
  if (vocab->size() > static_cast<size_t>(kMaxVocab))
    return too_large("the Unigram model of the tokenizer has more than " + std::to_string(kMaxVocab) + " tokens");
  std::vector<UnigramPiece> pieces;
  UnigramOptions options;
  for (const Json& entry : *vocab) {
    const auto id = static_cast<TokenId>(pieces.size());
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return corrupt("entry " + std::to_string(id) +
                     " of the Unigram model of the tokenizer is not a pair of token and score");
    }
    const double score = entry[1].get<double>();
    if (!std::isfinite(score))
      return corrupt("entry " + std::to_string(id) +
                     " of the Unigram model of the tokenizer has a score that is not finite");
    TRY(core.table.add(id, entry[0].get_ref<const std::string&>()));
    options.min_score = pieces.empty() ? score : std::min(options.min_score, score);
    pieces.push_back({id, score});
  }
  core.table.finish();
  TRY_ASSIGN(const int64_t unk, field_int(json, "unk_id", -1));
  if (unk >= static_cast<int64_t>(pieces.size()))
    return corrupt("the unk_id of the Unigram model of the tokenizer is not in its vocabulary");
  options.unk = unk < 0 ? -1 : static_cast<TokenId>(unk);
  TRY_ASSIGN(options.byte_fallback, field_bool(json, "byte_fallback", false));
  core.model = std::make_unique<UnigramModel>(core.table, pieces, options);
  return {};
}

const Json& member(const Json& json, const char* key) {
  static const Json null;
  const Json* value = json_find(json, key);
  return value == nullptr ? null : *value;
}

}  // namespace

Result<LoadedCore> load_tokenizer_json(std::string_view text) {
  TRY_ASSIGN(const Json json, parse_tokenizer_json(text, "tokenizer.json"));
  LoadedCore loaded;
  loaded.core = std::make_shared<TokenizerCore>();
  TokenizerCore& core = *loaded.core;
  const Json& model = member(json, "model");
  if (!model.is_object()) return corrupt("tokenizer.json has no model");
  // Files older than the type say nothing: a list of merges is BPE.
  TRY_ASSIGN(const std::string type, field_string(model, "type", json_find(model, "merges") != nullptr ? "BPE" : ""));
  if (type == "BPE") {
    TRY(load_bpe(model, core));
  } else if (type == "Unigram") {
    TRY(load_unigram(model, core));
  } else {
    return refuse_component("model", type);
  }
  TRY_ASSIGN(core.normalizer, parse_normalizer(member(json, "normalizer")));
  TRY_ASSIGN(core.pre_tokenizer, parse_pre_tokenizer(member(json, "pre_tokenizer")));
  TRY_ASSIGN(core.decoder, parse_decoder(member(json, "decoder")));
  TRY_ASSIGN(SpecialFrame frame, parse_post_processor(member(json, "post_processor")));
  loaded.prefix_ids = std::move(frame.prefix);
  loaded.suffix_ids = std::move(frame.suffix);
  TRY_ASSIGN(loaded.added, parse_added_tokens(json));
  TRY(core.finish_bytes());
  return loaded;
}

}  // namespace loralei
