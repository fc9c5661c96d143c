// SPDX-License-Identifier: Apache-2.0
// Every tokenizer under tests/vectors/tokenizers against what the reference libraries
// made of the nasty strings.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "base/utf8.h"
#include "formats/gguf_model.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

fs::path vectors_folder() { return fs::path(LORALEI_SOURCE_DIR) / "tests" / "vectors"; }

// A vocabulary file is all head, so its bytes are parsed without a file system.
Result<GgufVocab> read_vocab(const fs::path& path) {
  const std::string bytes = read_file(path);
  TRY_ASSIGN(const auto file,
             parse_gguf(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), path.string()));
  if (!file) return corrupt("the head of " + path.string() + " is cut");
  std::vector<std::string> notes;
  return gguf_vocab(*file, notes);
}

Result<Tokenizer::Ptr> load(const fs::path& folder, const std::string& file) {
  if (file != "vocab.gguf") return Tokenizer::from_directory(folder);
  TRY_ASSIGN(const GgufVocab vocab, read_vocab(folder / file));
  return Tokenizer::from_gguf(vocab);
}

std::string stream(const Tokenizer::Ptr& tokenizer, const std::vector<TokenId>& ids, DecodeOptions options) {
  StreamDecoder decoder(tokenizer, StreamDecoder::Mode::kTextStart, options);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    text += part;
  }
  return text + decoder.flush();
}

void check_case(const Tokenizer::Ptr& tokenizer, const json& vectors, const json& entry, const std::string& text,
                bool sentencepiece) {
  // SentencePiece itself does not search texts for control symbols.
  EncodeOptions options{.add_special = false, .parse_special = !sentencepiece};
  const auto wanted = entry["ids"].get<std::vector<TokenId>>();
  const auto plain = tokenizer->encode(text, options);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(*plain, wanted);
  std::vector<TokenId> framed = vectors["prefix"].get<std::vector<TokenId>>();
  framed.insert(framed.end(), wanted.begin(), wanted.end());
  const auto suffix = vectors["suffix"].get<std::vector<TokenId>>();
  framed.insert(framed.end(), suffix.begin(), suffix.end());
  options.add_special = true;
  const auto with_special = tokenizer->encode(text, options);
  ASSERT_TRUE(with_special.ok()) << with_special.error().message;
  EXPECT_EQ(*with_special, framed);
  const std::string decoded = entry.value("decoded", text);
  const std::string decoded_plain = entry.value("decoded_plain", decoded);
  // SentencePiece shows no control symbols in either form.
  EXPECT_EQ(tokenizer->decode(framed, {.skip_special = sentencepiece}), decoded);
  EXPECT_EQ(tokenizer->decode(framed, {.skip_special = true}), decoded_plain);
  if (decoded_plain.find(kReplacementUtf8) == std::string::npos) {
    EXPECT_EQ(stream(tokenizer, framed, {.skip_special = true}), decoded_plain);
  }
}

// Ids that no text encodes to.
void check_decode(const Tokenizer::Ptr& tokenizer, const json& entry) {
  SCOPED_TRACE(entry["ids"].dump());
  const auto ids = entry["ids"].get<std::vector<TokenId>>();
  const std::string decoded = entry["decoded"];
  const std::string decoded_plain = entry.value("decoded_plain", decoded);
  EXPECT_EQ(tokenizer->decode(ids, {.skip_special = true}), decoded_plain);
  if (entry.contains("decoded_plain")) {
    EXPECT_EQ(tokenizer->decode(ids, {.skip_special = false}), decoded);
  }
  if (decoded_plain.find(kReplacementUtf8) == std::string::npos) {
    EXPECT_EQ(stream(tokenizer, ids, {.skip_special = true}), decoded_plain);
  }
}

TEST(TokenizerVectors, EqualTheReferences) {
  const fs::path root = vectors_folder() / "tokenizers";
  ASSERT_TRUE(fs::exists(root)) << root;
  const json nasty = json::parse(read_file(vectors_folder() / "nasty_strings.json"));
  std::map<std::string, std::string> texts;
  for (const json& item : nasty) texts[item["name"]] = item["text"];
  int folders = 0;
  for (const auto& folder : fs::directory_iterator(root)) {
    if (!folder.is_directory()) continue;
    const json vectors = json::parse(read_file(folder.path() / "vectors.json"));
    const std::string file = vectors["file"];
    SCOPED_TRACE(folder.path().filename().string());
    const auto tokenizer = load(folder.path(), file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const bool sentencepiece = file == "tokenizer.model" || folder.path().filename() == "gguf-spm";
    for (const json& entry : vectors["cases"]) {
      const std::string name = entry["name"];
      SCOPED_TRACE(name);
      ASSERT_TRUE(texts.count(name));
      check_case(*tokenizer, vectors, entry, texts[name], sentencepiece);
    }
    for (const json& entry : vectors.value("decode", json::array())) {
      check_decode(*tokenizer, entry);
    }
    ++folders;
  }
  EXPECT_GT(folders, 15);
}

}  // namespace
}  // namespace loralei
