// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of chat and completions: which tokens have an entry, and
// where its text lies.
#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

// Special tokens and the one that ends the choice are among the tokens and
// not in the text.
TEST_F(ApiTest, TextOffsetsAreThoseOfTheTextSent) {
  start();
  const std::string special = "<|endoftext|>";
  const auto joined = [&](const std::string& a, const std::string& b) {
    std::vector<TokenId> all = ids(a);
    all.push_back(tokenizer->find_token(special).value());
    for (const TokenId id : ids(b)) all.push_back(id);
    return all;
  };
  const std::string end = tokenizer->token_text(engine.eos);
  engine.script = [&](const Submit&, int) { return joined("w\xC3\xB6rld", " x"); };
  // The prompt, and how many characters it has in the answer before its last
  // token and in all.
  struct Case {
    BodyJson prompt;
    bool echo;
    size_t last, all;
  };
  for (const Case& one : {Case{"a", false, 0, 0}, Case{"\xC3\xA4 b", true, 2, 3}, Case{joined("a", " b"), true, 2, 3},
                          Case{"a" + special + " b", true, 2 + special.size(), 3 + special.size()}}) {
    BodyJson body = {{"prompt", one.prompt}, {"echo", one.echo}, {"logprobs", 0}, {"max_tokens", 40}};
    const BodyJson whole = BodyJson::parse(post("/v1/completions", body.dump()).body)["choices"][0];
    const BodyJson& offsets = whole["logprobs"]["text_offset"];
    const BodyJson& tokens = whole["logprobs"]["tokens"];
    const size_t n = tokens.size();
    ASSERT_EQ(offsets.size(), n);
    EXPECT_EQ(tokens[n - 3], special);
    EXPECT_EQ(offsets[n - 3], one.all + 5);
    EXPECT_EQ(tokens[n - 2], " x");
    EXPECT_EQ(offsets[n - 2], one.all + 5);
    EXPECT_EQ(tokens[n - 1], end);
    EXPECT_EQ(offsets[n - 1], one.all + 7);
    if (one.echo) {
      const size_t prompt = n - 1 - joined("w\xC3\xB6rld", " x").size();
      EXPECT_EQ(tokens[prompt - 1], "b");
      EXPECT_EQ(offsets[prompt - 1], one.last) << whole;
      EXPECT_EQ(offsets[prompt], one.all);
    }
    body["stream"] = true;
    std::string text;
    BodyJson streamed = BodyJson::array();
    for (const std::string& event : events("/v1/completions", body.dump())) {
      if (event == "[DONE]") continue;
      const BodyJson chunk = BodyJson::parse(event)["choices"][0];
      text += chunk["text"];
      for (const BodyJson& offset : chunk["logprobs"]["text_offset"]) streamed.push_back(offset);
    }
    EXPECT_EQ(text, whole["text"]);
    EXPECT_EQ(streamed, offsets);
  }
}

TEST_F(ApiTest, ChatLogprobsCarryBytes) {
  start();
  const BodyJson json = BodyJson::parse(post("/v1/chat/completions", chat(R"("logprobs":true,"top_logprobs":1)")).body);
  std::string joined;
  for (const BodyJson& token : json["choices"][0]["logprobs"]["content"]) {
    for (const BodyJson& byte : token["bytes"]) joined += static_cast<char>(byte.get<int>());
    EXPECT_EQ(token["top_logprobs"].size(), 1u);
  }
  EXPECT_EQ(joined, kScripted + tokenizer->token_text(engine.eos));
}

