// SPDX-License-Identifier: Apache-2.0
// What users of other servers type, and what becomes of it.
#include "apps/command_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "apps/foreign_options.h"
#include "apps/options.h"

namespace loralei {
namespace {

using Words = std::vector<std::string>;

// The options of `serve`.
Words own_names() {
  CLI::App app;
  int exit_code = 0;
  const Words notes;
  add_serve_command(app, exit_code, notes);
  return option_names(*app.get_subcommand("serve"));
}

Words read(Words words, Words* notes = nullptr) {
  words.insert(words.begin(), "serve");
  auto out = read_command_words(words, own_names());
  EXPECT_TRUE(out.ok()) << out.error().message;
  if (!out.ok()) return {};
  if (notes != nullptr) *notes = out->notes;
  out->words.erase(out->words.begin());
  return out->words;
}
std::string refusal(Words words) {
  words.insert(words.begin(), "serve");
  const auto out = read_command_words(words, own_names());
  return out.ok() ? "" : out.error().message;
}

TEST(CommandWords, OwnWordsStayWhatTheyAre) {
  const Words words{"model", "--port", "0", "-c", "512", "--adapter=a=b", "-t", "2", "--api-key", "x_y"};
  Words notes;
  EXPECT_EQ(read(words, &notes), words);
  EXPECT_TRUE(notes.empty());
}

TEST(CommandWords, OtherNamesOfOwnOptions) {
  EXPECT_EQ(read({"m", "--max_model_len", "512", "--context-length=64", "-np", "4"}),
            (Words{"m", "--max-model-len", "512", "--max-model-len=64", "--parallel", "4"}));
  EXPECT_EQ(read({"--model-path", "m", "--hostname", "0.0.0.0", "--lora-paths", "a=b", "c=d"}),
            (Words{"--model", "m", "--host", "0.0.0.0", "--lora-modules", "a=b", "c=d"}));
  EXPECT_EQ(read({"m", "--json-output", "--no-cache-prompt"}), (Words{"m", "--log-format=json", "--no-prefix-cache"}));
  EXPECT_EQ(read({"m", "--allowed-origins", R"(["http://a","http://b"])"}),
            (Words{"m", "--cors-origin=http://a", "--cors-origin=http://b"}));
  EXPECT_NE(refusal({"m", "--allowed-origins", "[1]"}), "");
}

TEST(CommandWords, SeveralNamesBehindOneFlag) {
  EXPECT_EQ(read({"m", "--served-model-name", "a", "b", "--port", "1"}),
            (Words{"m", "--served-model-name=a", "--served-model-name=b", "--port", "1"}));
  EXPECT_EQ(read({"--served-model-name", "a", "m"}), (Words{"--served-model-name=a", "m"})) << "m is the model";
  EXPECT_EQ(read({"--served-model-name=a", "b", "--model", "m"}),
            (Words{"--served-model-name=a", "--served-model-name=b", "--model", "m"}));
}

TEST(CommandWords, CachesOfKeysAndValues) {
  Words notes;
  EXPECT_EQ(read({"m", "-ctk", "f16", "-ctv", "f16"}), (Words{"m", "--kv-cache-dtype=f16"}));
  EXPECT_EQ(read({"m", "-ctk", "q8_0", "-ctv", "q8_0"}, &notes), (Words{"m", "--kv-cache-dtype=int8"}));
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_NE(refusal({"m", "-ctk", "q8_0"}).find("in one format here"), std::string::npos);
  EXPECT_NE(refusal({"m", "-ctk", "q4_0", "-ctv", "q4_0"}).find("--kv-cache-dtype"), std::string::npos);
  EXPECT_NE(refusal({"m", "-ctk"}), "") << "a value is missing";
}

TEST(CommandWords, WhatOtherServersNeedAndThisOneNotIsTakenAndTold) {
  Words notes;
  EXPECT_EQ(read({"--enable-lora",
                  "m",
                  "--max-loras",
                  "4",
                  "--max_cpu_loras=8",
                  "--lora-dtype",
                  "auto",
                  "-fa",
                  "on",
                  "-O3",
                  "--no-enable-chunked-prefill",
                  "--mlock",
                  "--speculative-config",
                  "{}",
                  "-pp",
                  "1",
                  "--seed",
                  "0",
                  "--tool-call-parser",
                  "hermes",
                  "--enable-auto-tool-choice",
                  "--uvicorn-log-level",
                  "warning"},
                 &notes),
            (Words{"m"}));
  ASSERT_EQ(notes.size(), 14u);
  EXPECT_EQ(notes[0],
            "--enable-lora changes nothing here: adapters are always served, any number of them in one batch; "
            "loaded ones are limited in bytes (--adapter-memory).");
  for (const std::string& note : notes) EXPECT_NE(note.find(" changes nothing here: "), std::string::npos) << note;
  EXPECT_EQ(read({"m", "-fa", "--port", "1"}), (Words{"m", "--port", "1"})) << "it stood alone once";
}

TEST(CommandWords, WhatCannotBeHadIsRefusedWithWhatToTypeInstead) {
  EXPECT_EQ(refusal({"m", "--lora-dtype", "float16"}),
            "--lora-dtype float16 cannot be had as asked for; adapters are kept as their files hold them; "
            "--adapter-quant int8 makes them smaller.");
  for (const auto& [words, part] : std::vector<std::pair<Words, std::string>>{
           {{"--lora-scaled", "a.gguf:0.5"}, "--adapter NAME=PATH"},
           {{"-ngl", "99"}, "--device cuda:N"},
           {{"-pp", "2"}, "one machine"},
           {{"--revision", "v1"}, "ORG/NAME@REVISION"},
           {{"--temp", "0.7"}, "generation_config.json"},
           {{"-n", "128"}, "max_tokens"},
           {{"--ssl-keyfile-password", "x"}, "openssl pkey"},
           {{"--ssl-ca-certs", "c.pem"}, "--api-key"},
           {{"--reasoning", "off"}, "--default-chat-template-kwargs"},
           {{"--reasoning-format", "none"}, "--reasoning-parser none"},
           {{"--speculative-config", "{\"model\": \"x\"}"}, "--speculate lookup"},
           {{"--slot-save-path", "d"}, "--kv-cache-memory"}}) {
    Words all{"m"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_NE(refusal(all).find(part), std::string::npos) << words[0] << ": " << refusal(all);
  }
  EXPECT_EQ(refusal({"m", "-ngl", "0"}), "");
}

TEST(CommandWords, NamesOnAHubAreModels) {
  EXPECT_EQ(read({"-hf", "org/name:Q4_K_M"}), (Words{"--model", "org/name:Q4_K_M"}));
  EXPECT_EQ(read({"--hf-repo=org/name"}), (Words{"--model=org/name"}));
  EXPECT_EQ(read({"m", "--huggingface-hub-cache", "d"}), (Words{"m", "--download-dir", "d"}));
}

// `run` has options of its own by the names of others' options.
TEST(CommandWords, OwnOptionsComeFirst) {
  const auto out =
      read_command_words({"run", "m", "-n", "5", "--seed", "1", "--temp", "0"}, {"-n", "--seed", "--temp"});
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->words, (Words{"run", "m", "-n", "5", "--seed", "1", "--temp", "0"}));
}

TEST(CommandWords, TheTableOfOthersHasNoNameTwiceAndNoneOfOurs) {
  std::set<std::string> names;
  for (const ForeignGroup& group : foreign_groups()) {
    std::string text = group.names, name;
    text += ' ';
    for (const char c : text) {
      if (c != ' ') {
        name += c;
        continue;
      }
      if (!name.empty() && name.back() == '=') name.pop_back();
      EXPECT_TRUE(name.empty() || names.insert(name).second) << name;
      name.clear();
    }
    EXPECT_NE(std::string(group.sentence).back(), '.');
  }
  EXPECT_GT(names.size(), 1000u);
  for (const std::string& own : own_names()) EXPECT_EQ(names.count(own), 0u) << own;
}

TEST(CommandWords, ANameThatMayBeMeant) {
  const Words known{"--max-model-len", "--memory-budget", "--port", "--host", "--adapter", "--adapter-dir"};
  EXPECT_EQ(nearest_name("--max-model-length", known), "--max-model-len");
  EXPECT_EQ(nearest_name("--memory-bugdet", known), "--memory-budget");
  EXPECT_EQ(nearest_name("--prot", known), "--port");
  EXPECT_EQ(nearest_name("--memory", known), "--memory-budget");
  EXPECT_EQ(nearest_name("--something-else-entirely", known), "");
  EXPECT_EQ(nearest_name(std::string(100'000, '-'), known), "");
}

}  // namespace
}  // namespace loralei
