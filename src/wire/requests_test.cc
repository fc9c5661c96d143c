// SPDX-License-Identifier: Apache-2.0
#include "wire/requests.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string chat(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
}
std::string completion(const std::string& more) { return R"({"prompt":"hi")" + (more.empty() ? "" : "," + more) + "}"; }

// The param of the error, "" when the request is accepted.
std::string chat_param(const std::string& more) {
  auto r = parse_chat_request(chat(more));
  if (r.ok()) return "";
  EXPECT_EQ(r.error().status, 400);
  EXPECT_FALSE(r.error().message.empty());
  return r.error().param;
}
std::string completion_param(const std::string& more) {
  auto r = parse_completion_request(completion(more));
  return r.ok() ? "" : r.error().param;
}

TEST(ChatRequest, ReadsEveryField) {
  auto r = parse_chat_request(R"({
    "model":"m","messages":[
      {"role":"developer","content":"be brief"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"bob"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"42"}],
    "temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,
    "seed":-7,"n":3,"max_completion_tokens":10,"min_tokens":2,"ignore_eos":true,"stop":["x","y"],"stop_token_ids":[1,2],
    "include_stop_str_in_output":true,"skip_special_tokens":false,"logit_bias":{"5":-100,"6":2.5},"logprobs":true,"top_logprobs":4,
    "stream":true,"stream_options":{"include_usage":true},"cache_salt":"s","app_id":"a","priority":-3,
    "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}],
    "tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false,
    "add_generation_prompt":false,"continue_final_message":true,"chat_template_kwargs":{"enable_thinking":false},
    "response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}})");
  ASSERT_TRUE(r.ok()) << r.error().message;
  const GenerationFields& c = r->common;
  EXPECT_EQ(c.model.model, "m");
  EXPECT_EQ(c.temperature, 0.5);
  EXPECT_EQ(c.top_p, 0.9);
  EXPECT_EQ(c.top_k, 40);
  EXPECT_EQ(c.min_p, 0.05);
  EXPECT_EQ(c.presence_penalty, 1);
  EXPECT_EQ(c.frequency_penalty, -1);
  EXPECT_EQ(c.repetition_penalty, 1.1);
  EXPECT_EQ(c.seed, -7);
  EXPECT_EQ(c.n, 3);
  EXPECT_EQ(c.max_tokens, 10);
  EXPECT_EQ(c.min_tokens, 2);
  EXPECT_TRUE(c.ignore_eos && c.include_stop_str_in_output && !c.skip_special_tokens);
  EXPECT_EQ(c.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(c.stop_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(c.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -100.f}, {6, 2.5f}}));
  EXPECT_TRUE(c.logprobs && c.stream && c.include_usage);
  EXPECT_EQ(c.top_logprobs, 4);
  EXPECT_EQ(c.cache_salt + c.app_id, "sa");
  EXPECT_EQ(c.priority, -3);
  EXPECT_EQ(c.output.format, OutputFormat::kJsonSchema);
  EXPECT_EQ(c.output.schema, R"({"type":"object"})");
  EXPECT_TRUE(c.unknown_fields.empty());
  const auto& messages = r->prompt.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[1].content, "a\nb");
  EXPECT_EQ(messages[1].name, "bob");
  EXPECT_FALSE(messages[2].has_content);
  EXPECT_EQ(messages[2].tool_calls[0].arguments, R"({"x":1})");
  EXPECT_EQ(messages[3].tool_call_id, "c1");
  EXPECT_EQ(r->prompt.tools[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(r->tool_choice, WireToolChoice::kFunction);
  EXPECT_FALSE(r->parallel_tool_calls || r->prompt.add_generation_prompt);
  EXPECT_TRUE(r->prompt.continue_final_message);
  EXPECT_EQ(r->prompt.template_kwargs, R"({"enable_thinking":false})");
}

TEST(ChatRequest, AbsentAndNullAreTheSame) {
  auto r =
      parse_chat_request(chat(R"("temperature":null,"stop":null,"n":null,"tools":null,"logit_bias":null,"stream":null,
      "stream_options":null,"response_format":null,"seed":null,"model":null,"logprobs":null,"lora_path":null)"));
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_FALSE(r->common.temperature || r->common.max_tokens || r->common.seed);
  EXPECT_EQ(r->common.n, 1);
  EXPECT_TRUE(r->common.model.model.empty() && r->prompt.add_generation_prompt);
}

TEST(ChatRequest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("top_p":1.5)", "top_p"},
      {R"("top_k":1.5)", "top_k"},
      {R"("top_k":-2)", "top_k"},
      {R"("seed":1e30)", "seed"},
      {R"("seed":18446744073709551615)", "seed"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":true)", "n"},
      {R"("max_tokens":-2)", "max_tokens"},
      {R"("max_tokens":5,"max_completion_tokens":6)", "max_tokens"},
      {R"("max_tokens":5,"min_tokens":6)", "min_tokens"},
      {R"("stop":"")", "stop"},
      {R"("stop":["a",1])", "stop"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema.schema"},
      {R"("guided_json":5)", "guided_json"},
      {R"("guided_json":{},"guided_regex":"a")", "guided_regex"},
      {R"("structured_outputs":{"grammar":"x"})", "structured_outputs.grammar"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":"a"}},{"function":{"name":"a"}}])", "tools[1]"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
      {R"("add_generation_prompt":true,"continue_final_message":true)", "continue_final_message"},
      {R"("chat_template_kwargs":[1])", "chat_template_kwargs"},
      {R"("priority":3000000000)", "priority"},
      {R"("adapter_id":"a","lora":[{"id":1}])", "lora"},
      {R"("lora":[{"id":-1}])", "lora[0].id"},
      {R"("lora":[{"scale":1}])", "lora[0].name"},
      {R"("adapters":[{"name":"a","scale":1e9}])", "adapters[0].scale"},
      {R"("adapters":[{"name":"a","path":"/x"}])", "adapters[0].path"},
  };
  for (const auto& [json, param] : cases) EXPECT_EQ(chat_param(json), param) << json;
}

TEST(ChatRequest, MessagesAreChecked) {
  const auto param = [](const std::string& messages) {
    auto r = parse_chat_request(R"({"messages":)" + messages + "}");
    return r.ok() ? std::string() : r.error().param;
  };
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("5"), "messages");
  EXPECT_EQ(param("[5]"), "messages[0]");
  EXPECT_EQ(param(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"wizard","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(param(R"([{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}])"),
            "messages[0].tool_calls");
  // Arguments are JSON inside the JSON: the same limits, though as text they
  // are one string.
  std::string arguments = "{";
  for (int i = 0; i < 100'000; ++i) arguments += (i > 0 ? ",\\\"" : "\\\"") + std::to_string(i) + "\\\":0";
  const auto with = [](const std::string& text) {
    return R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":")" + text + R"("}}]}])";
  };
  EXPECT_EQ(param(with(arguments + "}")), "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(param(with(std::string(200, '['))), "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(param(R"([{"role":"assistant"},{"role":"user","content":""}])"), "");
  EXPECT_EQ(parse_chat_request("{}").error().param, "messages");
}

TEST(Requests, FieldsWithoutMeaningUnsupportedAndUnknown) {
  auto r = parse_chat_request(
      chat(R"("user":"u","store":true,"metadata":{},"reasoning_effort":"low","frobnicate":1,"x\ny":2)"));
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ(r->common.unknown_fields, (std::vector<std::string>{"frobnicate", "x?y"}));
  EXPECT_EQ(chat_param(R"("audio":{"voice":"x"})"), "audio");
  EXPECT_EQ(chat_param(R"("modalities":["text","audio"])"), "modalities");
  EXPECT_EQ(chat_param(R"("modalities":["text"])"), "");
  EXPECT_EQ(chat_param(R"("best_of":2)"), "best_of");
  EXPECT_EQ(chat_param(R"("length_penalty":1)"), "");
  EXPECT_EQ(chat_param(R"("length_penalty":2)"), "length_penalty");
  EXPECT_EQ(chat_param(R"("functions":[{"name":"f"}])"), "functions");
  EXPECT_EQ(chat_param(R"("merged_adapters":{})"), "merged_adapters");
  EXPECT_EQ(completion_param(R"("suffix":"x")"), "suffix");
  EXPECT_EQ(completion_param(R"("suffix":"")"), "");
  EXPECT_EQ(completion_param(R"("best_of":2,"n":2)"), "");
  EXPECT_EQ(completion_param(R"("best_of":3,"n":2)"), "best_of");
  EXPECT_EQ(completion_param(R"("logits_processors":["x"])"), "logits_processors");
}

TEST(Requests, OtherServersNamesAreToldTheirNameHere) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("regex":"a+")", "guided_regex"},
      {R"("ebnf":"root ::= \"a\"")", "response_format"},
      {R"("stop_regex":"a+")", "Use stop"},
      {R"("max_new_tokens":5)", "max_tokens"},
      {R"("min_new_tokens":5)", "min_tokens"},
      {R"("no_repeat_ngram_size":3)", "repetition_penalty"},
      {R"("stop_sequences":["x"])", "Use stop"},
      {R"("do_sample":false)", "temperature"},
      {R"("no_stop_trim":true)", "include_stop_str_in_output"},
  };
  for (const auto& [json, advice] : cases) {
    for (const ApiError& error :
         {parse_chat_request(chat(json)).error(), parse_completion_request(completion(json)).error()}) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.code, "unsupported_parameter");
      EXPECT_NE(error.message.find(advice), std::string::npos) << error.message;
    }
  }
  const char* neutral = R"("regex":null,"no_repeat_ngram_size":0,"do_sample":true,"stop_sequences":[],"num_beams":1)";
  EXPECT_EQ(chat_param(neutral), "");
}

TEST(Requests, SpecialTokensAreTheClientsChoice) {
  EXPECT_FALSE(parse_chat_request(chat(""))->add_special_tokens);
  EXPECT_TRUE(parse_chat_request(chat(R"("add_special_tokens":true)"))->add_special_tokens);
  EXPECT_TRUE(parse_completion_request(completion(""))->add_special_tokens);
  EXPECT_TRUE(parse_embedding_request(R"({"input":"a"})")->add_special_tokens);
  EXPECT_FALSE(parse_embedding_request(R"({"input":"a","add_special_tokens":false})")->add_special_tokens);
  EXPECT_EQ(chat_param(R"("add_special_tokens":1)"), "add_special_tokens");
}

// As transformers has them, a template sees a message's fields whatever their names are.
TEST(Requests, OtherFieldsOfMessagesGoOnAsTheyCame) {
  auto r = parse_chat_request(R"({"messages":[{"role":"user","content":"a","cache_control":{"type":"x"}},
      {"role":"assistant","reasoning_content":"r","content":null,"thoughts":["t",1.5,{"b":[true,null]}],"refusal":null,
       "cache_control":null},
      {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}],"\u00e9\"":""}]})");
  ASSERT_TRUE(r.ok()) << r.error().message;
  const auto& messages = r->prompt.messages;
  EXPECT_EQ(messages[0].more, R"({"cache_control":{"type":"x"}})");
  EXPECT_EQ(messages[1].more,
            R"({"reasoning_content":"r","thoughts":["t",1.5,{"b":[true,null]}],"refusal":null,"cache_control":null})");
  EXPECT_EQ(messages[2].more, "{\"\xC3\xA9\\\"\":\"\"}");
  EXPECT_TRUE(messages[0].has_content && !messages[0].null_content);
  EXPECT_TRUE(!messages[1].has_content && messages[1].null_content);
  EXPECT_TRUE(!messages[2].has_content && !messages[2].null_content);
  EXPECT_TRUE(r->common.unknown_fields.empty());
  EXPECT_EQ(r->prompt.message_fields,
            (std::vector<std::string>{"cache_control", "reasoning_content", "thoughts", "??\""}));
  for (const char* field : {"audio", "function_call"}) {
    const std::string message = R"({"messages":[{"role":"assistant","content":"a",")" + std::string(field);
    EXPECT_TRUE(parse_chat_request(message + "\":null}]}").ok());
    EXPECT_EQ(parse_chat_request(message + "\":{\"id\":1}}]}").error().param, "messages[0]." + std::string(field));
  }
}

