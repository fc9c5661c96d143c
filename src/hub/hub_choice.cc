// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_choice.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "base/printable.h"
#include "http/message.h"
#include "sys/file.h"

namespace loralei {
namespace {

constexpr std::array<std::string_view, 13> kSmall = {"added_tokens.json",
                                                     "chat_template.json",
                                                     "config.json",
                                                     "generation_config.json",
                                                     "hf_quant_config.json",
                                                     "merges.txt",
                                                     "quantization_config.json",
                                                     "quantize_config.json",
                                                     "special_tokens_map.json",
                                                     "tokenizer.json",
                                                     "tokenizer.model",
                                                     "tokenizer_config.json",
                                                     "vocab.json"};
constexpr std::string_view kAdapterConfig = "adapter_config.json";
constexpr std::string_view kGguf = ".gguf";
constexpr size_t kShown = 12;
constexpr int kMaxParts = 10'000;

bool is_small(const std::string& path) {
  if (std::find(kSmall.begin(), kSmall.end(), path) != kSmall.end()) return true;
  return path.find('/') == std::string::npos &&
         (path.ends_with(".jinja") || path.ends_with(".safetensors.index.json") || path == "vocab.txt");
}

bool is_root_safetensors(const std::string& path, std::string_view begin) {
  return path.find('/') == std::string::npos && path.ends_with(".safetensors") && path.starts_with(begin);
}

bool is_number(std::string_view text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return text.size() == 5 && error == std::errc() && end == text.data() + text.size() && number >= 0;
}

// A GGUF file's name without its ending and without "-00002-of-00003".
struct GgufPart {
  std::string stem;
  int part = 1, parts = 1;
};
GgufPart part_of(const std::string& path) {
  GgufPart one{path.substr(0, path.size() - kGguf.size())};
  const std::string_view stem = one.stem;
  if (stem.size() < 15) return one;
  const std::string_view tail = stem.substr(stem.size() - 15);
  int part = 0, parts = 0;
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !is_number(tail.substr(1, 5), part) ||
      !is_number(tail.substr(10, 5), parts) || part < 1 || part > parts || parts > kMaxParts)
    return one;
  return {std::string(stem.substr(0, stem.size() - 15)), part, parts};
}

// The GGUF files by stem, each with its parts in order.
using GgufFiles = std::map<std::string, std::map<int, std::string>>;

bool is_beside(const std::string& stem) {
  const std::string name = base_name(stem);
  return name.starts_with("mmproj") || name.starts_with("imatrix");  // of pictures; of the making
}

bool ends_with_word(std::string_view text, std::string_view word) {
  if (text.size() < word.size() || !equals_ignoring_case(text.substr(text.size() - word.size()), word)) return false;
  return text.size() == word.size() ||
         std::string_view("-._/").find(text[text.size() - word.size() - 1]) != std::string_view::npos;
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return printable(text);
}

// What may stand behind the colon: the words at the ends of the files' names.
std::string formats_of(const GgufFiles& ggufs) {
  std::vector<std::string> names;
  for (const auto& [stem, parts] : ggufs)
    names.push_back(base_name(stem) + (parts.size() > 1 ? "" : std::string(kGguf)));
  return some_of(names);
}

Result<HubChoice> all_parts(const std::string& stem, const std::map<int, std::string>& parts, const HubName& name) {
  const int count = part_of(parts.begin()->second).parts;
  HubChoice choice;
  for (int i = 1; i <= count; ++i) {
    const auto found = parts.find(i);
    if (found == parts.end() || part_of(found->second).parts != count) {
      return not_found(name.repository + ": of the " + std::to_string(count) + " parts of " + printable(stem) +
                       ", the part " + std::to_string(i) + " is not there.");
    }
    choice.files.push_back(found->second);
  }
  choice.gguf = choice.files.front();
  return choice;
}

Result<HubChoice> choose_gguf(const GgufFiles& ggufs, const HubName& name) {
  GgufFiles fitting;
  for (const auto& [stem, parts] : ggufs) {
    const bool named = std::any_of(parts.begin(), parts.end(), [&](const auto& one) {
      return one.second == name.file || base_name(one.second) == name.file;
    });
    if (name.file.empty() ? !is_beside(stem) : named || ends_with_word(stem, name.file)) fitting.emplace(stem, parts);
  }
  if (fitting.size() == 1) return all_parts(fitting.begin()->first, fitting.begin()->second, name);
  const std::string write = "write " + name.repository + ":FORMAT, as in " + name.repository + ":Q4_K_M";
  if (fitting.empty()) {
    return not_found(name.text() + ": no GGUF file of this repository is called so; there is " +
                     (ggufs.empty() ? "none at all" : formats_of(ggufs)) + ".");
  }
  return invalid_argument(name.text() + " holds several GGUF files that may be meant; " + write +
                          ", or the name of one: " + formats_of(fitting) + ".");
}

Error without_weights(const std::vector<std::string>& all, const HubName& name) {
  const auto pickles = std::count_if(all.begin(), all.end(), [](const std::string& one) {
    return one.ends_with(".bin") || one.ends_with(".pt") || one.ends_with(".pth");
  });
  if (pickles > 0) {
    return unsupported(name.repository +
                       " holds its weights as Python pickles alone, which can run any code when they are read and are "
                       "never fetched: look for one with safetensors or GGUF files.");
  }
  return not_found(name.repository + " holds no weights: neither safetensors nor GGUF files.");
}

// The weights of a folder that is opened as a whole.
std::vector<std::string> weights_of(const std::vector<std::string>& all, bool adapter) {
  const auto those = [&](std::string_view begin) {
    std::vector<std::string> found;
    for (const std::string& one : all) {
      if (is_root_safetensors(one, begin)) found.push_back(one);
    }
    return found;
  };
  if (adapter) return those("adapter");
  // Some repositories have them twice: model-* and consolidated.*.
  if (std::find(all.begin(), all.end(), "model.safetensors") != all.end()) return {"model.safetensors"};
  std::vector<std::string> found = those("model-");
  return found.empty() ? those("") : found;
}

}  // namespace

