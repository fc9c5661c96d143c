// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"
#include "base/allocation_counter.h"
#include "base/limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/utf8.h"
#include "formats/gguf_vocab.h"
#include "sys/file.h"
#include "text/stream_decoder.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<TokenId>;

json bpe(json vocab, json merges = json::array()) {
  return {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}};
}

json small_file() {
  return {
      {"model", bpe({{"a", 0}, {"b", 1}, {"ab", 2}, {" ", 3}, {"x", 4}}, {"a b"})},
      {"added_tokens",
       {{{"id", 5}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
        {{"id", 6}, {"content", "</s>"}, {"special", true}, {"normalized", false}},
        {{"id", 7}, {"content", "tool"}, {"special", false}, {"normalized", false}, {"lstrip", true}, {"rstrip", true}},
        {{"id", 8}, {"content", "solo"}, {"single_word", true}, {"normalized", false}}}},
      {"decoder", {{"type", "Fuse"}}}};
}

Tokenizer::Ptr load(const json& file, const json& config = nullptr) {
  auto tokenizer = Tokenizer::from_json(file.dump(), config.is_null() ? "" : config.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? *tokenizer : nullptr;
}

Ids ids(const Tokenizer::Ptr& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto out = tokenizer->encode(text, options);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? *out : Ids{};
}

std::string refusal(const json& file, const json& config = nullptr) {
  auto tokenizer = Tokenizer::from_json(file.dump(), config.is_null() ? "" : config.dump());
  EXPECT_FALSE(tokenizer.ok()) << file.dump().substr(0, 300);
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "loralei_tokenizer_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Tokenizer, AddedTokensAndTheirFlags) {
  const auto tokenizer = load(small_file());
  EXPECT_EQ(ids(tokenizer, "ab<s>ab"), (Ids{2, 5, 2}));
  EXPECT_EQ(ids(tokenizer, "a  tool \n b"), (Ids{0, 7, 1}));
  EXPECT_EQ(ids(tokenizer, "a tool b", {.parse_special = false}), (Ids{0, 7, 1}));
  EXPECT_EQ(ids(tokenizer, "a solo b"), (Ids{0, 3, 8, 3, 1}));
  EXPECT_EQ(ids(tokenizer, "solob"), (Ids{1}));  // not a single word; s, o and l are unknown and dropped
  EXPECT_EQ(ids(tokenizer, "<s>x", {.parse_special = false}), (Ids{4}));
  EXPECT_TRUE(tokenizer->is_special(5));
  EXPECT_FALSE(tokenizer->is_special(7));
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->decode(Ids{5, 2, 7}), "abtool");
  EXPECT_EQ(tokenizer->decode(Ids{5, 2, 7}, {.skip_special = false}), "<s>abtool");
  const Ids shown{5}, other{2};
  EXPECT_EQ(tokenizer->decode(Ids{5, 2, 7}, {.but_not = shown}), "<s>abtool");
  EXPECT_EQ(tokenizer->decode(Ids{5, 2, 7}, {.but_not = other}), "abtool");
}

TEST(Tokenizer, IdsThatDoNotExistContributeNothing) {
  json file = small_file();
  file["model"]["vocab"]["far"] = 100;
  const auto tokenizer = load(file);
  EXPECT_EQ(tokenizer->vocab_size(), 101);
  for (const TokenId id : {-1, -2147483647, 50, 101, 2147483647}) {
    EXPECT_TRUE(tokenizer->is_hole(id));
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_EQ(tokenizer->token_piece(id), "");
    EXPECT_EQ(tokenizer->token_text(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->decode(Ids{0, id, 1}), "ab");
  }
}

TEST(Tokenizer, InvalidUtf8IsRefused) {
  const auto tokenizer = load(small_file());
  for (const std::string_view bad : {"\xFF", "a\xED\xA0\x80", "\xC0\x80"}) {
    const auto out = tokenizer->encode(bad);
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Tokenizer, PostProcessorAndItsReplacementByTheConfiguration) {
  json file = small_file();
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {5}}, {"tokens", {"<s>"}}}}}}}}}};
  const json names = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  const auto tokenizer = load(file, names);
  EXPECT_EQ(ids(tokenizer, "ab"), (Ids{5, 2}));
  EXPECT_EQ(ids(tokenizer, "ab", {.add_special = false}), (Ids{2}));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_FALSE(tokenizer->adds_eos());
  EXPECT_EQ(tokenizer->bos(), 5);
  EXPECT_EQ(tokenizer->eos(), 6);
  json stated = names;
  stated["add_bos_token"] = false;
  stated["add_eos_token"] = true;
  EXPECT_EQ(ids(load(file, stated), "ab"), (Ids{2, 6}));
}