TEST(Requests, NamesOfMessagesFieldsAreBounded) {
  std::string messages;
  for (int i = 0; i < 100; ++i)
    messages += std::string(i > 0 ? "," : "") + R"({"role":"user","content":"a","f)" + std::to_string(i) + R"(":1})";
  auto r = parse_chat_request(R"({"messages":[)" + messages + "]}");
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->prompt.message_fields.size(), kMaxUnknownFields + 1);
}

TEST(Requests, DocumentsAreObjectsAndOfChatsAlone) {
  auto r = parse_chat_request(chat(R"("documents":[{"title":"T","text":"x"},{}])"));
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ(r->prompt.documents, R"([{"title":"T","text":"x"},{}])");
  EXPECT_EQ(chat_param(R"("documents":[{},"x"])"), "documents[1]");
  EXPECT_EQ(chat_param(R"("documents":"x")"), "documents");
  EXPECT_EQ(completion_param(R"("documents":[{}])"), "documents");
  EXPECT_EQ(completion_param(R"("documents":[])"), "");
}

TEST(Requests, UnknownFieldsAreBounded) {
  std::string more = "\"a0\":0";
  for (int i = 1; i < 100; ++i) more += ",\"a" + std::to_string(i) + std::string(200, 'z') + "\":0";
  auto r = parse_chat_request(chat(more));
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->common.unknown_fields.size(), kMaxUnknownFields + 1);
  EXPECT_EQ(r->common.unknown_fields.back(), "...");
  for (const auto& name : r->common.unknown_fields) EXPECT_LE(name.size(), 64u);
}

