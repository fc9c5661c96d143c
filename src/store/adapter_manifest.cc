// SPDX-License-Identifier: Apache-2.0
#include "store/adapter_manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "base/digest.h"
#include "base/sha256.h"

namespace loralei {
namespace {

constexpr std::string_view kFirstLine = "loralei adapter 1\n";
constexpr size_t kNameBytes = 128;
constexpr int64_t kFileBytesMost = int64_t{1} << 50;

constexpr std::array<std::string_view, 14> kNames = {"README.md",
                                                     "adapter_config.json",
                                                     "adapter_model.safetensors",
                                                     "adapters.safetensors",
                                                     "added_tokens.json",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "generation_config.json",
                                                     "merges.txt",
                                                     "special_tokens_map.json",
                                                     "tokenizer.json",
                                                     "tokenizer.model",
                                                     "tokenizer_config.json",
                                                     "vocab.json"};

Error wrong(const std::string& what) { return invalid_argument("This is no adapter's manifest: " + what + "."); }

bool is_gguf(std::string_view name) { return name.ends_with(".gguf") && name.size() > 5; }

// Up to the next space or line end, which is taken, too.
std::string_view word(std::string_view& rest, char end) {
  const size_t at = rest.find(end);
  const std::string_view found = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + 1);
  return found;
}

}  // namespace

int64_t AdapterManifest::bytes() const {
  int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

std::string AdapterManifest::text() const {
  std::string out(kFirstLine);
  for (const StoredFile& file : files) out += file.sha256 + " " + std::to_string(file.bytes) + " " + file.name + "\n";
  return out;
}

std::string AdapterManifest::digest() const { return sha256_hex(text()); }

std::string AdapterManifest::weights_name() const {
  for (const StoredFile& file : files) {
    if (is_gguf(file.name)) return file.name;
  }
  return "";
}

Result<AdapterManifest> AdapterManifest::make(std::vector<StoredFile> files) {
  std::sort(files.begin(), files.end(), [](const StoredFile& a, const StoredFile& b) { return a.name < b.name; });
  int ggufs = 0;
  bool config = false, weights = false;
  const std::string* before = nullptr;
  for (const StoredFile& file : files) {
    TRY(check_adapter_file(file.name));
    if (before != nullptr && *before == file.name)
      return invalid_argument("The file " + file.name + " stands twice in this adapter; send it once.");
    if (!is_sha256_hex(file.sha256) || file.bytes < 0 || file.bytes > kFileBytesMost)
      return invalid_argument("The file " + file.name + " of this adapter has no size or no SHA-256 of its own.");
    before = &file.name;
    ggufs += is_gguf(file.name) ? 1 : 0;
    config |= file.name == "adapter_config.json";
    weights |= file.name == "adapter_model.safetensors" || file.name == "adapters.safetensors";
  }
  if (ggufs > 1) return invalid_argument("An adapter has one .gguf file; upload the others by themselves.");
  if (ggufs == 0 && !(config && weights)) {
    return invalid_argument(std::string("An adapter needs ") + (config ? "" : "adapter_config.json") +
                            (config || weights ? "" : " and ") + (weights ? "" : "adapter_model.safetensors") +
                            ", or one .gguf file in the place of both: add what is missing to the form, as files.");
  }
  if (ggufs == 1 && (config || weights))
    return invalid_argument(
        "An adapter is a .gguf file, or adapter_config.json with adapter_model.safetensors (mlx-lm: "
        "adapters.safetensors); not both.");
  AdapterManifest made;
  made.files = std::move(files);
  if (made.text().size() > kManifestBytesMost) return invalid_argument("An adapter has fewer files.");
  return made;
}

Result<AdapterManifest> AdapterManifest::parse(std::string_view text) {
  if (text.size() > kManifestBytesMost) return wrong("it is too long");
  if (!text.starts_with(kFirstLine)) return wrong("its first line is another");
  std::string_view rest = text.substr(kFirstLine.size());
  std::vector<StoredFile> files;
  while (!rest.empty()) {
    if (rest.find('\n') == std::string_view::npos) return wrong("its last line has no end");
    std::string_view line = word(rest, '\n');
    StoredFile& file = files.emplace_back();
    file.sha256 = word(line, ' ');
    const std::string_view bytes = word(line, ' ');
    const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), file.bytes);
    if (error != std::errc() || end != bytes.data() + bytes.size()) return wrong("a file has no size");
    file.name = line;
  }
  Result<AdapterManifest> made = make(std::move(files));
  if (!made.ok()) return wrong(made.error().message);
  if (made->text() != text) return wrong("it is written in another way than manifests are");
  return made;
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 sha;
  sha.update(std::as_bytes(std::span(bytes)));
  return digest_hex(sha.finish());
}

Status check_adapter_file(std::string_view name) {
  const auto may_stand = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  const bool plain = !name.empty() && name.size() <= kNameBytes && name.front() != '.' &&
                     std::all_of(name.begin(), name.end(), may_stand);
  if (plain && (is_gguf(name) || std::find(kNames.begin(), kNames.end(), name) != kNames.end())) return {};
  const std::string shown = plain ? " '" + std::string(name) + "'" : "";
  if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) {
    return invalid_argument("The file" + shown +
                            " is a pickle, which is not read here: save the adapter as adapter_model.safetensors "
                            "(PEFT: save_pretrained(..., safe_serialization=True)).");
  }
  return invalid_argument(
      "The file" + shown +
      " has no place in an adapter: send adapter_config.json and adapter_model.safetensors, or one .gguf file named in "
      "letters, digits, '.', '_' and '-', and beside them what its tokenizer needs (tokenizer.json, "
      "tokenizer_config.json, chat_template.jinja and the like).");
}

}  // namespace loralei