TEST(Tokenizer, ChatTemplatesAsTextListAndFile) {
  const json list = json::array({{{"name", "default"}, {"template", "D"}}, {{"name", "tool_use"}, {"template", "T"}}});
  const auto named = load(small_file(), {{"chat_template", list}});
  EXPECT_EQ(named->chat_template(), "D");
  EXPECT_EQ(named->named_templates().at("tool_use"), "T");
  EXPECT_EQ(load(small_file(), {{"chat_template", "X"}})->chat_template(), "X");
  Folder folder;
  folder.write("tokenizer.json", small_file().dump());
  folder.write("tokenizer_config.json", R"({"chat_template": "X", "eos_token": "</s>"})");
  folder.write("chat_template.jinja", "from the file");
  const auto tokenizer = Tokenizer::from_directory(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->chat_template(), "from the file");
  EXPECT_EQ((*tokenizer)->special_tokens().at("eos_token"), "</s>");
}

TEST(Tokenizer, AdapterFoldersAddTokensAndATemplate) {
  const auto base = load(small_file(), {{"eos_token", "</s>"}});
  Folder empty;
  auto same = base->with_added_tokens(PosixFileSystem(), empty.path());
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_EQ(*same, base);
  Folder folder;
  folder.write("added_tokens.json", R"({"<call>": 9, "</s>": 6})");
  folder.write(
      "tokenizer_config.json",
      R"({"eos_token": "<end>", "chat_template": "A", "added_tokens_decoder": {"10": {"content": "<end>", "special": true}}})");
  const auto adapted = base->with_added_tokens(PosixFileSystem(), folder.path());
  ASSERT_TRUE(adapted.ok()) << adapted.error().message;
  EXPECT_EQ(ids(*adapted, "a<call>b<end>"), (Ids{0, 9, 1, 10}));
  EXPECT_TRUE((*adapted)->is_special(6));
  EXPECT_EQ((*adapted)->eos(), 10);
  EXPECT_EQ(std::vector<TokenId>((*adapted)->end_ids().begin(), (*adapted)->end_ids().end()), (Ids{10, 6}));
  EXPECT_EQ((*adapted)->chat_template(), "A");
  EXPECT_EQ((*adapted)->vocab_size(), 11);
  EXPECT_EQ(&(*adapted)->core(), &base->core());
  EXPECT_EQ(base->vocab_size(), 9);
  Folder clash;
  clash.write("added_tokens.json", R"({"<call>": 1})");
  const auto refused = base->with_added_tokens(PosixFileSystem(), clash.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("<call>"), std::string::npos);
  Folder broken;
  broken.write("tokenizer_config.json", "{");
  EXPECT_FALSE(base->with_added_tokens(PosixFileSystem(), broken.path()).ok());
}

TEST(Tokenizer, AnAdapterMayRenameAReservedToken) {
  const auto base = load(small_file());
  Folder folder;
  folder.write("tokenizer.json",
               R"({"added_tokens": [{"id": 7, "content": "<new>", "special": true, "normalized": false}]})");
  const auto adapted = base->with_added_tokens(PosixFileSystem(), folder.path());
  ASSERT_TRUE(adapted.ok()) << adapted.error().message;
  EXPECT_EQ(ids(*adapted, "<new>"), (Ids{7}));
  EXPECT_EQ((*adapted)->token_piece(7), "<new>");
}

