// SPDX-License-Identifier: Apache-2.0
// What ended a choice: its reasons, and what the answer's text holds of it.
#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

class EndsTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    tokenizer =
        Tokenizer::from_directory(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/spm-bpe").value();
    text = TextModel::make(tokenizer, ChatTemplate::builtin("chatml").value(), "base").value();
    engine.script = [this](const Submit&, int) { return ids("a b c"); };
  }
  // A choice with the fields of its answer that both routes have: text, finish_reason,
  // stop_reason.
  BodyJson choice(bool is_chat, bool stream, BodyJson body) {
    const std::string path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    if (is_chat)
      body["messages"] = BodyJson::parse(R"([{"role":"user","content":"hi"}])");
    else
      body["prompt"] = "x";
    if (!body.contains("max_tokens")) body["max_tokens"] = 40;
    std::string text;
    BodyJson last;
    if (!stream) {
      last = BodyJson::parse(post(path, body.dump()).body)["choices"][0];
      text = is_chat ? last["message"]["content"] : last["text"];
    } else {
      body["stream"] = true;
      for (const std::string& event : events(path, body.dump())) {
        if (event == "[DONE]") continue;
        last = BodyJson::parse(event)["choices"][0];
        if (is_chat)
          text += last["delta"].value("content", "");
        else
          text += last["text"];
        EXPECT_EQ(last.contains("stop_reason"), !last["finish_reason"].is_null()) << event;
      }
    }
    return {{"text", text}, {"finish_reason", last["finish_reason"]}, {"stop_reason", last.at("stop_reason")}};
  }
};

TEST_F(EndsTest, TheStopReasonIsTheStopThatWasNamed) {
  const TokenId eos = tokenizer->eos().value(), other = ids("z").back();
  struct Case {
    BodyJson body;
    TokenId ends;  // what the model ends with
    BodyJson finish, stop;
  };
  const std::vector<Case> cases = {
      {{{"stop", {"never", " b"}}}, eos, "stop", " b"},
      {{{"stop", "never"}}, eos, "stop", nullptr},
      {{{"stop_token_ids", {eos, other}}}, other, "stop", other},
      {{{"stop_token_ids", {eos, other}}}, eos, "stop", nullptr},
      {{{"stop_token_ids", {eos, other}}, {"ignore_eos", true}}, eos, "stop", eos},
      {{{"stop_token_ids", {eos}}}, other, "stop", nullptr},  // an end of the model's configuration
      {{{"max_tokens", 1}}, eos, "length", nullptr},
  };
  start();
  for (const Case& one : cases) {
    engine.eos = one.ends;
    for (const bool is_chat : {false, true}) {
      for (const bool stream : {false, true}) {
        const BodyJson got = choice(is_chat, stream, one.body);
        EXPECT_EQ(got["finish_reason"], one.finish) << one.body;
        EXPECT_EQ(got["stop_reason"], one.stop) << one.body;
      }
    }
  }
}

// As a stop string; a special token only where such are shown at all.
TEST_F(EndsTest, TheEndingTokenIsPartOfTheTextOnRequest) {
  const TokenId eos = tokenizer->eos().value(), other = ids("z").back();
  const std::string z = tokenizer->token_text(other), plain = " a b c";
  struct Case {
    TokenId ends;
    bool include, skip_special;
    std::string text;
  };
  start();
  for (const Case& one :
       {Case{other, true, true, plain + z}, Case{other, false, true, plain}, Case{eos, true, true, plain},
        Case{eos, true, false, plain + "</s>"}, Case{eos, false, false, plain}}) {
    engine.eos = one.ends;
    const BodyJson body = {{"stop_token_ids", {other}},
                           {"include_stop_str_in_output", one.include},
                           {"skip_special_tokens", one.skip_special}};
    for (const bool is_chat : {false, true}) {
      for (const bool stream : {false, true}) EXPECT_EQ(choice(is_chat, stream, body)["text"], one.text);
    }
  }
  // Its text may complete a stop string, which then is the reason.
  engine.eos = other;
  const BodyJson cut = choice(true, false, {{"stop", "c" + z}, {"include_stop_str_in_output", true}});
  EXPECT_EQ(cut["text"], plain + z);
  EXPECT_EQ(cut["stop_reason"], "c" + z);
}

}  // namespace
}  // namespace loralei
