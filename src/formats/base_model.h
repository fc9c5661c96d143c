// SPDX-License-Identifier: Apache-2.0
// BaseModelFile: an opened base model, Hugging Face directory or GGUF file alike, as
// config + index in one naming.
//
// Thread: read by one thread, then an immutable value.
// Failure: a sentence with file and place (corrupt, unsupported, not_found). Canonical
// tensor names are those of Hugging Face Llama ("model.layers.3.self_attn.q_proj.weight",
// "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", biases likewise,
// "self_attn.q_norm.weight"); GGUF names are mapped to them. Shapes are checked against
// the config here, so that nobody below meets a tensor of the wrong shape; missing and
// unexpected tensors are errors (known harmless leftovers such as rotary_emb.inv_freq and
// rope_freqs.weight with all ones are accepted and listed in `notes`).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/gguf_vocab.h"
#include "formats/model_config.h"
#include "formats/tensor_index.h"
#include "sys/file.h"

namespace loralei {

// Defaults a model ships for sampling (generation_config.json), where stated.
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<bool> do_sample;  // false: greedy unless the request says otherwise
};

struct BaseModelFile {
  std::string path;  // as given
  bool is_gguf = false;
  ModelConfig config;  // eos joined from config.json, generation_config.json and GGUF metadata
  GenerationDefaults defaults;
  TensorIndex index;  // canonical names
  // GGUF llama: rows (and biases) of q and k are in interleaved-rope order; un-permute on
  // load (qk_row).
  bool permuted_qk = false;
  std::string quantised;  // how a checkpoint's matrices are stored, "gptq, 4 bits in groups of 128"; "" if plainly
  std::optional<GgufVocab> vocab;  // GGUF only; a Hugging Face directory's tokenizer is read by text/
  std::vector<std::string> notes;  // what a user may want to know, one sentence each
};

// `path`: a Hugging Face directory or a .gguf file (of a model in parts, the first).
Result<BaseModelFile> open_base_model(const FileSystem& files, const std::string& path);
Result<BaseModelFile> open_base_model(const std::string& path);  // on the machine's file system

}  // namespace loralei
