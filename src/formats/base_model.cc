// SPDX-License-Identifier: Apache-2.0
#include "formats/base_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/limits.h"
#include "base/units.h"
#include "formats/expert_tensors.h"
#include "formats/family.h"
#include "formats/fused_tensors.h"
#include "formats/gguf_model.h"
#include "formats/gguf_parts.h"
#include "formats/hf_config.h"
#include "formats/linear_families.h"
#include "formats/model_tensors.h"
#include "formats/safetensors.h"
#include "formats/stored_tensors.h"
#include "formats/words.h"
#include "formats/wrapped_model.h"

namespace loralei {

namespace {

constexpr int64_t kMaxConfigBytes = 4 * kMiB;
constexpr std::string_view kShortFactors = "rope_factors_short.weight", kLongFactors = "rope_factors_long.weight";

// The directory has no config.json: say what it is instead.
Error not_a_model_directory(const FileSystem& files, const std::string& path) {
  if (files.kind(join_path(path, "adapter_config.json")) == PathKind::kFile) {
    return invalid_argument(
        path +
        ": is a LoRA adapter, not a model; serve its base model and give the adapter with --adapter NAME=" + path);
  }
  std::vector<std::string> ggufs;
  if (auto entries = files.list(path); entries.ok()) {
    for (const DirEntry& entry : entries.value()) {
      if (!entry.is_directory && entry.name.ends_with(".gguf") && ggufs.size() < 5) ggufs.push_back(entry.name);
    }
  }
  if (!ggufs.empty()) {
    return invalid_argument(path + ": has no config.json, but GGUF files: name one of them (" + join(ggufs) + ")");
  }
  return not_found(path + ": has no config.json, so it is not a Hugging Face model directory");
}

// The directory has a config.json but no safetensors files.
Error no_weights(const FileSystem& files, const std::string& path) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"}) {
    if (files.kind(join_path(path, name)) != PathKind::kFile) continue;
    return unsupported(path + ": holds its weights as a Python pickle (" + name +
                       "), which can run any code when it is read and is never "
                       "opened; convert it once with transformers: AutoModelForCausalLM.from_pretrained(PATH)"
                       ".save_pretrained(NEW_PATH, safe_serialization=True)");
  }
  return not_found(path +
                   ": has neither model.safetensors nor model.safetensors.index.json (is the download complete?)");
}

void join_eos(std::vector<TokenId>& eos, const std::vector<TokenId>& more) {
  for (const TokenId id : more) {
    if (std::find(eos.begin(), eos.end(), id) == eos.end()) eos.push_back(id);
  }
}

