// SPDX-License-Identifier: Apache-2.0
#include "formats/base_model.h"

#include <algorithm>

#include "base/limits.h"
#include "base/units.h"
#include "formats/hf_config.h"
#include "formats/json_util.h"
#include "formats/model_tensors.h"
#include "formats/safetensors.h"

namespace loralei {

namespace {

constexpr int64_t kMaxConfigBytes = 4 * kMiB;

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// The directory has no config.json: say what it is instead.
Error not_a_model_directory(const FileSystem& files, const std::string& path) {
  if (files.kind(join_path(path, "adapter_config.json")) == PathKind::kFile) {
    return invalid_argument(path + ": is a LoRA adapter, not a model; serve its base model and give the adapter with --adapter NAME=" + path);
  }
  std::vector<std::string> ggufs;
  if (auto entries = files.list(path); entries.ok()) {
    for (const DirEntry& entry : entries.value()) {
      if (!entry.is_directory && ends_with(entry.name, ".gguf") && ggufs.size() < 5) ggufs.push_back(entry.name);
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
    return unsupported(path + ": holds its weights as a Python pickle (" + name + "), which can run any code when it is read and is never "
                       "opened; convert it once with transformers: AutoModelForCausalLM.from_pretrained(PATH)"
                       ".save_pretrained(NEW_PATH, safe_serialization=True)");
  }
  return not_found(path + ": has neither model.safetensors nor model.safetensors.index.json (is the download complete?)");
}

void join_eos(std::vector<TokenId>& eos, const std::vector<TokenId>& more) {
  for (const TokenId id : more) {
    if (std::find(eos.begin(), eos.end(), id) == eos.end()) eos.push_back(id);
  }
}

Result<BaseModelFile> open_directory(const FileSystem& files, const std::string& path) {
  const std::string config_path = join_path(path, "config.json");
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
    if (model.config.bos < 0) model.config.bos = generation.bos;
  }

  if (files.kind(join_path(path, "model.safetensors")) != PathKind::kFile &&
      files.kind(join_path(path, "model.safetensors.index.json")) != PathKind::kFile) {
    return no_weights(files, path);
  }
  TRY_ASSIGN(SafetensorsModel weights, read_safetensors_model(files, path));
  model.index = std::move(weights.index);
  TRY(check_tensors(model.config, weights.foreign, model.index, model.notes, path));
  if (const TensorInfo* weight = model.index.find("model.layers.0.self_attn.q_proj.weight")) model.config.dtype = weight->dtype;
  return model;
}

}  // namespace

Result<BaseModelFile> open_base_model(const FileSystem& files, const std::string& path) {
  switch (files.kind(path)) {
    case PathKind::kAbsent:
      return not_found(path + ": does not exist (a model is a Hugging Face directory or a .gguf file on this machine; nothing is downloaded)");
    case PathKind::kDirectory: return open_directory(files, path);
    case PathKind::kFile: break;
  }
  if (ends_with(path, ".safetensors") || ends_with(path, ".json")) {
    return invalid_argument(path + ": name the directory that holds this file, with config.json and the tokenizer");
  }
  return unsupported(path + ": is not a model; a model is a Hugging Face directory or a .gguf file");
}

Result<BaseModelFile> open_base_model(const std::string& path) { return open_base_model(PosixFileSystem(), path); }

}  // namespace loralei
