// SPDX-License-Identifier: Apache-2.0
// A SentencePiece model as a tokenizer: its normaliser, BPE or unigram, and its decoding.
#include <algorithm>
#include <limits>

#include "text/spm.h"
#include "text/tokenizer_load.h"
#include "text/tokenizer_unigram.h"

namespace loralei {

namespace {

struct PieceColumns {
  std::vector<SpmPieceType> types;
  std::vector<float> scores;
};

// Unigram scores as SentencePiece uses them: user-defined pieces beat every other path,
// unused and control pieces never match.
std::unique_ptr<UnigramModel> make_unigram(const TokenTable& table, const PieceColumns& columns, TokenId unk,
                                           bool byte_fallback) {
  float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::lowest();
  for (size_t i = 0; i < columns.types.size(); ++i) {
    if (columns.types[i] != SpmPieceType::kNormal) continue;
    lowest = std::min(lowest, columns.scores[i]);
    highest = std::max(highest, columns.scores[i]);
  }
  if (lowest > highest) lowest = highest = 0;  // no normal piece
  std::vector<UnigramPiece> pieces;
  for (TokenId id = 0; id < table.size(); ++id) {
    if (columns.types[id] == SpmPieceType::kNormal) {
      pieces.push_back({id, columns.scores[id]});
    } else if (columns.types[id] == SpmPieceType::kUserDefined) {
      const double length = static_cast<double>(table.text(id).size());
      pieces.push_back({id, static_cast<float>(length * highest - 0.1)});
    }
  }
  UnigramOptions options;
  options.unk = unk;
  options.byte_fallback = byte_fallback;
  options.width = ScoreWidth::kFloat;
  options.min_score = lowest;
  return std::make_unique<UnigramModel>(table, pieces, options);
}

Status add_spm_normalizer(SpmModel& model, const PieceColumns& columns, bool prefix_every_part, TokenizerCore& core) {
  SpmNormalizeStep step;
  TRY_ASSIGN(CharsMap map, CharsMap::parse(model.charsmap));
  step.map = std::make_shared<const CharsMap>(std::move(map));
  std::vector<PrefixIndex::Entry> user_defined;
  for (TokenId id = 0; id < core.table.size(); ++id) {
    if (columns.types[id] == SpmPieceType::kUserDefined) user_defined.push_back({core.table.text(id), id});
  }
  if (!user_defined.empty()) {
    auto index = std::make_shared<PrefixIndex>();
    index->build(std::move(user_defined));
    step.user_defined = std::move(index);
  }
  step.add_dummy_prefix = model.add_dummy_prefix;
  step.remove_extra_whitespaces = model.remove_extra_whitespaces;
  step.escape_whitespaces = model.escape_whitespaces;
  step.space_as_suffix = model.space_as_suffix;
  step.prefix_every_part = prefix_every_part;
  core.normalizer.add(std::move(step));
  return {};
}

}  // namespace

Result<LoadedCore> build_spm_core(SpmModel model, bool prefix_every_part) {
  LoadedCore loaded;
  loaded.core = std::make_shared<TokenizerCore>();
  TokenizerCore& core = *loaded.core;
  PieceColumns columns;
  for (const SpmPiece& piece : model.pieces) {
    const auto id = static_cast<TokenId>(columns.types.size());
    if (!piece.text.empty()) TRY(core.table.add(id, piece.text));
    columns.types.push_back(piece.type);
    columns.scores.push_back(piece.score);
    if (piece.type == SpmPieceType::kUnknown) core.unk = id;
    if (piece.type == SpmPieceType::kControl) {
      AddedToken token;
      token.id = id;
      token.content = piece.text;
      token.special = true;
      loaded.added.push_back(std::move(token));
    }
  }
  core.table.finish();
  core.unk_surface = model.unk_surface;
  core.finds_added_as_written = true;
  if (model.kind == SpmKind::kUnigram) {
    core.model = make_unigram(core.table, columns, core.unk, model.byte_fallback);
  }
  DecoderPlan plan;
  plan.byte_runs = ByteRuns::kPerCharacter;
  const bool drops = model.add_dummy_prefix || model.remove_extra_whitespaces;
  plan.late_rewrites.emplace_back(SpmSpaceDecoder{drops, model.remove_extra_whitespaces});
  core.decoder = TokenDecoder(std::move(plan));
  TRY(add_spm_normalizer(model, columns, prefix_every_part, core));
  if (model.kind == SpmKind::kBpe) {
    core.model = std::make_unique<SpmBpeModel>(core.table, std::move(columns.types), std::move(columns.scores),
                                               SpmBpeModel::Options{core.unk, model.byte_fallback});
  }
  TRY(core.finish_bytes());
  return loaded;
}

Result<LoadedCore> load_sentencepiece(std::string_view bytes, const TokenizerConfig& config) {
  TRY_ASSIGN(SpmModel model, parse_spm_model(bytes));
  if (!config.add_prefix_space) model.add_dummy_prefix = false;
  const int32_t bos = model.bos_id, eos = model.eos_id, unk = model.unk_id, pad = model.pad_id;
  TRY_ASSIGN(LoadedCore loaded, build_spm_core(std::move(model), config.legacy));
  const auto name = [&](const char* key, int32_t id) {
    if (id >= 0 && loaded.core->table.has(id)) loaded.special_tokens[key] = std::string(loaded.core->table.text(id));
  };
  name("bos_token", bos);
  name("eos_token", eos);
  name("unk_token", unk);
  name("pad_token", pad);
  // Llama's tokenizers begin with BOS unless their configuration says otherwise.
  if (bos >= 0 && loaded.core->table.has(bos)) loaded.prefix_ids.push_back(bos);
  return loaded;
}

}  // namespace loralei
