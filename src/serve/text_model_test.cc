// SPDX-License-Identifier: Apache-2.0
// Which adapters share tokenizer, template and vocabulary trie with the base,
// or with each other.
#include "serve/text_model.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fixed_byte_budget.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

AdapterSourceId source_of(const std::string& name) { return {std::hash<std::string>{}(name)}; }

constexpr const char* kConfig =
    R"({"eos_token":"<|endoftext|>","chat_template":"base {{ messages[0].content }}","model_max_length":512})";

class TextModelTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("loralei-texts-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    write("base", kConfig);
    auto tokenizer = Tokenizer::from_directory(root_ / "base");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    tokenizer_ = *tokenizer;
    texts_ = std::make_unique<TextModels>(TextModel::make(tokenizer_, nullptr, "base").value(), files_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& config) {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / "tokenizer_config.json") << config;
    fs::copy_file(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-gpt2/tokenizer.json",
                  root_ / name / "tokenizer.json", fs::copy_options::overwrite_existing);
  }
  std::shared_ptr<const TextModel> of(const std::string& name, uint64_t source = 0) {
    CatalogueEntry entry;
    entry.name = name;
    entry.path = (root_ / name).string();
    entry.source = source == 0 ? source_of(name) : AdapterSourceId{source};
    auto model = texts_->for_adapter(entry);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return model.ok() ? *model : nullptr;
  }
  static std::string shown(const TextModel& model, bool with_tools = false) {
    WirePrompt prompt;
    prompt.tools.emplace_back();
    prompt.tools.back().json = R"({"type":"function","function":{"name":"f"}})";
    prompt.messages.emplace_back();
    prompt.messages.back().content = "hi";
    prompt.messages.back().has_content = true;
    return model.render_chat(prompt, with_tools, 0).value();
  }

  fs::path root_;
  Tokenizer::Ptr tokenizer_;
  PosixFileSystem files_;
  std::unique_ptr<TextModels> texts_;
};

TEST_F(TextModelTest, ACopyOfTheBasesFilesIsTheBase) {
  write("copy", kConfig);
  EXPECT_EQ(of("copy"), texts_->base());
  texts_ = std::make_unique<TextModels>(
      TextModel::make(tokenizer_, ChatTemplate::builtin("chatml").value(), "base").value(), files_);
  EXPECT_EQ(of("copy"), texts_->base()) << "the template of the command line stands for the base's own";
}

TEST_F(TextModelTest, EqualFilesOfAdaptersAreHeldOnce) {
  const std::string tuned =
      R"({"eos_token":"<|end|>","added_tokens_decoder":{"600":{"content":"<|end|>","special":true}}})";
  write("one", tuned);
  write("two", tuned);
  write("other", R"({"eos_token":"<|endoftext|>","chat_template":"mine {{ messages[0].content }}"})");
  const auto one = of("one");
  EXPECT_NE(one, texts_->base());
  EXPECT_EQ(of("two"), one);
  EXPECT_EQ(shown(*one), "base hi");
  const auto other = of("other");
  EXPECT_NE(other, one);
  EXPECT_EQ(shown(*other), "mine hi");
  EXPECT_NE(one->number(), other->number());
  EXPECT_NE(one->number(), texts_->base()->number());
}

TEST_F(TextModelTest, WhatIsForgottenIsFreedAndKeepsItsNumber) {
  write("one", R"({"chat_template":"mine"})");
  const uint64_t number = of("one")->number();
  std::weak_ptr<const TextModel> held = of("one");
  EXPECT_FALSE(held.expired());
  texts_->forget(source_of("one"));
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(of("one", 2)->number(), number) << "requests made with the same texts stay right";
}

TEST_F(TextModelTest, WhatASourceWasLoadedWithIsWhatItGoesWith) {
  write("one", R"({"chat_template":"mine"})");
  const CatalogueEntry entry{.name = "one", .path = (root_ / "one").string(), .source = source_of("one")};
  auto model = texts_->read(entry).value();
  texts_->put(entry, model);
  write("one", R"({"chat_template":"another"})");
  EXPECT_EQ(of("one"), model) << "it is not looked at again";
}

