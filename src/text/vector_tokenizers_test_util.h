// SPDX-License-Identifier: Apache-2.0
// The tokenizers under tests/vectors/tokenizers, by the names of their folders.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "formats/gguf_model.h"
#include "text/tokenizer.h"

namespace loralei {

inline std::string read_whole_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A vocabulary file is all head, so its bytes are parsed without a file system.
inline Result<GgufVocab> read_gguf_vocab(const std::filesystem::path& path) {
  const std::string bytes = read_whole_file(path);
  TRY_ASSIGN(const auto file,
             parse_gguf(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), path.string()));
  if (!file) return corrupt("the head of " + path.string() + " is cut");
  std::vector<std::string> notes;
  return gguf_vocab(*file, notes);
}

inline Result<Tokenizer::Ptr> load_vector_tokenizer(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "vocab.gguf")) return Tokenizer::from_directory(folder);
  TRY_ASSIGN(const GgufVocab vocab, read_gguf_vocab(folder / "vocab.gguf"));
  return Tokenizer::from_gguf(vocab);
}

inline std::map<std::string, Tokenizer::Ptr> vector_tokenizers() {
  std::map<std::string, Tokenizer::Ptr> out;
  const auto root = std::filesystem::path(LORALEI_SOURCE_DIR) / "tests" / "vectors" / "tokenizers";
  for (const auto& folder : std::filesystem::directory_iterator(root)) {
    if (!folder.is_directory()) continue;
    const auto tokenizer = load_vector_tokenizer(folder.path());
    EXPECT_TRUE(tokenizer.ok()) << folder.path() << ": " << (tokenizer.ok() ? "" : tokenizer.error().message);
    if (tokenizer.ok()) out.emplace(folder.path().filename().string(), *tokenizer);
  }
  EXPECT_GT(out.size(), 15u);
  return out;
}

}  // namespace loralei
