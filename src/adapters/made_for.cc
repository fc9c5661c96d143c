// SPDX-License-Identifier: Apache-2.0
#include "adapters/made_for.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace loralei {
namespace {

std::string_view last_part(std::string_view name) {
  constexpr std::string_view kCache = "models--";
  while (!name.empty() && name.back() == '/') name.remove_suffix(1);
  if (const size_t cache = name.rfind(kCache); cache != std::string_view::npos) {
    name.remove_prefix(cache + kCache.size());
    name = name.substr(0, name.find('/'));
    const size_t owner = name.find("--");
    return owner == std::string_view::npos ? name : name.substr(owner + 2);
  }
  const size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

// "q4_k_m", "iq3_xs", "bf16".
bool is_format(std::string_view word) {
  if (word == "f16" || word == "bf16" || word == "f32" || word == "fp16") return true;
  if (word.starts_with('i')) word.remove_prefix(1);
  return word.size() > 1 && word[0] == 'q' && std::isdigit(static_cast<unsigned char>(word[1])) != 0;
}

std::string plain_name(std::string_view name) {
  std::string plain(last_part(name));
  std::transform(plain.begin(), plain.end(), plain.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto drop = [&](std::string_view ending) {
    if (plain.ends_with(ending)) plain.resize(plain.size() - ending.size());
  };
  drop(".gguf");
  const size_t word = plain.find_last_of("-.");
  if (word != std::string::npos && is_format(std::string_view(plain).substr(word + 1))) plain.resize(word);
  for (const char* ending : {"-gguf", "-4bit", "-bnb", "-unsloth", "-awq", "-gptq"}) drop(ending);
  return plain;
}

}  // namespace

bool same_base(std::string_view of_adapter, std::string_view of_base) {
  return plain_name(of_adapter) == plain_name(of_base);
}

}  // namespace loralei