Result<BaseModelFile> open_directory(const FileSystem& files, const std::string& path) {
  const std::string config_path = join_path(path, "config.json");
  TRY(files.check_visible(config_path));
  if (files.kind(config_path) != PathKind::kFile) return not_a_model_directory(files, path);
  BaseModelFile model;
  model.path = path;
  TRY_ASSIGN(const std::string config_text, files.read_all(config_path, kMaxConfigBytes));
  TRY_ASSIGN(HfConfig parsed, parse_hf_config(config_text, config_path));
  model.config = std::move(parsed.config);
  model.notes = std::move(parsed.notes);

  const std::string generation_path = join_path(path, "generation_config.json");
  if (files.kind(generation_path) == PathKind::kFile) {
    TRY_ASSIGN(const std::string text, files.read_all(generation_path, kMaxConfigBytes));
    TRY_ASSIGN(GenerationConfig generation, parse_generation_config(text, generation_path, model.config.vocab));
    model.defaults = generation.defaults;
    join_eos(model.config.eos, generation.eos);
  }

  if (files.kind(join_path(path, "model.safetensors")) != PathKind::kFile &&
      files.kind(join_path(path, "model.safetensors.index.json")) != PathKind::kFile) {
    return no_weights(files, path);
  }
  TRY_ASSIGN(SafetensorsModel weights, read_safetensors_model(files, path));
  const Family* const family = family_of_type(model.config.architecture);
  model.permuted_qk = family->interleaved_qk;
  if (is_wrapper(*family)) {
    TRY(unwrap_tensors(weights.index, weights.foreign, model.notes, path));
    // As transformers: a head that is in the file is used.
    model.config.tied_head = weights.index.find("lm_head.weight") == nullptr;
  }
  if (has_linear(model.config)) drop_draft_tensors(weights.index, weights.foreign, model.notes);
  std::vector<ExpectedTensor> expected = expected_tensors(model.config);
  if (family->fused) std::ranges::move(fused_matrices(model.config), std::back_inserter(expected));
  TRY_ASSIGN(const int joined, join_stored_tensors(files, parsed.quant, expected, weights, model.notes, path));
  model.index = std::move(weights.index);
  TRY(take_canonical_names(model.index, path));
  if (joined > 0) {
    if (family->interleaved_qk) {  // rows of which are read one by one
      return unsupported(path + ": quantised checkpoints of " + family->class_name +
                         " cannot be read yet; use the original weights or a GGUF file");
    }
    model.quantised = quant_text(parsed.quant);
  }
  if (family->fused) TRY(split_fused_tensors(model.config, model.index, path));
  TRY(split_experts(model.config, model.index, path));
  TRY(check_tensors(model.config, weights.foreign, model.index, model.notes, path));
  const std::string first = std::string("model.layers.0.") + layer_matrix(model.config, 0, 0) + ".weight";
  if (const TensorInfo* weight = model.index.find(first)) model.config.dtype = weight->dtype;
  for (TensorInfo& tensor : model.index.tensors) {
    const bool norm = tensor.shape.size() == 1 && tensor.name.ends_with("norm.weight");
    if (model.config.norm_plus_one && norm && !tensor.name.ends_with(".linear_attn.norm.weight")) tensor.plus = 1;
  }
  return model;
}

// A tensor that divides the rotary frequencies.
Result<std::vector<float>> read_divisors(const FileSystem& files, const TensorInfo& info, const BaseModelFile& model) {
  const int64_t half = rotary_dim_of(model.config) / 2;
  if (info.dtype != DType::kF32 || info.shape != std::vector<int64_t>{half}) {
    return corrupt(model.path + ": " + info.name + " must be F32 of shape [" + std::to_string(half) + "], but it is " +
                   shape_text(info.shape));
  }
  TRY_ASSIGN(const std::unique_ptr<File> file, files.open(model.index.files[info.file]));
  std::vector<float> factors(static_cast<size_t>(half));
  TRY(file->read_exact(info.offset, std::as_writable_bytes(std::span(factors))));
  for (const float factor : factors) {
    if (!std::isfinite(factor) || factor <= 0)
      return corrupt(model.path + ": " + info.name + " holds a value that is not a positive number");
  }
  return factors;
}

// rope_freqs.weight: what llama.cpp's converter computes from Llama 3's scaling.
Status read_freq_factors(const FileSystem& files, const TensorInfo& info, BaseModelFile& model) {
  TRY_ASSIGN(std::vector<float> factors, read_divisors(files, info, model));
  if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1.0f; })) {
    model.notes.push_back("rope_freqs.weight holds ones only and changes nothing.");
    return {};
  }
  if (model.config.rope_scaling.kind != RopeScalingKind::kNone) {
    return unsupported(model.path + ": has both rope_freqs.weight and a rope.scaling.type, which is not supported");
  }
  model.config.rope_scaling.freq_factors = std::move(factors);
  return {};
}

// rope_factors_short.weight and rope_factors_long.weight: longrope.
Status read_long_factors(const FileSystem& files, const TensorInfo& info, BaseModelFile& model) {
  RopeScaling& scaling = model.config.rope_scaling;
  const bool is_long = info.name == kLongFactors;
  if (scaling.kind != RopeScalingKind::kNone && scaling.kind != RopeScalingKind::kLongRope)
    return unsupported(model.path + ": has both " + info.name + " and a rope.scaling.type, which is not supported");
  TRY_ASSIGN((is_long ? scaling.long_factors : scaling.short_factors), read_divisors(files, info, model));
  scaling.kind = RopeScalingKind::kLongRope;
  return {};
}

