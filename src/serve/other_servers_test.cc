// SPDX-License-Identifier: Apache-2.0
// Routes that clients of llama.cpp, vLLM and SGLang read.
#include <gtest/gtest.h>
#include <unistd.h>

#include "serve/api_server.h"
#include "serve/server_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class OtherServersTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    base_ = fs::path(testing::TempDir()) / ("loralei-others-" + std::to_string(::getpid()));
    fs::remove_all(base_);
    for (const char* name : {"one", "two", "three"}) put(name);
    options.adapter_roots = {base_.string()};
    options.model_path = "/models/base";
    options.max_running = 7;
    options.commit = "abc";
  }
  void TearDown() override {
    server.reset();
    fs::remove_all(base_);
  }
  void put(const std::string& name) {
    fs::create_directories(base_ / name);
    std::ofstream(base_ / name / "adapter_config.json") << "{}";
  }
  // A tokenizer with a configuration beside it.
  void use_configured_tokenizer() {
    const std::string path = std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-gpt2/tokenizer.json";
    auto loaded = Tokenizer::from_json(disk.read_all(path, 1 << 26).value(), R"({"tokenizer_class":"GPT2Tokenizer",
        "eos_token":"!","bos_token":{"content":"?"},"additional_special_tokens":["#"],"chat_template":"{{ 'plain' }}"})");
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    tokenizer = *loaded;
    auto made = TextModel::make(tokenizer, nullptr, "base");
    ASSERT_TRUE(made.ok()) << made.error().message;
    text = *made;
  }
  // In the order one, three, two.
  void start_with_adapters() {
    start();
    EXPECT_EQ(server->rescan().added, (std::vector<std::string>{"one", "three", "two"}));
  }
  // What a request was computed with.
  std::string use(const std::string& fields) {
    const HttpResponse answer = post("/v1/chat/completions", chat(fields));
    if (answer.status != 200) return std::to_string(answer.status) + " " + error_of(answer, "message");
    return adapters_of(engine.wait_submit(submits_++));
  }
  std::string adapters_of(const Submit& submit) {
    std::string text;
    for (const AdapterUse& adapter : submit.adapters)
      text +=
          (text.empty() ? "" : " ") + engine.label(adapter.source) + "*" + std::to_string(adapter.scale).substr(0, 4);
    return text;
  }
  fs::path base_;
  size_t submits_ = 0;
};

TEST_F(OtherServersTest, ScalesSetForAllAreThoseOfRequestsThatNameNoAdapter) {
  start_with_adapters();
  const BodyJson before = BodyJson::parse(get("/lora-adapters").body);
  ASSERT_EQ(before.size(), 3u);
  EXPECT_EQ(before[1]["id"], 1);
  EXPECT_EQ(before[1]["name"], "three");
  EXPECT_EQ(before[1]["path"], fs::canonical(base_ / "three").string());
  for (const BodyJson& adapter : before) EXPECT_EQ(adapter["scale"], 0.0);
  EXPECT_EQ(use(""), "");
  const HttpResponse answer =
      post("/lora-adapters", R"([{"id":2,"scale":0.5},{"id":0,"scale":1.0},{"id":1,"scale":0}])");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.body, R"({"success":true})");
  const BodyJson after = BodyJson::parse(get("/lora-adapters").body);
  EXPECT_EQ(after[0]["scale"], 1.0);
  EXPECT_EQ(after[1]["scale"], 0.0);
  EXPECT_EQ(after[2]["scale"], 0.5);
  EXPECT_EQ(BodyJson::parse(get("/props").body)["default_generation_settings"]["params"]["lora"],
            BodyJson::parse(R"([{"id":0,"scale":1.0},{"id":2,"scale":0.5}])"));
  EXPECT_TRUE(logs("default adapters set adapters=\"0.5 two + 1 one\"")) << log.text();
  EXPECT_TRUE(counts("loralei_default_adapters_set_total 1"));

  EXPECT_EQ(use(""), "two*0.50 one*1.00") << "in the order in which they were set";
  EXPECT_EQ(use(R"("model":"alias")"), "two*0.50 one*1.00");
  EXPECT_EQ(use(R"("lora":[{"id":2,"scale":0.5},{"id":0,"scale":1.0}])"), "two*0.50 one*1.00");
  EXPECT_EQ(use(R"("model":"three")"), "three*1.00");
  EXPECT_EQ(use(R"("lora":[{"id":1,"scale":2}])"), "three*2.00");
  for (const char* none : {R"("lora":[])", R"("adapter_id":"")", R"("lora":[{"id":1,"scale":0}])"})
    EXPECT_EQ(use(none), "") << none;
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","model":"base"})").status, 200);
  EXPECT_EQ(adapters_of(engine.wait_submit(submits_++)), "two*0.50 one*1.00");
  EXPECT_EQ(post("/v1/embeddings", R"({"input":"x"})").status, 200);
  EXPECT_EQ(adapters_of(engine.wait_submit(submits_++)), "two*0.50 one*1.00");
  EXPECT_EQ(BodyJson::parse(get("/v1/models/base").body)["id"], "base") << "the base itself stays the base";

  EXPECT_EQ(post("/lora-adapters", "[]").status, 200);
  EXPECT_EQ(use(""), "");
  for (const BodyJson& adapter : BodyJson::parse(get("/lora-adapters").body)) EXPECT_EQ(adapter["scale"], 0.0);
}