// One entry for every completion token, sent whole or in chunks, whatever
// becomes of the text.
TEST_F(ApiTest, EveryTokenHasAnEntryTheLastOneToo) {
  tokenizer = Tokenizer::from_directory(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/spm-bpe").value();
  text = TextModel::make(tokenizer, ChatTemplate::builtin("chatml").value(), "base").value();
  engine.eos = tokenizer->find_token("</s>").value();
  const TokenId half = tokenizer->find_token("<0xC3>").value();  // of a character whose rest never comes
  engine.script = [&](const Submit&, int choice) {
    return choice == 0 ? std::vector<TokenId>{} : std::vector<TokenId>{half, half};
  };
  start();
  for (const bool is_chat : {false, true}) {
    for (const bool skip : {false, true}) {
      BodyJson body = {{"n", 2}, {"max_tokens", 9}, {"skip_special_tokens", skip}, {"logprobs", 1}};
      if (is_chat) {
        body["messages"] = BodyJson::parse(R"([{"role":"user","content":"hi"}])");
        body["logprobs"] = true;
      } else {
        body["prompt"] = "a";
      }
      const std::string path = is_chat ? "/v1/chat/completions" : "/v1/completions";
      const auto names = [&](const BodyJson& logprobs) {
        std::vector<std::string> out;
        if (!logprobs.is_object()) return out;
        for (const BodyJson& token : logprobs[is_chat ? "content" : "tokens"])
          out.push_back((is_chat ? token["token"] : token).get<std::string>());
        return out;
      };
      const std::string broken = is_chat ? "\xEF\xBF\xBD" : "bytes:\\xc3";
      const std::vector<std::vector<std::string>> wanted = {{"</s>"}, {broken, broken, "</s>"}};
      const std::vector<std::string> texts = {"", "\xEF\xBF\xBD\xEF\xBF\xBD"};
      const BodyJson whole = BodyJson::parse(post(path, body.dump()).body);
      EXPECT_EQ(whole["usage"]["completion_tokens"], 4);
      for (size_t i = 0; i < 2; ++i) {
        const BodyJson& choice = whole["choices"][i];
        EXPECT_EQ(names(choice["logprobs"]), wanted[i]) << choice;
        EXPECT_EQ(is_chat ? choice["message"]["content"] : choice["text"], texts[i]);
      }
      if (!is_chat) {
        EXPECT_EQ(whole["choices"][1]["logprobs"]["text_offset"], BodyJson::parse("[0,0,2]"));
      }
      body["stream"] = true;
      std::vector<std::vector<std::string>> streamed(2);
      for (const std::string& event : events(path, body.dump())) {
        if (event == "[DONE]") continue;
        const BodyJson choice = BodyJson::parse(event)["choices"][0];
        for (std::string& name : names(choice["logprobs"])) streamed.at(choice["index"]).push_back(std::move(name));
      }
      EXPECT_EQ(streamed, wanted);
    }
  }
}

// As evaluation harnesses score a continuation: its log-probabilities are those between
// the context and the one token that had to be generated, whatever that is.
TEST_F(ApiTest, AnEchoIsFollowedByTheTokenThatEndsIt) {
  engine.script = [](const Submit&, int) { return std::vector<TokenId>{}; };
  engine.eos = tokenizer->find_token("<|endoftext|>").value();
  start();
  const BodyJson json =
      BodyJson::parse(post("/v1/completions", R"({"prompt":[5,6,7],"echo":true,"max_tokens":2,"logprobs":1})").body);
  const BodyJson& logprobs = json["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"], BodyJson::parse("[null,-1,-1,-0.5]")) << json;
  for (const char* list : {"tokens", "top_logprobs", "text_offset"}) EXPECT_EQ(logprobs[list].size(), 4u) << list;
  EXPECT_EQ(logprobs["text_offset"][3], json["choices"][0]["text"].get<std::string>().size());
}

// What a stop string cut off has no entries, nor has the end behind it.
TEST_F(ApiTest, EntriesEndWhereAStopStringCuts) {
  engine.script = [this](const Submit&, int) { return ids("a b c"); };
  start();
  for (const bool include : {false, true}) {
    BodyJson body = {{"prompt", "x"}, {"stop", " b"}, {"logprobs", 0}, {"include_stop_str_in_output", include}};
    const BodyJson choice = BodyJson::parse(post("/v1/completions", body.dump()).body)["choices"][0];
    EXPECT_EQ(choice["text"], include ? "a b" : "a");
    EXPECT_EQ(choice["logprobs"]["tokens"], BodyJson::parse(include ? R"(["a"," ","b"])" : R"(["a"])"));
  }
}

}  // namespace
}  // namespace loralei