TEST(Requests, AdaptersByEveryConvention) {
  auto refs = [](const std::string& json) {
    auto r = parse_chat_request(chat(json));
    EXPECT_TRUE(r.ok()) << r.error().message;
    return r.ok() ? r->common.model : ModelRef{};
  };
  EXPECT_EQ(refs(R"("model":"base:a")").model, "base:a");
  EXPECT_EQ(refs(R"("adapter_id":"a")").adapters.at(0).name, "a");
  EXPECT_EQ(refs(R"("lora_path":"a")").adapters_param, "lora_path");
  EXPECT_TRUE(refs(R"("adapter_id":"","lora":[])").adapters.empty());
  auto lora = refs(R"("lora":[{"id":1,"scale":0.5},{"id":"b","scale":-2}])").adapters;
  ASSERT_EQ(lora.size(), 2u);
  EXPECT_EQ(lora[0].index, 1);
  EXPECT_EQ(lora[0].scale, 0.5f);
  EXPECT_EQ(lora[1].name, "b");
  EXPECT_EQ(lora[1].index, -1);
  EXPECT_EQ(refs(R"("adapters":[{"name":"a","weight":0.25}])").adapters.at(0).scale, 0.25f);
}

TEST(CompletionRequest, PromptsInFourForms) {
  const auto prompts = [](const std::string& json) {
    auto r = parse_completion_request(R"({"prompt":)" + json + "}");
    return r.ok() ? r->prompts : std::vector<PromptInput>{};
  };
  EXPECT_EQ(prompts(R"("a")").at(0).text, "a");
  EXPECT_EQ(prompts(R"(["a","b"])").size(), 2u);
  auto tokens = prompts("[1,2,3]");
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(prompts("[[1],[2,3]]").size(), 2u);
  for (const char* bad : {"[]", "[[]]", "5", "{}", "[true]", "[1,\"a\"]", "[-1]", "[1.5]", "[4000000000]", "null"}) {
    EXPECT_TRUE(prompts(bad).empty()) << bad;
  }
  EXPECT_EQ(parse_completion_request("{}").error().code, "missing_required_parameter");
}

