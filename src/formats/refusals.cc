// SPDX-License-Identifier: Apache-2.0
#include "formats/refusals.h"

#include <algorithm>
#include <map>

#include "base/units.h"
#include "formats/base_model.h"
#include "formats/family.h"
#include "formats/gguf_parts.h"
#include "formats/hf_config.h"
#include "formats/hf_keys.h"
#include "formats/json_util.h"
#include "formats/quant_config.h"
#include "formats/safetensors.h"

namespace loralei {
namespace {

constexpr int64_t kMaxConfigBytes = 4 * kMiB;

void add(std::vector<std::string>& missing, const std::string& sentence) {
  if (std::find(missing.begin(), missing.end(), sentence) == missing.end()) missing.push_back(sentence);
}

// What a config of no family, or of one, asks for beside what is applied.
void add_keys(const Json& root, const Family& family, const std::string& path, std::vector<std::string>& missing) {
  for (const auto& [key, value] : root.items()) {
    std::vector<std::string> notes;
    const Status status = check_other_keys(Json{{key, value}}, family, path, notes);
    if (!status.ok()) add(missing, status.error().message);
  }
}

void add_directory(const FileSystem& files, const std::string& path, ModelRefusals& refusals) {
  const std::string config_path = join_path(path, "config.json");
  const auto text = files.read_all(config_path, kMaxConfigBytes);
  if (!text.ok()) return;
  const auto root = parse_json_object(*text, config_path, kMaxConfigBytes);
  if (!root.ok()) return;
  const auto classes = json_strings(*root, "architectures", config_path);
  const auto type = json_string(*root, "model_type", config_path);
  const Family* family = nullptr;
  if (classes.ok() && *classes && !(*classes)->empty()) {
    refusals.architecture = (*classes)->front();
    family = family_of_class(refusals.architecture);
  } else if (type.ok() && *type) {
    refusals.architecture = **type;
    family = family_of_type(refusals.architecture);
  }
  const auto parsed = parse_hf_config(*text, config_path);
  if (!parsed.ok()) add(refusals.missing, parsed.error().message);
  add_keys(*root, family != nullptr ? *family : Family{}, config_path, refusals.missing);
  std::vector<std::string> notes;
  const auto quant = parse_quant_config(*root, config_path, notes);
  if (!quant.ok()) add(refusals.missing, quant.error().message);
  const auto weights = read_safetensors_model(files, path);
  if (!weights.ok()) return add(refusals.missing, weights.error().message);
  if (!quant.ok() || quant->method != QuantMethod::kNone) return;  // what is missing of their parts opening says
  std::map<std::string, int> foreign;
  for (const ForeignTensor& tensor : weights->foreign) ++foreign[tensor.dtype];
  for (const auto& [dtype, count] : foreign) {
    add(refusals.missing, path + ": " + std::to_string(count) + (count == 1 ? " tensor is" : " tensors are") +
                              " stored as " + dtype + ", which cannot be computed with");
  }
}

void add_gguf(const FileSystem& files, const std::string& path, ModelRefusals& refusals) {
  const auto file = read_gguf_parts(files, path);
  if (!file.ok()) return;
  const auto architecture = file->text("general.architecture");
  if (architecture.ok() && *architecture) refusals.architecture = **architecture;
}

}  // namespace

ModelRefusals model_refusals(const FileSystem& files, const std::string& path) {
  ModelRefusals refusals;
  if (files.kind(path) == PathKind::kDirectory) {
    add_directory(files, path, refusals);
  } else {
    add_gguf(files, path, refusals);
  }
  const auto model = open_base_model(files, path);
  if (!model.ok()) add(refusals.missing, model.error().message);
  return refusals;
}

}  // namespace loralei