Result<HubChoice> choose_hub_files(const std::vector<std::string>& all, const HubName& name, HubKind kind) {
  GgufFiles ggufs;
  for (const std::string& one : all) {
    if (!one.ends_with(kGguf)) continue;
    const GgufPart part = part_of(one);
    ggufs[part.stem].emplace(part.part, one);
  }
  if (!name.file.empty()) return choose_gguf(ggufs, name);
  const auto has = [&](std::string_view path) { return std::find(all.begin(), all.end(), path) != all.end(); };
  const bool adapter_weights = !weights_of(all, true).empty();
  const bool model_weights =
      has("config.json") && !weights_of(all, false).empty() && weights_of(all, false) != weights_of(all, true);
  HubChoice choice;
  choice.adapter = has(kAdapterConfig) && kind != HubKind::kModel && (kind == HubKind::kAdapter || !model_weights);
  if (kind == HubKind::kModel && has(kAdapterConfig) && !model_weights && ggufs.empty()) {
    return invalid_argument(name.repository +
                            " is a LoRA adapter, not a model: serve its base model and give it as "
                            "--adapter NAME=" +
                            name.text() + ".");
  }
  if (kind == HubKind::kAdapter && !has(kAdapterConfig) && ggufs.empty()) {
    return invalid_argument(name.repository + " is no LoRA adapter: it has no adapter_config.json" +
                            (model_weights ? ", but a model's files." : "."));
  }
  if (choice.adapter ? !adapter_weights : !model_weights) {
    if (!ggufs.empty()) return choose_gguf(ggufs, name);
    return without_weights(all, name);
  }
  for (const std::string& one : all) {
    if (is_small(one) || (choice.adapter && one == kAdapterConfig)) choice.files.push_back(one);
  }
  const std::vector<std::string> weights = weights_of(all, choice.adapter);
  choice.files.insert(choice.files.end(), weights.begin(), weights.end());
  return choice;
}

}  // namespace loralei