// What an adapter's small files may hold is bounded by what they are for.
TEST(Tokenizer, AnAdaptersSmallFilesAreBounded) {
  const auto base = load(small_file());
  const auto refusal = [&](const char* name, const std::string& text) {
    Folder folder;
    folder.write(name, text);
    const auto adapted = base->with_added_tokens(PosixFileSystem(), folder.path());
    return adapted.ok() ? "" : adapted.error().code == ErrorCode::kTooLarge ? adapted.error().message : "another";
  };
  const auto spaces = [](int64_t count) { return "{" + std::string(static_cast<size_t>(count), ' ') + "}"; };
  EXPECT_EQ(refusal("tokenizer_config.json", spaces(kMaxAdapterTokenizerConfigBytes - 2)), "");
  EXPECT_NE(refusal("tokenizer_config.json", spaces(kMaxAdapterTokenizerConfigBytes)), "");
  EXPECT_NE(refusal("added_tokens.json", spaces(kMaxAdapterTokenizerConfigBytes)), "");
  EXPECT_NE(refusal("special_tokens_map.json", spaces(kMaxAdapterTokensMapBytes)), "");
  std::string decoder, plain, list;
  for (int64_t i = 0; i <= kMaxAdapterAddedTokens; ++i) {
    const std::string id = std::to_string(1000 + i), comma = i == 0 ? "" : ",";
    decoder += comma + '"' + id + R"(":{"content":"<)" + id + R"(>"})";
    plain += comma + R"("<)" + id + R"(>":)" + id;
    list += comma + R"({"content":"<)" + id + R"(>","id":)" + id + "}";
  }
  for (const std::string& text : {refusal("tokenizer_config.json", R"({"added_tokens_decoder":{)" + decoder + "}}"),
                                  refusal("added_tokens.json", "{" + plain + "}"),
                                  refusal("tokenizer.json", R"({"added_tokens":[)" + list + "]}")}) {
    EXPECT_NE(text.find("has 65537 tokens; at most 65536 are read"), std::string::npos) << text;
  }
  EXPECT_NE(refusal("special_tokens_map.json", R"({"additional_special_tokens":[)" + std::string(200'000, '0') + "]}"),
            "");
}

// Of memory that is asked for, and what is refused is not read.
TEST(Tokenizer, AnAdaptersFilesAreReadInMemoryThatIsAskedFor) {
  const auto base = load(small_file());
  Folder folder;
  std::string list;
  for (int i = 0; i < 20'000; ++i) {
    const std::string id = std::to_string(1000 + i);
    list += std::string(i == 0 ? "" : ",") + R"({"content":"<token )" + id + R"(>","id":)" + id + R"(,"special":true})";
  }
  folder.write("tokenizer.json",
               R"({"added_tokens":[)" + list + R"(],"model":")" + std::string(1'000'000, 'x') + "\"}");
  folder.write("tokenizer_config.json", R"({"chat_template":")" + std::string(500'000, 't') + "\"}");
  int64_t taken = 0, most = INT64_MAX;
  const TakeMemory take = [&](int64_t more) -> Status {
    if (taken + more > most) return Error{ErrorCode::kOverloaded, "there is no more"};
    taken += more;
    return {};
  };
  testing_support::start_counting_allocations();
  Result<Tokenizer::Ptr> adapted = base->with_added_tokens(PosixFileSystem(), folder.path(), take);
  const auto seen = testing_support::stop_counting_allocations();
  ASSERT_TRUE(adapted.ok()) << adapted.error().message;
  EXPECT_EQ((*adapted)->find_token("<token 20999>"), TokenId{20'999});
  EXPECT_LE(seen.peak_bytes, taken);
  EXPECT_LE(seen.live_bytes, (*adapted)->own_bytes());
  const int64_t needed = taken;
  for (const int64_t share : {0, 1, 3, 7, 9}) {
    taken = 0;
    most = needed * share / 10;
    testing_support::start_counting_allocations();
    adapted = base->with_added_tokens(PosixFileSystem(), folder.path(), take);
    const auto refused = testing_support::stop_counting_allocations();
    ASSERT_FALSE(adapted.ok());
    EXPECT_EQ(adapted.error().code, ErrorCode::kOverloaded) << adapted.error().message;
    EXPECT_LE(refused.peak_bytes, most + 64 * 1024);
  }
}

// An adapter's file is read for its added tokens: the rest, however much, is passed by,
// but must be sound all the same.
TEST(Tokenizer, OfAnAdaptersFileOnlyAddedTokensAreBuilt) {
  const auto base = load(small_file());
  std::string vocab = "{";
  for (int i = 0; i < 1000; ++i) vocab += "\"token" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  vocab.back() = '}';
  const std::string rest = R"("model":{"added_tokens":[{"id":1}],"vocab":)" + vocab + R"(},"note":["added_tokens"])";
  const std::string tokens = R"("added_tokens":[{"id":7,"content":"<new>","special":true,"normalized":false}])";
  for (const std::string& text : {"{" + rest + "," + tokens + "}", "{" + tokens + "," + rest + "}"}) {
    Folder folder;
    folder.write("tokenizer.json", text);
    const auto adapted = base->with_added_tokens(PosixFileSystem(), folder.path());
    ASSERT_TRUE(adapted.ok()) << adapted.error().message;
    EXPECT_EQ(ids(*adapted, "<new>"), (Ids{7}));
    folder.write("tokenizer.json", text.substr(0, text.size() - 1));
    EXPECT_FALSE(base->with_added_tokens(PosixFileSystem(), folder.path()).ok());
  }
  Folder large;
  large.write("tokenizer.json", "{" + tokens + "}" + std::string(static_cast<size_t>(kMaxAdapterTokenizerBytes), ' '));
  const auto refused = base->with_added_tokens(PosixFileSystem(), large.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge) << refused.error().message;
}

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const auto with = [](const char* pointer, json value) {
    json file = small_file();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  EXPECT_NE(refusal(with("/model/type", "WordPiece")).find("WordPiece"), std::string::npos);
  EXPECT_NE(refusal(with("/model/type", "WordLevel")).find("WordLevel"), std::string::npos);
  EXPECT_NE(refusal(with("/model/dropout", 0.1)).find("dropout"), std::string::npos);
  EXPECT_NE(refusal(with("/model/end_of_word_suffix", "</w>")).find("end_of_word_suffix"), std::string::npos);
  EXPECT_NE(refusal(with("/model/continuing_subword_prefix", "##")).find("continuing_subword_prefix"),
            std::string::npos);
  EXPECT_NE(refusal(with("/normalizer", {{"type", "Fancy"}})).find("Fancy"), std::string::npos);
  EXPECT_NE(refusal(with("/pre_tokenizer", {{"type", "Fancy"}})).find("Fancy"), std::string::npos);
  EXPECT_NE(refusal(with("/decoder", {{"type", "Fancy"}})).find("Fancy"), std::string::npos);
  EXPECT_NE(refusal(with("/post_processor", {{"type", "Fancy"}})).find("Fancy"), std::string::npos);
}

TEST(Tokenizer, BadFilesEndWithASentence) {
  const auto with = [](const char* pointer, json value) {
    json file = small_file();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  EXPECT_NE(refusal(with("/model/vocab/c", 0)).find("id 0"), std::string::npos);
  EXPECT_NE(refusal(with("/model/vocab/c", 1'000'000'000)).find("'c'"), std::string::npos);
  EXPECT_NE(refusal(with("/model/vocab/c", -1)).find("'c'"), std::string::npos);
  EXPECT_NE(refusal(with("/model/vocab/c", 1.5)).find("'c'"), std::string::npos);
  EXPECT_NE(refusal(with("/model/merges", {"a q"})).find("'q'"), std::string::npos);
  EXPECT_NE(refusal(with("/model/merges", {"b a"})).find("'ba'"), std::string::npos);
  EXPECT_NE(refusal(with("/model/merges", {"ab"})).find("merge 0"), std::string::npos);
  EXPECT_NE(refusal(with("/model/merges", json::array({json::array({"a"})}))).find("merge 0"), std::string::npos);
  EXPECT_NE(refusal(with("/model/unk_token", "<unk>")).find("<unk>"), std::string::npos);
  EXPECT_NE(refusal(with("/model/vocab", json::array())).find("vocab"), std::string::npos);
  EXPECT_NE(refusal(with("/added_tokens/0/id", 1'000'000'000)).find("<s>"), std::string::npos);
  EXPECT_NE(refusal(with("/added_tokens/0/id", 0)).find("<s>"), std::string::npos);
  EXPECT_NE(refusal(with("/added_tokens/0/id", 6)).find("6"), std::string::npos);
  EXPECT_NE(refusal(with("/added_tokens/0/content", "a")).find("'a'"), std::string::npos);
  EXPECT_NE(refusal(with("/added_tokens/0/special", "yes")).find("special"), std::string::npos);
  EXPECT_NE(refusal(with("/model", 5)).find("model"), std::string::npos);
  EXPECT_NE(refusal(json::array()).find("object"), std::string::npos);
  EXPECT_NE(refusal(small_file(), {{"chat_template", 5}}).find("chat_template"), std::string::npos);
  EXPECT_NE(refusal(small_file(), {{"bos_token", 5}}).find("bos_token"), std::string::npos);
  EXPECT_NE(refusal(small_file(), {{"added_tokens_decoder", {{"x", {{"content", "y"}}}}}}).find("'x'"),
            std::string::npos);
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_NE(Tokenizer::from_json("{\"model\":" + deep + "}").error().message.find("deeper"), std::string::npos);
  const std::string whole = small_file().dump();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(Tokenizer::from_json(std::string_view(whole).substr(0, length)).ok());
  }
  EXPECT_EQ(Tokenizer::from_directory("/nonexistent").error().code, ErrorCode::kNotFound);
}

TEST(Tokenizer, UnigramWithByteFallbackAndUnknowns) {
  json vocab = json::array({{"<unk>", 0.0}, {"a", -1.0}, {"b", -1.0}, {"ab", -1.5}});
  json file = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}};
  EXPECT_EQ(ids(load(file), "abzzb"), (Ids{3, 0, 2}));
  file["model"]["unk_id"] = nullptr;
  const auto refused = load(file)->encode("z");
  ASSERT_FALSE(refused.ok());
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    file["model"]["vocab"].push_back({name, 0.0});
  }
  file["model"]["byte_fallback"] = true;
  file["model"]["unk_id"] = 0;
  EXPECT_EQ(ids(load(file), "a\xC3\xA9"), (Ids{1, 4 + 0xC3, 4 + 0xA9}));
  file["model"]["unk_id"] = 1000;
  EXPECT_NE(refusal(file).find("unk_id"), std::string::npos);
  file["model"]["vocab"] = json::array({{"a", "x"}});
  EXPECT_NE(refusal(file).find("entry 0"), std::string::npos);
}

TEST(Tokenizer, GgufVocabulariesAreChecked) {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  vocab.tokens = {"a", "b", "ab", "<end>"};
  vocab.types = {1, 1, 1, 3};
  vocab.merges = {"a b"};
  vocab.eos = 3;
  const auto good = Tokenizer::from_gguf(vocab);
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(ids(*good, "ab<end>"), (Ids{2, 3}));
  EXPECT_EQ((*good)->eos(), 3);
  vocab.ends = {3, 2};
  const auto more_ends = Tokenizer::from_gguf(vocab);
  ASSERT_TRUE(more_ends.ok()) << more_ends.error().message;
  EXPECT_EQ(Ids((*more_ends)->end_ids().begin(), (*more_ends)->end_ids().end()), (Ids{3, 2}));
  EXPECT_TRUE((*good)->named_templates().empty());
  GgufVocab with_tools = vocab;
  with_tools.tool_template = "{{ tools }}";
  EXPECT_EQ(Tokenizer::from_gguf(with_tools).value()->named_templates().at("tool_use"), "{{ tools }}");
  const auto refused = [](GgufVocab changed) { return Tokenizer::from_gguf(changed).error().message; };
  GgufVocab other = vocab;
  other.pre = "fancy";
  EXPECT_NE(refused(other).find("'fancy'"), std::string::npos);
  other = vocab;
  other.model = "bert";
  EXPECT_NE(refused(other).find("'bert'"), std::string::npos);
  other = vocab;
  other.types = {1};
  EXPECT_NE(refused(other).find("types"), std::string::npos);
  other = vocab;
  other.merges = {"a c"};
  EXPECT_NE(refused(other).find("a c"), std::string::npos);
  other = vocab;
  other.model = "llama";
  EXPECT_NE(refused(other).find("scores"), std::string::npos);
  other = vocab;
  other.tokens.clear();
  EXPECT_NE(refused(other).find("no tokens"), std::string::npos);
  // Pieces that are no UTF-8 stay inside.
  other = vocab;
  other.tokens[0] = "\xFF";
  other.merges = {"b b"};
  other.tokens[2] = "bb";
  const auto broken = Tokenizer::from_gguf(other);
  ASSERT_TRUE(broken.ok()) << broken.error().message;
  EXPECT_EQ((*broken)->decode(Ids{0}), kReplacementUtf8);
  EXPECT_EQ((*broken)->token_text(0), kReplacementUtf8);
}

// A "llama" vocabulary with a token of every type.
GgufVocab llama_vocab() {
  GgufVocab vocab;
  vocab.model = "llama";
  vocab.tokens = {"<unk>",
                  "<s>",
                  "</s>",
                  "\xE2\x96\x81",
                  "a",
                  "\xE2\x96\x81"
                  "a",
                  "<go>",
                  "[PAD7]",
                  "<0x0A>"};
  vocab.scores = {0, 0, 0, -3, -3, -1, 0, -1000, 0};
  vocab.types = {2, 3, 3, 1, 1, 1, 4, 5, 6};
  vocab.bos = 1;
  vocab.eos = 2;
  return vocab;
}

TEST(Tokenizer, GgufPutsASpaceAfterEveryTokenThatIsCutOut) {
  GgufVocab vocab = llama_vocab();
  const auto tokenizer = Tokenizer::from_gguf(vocab);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(ids(*tokenizer, "a<go>a<s>a"), (Ids{1, 5, 6, 5, 1, 5}));
  EXPECT_EQ(ids(*tokenizer, "<go>a", {.add_special = false, .parse_special = false}), (Ids{6, 5}));
  EXPECT_EQ(ids(*tokenizer, "<unk>", {.add_special = false}), (Ids{0}));
  EXPECT_FALSE((*tokenizer)->is_special(6));
  EXPECT_EQ((*tokenizer)->decode(Ids{1, 5, 6, 5}), "a<go> a");
  vocab.add_space_prefix = 0;
  const auto plain = Tokenizer::from_gguf(vocab);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(ids(*plain, "a<go>a<s>a"), (Ids{1, 4, 6, 4, 1, 4}));
}

// Their characters are no bytes, also where each of them would be the sign of one; what
// an adapter adds is text as well.
TEST(Tokenizer, UserDefinedTokensOfByteLevelGgufAreText) {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  vocab.tokens = {"s", "c", "h", "n", "\u00F6", "Ġ", "<end\u00E9>", "\u0120\u00FF", "日本", "Ã", "¶", "Ã¶"};
  vocab.types = {1, 1, 1, 1, 4, 1, 3, 4, 4, 1, 1, 1};
  vocab.merges = {"Ã ¶"};
  const auto base = Tokenizer::from_gguf(vocab);
  ASSERT_TRUE(base.ok()) << base.error().message;
  Folder folder;
  folder.write("added_tokens.json", R"({"<ü>": 12})");
  const auto adapted = (*base)->with_added_tokens(PosixFileSystem(), folder.path());
  ASSERT_TRUE(adapted.ok()) << adapted.error().message;
  EXPECT_EQ(ids(*adapted, "<ü>", {.add_special = false}), (Ids{12}));
  EXPECT_EQ((*adapted)->decode(Ids{12}), "<ü>");
  for (const auto& tokenizer : {*base, *adapted}) {
    for (const auto& [text, wanted] : {std::pair<std::string, Ids>("schön", {0, 1, 2, 4, 3}),
                                       {"s n", {0, 5, 3}},
                                       {"\u0120\u00FF", {7}},
                                       {"日本ö", {8, 4}},
                                       {"<end\u00E9>", {6}}}) {
      EXPECT_EQ(ids(tokenizer, text, {.add_special = false}), wanted) << text;
      EXPECT_EQ(tokenizer->decode(wanted, {.skip_special = false}), text);
      std::string bytes;
      for (const TokenId id : wanted) bytes += tokenizer->token_bytes(id);
      EXPECT_EQ(bytes, text);
      EXPECT_EQ(tokenizer->first_token_bytes(wanted[0]), tokenizer->token_bytes(wanted[0]));
      StreamDecoder stream(tokenizer, StreamDecoder::Mode::kTextStart, {.skip_special = false});
      std::string streamed;
      for (const TokenId id : wanted) streamed += stream.push(id);
      EXPECT_EQ(streamed + stream.flush(), text);
    }
    EXPECT_EQ(tokenizer->decode(Ids{11}), "ö") << "bytes are bytes all the same";
    EXPECT_EQ(tokenizer->token_piece(4), "ö");
  }
}

// Converters name rows of the embedding that have no token "[PAD7]"; a tokenizer of
// Hugging Face has nothing there.
TEST(Tokenizer, UnusedRowsOfGgufAreFreeForAdapters) {
  GgufVocab bytes;
  bytes.model = "gpt2";
  bytes.pre = "gpt-2";
  bytes.tokens = {"a", "b", "ab", "<end>", "c", "d", "e", "[PAD7]", "[PAD8]"};
  bytes.types = {1, 1, 1, 3, 1, 1, 1, 5, 5};
  bytes.merges = {"a b"};
  Folder folder;
  folder.write("added_tokens.json", R"({"<my_tok>": 7})");
  for (const GgufVocab& vocab : {bytes, llama_vocab()}) {
    SCOPED_TRACE(vocab.model);
    const auto base = Tokenizer::from_gguf(vocab);
    ASSERT_TRUE(base.ok()) << base.error().message;
    EXPECT_TRUE((*base)->is_hole(7));
    EXPECT_EQ((*base)->decode(Ids{7}), "");
    EXPECT_EQ((*base)->token_bytes(7), "");
    const auto adapted = (*base)->with_added_tokens(PosixFileSystem(), folder.path());
    ASSERT_TRUE(adapted.ok()) << adapted.error().message;
    EXPECT_EQ(ids(*adapted, "<my_tok>", {.add_special = false}), (Ids{7}));
    EXPECT_EQ((*adapted)->decode(Ids{7}), "<my_tok>");
  }
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const auto tokenizer = load(small_file());
  const Ids wanted = ids(tokenizer, "abab<s>x tool ab");
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (size_t t = 0; t < good.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) good[t] += *tokenizer->encode("abab<s>x tool ab") == wanted ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : good) EXPECT_EQ(count, 500);
}

}  // namespace
}  // namespace loralei