// Adapters' texts have the memory that they are granted; those that are not
// in use make room.
TEST_F(TextModelTest, TextsAreOfMemoryThatIsGranted) {
  const auto write_tokens = [this](const std::string& name, int count) {
    std::string decoder;
    for (int i = 0; i < count; ++i) {
      decoder +=
          (i == 0 ? "\"" : ",\"") + std::to_string(1000 + i) + R"(":{"content":"<)" + name + std::to_string(i) + ">\"}";
    }
    write(name, R"({"added_tokens_decoder":{)" + decoder + "}}");
  };
  for (const char* name : {"one", "two", "three"}) write_tokens(name, 2000);
  write_tokens("vast", 40'000);
  const auto memory = std::make_shared<FixedByteBudget>(12'000'000);
  const auto base = texts_->base();
  texts_ = std::make_unique<TextModels>(base, files_, memory);
  const auto read = [this](const std::string& name) {
    return texts_->for_adapter({.name = name, .path = (root_ / name).string(), .source = source_of(name)});
  };

  std::weak_ptr<const TextModel> first = of("one");
  const int64_t of_one = memory->taken_bytes();
  EXPECT_GT(of_one, 2000 * 100);
  EXPECT_LT(of_one, 3'000'000) << "what reading took is given back";
  EXPECT_EQ(of("one"), first.lock()) << "read once";
  EXPECT_EQ(memory->taken_bytes(), of_one);

  const auto vast = read("vast");
  ASSERT_FALSE(vast.ok());
  EXPECT_EQ(vast.error().code, ErrorCode::kTooLarge) << vast.error().message;
  EXPECT_NE(vast.error().message.find("requests can have 11.4 MiB"), std::string::npos) << vast.error().message;

  // What others have at the moment, and no text that could go: try again.
  ByteShare others(memory);
  const auto two = of("two");
  ASSERT_TRUE(others.grow_to(memory->most_bytes() - memory->taken_bytes()));
  texts_->forget(source_of("one"));
  EXPECT_TRUE(first.expired());
  ASSERT_TRUE(others.grow_to(memory->most_bytes() - two->tokenizer()->own_bytes()));
  const auto three = read("three");
  ASSERT_FALSE(three.ok());
  EXPECT_EQ(three.error().code, ErrorCode::kOverloaded) << three.error().message;

  // One that nobody uses goes, and comes back when it is asked for.
  others.release();
  first = of("one");
  ASSERT_TRUE(others.grow_to(memory->most_bytes() - memory->taken_bytes()));
  others.shrink_to(others.bytes() - 2'000'000);
  int64_t room = 2'000'000;
  while (!read("three").ok()) {
    ASSERT_LT(room, 8'000'000);
    others.shrink_to(others.bytes() - 100'000), room += 100'000;
  }
  EXPECT_TRUE(first.expired()) << "in whose place 'three' was read";
  EXPECT_EQ(of("two"), two) << "which is in use";
  others.release();
  EXPECT_NE(of("one"), nullptr);
  for (const char* name : {"one", "two", "three"}) texts_->forget(source_of(name));
  EXPECT_EQ(memory->taken_bytes(), two->tokenizer()->own_bytes());
}

// What is granted for templates is no less than their trees take.
TEST_F(TextModelTest, TemplatesTakeNoMoreThanIsGranted) {
  for (const std::string& piece :
       {std::string("{{a}}"), std::string("{%if a%}{%endif%}"), std::string("{{a|trim}}"), std::string("{{a.b}}"),
        std::string("{{[1,2,3,4,5,6,7,8,9]}}"), std::string("{{a()}}"), std::string("{{1+1+1+1}}"),
        std::string("{%macro m(a,b=1)%}{%endmacro%}"), std::string("{%set a=1%}"), std::string("text "),
        std::string("{%for a in b%}{%endfor%}"), std::string("{{a[1:2]}}"), std::string("{{a is none}}")}) {
    std::string source;
    while (source.size() < 200'000) source += piece;
    const size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    const auto parsed = ChatTemplate::parse(source);
    const size_t after = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_LE(after - before, 128 * source.size()) << piece;
  }
}

// As transformers shows them: a list beside the named ones, not there where there are
// none, and what a request sets counts more.
TEST_F(TextModelTest, TemplatesSeeTheAdditionalSpecialTokens) {
  const std::string shows =
      R"("chat_template":"{{ additional_special_tokens is defined }} {{ additional_special_tokens | tojson if additional_special_tokens is defined }}")";
  const auto text_of = [&](const std::string& config, const std::string& kwargs) {
    write("base", config);
    const auto model = TextModel::make(Tokenizer::from_directory(root_ / "base").value(), nullptr, "base").value();
    WirePrompt prompt;
    prompt.messages.emplace_back();
    prompt.template_kwargs = kwargs;
    return model->render_chat(prompt, false, 0).value();
  };
  const std::string two = R"({"additional_special_tokens":["<a\"b>",{"content":"<\u00e9>"}],)" + shows + "}";
  EXPECT_EQ(text_of(two, ""), R"(True ["<a\"b>", "<é>"])");
  EXPECT_EQ(text_of(two, "{}"), R"(True ["<a\"b>", "<é>"])");
  EXPECT_EQ(text_of(two, R"({"x":1})"), R"(True ["<a\"b>", "<é>"])");
  EXPECT_EQ(text_of(two, R"({"additional_special_tokens":["<c>"]})"), R"(True ["<c>"])");
  EXPECT_EQ(text_of("{" + shows + "}", ""), "False ");
  // An adapter whose list differs has a prompt of its own.
  write("base", two);
  const auto base = TextModel::make(Tokenizer::from_directory(root_ / "base").value(), nullptr, "base").value();
  texts_ = std::make_unique<TextModels>(base, files_);
  write("same", two);
  EXPECT_EQ(of("same"), base);
  write("other", R"({"additional_special_tokens":["<b>"],)" + shows + "}");
  EXPECT_EQ(shown(*of("other")), R"(True ["<b>"])");
  EXPECT_NE(of("other")->number(), base->number());
}

TEST_F(TextModelTest, WithToolsTheTemplateNamedToolUseIsUsed) {
  const std::string two =
      R"({"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"{{ tools[0].function.name }}"}]})";
  write("base", two);
  const auto base = TextModel::make(Tokenizer::from_directory(root_ / "base").value(), nullptr, "base").value();
  EXPECT_EQ(shown(*base), "plain");
  EXPECT_EQ(shown(*base, true), "f");
  texts_ = std::make_unique<TextModels>(base, files_);
  write("copy", two);
  EXPECT_EQ(of("copy"), base);
  write("other", R"({"chat_template":"mine"})");
  EXPECT_EQ(shown(*of("other"), true), "mine") << "the base's other templates do not belong to it";
  const auto given = TextModel::make(base->tokenizer(), ChatTemplate::parse("given").value(), "base").value();
  EXPECT_EQ(shown(*given, true), "given");
}

}  // namespace
}  // namespace loralei
