// SPDX-License-Identifier: Apache-2.0
#include "formats/wrapped_model.h"

#include <algorithm>
#include <utility>

namespace loralei {
namespace {

// Keys that say of the text model what the whole does.
constexpr const char* kSharedKeys[] = {
    "torch_dtype",       "dtype", "eos_token_id", "bos_token_id", "tie_word_embeddings", "quantization_config",
    "compression_config"};

constexpr std::string_view kOtherParts[] = {"visual.", "vision_tower.", "vision_model.", "multi_modal_projector.",
                                            "audio_tower."};

struct Renamed {
  std::string_view stored, alone;
};
constexpr Renamed kPrefixes[] = {
    {"model.language_model.", "model."}, {"language_model.model.", "model."}, {"language_model.lm_head.", "lm_head."}};

// Empty: of another part.
std::string name_alone(const std::string& stored) {
  std::string_view name = stored;
  for (const Renamed& prefix : kPrefixes) {
    if (name.starts_with(prefix.stored)) return std::string(prefix.alone) + stored.substr(prefix.stored.size());
  }
  if (name.starts_with("model.")) name.remove_prefix(6);
  const bool other = std::any_of(std::begin(kOtherParts), std::end(kOtherParts),
                                 [&](std::string_view part) { return name.starts_with(part); });
  return other ? "" : stored;
}

}  // namespace

Result<InnerModel> inner_model_of(const Json& root, const Family& wrapper, const std::string& path) {
  InnerModel text{root, &wrapper};
  const Json* const nested = json_find(root, "text_config");
  if (nested != nullptr) {
    if (!nested->is_object())
      return corrupt(path + ": \"text_config\" must be an object, but it is " + json_brief(*nested));
    text.config = *nested;
    for (const char* key : kSharedKeys) {
      if (json_find(*nested, key) == nullptr && json_find(root, key) != nullptr) text.config[key] = root[key];
    }
    TRY_ASSIGN(const auto type, json_string(*nested, "model_type", path));
    if (type && *type != wrapper.text_type) {
      return unsupported(path + ": the model inside of " + wrapper.class_name + " is \"" + type->substr(0, 60) +
                         "\"; " + std::string(wrapper.text_type) + " is supported");
    }
  }
  if (wrapper.text_family.empty()) return text;
  text.family = family_of_type(wrapper.text_family);
  if (text.family == nullptr) {
    return unsupported(path + ": the model inside of " + wrapper.class_name + ", " + std::string(wrapper.text_family) +
                       ", is not supported");
  }
  return text;
}

Status unwrap_tensors(TensorIndex& index, std::vector<ForeignTensor>& foreign, std::vector<std::string>& notes,
                      const std::string& place) {
  TensorIndex text;
  text.files = index.files;
  text.stamps = index.stamps;
  size_t dropped = 0;
  for (TensorInfo& tensor : index.tensors) {
    std::string name = name_alone(tensor.name);
    if (name.empty()) {
      ++dropped;
      continue;
    }
    if (!text.by_name.emplace(name, text.tensors.size()).second)
      return corrupt(place + ": holds tensor \"" + name + "\" twice, once as \"" + tensor.name + "\"");
    tensor.name = std::move(name);
    text.tensors.push_back(std::move(tensor));
  }
  dropped += std::erase_if(foreign, [](const ForeignTensor& tensor) { return name_alone(tensor.name).empty(); });
  index = std::move(text);
  if (dropped > 0) {
    notes.push_back("Ignored " + std::to_string(dropped) +
                    " tensors of parts that read images: the text model alone is served.");
  }
  return {};
}

}  // namespace loralei
