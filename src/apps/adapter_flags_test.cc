// SPDX-License-Identifier: Apache-2.0
#include "apps/adapter_flags.h"

#include <gtest/gtest.h>

#include "sys/env.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

template <typename T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

// A GGUF file of version 3 without tensors that says nothing but its type.
std::string gguf(const std::string& type) {
  return "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(1) + text("general.type") + raw<uint32_t>(8) +
         text(type);
}

class AdapterFlags : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"/p/sql", "/p/a,b", "/many/one", "/many/two"}) {
      files.put(std::string(folder) + "/adapter_config.json", "{}");
      files.put(std::string(folder) + "/adapter_model.safetensors", "x");
    }
    files.put("/base/config.json", "{}");
    files.put("/notes.txt", "x");
    files.put("/junk.gguf", "not what it says");
  }
  // "name=path name=path", or the sentence of the refusal.
  std::string parse(const std::string& text) { return told(parse_adapter_flag(files, text)); }
  std::string find(const std::vector<std::string>& values) {
    RootedFileSystem adapter_files(files);
    return told(find_adapters(files, adapter_files, "--adapter", values));
  }
  static std::string told(const Result<std::vector<AdapterFlag>>& flags) {
    if (!flags.ok()) return flags.error().message;
    std::string text;
    for (const AdapterFlag& flag : *flags) text += (text.empty() ? "" : " ") + flag.name + "=" + flag.path;
    return text;
  }
  static bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  MemoryFileSystem files;
};

TEST_F(AdapterFlags, AnAdapterHasANameOrTakesItsFiles) {
  EXPECT_EQ(parse("shout=/a/b"), "shout=/a/b");
  EXPECT_EQ(parse("/a/b/"), "b=/a/b");
  EXPECT_EQ(parse("/a/count.gguf"), "count=/a/count.gguf");
  EXPECT_EQ(parse("/out/r=16"), "r=16=/out/r=16");
  EXPECT_EQ(parse("org/lora=/a"), "org/lora=/a");
  for (const char* text : {"", "=x", "x="}) EXPECT_TRUE(holds(parse(text), "write NAME=PATH")) << text;
}

TEST_F(AdapterFlags, VllmsObjects) {
  EXPECT_EQ(parse(R"({"name":"sql-lora","path":"/p/x","base_model_name":"meta-llama/Llama-2-7b"})"), "sql-lora=/p/x");
  EXPECT_TRUE(holds(parse(R"({"name":"sql-lora"})"), "lacks a name or a path"));
  EXPECT_TRUE(holds(parse(R"({"name":"a","path":"/x","scale":2})"), "the key 'scale'"));
  EXPECT_TRUE(holds(parse(R"({"name":"a","path":7})"), "path"));
  EXPECT_TRUE(holds(parse("{name:a,path:/x}"), "is not valid JSON")) << "as a shell leaves it without quotes";
  EXPECT_TRUE(holds(parse(R"([{"name":"a","path":"/x"}])"), "a value of its own"));
}

TEST_F(AdapterFlags, LlamaCppsLists) {
  EXPECT_EQ(parse("a.gguf,/x/b.gguf"), "a=a.gguf b=/x/b.gguf");
  EXPECT_EQ(parse("/p/a,b"), "a,b=/p/a,b") << "there is such a folder";
  EXPECT_EQ(parse("n=/p/a,b"), "n=/p/a,b");
  EXPECT_TRUE(holds(parse("a.gguf,"), "does not name an adapter"));
}

TEST_F(AdapterFlags, TheHomeFolderIsFoundBehindAName) {
  const auto home = env_string("HOME");
  if (!home) GTEST_SKIP() << "no HOME here";
  EXPECT_EQ(parse("s=~/x"), "s=" + *home + "/x");
  EXPECT_EQ(parse(R"({"name":"s","path":"~/x"})"), "s=" + *home + "/x");
}

TEST_F(AdapterFlags, WhatIsNoAdapterIsRefusedWithTheFlag) {
  EXPECT_EQ(find({"s=/p/sql", "/p/a,b"}), "s=/p/sql a,b=/p/a,b");
  EXPECT_TRUE(find({"s=/p/typo"}).starts_with("--adapter s=/p/typo: /p/typo: does not exist")) << find({"s=/p/typo"});
  EXPECT_TRUE(holds(find({"/base"}), "whole model"));
  EXPECT_TRUE(holds(find({"/notes.txt"}), "is not an adapter"));
  EXPECT_TRUE(holds(find({"/junk.gguf"}), "/junk.gguf"));
  EXPECT_TRUE(holds(find({"/many"}), "--adapter-dir"));
  EXPECT_TRUE(find({"="}).starts_with("--adapter: '='"));
}

TEST_F(AdapterFlags, AGgufFileIsLookedInto) {
  files.put("/g/lora.gguf", gguf("adapter"));
  files.put("/m/model.gguf", gguf("model"));
  EXPECT_EQ(find({"/g/lora.gguf", "x=/g"}), "lora=/g/lora.gguf x=/g/lora.gguf") << "a folder's one file stands for it";
  EXPECT_TRUE(holds(find({"/m/model.gguf"}), "of the type 'model'")) << find({"/m/model.gguf"});
  files.put("/g/other.gguf", gguf("adapter"));
  EXPECT_TRUE(holds(find({"/g"}), "several .gguf files"));
  // The folder was named, not what a link in it leads to.
  files.put("/h/notes.txt", "x");
  files.link("/h/lora.gguf", "/g/lora.gguf");
  EXPECT_TRUE(holds(find({"/h"}), "leads out of '/h'")) << find({"/h"});
  EXPECT_FALSE(holds(find({"/h/lora.gguf"}), "leads out")) << find({"/h/lora.gguf"});
}

}  // namespace
}  // namespace loralei