Result<BaseModelFile> open_gguf(const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(const GgufFile file, read_gguf_parts(files, path));
  TRY_ASSIGN(const auto type, file.text("general.type"));
  if (type == "adapter") {
    return invalid_argument(
        path +
        ": is a LoRA adapter, not a model; serve its base model and give the adapter with --adapter NAME=" + path);
  }
  BaseModelFile model;
  model.path = path;
  model.is_gguf = true;
  TRY_ASSIGN(model.config, gguf_model_config(file, model.notes));
  const Family* const family = family_of_type(model.config.architecture);
  model.permuted_qk = family->gguf_permutes_qk || family->interleaved_qk;
  model.index.files = file.index.files;
  model.index.stamps = file.index.stamps;
  int drafts = 0;  // tensors of layers that guess tokens ahead
  for (const TensorInfo& tensor : file.index.tensors) {
    if (tensor.name == "rope_freqs.weight") {
      TRY(read_freq_factors(files, tensor, model));
      continue;
    }
    if (tensor.name == kLongFactors || tensor.name == kShortFactors) {
      TRY(read_long_factors(files, tensor, model));
      continue;
    }
    if (tensor.name.ends_with(".attn_rot_embd")) continue;  // computed; written by very old converters
    if (is_gguf_draft(file, model.config, tensor.name)) {
      ++drafts;
      continue;
    }
    const std::string name = canonical_name(tensor.name, model.config);
    if (name.empty())
      return unsupported(path + ": holds tensor \"" + tensor.name +
                         "\", which is not known in a model of architecture " + model.config.architecture);
    TensorInfo renamed = tensor;
    renamed.name = name;
    if (renamed.shape.size() == 2 && name.ends_with(".linear_attn.conv1d.weight"))
      renamed.shape.insert(renamed.shape.begin() + 1, 1);
    model.index.by_name.emplace(name, model.index.tensors.size());
    model.index.tensors.push_back(std::move(renamed));
  }
  if (drafts > 0)
    model.notes.push_back("Ignored " + std::to_string(drafts) + " tensors of layers that guess tokens ahead.");
  TRY(check_model_config(model.config, path));  // once more, with what tensors say
  if (family->fused) TRY(split_fused_tensors(model.config, model.index, path));
  TRY(split_experts(model.config, model.index, path));
  TRY(check_tensors(model.config, {}, model.index, model.notes, path));
  for (const TensorInfo& tensor : model.index.tensors) {
    if (tensor.shape.size() == 1 && is_quantised(tensor.dtype)) {
      return unsupported(path + ": tensor \"" + tensor.name + "\" is a quantised vector, which is not supported");
    }
  }
  TRY_ASSIGN(model.vocab, gguf_vocab(file, model.notes));
  if (model.vocab->tokens.size() > static_cast<size_t>(model.config.vocab)) {
    return corrupt(path + ": lists " + std::to_string(model.vocab->tokens.size()) + " tokens, but its embedding has " +
                   std::to_string(model.config.vocab) + " rows");
  }
  model.config.eos = model.vocab->ends;
  return model;
}

}  // namespace

Result<BaseModelFile> open_base_model(const FileSystem& files, const std::string& path) {
  switch (files.kind(path)) {
    case PathKind::kAbsent:
      TRY(files.check_visible(path));
      return not_found(path +
                       ": does not exist (a model is a Hugging Face directory or a .gguf file on this machine, or "
                       "ORG/NAME on a hub)");
    case PathKind::kDirectory:
      return open_directory(files, path);
    case PathKind::kFile:
    case PathKind::kOther:
      break;
  }
  if (path.ends_with(".gguf")) return open_gguf(files, path);
  if (path.ends_with(".safetensors") || path.ends_with(".json")) {
    return invalid_argument(path + ": name the directory that holds this file, with config.json and the tokenizer");
  }
  return unsupported(path + ": is not a model; a model is a Hugging Face directory or a .gguf file");
}

Result<BaseModelFile> open_base_model(const std::string& path) { return open_base_model(PosixFileSystem(), path); }

}  // namespace loralei