TEST(CompletionRequest, LogprobsEchoAndLimits) {
  auto r = parse_completion_request(completion(R"("logprobs":0,"echo":true,"max_tokens":0)"));
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_TRUE(r->common.logprobs && r->echo);
  EXPECT_EQ(r->common.max_tokens, 0);
  EXPECT_EQ(completion_param(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(completion_param(R"("top_logprobs":3)"), "top_logprobs");
  auto unlimited = parse_completion_request(completion(R"("n_predict":-1)"));
  ASSERT_TRUE(unlimited.ok());
  EXPECT_FALSE(unlimited->common.max_tokens);
  auto many = parse_completion_request(R"({"prompt":["a","b","c"],"n":128})");
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.error().param, "n");
}

TEST(Requests, NProbsOfZeroIsOffAndContradictionsAreRefused) {
  constexpr int kOff = -1, kRefused = -2;
  // The number of alternatives; kOff: no log-probabilities; kRefused: 400 about n_probs.
  const auto told = [](auto request) {
    if (!request.ok()) return request.error().param == "n_probs" ? kRefused : -3;
    return request->common.logprobs ? request->common.top_logprobs : kOff;
  };
  const std::pair<const char*, int> cases[] = {
      {R"("n_probs":0)", kOff},
      {R"("n_probs":3)", 3},
      {R"("n_probs":3,"logprobs":true)", 3},
      {R"("n_probs":3,"logprobs":false)", kRefused},
      {R"("n_probs":0,"logprobs":true)", kRefused},
      {R"("n_probs":0,"logprobs":false)", kOff},
  };
  for (const auto& [json, expected] : cases) {
    EXPECT_EQ(told(parse_completion_request(completion(json))), expected) << json;
    EXPECT_EQ(told(parse_chat_request(chat(json))), expected) << json;
  }
  EXPECT_EQ(told(parse_completion_request(completion(R"("n_probs":5,"logprobs":5)"))), 5);
  EXPECT_EQ(told(parse_completion_request(completion(R"("n_probs":0,"logprobs":5)"))), kRefused);
  EXPECT_EQ(told(parse_completion_request(completion(R"("n_probs":5,"logprobs":0)"))), kRefused);
  EXPECT_EQ(told(parse_completion_request(completion(R"("n_probs":0,"logprobs":0)"))), kRefused);
  EXPECT_EQ(told(parse_chat_request(chat(R"("n_probs":5,"top_logprobs":5)"))), 5);
  EXPECT_EQ(told(parse_chat_request(chat(R"("n_probs":5,"logprobs":true,"top_logprobs":3)"))), kRefused);
  EXPECT_EQ(told(parse_chat_request(chat(R"("n_probs":0,"top_logprobs":0)"))), kOff);
}

TEST(OtherRequests, HowAnApplicationStands) {
  EXPECT_EQ(parse_app_state_request(R"({"state":"background","pid":12})")->pid, 12);
  EXPECT_EQ(parse_app_state_request(R"({"state":"killed"})")->state, AppStateKind::kKilled);
  for (const char* bad : {"{}", R"({"state":"asleep"})", R"({"state":1})", R"({"state":"killed","pid":12})",
                          R"({"state":"foreground","pid":0})", R"({"state":"foreground","pid":"1"})"}) {
    EXPECT_FALSE(parse_app_state_request(bad).ok()) << bad;
  }
}

TEST(OtherRequests, EmbeddingsTokenizeAdaptersApps) {
  auto e = parse_embedding_request(R"({"input":["a","b"],"encoding_format":"base64","model":"m"})");
  ASSERT_TRUE(e.ok());
  EXPECT_TRUE(e->base64);
  EXPECT_EQ(parse_embedding_request(R"({"input":"a","encoding_format":"hex"})").error().param, "encoding_format");
  EXPECT_EQ(parse_embedding_request(R"({"input":"a","dimensions":5})").error().param, "dimensions");
  auto t = parse_tokenize_request(R"({"content":"x","add_special":false,"with_pieces":true})");
  ASSERT_TRUE(t.ok());
  EXPECT_TRUE(!t->add_special_tokens && t->return_token_strs && t->text == "x");
  auto tc = parse_tokenize_request(R"({"messages":[{"role":"user","content":"x"}]})");
  ASSERT_TRUE(tc.ok());
  EXPECT_TRUE(tc->is_chat);
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[1,2]})")->tokens.size(), 2u);
  EXPECT_EQ(parse_detokenize_request(R"({})").error().param, "tokens");
  std::string ids = "1";
  for (size_t i = 1; i < kMaxDetokenizeIds; ++i) ids += ",1";
  EXPECT_TRUE(parse_detokenize_request(R"({"tokens":[)" + ids + "]}").ok());
  auto many = parse_detokenize_request(R"({"tokens":[)" + ids + ",1]}");
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.error().status, 400);
  EXPECT_EQ(many.error().message, "'tokens' has 262145 entries; at most 262144 are accepted.");
  const std::string text(kMaxTokenizeBytes, 'x');
  EXPECT_TRUE(parse_tokenize_request(R"({"prompt":")" + text + R"("})").ok());
  EXPECT_EQ(parse_tokenize_request(R"({"prompt":"x)" + text + R"("})").error().param, "prompt");
  EXPECT_EQ(parse_tokenize_request(R"({"messages":[{"role":"user","content":")" + text +
                                   R"("},{"role":"user","content":"x"}]})")
                .error()
                .param,
            "messages");
  auto load = parse_load_lora_request(R"({"lora_name":"a","lora_path":"p","load_inplace":true})");
  ASSERT_TRUE(load.ok());
  EXPECT_TRUE(load->load_inplace);
  auto bad = parse_load_lora_request(R"({"lora_name":"a"})");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().type, "InvalidUserInput");
  EXPECT_FALSE(parse_load_lora_request(R"({"lora_name":"a,b","lora_path":"p"})").ok());
  EXPECT_FALSE(parse_load_lora_request(R"({"lora_name":"a","lora_path":"p\u0000q"})").ok());
  EXPECT_FALSE(parse_unload_lora_request("{}").ok());
  EXPECT_EQ(parse_set_memory_request(R"({"budget_bytes":3000000000})")->budget_bytes, 3000000000);
  EXPECT_EQ(parse_set_memory_request(R"({"budget_bytes":"2GiB"})")->budget_bytes, int64_t{2} << 30);
  for (const char* bad : {"{}", R"({"budget_bytes":0})", R"({"budget_bytes":-1})", R"({"budget_bytes":1.5})",
                          R"({"budget_bytes":"much"})", R"({"budget_bytes":[]})", R"({"budget_bytes":1e30})"}) {
    EXPECT_FALSE(parse_set_memory_request(bad).ok()) << bad;
  }
  const auto scales =
      parse_lora_scales_request(R"([{"id":0,"scale":0.25},{"id":"law","scale":0},{"id":1,"scale":-1}])");
  ASSERT_EQ(Parsed(scales)->adapters.size(), 3u);
  EXPECT_EQ(Parsed(scales)->adapters[0].index, 0);
  EXPECT_EQ(Parsed(scales)->adapters[0].scale, 0.25f);
  EXPECT_EQ(Parsed(scales)->adapters[1].name, "law");
  EXPECT_EQ(parse_lora_scales_request("[]")->adapters.size(), 0u);
  for (const auto& [bad, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"", "The request body is empty; a JSON array is needed."},
           {"{}", "The request body must be a JSON array, not an object."},
           {"[1]", "The request body must be an array of objects with 'id' and 'scale'."},
           {R"([{"id":0}])", "'[0].scale' is missing; 0 switches an adapter off."},
           {R"([{"id":0,"scale":1},{"scale":1}])", "'[1].name' is missing."},
           {R"([{"id":-1,"scale":1}])", "'[0].id' must lie between 0 and 2147483647, not -1."},
           {R"([{"id":0,"scale":"x"}])", "'[0].scale' must be a number, not a string."},
           {R"([{"id":0,"scale":1,"rank":3}])",
            "'[0].rank' is not a field of an adapter entry: use name and scale."}}) {
    auto refused = parse_lora_scales_request(bad);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.error().message, sentence) << bad;
  }
  EXPECT_EQ(parse_app_state_request(R"({"state":"background","pid":7})")->pid, 7);
  EXPECT_FALSE(parse_app_state_request(R"({"state":"asleep"})").ok());
}

