// SPDX-License-Identifier: Apache-2.0
// From files to Tokenizer::Parts: one builder for each kind of file, used by
// tokenizer_load.cc alone.
//
// Thread: pure functions.
// Ownership: plain values.
// Invariants: a built core is complete (table, model, decoder, bytes).
// Failure: anything unknown, damaged or contradictory, in one sentence.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/spm.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_core.h"

namespace loralei {

struct LoadedCore {
  std::shared_ptr<TokenizerCore> core;
  std::vector<AddedToken> added;
  std::vector<TokenId> prefix_ids, suffix_ids;
  SpecialTokenMap special_tokens;  // what the file itself names
  std::vector<TokenId> more_end_ids;
  std::string chat_template, tool_template;  // empty: none
};

// truncation and padding, which describe batches of a training run, are not applied.
Result<LoadedCore> load_tokenizer_json(std::string_view text);
Result<LoadedCore> load_sentencepiece(std::string_view bytes, const TokenizerConfig& config);
Result<LoadedCore> load_gguf_vocab(const GgufVocab& vocab);

// Adds the configuration to what the file said and builds the tokenizer.
Result<Tokenizer::Ptr> assemble_tokenizer(LoadedCore loaded, const TokenizerConfig& config);

// The steps by which a GGUF file's `pre` name cuts text.
struct GgufPre {
  PreTokenizer steps;
  bool ignore_merges = false;
  bool adds_bos = false;  // where the file does not say
};
Result<GgufPre> gguf_pre_tokenizer(const std::string& name);
std::vector<std::string> gguf_pre_names();  // all that are known

// SentencePiece models of both kinds share this with GGUF's "llama" vocabularies: fills
// table, model, decoder and specials.
Result<LoadedCore> build_spm_core(SpmModel model, bool prefix_every_part);

}  // namespace loralei