TEST_F(OtherServersTest, ScalesThatCannotBeSetChangeNothing) {
  start_with_adapters();
  EXPECT_EQ(post("/lora-adapters", R"([{"id":"two","scale":2}])").status, 200);
  for (const auto& [body, sentence] : std::vector<std::pair<std::string, std::string>>{
           {R"([{"id":0,"scale":1},{"id":3,"scale":1}])",
            "No adapter has the id 3: the ids go from 0 to 2; GET /lora-adapters lists them. Nothing was changed."},
           {R"([{"id":"nobody","scale":1}])",
            "No adapter has the name `nobody`: the ids go from 0 to 2; GET /lora-adapters lists them. Nothing was "
            "changed."},
           {R"([{"id":0,"scale":1},{"id":"one","scale":1}])", "The adapter `one` is named twice. Nothing was changed."},
           {R"({"id":0,"scale":1})", "The request body must be a JSON array, not an object."},
           {R"([{"id":0}])", "'[0].scale' is missing; 0 switches an adapter off."}}) {
    const HttpResponse answer = post("/lora-adapters", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(error_of(answer, "message"), sentence);
  }
  EXPECT_EQ(use(""), "two*2.00");
  for (int i = 0; i < 9; ++i) put("many" + std::to_string(i));
  server->rescan();
  std::string many;
  for (int i = 0; i < 9; ++i) many += (i == 0 ? "" : ",") + ("{\"id\":\"many" + std::to_string(i)) + "\",\"scale\":1}";
  EXPECT_EQ(error_of(post("/lora-adapters", "[" + many + "]"), "message"),
            "9 adapters have a scale other than 0; at most 8 can be added up. Nothing was changed.");
  EXPECT_TRUE(counts("loralei_default_adapters_set_total 1"));
}

// Answered by the base, or by what has another's place now, nobody would notice.
TEST_F(OtherServersTest, ADefaultThatIsUnloadedIsMissed) {
  start_with_adapters();
  EXPECT_EQ(post("/lora-adapters", R"([{"id":2,"scale":1}])").status, 200);
  EXPECT_EQ(client().request("DELETE", "/v1/adapters/one")->status, 200);
  EXPECT_EQ(use(""), "two*1.00") << "its place is another one now";
  EXPECT_EQ(BodyJson::parse(get("/lora-adapters").body)[1]["scale"], 1.0);
  EXPECT_EQ(log.text().find("default adapter unloaded"), std::string::npos);
  EXPECT_EQ(client().request("DELETE", "/v1/adapters/two")->status, 200);
  EXPECT_TRUE(logs("default adapter unloaded adapter=two"));
  EXPECT_TRUE(use("").starts_with("404 The adapter `two`, which POST /lora-adapters made the default")) << use("");
  EXPECT_EQ(use(R"("model":"three")"), "three*1.00");
  EXPECT_EQ(use(R"("lora":[])"), "");
  EXPECT_EQ(server->rescan().added, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(use(""), "two*1.00") << "registered again";
}

TEST_F(OtherServersTest, KeysAndTheAdministratorsKey) {
  options.api_keys = {"k"};
  options.admin_key = "boss";
  start_with_adapters();
  for (const char* path : {"/lora-adapters", "/props", "/tokenizer_info", "/server_info", "/get_server_info",
                           "/model_info", "/get_model_info"}) {
    const HttpResponse refused = get(path);
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_EQ(refused.body.find("/models/base"), std::string::npos) << path;
    EXPECT_EQ(send("GET", path, "", {{"Authorization", "Bearer k"}}).status, 200) << path;
  }
  const std::string all = R"([{"id":0,"scale":1}])";
  EXPECT_EQ(post("/lora-adapters", all).status, 401);
  EXPECT_EQ(post("/lora-adapters", all, {{"Authorization", "Bearer k"}}).status, 403);
  EXPECT_EQ(post("/lora-adapters", all, {{"Authorization", "Bearer boss"}}).status, 200);
  EXPECT_EQ(send("POST", "/props", "{}", {{"Authorization", "Bearer k"}}).status, 405);
}

TEST_F(OtherServersTest, WhatClientsOfLlamaCppReadOfProps) {
  use_configured_tokenizer();
  options.defaults.temperature = 0.5;
  options.defaults.repetition_penalty = 1.25;
  options.defaults.top_k = 20;
  start();
  const BodyJson props = BodyJson::parse(get("/props").body);
  const BodyJson& settings = props["default_generation_settings"];
  EXPECT_EQ(settings["n_ctx"], 512);
  EXPECT_EQ(settings["params"]["temperature"], 0.5);
  EXPECT_EQ(settings["params"]["top_k"], 20);
  EXPECT_EQ(settings["params"]["top_p"], 1.0);
  EXPECT_EQ(settings["params"]["max_tokens"], -1);
  // Refused in requests unless it is 1; the model's own has the name that is taken here.
  EXPECT_EQ(settings["params"]["repeat_penalty"], 1.0);
  EXPECT_EQ(settings["params"]["repetition_penalty"], 1.25);
  EXPECT_EQ(props["total_slots"], 7);
  EXPECT_EQ(props["model_alias"], "base");
  EXPECT_EQ(props["model_path"], "/models/base");
  EXPECT_EQ(props["chat_template"], "{{ 'plain' }}");
  EXPECT_EQ(props["chat_template_caps"]["supports_tools"], false);
  EXPECT_EQ(props["modalities"]["vision"], false);
  EXPECT_EQ(props["bos_token"], "?");
  EXPECT_EQ(props["eos_token"], "!");
  EXPECT_EQ(props["build_info"], "loralei 0.0.test (abc)");
  EXPECT_EQ(props["is_sleeping"], false);
}

TEST_F(OtherServersTest, WhatClientsOfVllmAndSglangRead) {
  use_configured_tokenizer();
  start_with_adapters();
  const BodyJson info = BodyJson::parse(get("/tokenizer_info").body);
  EXPECT_EQ(info["tokenizer_class"], "GPT2Tokenizer") << info;
  EXPECT_EQ(info["model_max_length"], 512);
  EXPECT_EQ(info["vocab_size"], tokenizer->vocab_size());
  EXPECT_EQ(info["eos_token"], "!");
  EXPECT_EQ(info["bos_token"], "?");
  EXPECT_EQ(info["additional_special_tokens"], BodyJson::parse(R"(["#"])"));
  EXPECT_EQ(info["chat_template"], "{{ 'plain' }}");
  for (const char* path : {"/server_info", "/get_server_info", "/server_info?config_format=json"}) {
    const BodyJson server = BodyJson::parse(get(path).body);
    EXPECT_EQ(server["model_path"], "/models/base");
    EXPECT_EQ(server["served_model_name"], "base");
    EXPECT_EQ(server["version"], "0.0.test");
    EXPECT_EQ(server["max_model_len"], 512);
    EXPECT_EQ(server["max_running_requests"], 7);
    ASSERT_EQ(server["lora_paths"].size(), 3u);
    EXPECT_EQ(server["lora_paths"][0]["lora_name"], "one");
    EXPECT_EQ(server["internal_states"].size(), 1u);
    EXPECT_EQ(server["vllm_config"]["model_config"]["served_model_name"], BodyJson::parse(R"(["base","alias"])"));
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    const BodyJson model = BodyJson::parse(get(path).body);
    EXPECT_EQ(model["model_path"], "/models/base");
    EXPECT_EQ(model["is_generation"], true);
    EXPECT_EQ(model["weight_version"], "fp_test");
  }
}

// At start, and again at a rescan where it is broken or new.
TEST_F(OtherServersTest, BrokenAdaptersAreToldBeforeAnybodyAsks) {
  start_with_adapters();
  EXPECT_EQ(engine.checks.size(), 0u) << "nobody has asked for it yet";
  engine.next_checks["two"] = corrupt("It is cut off.");
  const AdapterChecks::State state = server->check_adapters(30'000);
  EXPECT_EQ(state.all, 3u);
  ASSERT_EQ(state.named.size(), 1u);
  EXPECT_EQ(state.named[0].sentence, "It is cut off.");
  const auto listed = [&](const char* name) {
    const BodyJson list = BodyJson::parse(get("/v1/adapters").body);
    for (const BodyJson& row : list["data"])
      if (row["name"] == name) return row["state"].get<std::string>() + " " + row["error"].dump();
    return std::string("none");
  };
  EXPECT_TRUE(soon([&] { return listed("two") == "failed \"It is cut off.\""; }));
  EXPECT_EQ(listed("one"), "registered null");
  put("four");
  engine.next_checks["two"] = {};
  EXPECT_EQ(BodyJson::parse(post("/v1/adapters/rescan", "").body)["added"], BodyJson::parse(R"(["four"])"));
  EXPECT_TRUE(soon([&] { return listed("two") == "registered null"; })) << "it was mended";
  EXPECT_TRUE(logs("adapters checked adapters=2 broken=0"));
  server->shutdown(0);
  EXPECT_EQ(engine.checks, (std::map<std::string, int>{{"one", 1}, {"two", 2}, {"three", 1}, {"four", 1}}));
}

}  // namespace
}  // namespace loralei