TEST(Json, StrictAndBounded) {
  const auto code = [](const std::string& body) {
    auto r = parse_chat_request(body);
    return r.ok() ? std::string("ok") : r.error().code;
  };
  const std::string quote = "\"";
  for (const std::string& bad : std::vector<std::string>{
           std::string(""), std::string("{"), std::string("{}x"), std::string("{'a':1}"), std::string("{\"a\":NaN}"),
           std::string("{\"a\":1e999}"), std::string("{\"a\":1,}"), std::string("/* c */{}"), std::string("{}\0{}", 5),
           "{\"a\":\"\xff\"}", std::string("{\"a\":\"\\ud800\"}"), std::string("{\"a\":\"\\udc00x\"}"),
           "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}",
           std::string(100'000, '[')}) {
    EXPECT_EQ(code(bad), "invalid_json") << bad.substr(0, 40);
  }
  std::string members = "{\"a0\":0";
  for (int i = 1; i <= kMaxJsonMembers; ++i) members += ",\"a" + std::to_string(i) + "\":0";
  EXPECT_EQ(code(members + "}"), "invalid_json");
  EXPECT_EQ(code("[]"), "invalid_type");
  // Brackets inside strings are not depth; a duplicate key's last value wins.
  auto r = parse_completion_request(R"({"prompt":"a","prompt":")" + std::string(500, '[') + R"("})");
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ(r->prompts[0].text.size(), 500u);
  auto ordered = parse_chat_request(chat(R"("tools":[{"function":{"parameters":{"z":1,"a":2},"name":"f"}}])"));
  ASSERT_TRUE(ordered.ok());
  EXPECT_EQ(ordered->prompt.tools[0].json, R"({"function":{"parameters":{"z":1,"a":2},"name":"f"}})");
  auto surrogate = parse_completion_request(R"({"prompt":"\ud83d\ude00"})");
  ASSERT_TRUE(surrogate.ok());
  EXPECT_EQ(surrogate->prompts[0].text, "\xF0\x9F\x98\x80");
}

}  // namespace
}  // namespace loralei
