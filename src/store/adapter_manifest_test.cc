// SPDX-License-Identifier: Apache-2.0
#include "store/adapter_manifest.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

const std::string kA(64, 'a'), kB(64, 'b');

TEST(AdapterManifest, OneSpellingWhateverTheOrder) {
  const StoredFile config{"adapter_config.json", 3, kA}, weights{"adapter_model.safetensors", 500, kB};
  const auto made = AdapterManifest::make({weights, config});
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->text(),
            "loralei adapter 1\n" + kA + " 3 adapter_config.json\n" + kB + " 500 adapter_model.safetensors\n");
  EXPECT_EQ(made->digest(), sha256_hex(made->text()));
  EXPECT_EQ(made->digest(), AdapterManifest::make({config, weights})->digest());
  EXPECT_EQ(made->bytes(), 503);
  EXPECT_EQ(made->weights_name(), "");
  const auto parsed = AdapterManifest::parse(made->text());
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(*parsed, *made);
  EXPECT_EQ(AdapterManifest::make({{"x.gguf", 1, kA}})->weights_name(), "x.gguf");
}

TEST(AdapterManifest, WhatIsNoAdapterIsToldWhatIsMissing) {
  const auto error = [](std::vector<StoredFile> files) {
    const auto made = AdapterManifest::make(std::move(files));
    return made.ok() ? "ok" : made.error().message;
  };
  EXPECT_NE(error({}).find("adapter_config.json and adapter_model.safetensors"), std::string::npos);
  EXPECT_NE(error({{"adapter_config.json", 1, kA}}).find("needs adapter_model.safetensors"), std::string::npos);
  EXPECT_NE(error({{"a.gguf", 1, kA}, {"b.gguf", 1, kB}}).find("one .gguf"), std::string::npos);
  EXPECT_NE(error({{"a.gguf", 1, kA}, {"adapter_config.json", 1, kB}}).find("not both"), std::string::npos);
  EXPECT_NE(error({{"a.gguf", 1, kA}, {"a.gguf", 1, kA}}).find("twice"), std::string::npos);
  EXPECT_NE(error({{"a.gguf", -1, kA}}).find("no size"), std::string::npos);
  EXPECT_NE(error({{"a.gguf", 1, "abc"}}).find("SHA-256"), std::string::npos);
}

TEST(AdapterManifest, NamesAreNeverPaths) {
  for (const char* name :
       {"../adapter_config.json", "a/b.gguf", "/etc/passwd", "..", ".", "", ".gguf", ".hidden.gguf", "a\\b.gguf",
        "a\nb.gguf", "config.json", "adapter_model.bin", "a b.gguf", "adapter_config.json/"})
    EXPECT_FALSE(check_adapter_file(name).ok()) << name;
  EXPECT_FALSE(check_adapter_file(std::string(200, 'a') + ".gguf").ok());
  EXPECT_NE(check_adapter_file("adapter_model.bin").error().message.find("pickle"), std::string::npos);
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "x-1_2.Q8.gguf"})
    EXPECT_TRUE(check_adapter_file(name).ok()) << name;
}

TEST(AdapterManifest, AnythingElseIsRefused) {
  const std::string good = AdapterManifest::make({{"x.gguf", 10, kA}})->text();
  for (const std::string& text :
       {std::string(), good.substr(0, good.size() - 1), good + "\n", good + good, " " + good,
        std::string("loralei adapter 2\n"), "loralei adapter 1\n" + kA + "  10 x.gguf\n",
        "loralei adapter 1\n" + kA + " 010 x.gguf\n", "loralei adapter 1\n" + kA + " +10 x.gguf\n",
        "loralei adapter 1\n" + kA + " 99999999999999999999 x.gguf\n", "loralei adapter 1\n" + kA + " 10 ../x.gguf\n",
        "loralei adapter 1\n" + std::string(64, 'A') + " 10 x.gguf\n", std::string(kManifestBytesMost + 1, 'x')})
    EXPECT_FALSE(AdapterManifest::parse(text).ok()) << text;
  // In another order.
  const std::string two = "loralei adapter 1\n" + kA + " 1 tokenizer.json\n" + kB + " 1 a.gguf\n";
  EXPECT_NE(AdapterManifest::parse(two).error().message.find("another way"), std::string::npos);
}

}  // namespace
}  // namespace loralei
