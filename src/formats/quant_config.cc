// SPDX-License-Identifier: Apache-2.0
#include "formats/quant_config.h"

#include <algorithm>
#include <array>

#include "formats/words.h"

namespace loralei {
namespace {

constexpr int64_t kGroupMax = int64_t{1} << 24;
constexpr const char* kInstead = "; use the original weights or a GGUF file";

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string shown(const std::string& text) { return "\"" + text.substr(0, 60) + "\""; }

Result<int> read_bits(const Json& config, const char* key, std::initializer_list<int64_t> known,
                      const std::string& place) {
  TRY_ASSIGN(const auto bits, json_int(config, key, 1, 64, place));
  if (!bits) return corrupt(place + ": lacks \"" + key + "\"");
  if (std::find(known.begin(), known.end(), *bits) != known.end()) return static_cast<int>(*bits);
  return unsupported(place + ": weights of " + std::to_string(*bits) + " bits cannot be read" + kInstead);
}

Result<int64_t> read_group(const Json& config, const char* key, const std::string& place) {
  TRY_ASSIGN(const auto group, json_int(config, key, -1, kGroupMax, place));
  if (!group || *group == -1) return 0;
  if (*group > 0 && group_fits(*group)) return *group;
  return unsupported(place + ": \"" + key + "\": " + std::to_string(*group) +
                     " cannot be read: groups of weights must be multiples of 32" + kInstead);
}

Result<QuantConfig> read_gptq(const Json& config, const std::string& place) {
  QuantConfig quant{.method = QuantMethod::kGptq};
  TRY_ASSIGN(quant.bits, read_bits(config, "bits", {4, 8}, place));
  TRY_ASSIGN(quant.group, read_group(config, "group_size", place));
  TRY_ASSIGN(const auto symmetric, json_bool(config, "sym", place));
  quant.symmetric = symmetric.value_or(false);
  TRY_ASSIGN(const auto format, json_string(config, "checkpoint_format", place));
  TRY_ASSIGN(const auto own_order, json_bool(config, "desc_act", place));
  quant.own_order = own_order.value_or(false);
  const std::string form = lower(format.value_or("gptq"));
  TRY_ASSIGN(const auto marlin, json_bool(config, "is_marlin_format", place));
  if (marlin.value_or(false) || (form != "gptq" && form != "gptq_v2")) {
    return unsupported(place + ": its weights are packed for " + shown(marlin.value_or(false) ? "marlin" : form) +
                       " kernels, which cannot be read; \"checkpoint_format\" must be gptq or gptq_v2" + kInstead);
  }
  quant.zero_offset = form == "gptq" ? 1 : 0;
  if (quant.bits == 8 && !quant.symmetric) {
    return unsupported(place + ": weights of 8 bits with zero points (\"sym\": false) cannot be read" + kInstead);
  }
  return quant;
}

Result<QuantConfig> read_awq(const Json& config, const std::string& place) {
  QuantConfig quant{.method = QuantMethod::kAwq};
  TRY_ASSIGN(quant.bits, read_bits(config, json_find(config, "w_bit") ? "w_bit" : "bits", {4}, place));
  TRY_ASSIGN(quant.group, read_group(config, json_find(config, "q_group_size") ? "q_group_size" : "group_size", place));
  TRY_ASSIGN(const auto version, json_string(config, "version", place));
  if (lower(version.value_or("gemm")) != "gemm") {
    return unsupported(place + ": \"version\": " + shown(*version) + " cannot be read; only gemm can" + kInstead);
  }
  return quant;
}

// Outputs and inputs of the blocks that share a scale.
Status read_block(const Json& config, const char* key, QuantConfig& quant, const std::string& place) {
  TRY_ASSIGN(const auto block, json_ints(config, key, 1, kGroupMax, place));
  if (!block) return {};
  if (block->size() != 2) return corrupt(place + ": \"" + key + "\" must be two numbers, outputs and inputs");
  const bool another = quant.block_rows > 0 && (quant.block_rows != (*block)[0] || quant.block_cols != (*block)[1]);
  quant.block_rows = (*block)[0];
  quant.block_cols = (*block)[1];
  if (!another && quant.block_cols % 128 == 0) return {};
  return unsupported(
      place + ": \"" + key + "\": " + json_brief(*json_find(config, key)) + " cannot be read: " +
      (another ? "all blocks must have one shape" : "inputs that share a scale must be multiples of 128") + kInstead);
}

Result<QuantConfig> read_fp8(const Json& config, const std::string& place, std::vector<std::string>& notes) {
  QuantConfig quant{.method = QuantMethod::kFp8};
  TRY_ASSIGN(const auto format, json_string(config, "fmt", place));
  if (format && lower(*format) != "e4m3" && lower(*format) != "float8_e4m3fn") {
    return unsupported(place + ": \"fmt\": " + shown(*format) + " cannot be read; only e4m3 can" + kInstead);
  }
  TRY(read_block(config, "weight_block_size", quant, place));
  TRY_ASSIGN(const auto scheme, json_string(config, "activation_scheme", place));
  if (scheme.value_or("dynamic") != "dynamic") {
    notes.push_back("The config asks for inputs of layers rounded to fp8 by stored scales (activation_scheme " +
                    scheme->substr(0, 40) + "); that is not done: inputs keep their numbers.");
  }
  return quant;
}

// One of "config_groups": how the weights of some modules are stored.
Status read_scheme(const Json& scheme, QuantConfig& quant, const std::string& place) {
  if (!scheme.is_object()) return corrupt(place + ": a group of \"config_groups\" must be an object");
  const Json* weights = json_find(scheme, "weights");
  if (weights == nullptr) return {};  // of activations only
  if (!weights->is_object()) return corrupt(place + ": the \"weights\" of a group must be an object");
  TRY_ASSIGN(const auto type, json_string(*weights, "type", place));
  const bool is_float = type.value_or("int") == "float";
  if (type && *type != "int" && !is_float)
    return unsupported(place + ": weights of type " + shown(*type) + " cannot be read");
  TRY(is_float ? read_bits(*weights, "num_bits", {8}, place) : read_bits(*weights, "num_bits", {4, 8}, place));
  TRY(read_group(*weights, "group_size", place));
  return read_block(*weights, "block_structure", quant, place);
}

bool says_something(const Json* value) { return value != nullptr && !(value->is_structured() && value->empty()); }

Status check_format(const Json& object, const std::string& place) {
  static constexpr std::array<const char*, 6> kFormats = {"pack-quantized",  "int-quantized", "float-quantized",
                                                          "naive-quantized", "dense",         "mixed-precision"};
  TRY_ASSIGN(const auto format, json_string(object, "format", place));
  if (!format || std::find(kFormats.begin(), kFormats.end(), *format) != kFormats.end()) return {};
  return unsupported(place + ": \"format\": " + shown(*format) +
                     " cannot be read; pack-quantized, int-quantized and float-quantized can" + kInstead);
}

Result<QuantConfig> read_compressed(const Json& config, const std::string& place, std::vector<std::string>& notes) {
  TRY(check_format(config, place));
  if (const Json* sparsity = json_find(config, "sparsity_config"); says_something(sparsity)) {
    if (!sparsity->is_object()) return corrupt(place + ": \"sparsity_config\" must be an object");
    TRY_ASSIGN(const auto format, json_string(*sparsity, "format", place));
    if (format.value_or("dense") != "dense") {
      return unsupported(place + ": weights stored sparsely (" + shown(*format) + ") cannot be read" + kInstead);
    }
  }
  if (says_something(json_find(config, "transform_config"))) {
    return unsupported(place + ": \"transform_config\" changes what the model computes and is not supported");
  }
  const Json* groups = json_find(config, "config_groups");
  if (groups == nullptr || !groups->is_object()) return corrupt(place + ": lacks its \"config_groups\"");
  QuantConfig quant{.method = QuantMethod::kCompressed};
  bool rounds = says_something(json_find(config, "kv_cache_scheme"));
  for (const auto& [name, scheme] : groups->items()) {
    TRY(read_scheme(scheme, quant, place));
    TRY(check_format(scheme, place));
    rounds = rounds || says_something(json_find(scheme, "input_activations")) ||
             says_something(json_find(scheme, "output_activations"));
  }
  if (rounds) {
    notes.push_back(
        "The config asks for inputs, outputs or the KV cache rounded as well; that is not done: they keep their "
        "numbers (--kv-cache-dtype is what rounds the cache).");
  }
  return quant;
}

}  // namespace

bool group_fits(int64_t group) { return group >= 0 && group % 32 == 0; }

std::string quant_text(const QuantConfig& quant) {
  std::string text = quant.name;
  if (quant.bits > 0) text += ", " + std::to_string(quant.bits) + " bits";
  if (quant.group > 0) text += " in groups of " + std::to_string(quant.group);
  if (quant.block_rows > 0)
    text += ", blocks of " + std::to_string(quant.block_rows) + " x " + std::to_string(quant.block_cols);
  return text;
}

Result<QuantConfig> parse_quant_config(const Json& root, const std::string& path, std::vector<std::string>& notes) {
  const char* key = json_find(root, "quantization_config") ? "quantization_config" : "compression_config";
  const Json* config = json_find(root, key);
  if (config == nullptr || (config->is_structured() && config->empty())) return QuantConfig{};
  const std::string place = path + ": \"" + key + "\"";
  if (!config->is_object()) return corrupt(place + " must be an object");
  TRY_ASSIGN(const auto method, json_string(*config, "quant_method", place));
  const std::string name = method.value_or(json_find(*config, "config_groups") ? "compressed-tensors" : "");
  const auto read = [&]() -> Result<QuantConfig> {
    if (name == "gptq") return read_gptq(*config, place);
    if (name == "awq") return read_awq(*config, place);
    if (name == "fp8" || name == "fbgemm_fp8") return read_fp8(*config, place, notes);
    if (name == "compressed-tensors") return read_compressed(*config, place, notes);
    if (name == "mxfp4") return QuantConfig{.method = QuantMethod::kMxfp4};
    return unsupported(place + ": checkpoints quantised with " + (name.empty() ? "an unnamed method" : shown(name)) +
                       " cannot be read; gptq, awq, fp8, fbgemm_fp8, compressed-tensors and mxfp4 can" + kInstead);
  };
  TRY_ASSIGN(QuantConfig quant, read());
  quant.name = name;
  return quant;
}

}  // namespace loralei
