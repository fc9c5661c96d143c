// SPDX-License-Identifier: Apache-2.0
// What a GGUF file says of a model or an adapter, in our words: config, vocabulary,
// canonical tensor names.
//
// Pure functions, any thread. Metadata keys and tensor names are those of llama.cpp
// (gguf-py/gguf/constants.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/gguf_vocab.h"
#include "formats/model_config.h"

namespace loralei {

// Of the families that have a name in such files (family.h). freq_factors of the rope (a
// tensor) and eos (gguf_vocab()) are not filled.
Result<ModelConfig> gguf_model_config(const GgufFile& file, std::vector<std::string>& notes);

// The tokenizer; special ids outside the vocabulary are ignored with a note. Tokens known
// by their text to end a generation (<|im_end|>, ...) are control tokens, whatever else
// the file calls them.
Result<GgufVocab> gguf_vocab(const GgufFile& file, std::vector<std::string>& notes);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; empty for a name
// that is unknown, or of a norm that such a model has not.
std::string canonical_name(std::string_view gguf_name, const ModelConfig& config);

}  // namespace loralei
