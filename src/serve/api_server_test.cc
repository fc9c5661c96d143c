// SPDX-License-Identifier: Apache-2.0
#include "serve/api_server.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <limits>
#include <set>

#include "serve/adapter_paths.h"
#include "serve/server_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

// A root with adapters "one" and "two", one that is broken, a link that leads out, and
// a folder beside it.
class AdapterTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    base_ = fs::path(testing::TempDir()) / ("loralei-serve-" + std::to_string(::getpid()));
    fs::remove_all(base_);
    for (const char* name : {"root/one", "root/two", "root/broken", "root/plain", "outside/three"})
      fs::create_directories(base_ / name);
    for (const char* name : {"root/one", "root/two", "root/broken", "outside/three"})
      std::ofstream(base_ / name / "adapter_config.json") << "{}";
    fs::create_directory_symlink(base_ / "outside/three", base_ / "root/link");
    options.adapter_roots = {(base_ / "root").string()};
  }
  void TearDown() override {
    server.reset();
    fs::remove_all(base_);
  }
  HttpResponse load(const std::string& name, const std::string& path, const std::string& more = "") {
    return post("/v1/load_lora_adapter", R"({"lora_name":")" + name + R"(","lora_path":")" + path + "\"" + more + "}");
  }
  fs::path base_;
};

TEST_F(AdapterTest, LoadAndUnloadAsVllm) {
  start();
  const std::string one = (base_ / "root/one").string();
  HttpResponse answer = load("one", one);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.body, "Success: LoRA adapter 'one' added successfully.");
  answer = load("one", one);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(error_of(answer, "type"), "InvalidUserInput");
  EXPECT_EQ(load("one", one, R"(,"load_inplace":true)").status, 200);
  EXPECT_EQ(load("base", one).status, 409);
  EXPECT_EQ(load("two", "two", R"(,"pinned":true)").status, 200);  // relative to the root
  EXPECT_EQ(load("x", (base_ / "root/broken").string()).status, 400);
  const BodyJson models = BodyJson::parse(get("/v1/models").body);
  ASSERT_EQ(models["data"].size(), 4u);
  EXPECT_EQ(models["data"][2]["id"], "one");
  EXPECT_EQ(models["data"][2]["parent"], "base");
  EXPECT_EQ(BodyJson::parse(get("/v1/models/one").body)["root"], one);
  EXPECT_EQ(get("/v1/models/x").status, 404);
  EXPECT_EQ(BodyJson::parse(get("/v1/adapters").body)["data"][0]["state"], "ready");
  answer = post("/v1/unload_lora_adapter", R"({"lora_name":"one"})");
  EXPECT_EQ(answer.body, "Success: LoRA adapter 'one' removed successfully.");
  EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"one"})").status, 404);
  EXPECT_EQ(error_of(post("/v1/unload_lora_adapter", "{}"), "type"), "InvalidUserInput");
  HttpClient c = client();
  EXPECT_EQ(BodyJson::parse(c.request("DELETE", "/v1/adapters/two")->body)["bytes_freed"], 123);
  EXPECT_EQ(c.request("DELETE", "/v1/adapters/two")->status, 404);
}

TEST_F(AdapterTest, WhatWasUnloadedWhileItWasLoadedStaysAway) {
  start();
  const std::string one = (base_ / "root/one").string();
  EXPECT_EQ(load("one", one).status, 200);
  engine.hold_replies = true;
  HttpResponse loaded, removed;
  std::thread loading([&] { loaded = load("one", one, R"(,"load_inplace":true)"); });
  EXPECT_TRUE(engine.wait_for_commands(2));
  std::thread removing([&] { removed = *client().request("DELETE", "/v1/adapters/one"); });
  EXPECT_TRUE(engine.wait_for_commands(3));
  engine.release_replies();
  loading.join();
  removing.join();
  EXPECT_EQ(loaded.status, 404) << loaded.body;
  EXPECT_EQ(removed.status, 200) << removed.body;
  EXPECT_EQ(get("/v1/models/one").status, 404);
  engine.hold_replies = false;
  EXPECT_EQ(load("one", one).status, 200) << "the name is free again";
}

TEST_F(AdapterTest, WhatTheEngineWasNotToldToForgetStaysListed) {
  start();
  EXPECT_EQ(load("one", (base_ / "root/one").string()).status, 200);
  engine.next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  EXPECT_EQ(client().request("DELETE", "/v1/adapters/one")->status, 429);
  EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"one"})").status, 429);
  EXPECT_EQ(get("/v1/models/one").status, 200);
  engine.next_command = {};
  EXPECT_EQ(client().request("DELETE", "/v1/adapters/one")->status, 200);
}

// A request is computed with the source whose template made its prompt, whichever the
// name means when it gets there; the engine knows that source as long.
TEST_F(AdapterTest, ARequestWhoseAdapterIsReplacedOnItsWayIsComputedWithTheOneItWasMadeFor) {
  start();
  const auto write_template = [&](const std::string& letter) {
    std::ofstream(base_ / "root/one" / "tokenizer_config.json")
        << R"({"chat_template":")" << letter << R"({{ messages[0].content }}"})";
  };
  const std::string one = (base_ / "root/one").string();
  write_template("A");
  EXPECT_EQ(load("one", one).status, 200);
  engine.hold_tokens = true;
  HttpResponse answer;
  std::thread asking([&] { answer = post("/v1/chat/completions", chat(R"("model":"one")")); });
  const Submit before = engine.wait_submit(0);
  EXPECT_EQ(before.prompt, ids("Ahi"));
  write_template("B");
  EXPECT_EQ(load("one", one, R"(,"load_inplace":true)").status, 200);
  EXPECT_TRUE(engine.wait_for_commands(2));
  EXPECT_EQ(engine.commands[1].replaces, before.adapters[0].source);
  engine.emit(before.id, 5, EndReason::kStop);
  asking.join();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(engine.wait_for_commands(3));
  EXPECT_EQ(engine.commands[2].action, AdapterAction::kDrop);
  EXPECT_EQ(engine.commands[2].source.id, before.adapters[0].source);
  engine.hold_tokens = false;
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("model":"one")")).status, 200);
  const Submit after = engine.wait_submit(1);
  EXPECT_EQ(after.prompt, ids("Bhi"));
  EXPECT_NE(after.adapters[0].source, before.adapters[0].source);
}

TEST_F(AdapterTest, ARequestStaysRightWhereBothVersionsUseTheTextsOfTheBase) {
  start();
  const std::string two = (base_ / "root/two").string();
  // Trainers save the tokenizer beside the adapter, changed or not.
  fs::copy_file(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-gpt2/tokenizer.json",
                base_ / "root/two/tokenizer.json");
  EXPECT_EQ(load("two", two).status, 200);
  engine.hold_replies = true;
  HttpResponse loaded;
  std::thread loading([&] { loaded = load("two", two, R"(,"load_inplace":true)"); });
  EXPECT_TRUE(engine.wait_for_commands(2));
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("model":"two")")).status, 200);
  engine.release_replies();
  loading.join();
  EXPECT_EQ(loaded.status, 200);
}

// The model's configuration names the end of the base's texts; a tuned adapter's turns
// end at its own tokenizer's.
TEST_F(AdapterTest, TheEndTokensOfTheTokenizerEndGeneration) {
  const TokenId own = tokenizer->vocab_size();
  std::ofstream(base_ / "root/one" / "tokenizer_config.json")
      << R"({"eos_token":"<|turn_end|>","added_tokens_decoder":{")" << own
      << R"(":{"content":"<|turn_end|>","special":true}}})";
  start();
  EXPECT_EQ(load("one", (base_ / "root/one").string()).status, 200);
  auto stops = [this, n = size_t{0}](const std::string& more) mutable {
    EXPECT_EQ(post("/v1/chat/completions", chat(more)).status, 200);
    return engine.wait_submit(n++).stop_ids;
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(stops(R"("stop_token_ids":[5])"), Ids{5});
  EXPECT_EQ(stops(R"("model":"one")"), Ids{own});
  EXPECT_EQ(stops(R"("model":"one","stop_token_ids":[5,)" + std::to_string(own) + "]"), (Ids{5, own}));
  EXPECT_EQ(stops(R"("model":"one","stop_token_ids":[5],"ignore_eos":true)"), Ids{5});
}

TEST_F(AdapterTest, PathsOutsideTheRootsTellNothing) {
  start();
  for (const std::string& path : std::vector<std::string>{
           (base_ / "outside/three").string(), (base_ / "outside/absent").string(), (base_ / "root/link").string(),
           (base_ / "root/../outside/three").string(), (base_ / "root/absent/../../outside/three").string(),
           "../outside/three", "/etc", (base_ / "root").string()}) {
    const HttpResponse answer = load("x", path);
    EXPECT_EQ(answer.status, 403) << path << answer.body;
  }
  EXPECT_EQ(load("x", (base_ / "root/absent").string()).status, 404);
  EXPECT_EQ(load("x", "absent/deeper").status, 404);
  server.reset();
}

TEST_F(AdapterTest, AFileThatLeadsOutIsNeitherReadNorAnswered) {
  std::ofstream(base_ / "outside/keys.txt") << "sk-secret";
  fs::create_symlink("../../outside/keys.txt", base_ / "root/two/chat_template.jinja");
  fs::create_directories(base_ / "root/inner");
  std::ofstream(base_ / "root/inner/adapter_config.json") << "{}";
  fs::create_symlink("../one/template.txt", base_ / "root/inner/chat_template.jinja");
  std::ofstream(base_ / "root/one/template.txt") << "from a neighbour";
  start();
  server->rescan();
  const auto tokenize = [&](const std::string& model) {
    return post("/tokenize", R"({"model":")" + model + R"(","messages":[{"role":"user","content":"hi"}],)" +
                                 R"("return_token_strs":true})");
  };
  const HttpResponse refused = tokenize("two");
  EXPECT_EQ(refused.status, 403) << refused.body;
  for (const char* word : {"two/chat_template.jinja", "../../outside/keys.txt", "/root'"})
    EXPECT_NE(error_of(refused, "message").find(word), std::string::npos) << refused.body;
  EXPECT_EQ(refused.body.find("secret"), std::string::npos);
  EXPECT_EQ(load("x", "two").status, 403);
  EXPECT_EQ(tokenize("inner").status, 200) << "links below the folder of --adapter-dir are followed";
}

TEST_F(AdapterTest, PipesAreRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo((base_ / "root/two/tokenizer_config.json").c_str(), 0600), 0);
  start();
  const HttpResponse answer = load("x", "two");
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_NE(answer.body.find("not a regular file"), std::string::npos) << answer.body;
}

TEST_F(AdapterTest, WithoutRootsTheFlagIsNamed) {
  options.adapter_roots.clear();
  start();
  const HttpResponse answer = load("x", "/tmp");
  EXPECT_EQ(answer.status, 403);
  EXPECT_NE(error_of(answer, "message").find("--adapter-dir"), std::string::npos);
}

TEST_F(AdapterTest, ScanRescanPinAndUse) {
  command_line_adapters = {(base_ / "outside/three").string()};
  start();
  AdapterService::Rescan found = server->rescan();
  EXPECT_EQ(found.added, (std::vector<std::string>{"one", "two"}));  // "broken" is refused by the engine
  EXPECT_EQ(found.notes.size(), 2u);                                 // and the link leads out
  EXPECT_TRUE(server->add_adapter("cli", (base_ / "outside/three").string()).ok());
  EXPECT_FALSE(server->add_adapter("base", "/x").ok());
  EXPECT_FALSE(server->add_adapter("one", "/x").ok());
  EXPECT_EQ(BodyJson::parse(post("/v1/adapters/rescan", "").body)["added"].size(), 0u);
  EXPECT_EQ(post("/v1/adapters/one/pin", "").status, 200);
  EXPECT_EQ(post("/v1/adapters/nobody/pin", "").status, 404);
  EXPECT_EQ(load("one", (base_ / "root/one").string()).status, 200);  // registered by the scan, loaded by hand

  size_t submits = 0;
  const auto use = [&](const std::string& fields) {
    const HttpResponse answer = post("/v1/chat/completions", chat(fields));
    EXPECT_EQ(answer.status, 200) << fields << answer.body;
    Submit submit = engine.wait_submit(submits++);
    std::string text = BodyJson::parse(answer.body)["model"].get<std::string>() + ":";
    for (const AdapterUse& adapter : submit.adapters)
      text += " " + engine.label(adapter.source) + "*" + std::to_string(adapter.scale).substr(0, 4);
    return text;
  };
  EXPECT_EQ(use(R"("model":"one")"), "one: one*1.00");
  EXPECT_EQ(use(R"("model":"base:two")"), "base:two: two*1.00");
  EXPECT_EQ(use(R"("model":"")"), "base:");
  EXPECT_EQ(use(R"("model":"alias","adapter_id":"two")"), "alias: two*1.00");
  EXPECT_EQ(use(R"("lora_path":"cli")"), "cli: cli*1.00");
  EXPECT_EQ(use(R"("lora":[{"id":0,"scale":0.5},{"id":"two","scale":2},{"id":2,"scale":0}])"),
            "one+two: one*0.50 two*2.00");
  EXPECT_EQ(use(R"("model":"one","adapter_id":"one")"), "one: one*1.00");
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("model":"one","adapter_id":"two")")).status, 400);
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("adapters":[{"name":"one"},{"name":"one"}])")).status, 400);
  EXPECT_TRUE(counts("loralei_adapter_requests_total{adapter=\"one\"} 2"));
  EXPECT_TRUE(counts("loralei_adapter_requests_total{adapter=\"sum\"} 1"));
  EXPECT_TRUE(logs("adapter=one version=digest"));
  EXPECT_EQ(client().request("DELETE", "/v1/adapters/one")->status, 200);
  EXPECT_EQ(get("/metrics").body.find("{adapter=\"one\"}"), std::string::npos);
}

// Without it a client would be told that there is no such model, a moment
// before there is.
TEST_F(AdapterTest, NothingIsAnsweredBeforeTheAdaptersOfTheCommandLineAreThere) {
  bind();
  HttpClient early = client();
  ASSERT_TRUE(early.send_raw("GET /v1/models/cli HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok());
  EXPECT_TRUE(server->add_adapter("cli", (base_ / "outside/three").string()).ok());
  server->serve();
  const auto answer = early.read_raw();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->starts_with("HTTP/1.1 200")) << *answer;
}

TEST_F(ApiTest, WhatTheHeadRefusesIsAnsweredBeforeTheBody) {
  options.api_keys = {"k"};
  options.admin_key = "boss";
  start();
  const std::string key = "Authorization: Bearer k\r\n", json = "Content-Type: application/json\r\n";
  const auto answer = [&](const std::string& line, const std::string& headers) {
    HttpClient c = client();
    EXPECT_TRUE(
        c.send_raw(line + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "Content-Length: 1000000\r\n\r\n").ok());
    const auto text = c.read_raw();
    EXPECT_TRUE(text.ok()) << text.error().message;
    return text.ok() ? text->substr(9, 3) + (text->find("{\"error\":") == std::string::npos ? " bare" : "") : "";
  };
  EXPECT_EQ(answer("POST /v1/chat/completions", json), "401");
  EXPECT_EQ(answer("POST /v1/chat/completions", json + "Authorization: Bearer x\r\n"), "401");
  EXPECT_EQ(answer("POST /v1/load_lora_adapter", json + key), "403");
  EXPECT_EQ(answer("POST /nothing", json + key), "404");
  EXPECT_EQ(answer("PUT /v1/completions", json + key), "405");
  EXPECT_EQ(answer("POST /v1/completions", key), "415");
}

// By its status, whoever refused it; and in the log with the sentence that the
// client was told.
TEST_F(ApiTest, WhatIsRefusedIsCountedAndLogged) {
  options.http.limits.max_body_bytes = 10'000;
  start();
  const auto refuse = [&](const std::string& method, const std::string& path, const std::string& body,
                          const std::string& method_shown, int status, const std::string& header = "") {
    SCOPED_TRACE(method + " " + path);
    const std::string id = "id-" + std::to_string(status);
    const HttpResponse answer = send(method, path, body, {{"X-Request-Id", id}, {"X-More", header}});
    EXPECT_EQ(answer.status, status);
    EXPECT_TRUE(logs("request refused id=" + id + " method=" + method_shown + " route=" + path +
                     " status=" + std::to_string(status) + ": " + error_of(answer, "message")))
        << log.text();
    EXPECT_TRUE(counts("http_requests_total{handler=\"" + path + "\",method=\"" + method_shown + "\",status=\"" +
                       std::to_string(status) + "\"} 1\n"));
  };
  refuse("POST", "/v1/completions", "{", "POST", 400);
  refuse("POST", "/v1/chat/completions", chat(R"("model":"nobody")"), "POST", 404);
  refuse("BREW", "/v1/completions", "", "other", 405);
  refuse("POST", "/v1/embeddings", std::string(20'000, 'x'), "POST", 413);
  refuse("GET", "/v1/models", "", "GET", 431, std::string(40'000, 'x'));
  const std::string logged = log.text();
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 5) << logged;
}

TEST_F(ApiTest, OnLoopbackAPageThatRebindsItsNameIsRefused) {
  options.allowed_hosts = {"llm.example"};
  start();
  const std::string foreign = "rebound.example:" + std::to_string(server->port());
  for (const char* path : {"/", "/health", "/metrics", "/v1/models", "/no-such-route"}) {
    HttpClient c = client();
    const auto refused = c.request("GET", path, {{"Host", foreign}});
    ASSERT_TRUE(refused.ok()) << refused.error().message;
    EXPECT_EQ(refused->status, 403) << path;
    EXPECT_NE(error_of(*refused, "message").find("--allowed-host"), std::string::npos);
    EXPECT_NE(get(path).status, 403) << path;
    EXPECT_NE(c.request("GET", path, {{"Host", "llm.example"}})->status, 403) << path;
  }
  EXPECT_EQ(send("POST", "/v1/chat/completions", chat(), {{"Host", foreign}}).status, 403);
}

TEST_F(ApiTest, KeysGuardRoutes) {
  options.api_keys = {"k"};
  options.admin_key = "boss";
  start();
  HttpClient c = client();
  EXPECT_EQ(c.get("/health")->status, 200);
  EXPECT_EQ(c.get("/metrics")->status, 200);
  auto denied = c.get("/v1/models");
  EXPECT_EQ(denied->status, 401);
  EXPECT_EQ(denied->header("www-authenticate"), "Bearer");
  EXPECT_EQ(c.request("GET", "/v1/models", {{"Authorization", "Bearer k"}})->status, 200);
  EXPECT_EQ(c.request("POST", "/v1/load_lora_adapter", {{"Authorization", "Bearer k"}}, "")->status, 403);
  EXPECT_EQ(c.request("POST", "/v1/load_lora_adapter", {{"Authorization", "Bearer boss"}}, "")->status, 400);
}

TEST_F(ApiTest, HealthTellsThatNothingCanBeComputed) {
  start();
  EXPECT_EQ(get("/health").status, 200);
  engine.lose({ErrorCode::kUnavailable, "The GPU is lost."});
  for (const char* route : {"/health", "/ping", "/ready"}) {
    const auto answer = get(route);
    EXPECT_EQ(answer.status, 503) << route;
    EXPECT_NE(answer.body.find("The GPU is lost."), std::string::npos) << answer.body;
  }
  EXPECT_EQ(get("/metrics").status, 200);
}

// What the engine is told apart: requests of different keys, whatever salts they name,
// and of one key by these alone.
TEST_F(ApiTest, PrefixesAreSharedWithinAKeyOrTheServer) {
  options.api_keys = {"one", "two"};
  options.admin_key = "boss";
  start();
  size_t sent = 0;
  const auto salt_of = [&](const std::string& path, const std::string& key, const std::string& more = "") {
    const std::string text = path == "/v1/embeddings" ? R"("input":"hi")" : R"("prompt":"hi")";
    EXPECT_EQ(post(path, "{" + text + more + "}", {{"Authorization", "Bearer " + key}}).status, 200);
    return engine.wait_submit(sent++).cache_salt;
  };
  const std::string one = salt_of("/v1/completions", "one");
  EXPECT_EQ(salt_of("/v1/completions", "one"), one);
  EXPECT_EQ(salt_of("/v1/embeddings", "one"), one);
  const std::string two = salt_of("/v1/completions", "two"), boss = salt_of("/v1/embeddings", "boss");
  EXPECT_EQ(std::set<std::string>({one, two, boss}).size(), 3u);
  for (const std::string& salt :
       {two, boss, std::string("two"), std::string(":"), std::string("2:"), "\\u0000" + two}) {
    const std::string imitation = salt_of("/v1/completions", "one", R"(,"cache_salt":")" + salt + R"(")");
    EXPECT_NE(imitation, two);
    EXPECT_NE(imitation, boss);
    EXPECT_TRUE(imitation.starts_with(one) && imitation != one) << imitation;
  }
}

TEST_F(ApiTest, WithoutKeysSaltsAreAsTheyWereSent) {
  start();
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"hi","cache_salt":"s"})").status, 200);
  EXPECT_EQ(engine.wait_submit(0).cache_salt, "s");
}

TEST_F(ApiTest, KeysMayShareOnePrefixCache) {
  options.api_keys = {"one", "two"};
  options.prefix_cache_scope = PrefixCacheScope::kServer;
  start();
  for (size_t sent = 0; sent < 2; ++sent) {
    const std::string body = R"({"prompt":"hi","cache_salt":"s"})";
    EXPECT_EQ(post("/v1/completions", body, {{"Authorization", "Bearer " + options.api_keys[sent]}}).status, 200);
    EXPECT_EQ(engine.wait_submit(sent).cache_salt, "s");
  }
}

TEST_F(ApiTest, SmallRoutes) {
  options.cors_origins = {"http://page"};
  options.http.limits.max_body_bytes = 10'000;
  start();
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_NE(get("/").body.find("/v1/chat/completions"), std::string::npos);
  EXPECT_EQ(BodyJson::parse(get("/version").body)["version"], "0.0.test");
  HttpClient c = client();
  const auto plain = c.request("OPTIONS", "/v1/models", {});
  EXPECT_EQ(plain->status, 204) << "no page asks";
  EXPECT_EQ(plain->header("allow"), "GET, OPTIONS");
  EXPECT_EQ(plain->header("access-control-allow-methods"), "");
  EXPECT_NE(post("/chat/completions", "{}").body.find("send POST /v1/chat/completions instead"), std::string::npos);
  EXPECT_NE(post("/v1/completions", R"({"model":"nobody","prompt":"x"})").body.find("There is base"),
            std::string::npos);
  auto preflight = c.request("OPTIONS", "/v1/completions", {{"Origin", "http://page"}});
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->header("access-control-allow-origin"), "http://page");
  preflight = c.request("OPTIONS", "/v1/completions",
                        {{"Origin", "http://page"}, {"Access-Control-Request-Headers", "x-stainless-os"}});
  EXPECT_EQ(preflight->header("access-control-allow-headers"), "x-stainless-os");
  const HttpResponse large =
      send("POST", "/v1/completions", std::string(20'000, 'x'), {{"Origin", "http://page"}, {"X-Request-Id", "mine"}});
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(large.header("access-control-allow-origin"), "http://page");
  EXPECT_EQ(large.header("x-request-id"), "mine");
  EXPECT_EQ(c.request("OPTIONS", "/v1/completions", {{"Origin", "http://other"}})->status, 403);
  const std::string text = "na\xC3\xAFve text";
  const BodyJson tokens =
      BodyJson::parse(post("/tokenize", R"({"prompt":")" + text + R"(","return_token_strs":true})").body);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  EXPECT_EQ(BodyJson::parse(post("/detokenize", R"({"tokens":)" + tokens["tokens"].dump() + "}").body)["prompt"], text);
  EXPECT_GT(BodyJson::parse(post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").body)["count"], 3);
  const BodyJson floats = BodyJson::parse(post("/v1/embeddings", R"({"input":["a","b"]})").body);
  EXPECT_FLOAT_EQ(floats["data"][1]["embedding"][0], 0.6f);
  EXPECT_EQ(BodyJson::parse(
                post("/v1/embeddings", R"({"input":"a","encoding_format":"base64"})").body)["data"][0]["embedding"],
            "mpkZP83MTD8=");
  post("/v1/chat/completions", chat(R"("frobnicate":1)"));
  post("/v1/chat/completions", chat(R"("frobnicate":1)"));
  const std::string logged = log.text();
  EXPECT_NE(logged.find("'frobnicate'"), std::string::npos);
  EXPECT_EQ(logged.find("'frobnicate'"), logged.rfind("'frobnicate'"));
  EXPECT_TRUE(counts("loralei_unknown_request_fields_total 2"));
}

TEST_F(ApiTest, TheMemoryBudgetIsReadAndChanged) {
  start();
  EXPECT_NE(get("/v1/admin/memory").body.find("\"budget_bytes\":5000"), std::string::npos);
  EXPECT_EQ(get("/v1/admin/memory").body.find("\"device\""), std::string::npos);
  const HttpResponse changed = send("PUT", "/v1/admin/memory", R"({"budget_bytes":7000})");
  EXPECT_EQ(changed.status, 200);
  EXPECT_NE(changed.body.find("\"budget_bytes\":7000"), std::string::npos);
  const HttpResponse refused = send("PUT", "/v1/admin/memory", R"({"budget_bytes":70})");
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(refused.body.find("1000 bytes"), std::string::npos);
  EXPECT_EQ(send("PUT", "/v1/admin/memory", "{}").status, 400);
}

TEST_F(ApiTest, QueuesNameWhoWaitsByTheIdsThatClientsSaw) {
  engine.hold_tokens = true;
  start();
  std::thread asks([&] { (void)post("/v1/chat/completions", chat(), {{"X-Request-Id", "mine"}}); });
  const RequestId id = engine.wait_submit(0).id;
  engine.queues.policy = SchedulePolicy::kWrs;
  engine.queues.prediction = LengthPrediction::kMaxTokens;
  engine.queues.refit_in_requests = 7;
  QueueState& queue = engine.queues.queues.emplace_back();
  queue.size_to = std::numeric_limits<double>::infinity();
  queue.quota_tokens = 90;
  queue.waiting = queue.running = 1;
  queue.first_waiting = {{.request = id, .choice = 2, .adapter = "a+b", .cause = WaitCause::kQuota}};
  queue.first_running = {{.request = RequestId{id.value + 1000}, .running_s = 1.5}};
  const HttpResponse answer = get("/v1/queues");
  EXPECT_EQ(answer.status, 200);
  const BodyJson body = BodyJson::parse(answer.body);
  EXPECT_EQ(body["policy"], "wrs");
  EXPECT_EQ(body["prediction"], "max-tokens");
  EXPECT_EQ(body["refit_in_requests"], 7);
  EXPECT_TRUE(body["refit_in_s"].is_null());
  const BodyJson& shown = body["queues"][0];
  EXPECT_EQ(shown["queue"], 1);
  EXPECT_EQ(shown["quota_tokens"], 90);
  EXPECT_TRUE(shown["size_to"].is_null());
  EXPECT_EQ(shown["first_waiting"][0]["id"], "mine");
  EXPECT_EQ(shown["first_waiting"][0]["choice"], 2);
  EXPECT_EQ(shown["first_waiting"][0]["adapter"], "a+b");
  EXPECT_EQ(shown["first_waiting"][0]["cause"], "quota");
  EXPECT_TRUE(shown["first_running"][0]["id"].is_null()) << "it has ended meanwhile";
  EXPECT_TRUE(shown["first_running"][0]["adapter"].is_null());
  EXPECT_EQ(shown["first_running"][0]["running_s"], 1.5);
  engine.next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  EXPECT_EQ(get("/v1/queues").status, 429);
  engine.emit(id, 5, EndReason::kStop);
  asks.join();
}

TEST_F(ApiTest, ABudgetChangeEndsWhenItsClientLeaves) {
  engine.hold_memory = true;
  start();
  HttpClient c = client();
  const std::string body = R"({"budget_bytes":7000})";
  ASSERT_TRUE(c.send_raw("PUT /v1/admin/memory HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         "Content-Length: " +
                         std::to_string(body.size()) + "\r\n\r\n" + body)
                  .ok());
  ASSERT_TRUE(engine.wait_held_memory());
  c.close();
  EXPECT_TRUE(
      logs("The client that asked for another memory budget has left, and it stays as it was. It was stopped."));
}

TEST_F(ApiTest, ADevicesMemoryIsToldBesideTheHosts) {
  engine.device = "cuda:0";
  start();
  const std::string body = get("/v1/admin/memory").body;
  EXPECT_NE(body.find(R"("device":{"name":"cuda:0","budget_bytes":0,"weights_bytes":77,)"), std::string::npos) << body;
}

TEST_F(ApiTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  engine.hold_tokens = true;
  start();
  std::thread running([&] {
    const auto all = events("/v1/chat/completions", chat(R"("stream":true)"));
    EXPECT_EQ(all.back(), "[DONE]");
  });
  const Submit submit = engine.wait_submit(0);
  EXPECT_EQ(post("/v1/admin/drain", "", {{"Host", "localhost"}}).status, 200);
  EXPECT_EQ(get("/ready").status, 503);
  EXPECT_EQ(get("/ready").body,
            R"({"status":"not ready","cannot":[{"what":"requests","why":"The server is draining."}]})");
  EXPECT_NE(get("/metrics").body.find("\nloralei_ready 0\n"), std::string::npos);
  EXPECT_EQ(get("/health").status, 200);
  const HttpResponse refused = post("/v1/chat/completions", chat());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(error_of(refused, "type"), "unavailable_error");
  engine.emit(submit.id, ids("a")[0], EndReason::kLength);
  running.join();
  EXPECT_TRUE(server->shutdown(30'000));
}

TEST_F(ApiTest, ADrainIsToldBeforeAnythingIsRefused) {
  std::atomic<int> told{0};
  options.on_drain = [&] {
    EXPECT_EQ(get("/ready").status, 200);
    ++told;
  };
  start();
  EXPECT_EQ(told, 0);
  server->begin_drain();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(get("/ready").status, 503);
  server->begin_drain();
  EXPECT_EQ(told, 1);
}

TEST_F(ApiTest, ReadyTellsWhatCannotBeComputedForNow) {
  start();
  EXPECT_EQ(get("/ready").status, 200);
  engine.set_ready(Error{ErrorCode::kUnavailable, "The file is being made again."});
  const HttpResponse answer = get("/ready");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body,
            R"({"status":"not ready","cannot":[{"what":"requests","why":"The file is being made again."}]})");
  EXPECT_NE(get("/metrics").body.find("\nloralei_ready 0\n"), std::string::npos);
  EXPECT_EQ(get("/health").status, 200) << "another start would not help";
  engine.set_ready({});
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_NE(get("/metrics").body.find("\nloralei_ready 1\n"), std::string::npos);
}

// Holds whoever logs, against its promise, until it is opened.
class StuckLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view) override {
    come = true;
    come.notify_all();
    closed.wait(true);
  }
  void open() {
    closed = false;
    closed.notify_all();
  }
  std::atomic<bool> come{false}, closed{true};
};

// What http/ answers itself never reaches handle().
TEST_F(ApiTest, AnHttpThreadThatIsStuckBeforeARequestIsReadIsTold) {
  StuckLog stuck;
  ManualClock manual;
  files = std::make_unique<RootedFileSystem>(disk, options.adapter_roots);
  server = ApiServer::start(options, engine, text, *files, manual, stuck).value();
  server->serve();
  EXPECT_EQ(get("/ready").status, 200);
  HttpClient bad = client();
  EXPECT_TRUE(bad.send_raw("no request at all\r\n\r\n").ok());
  stuck.come.wait(false);
  manual.advance_ns(21'000'000'000);
  const HttpResponse answer = get("/ready");
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("A thread (http) has made no progress."), std::string::npos) << answer.body;
  stuck.open();
  EXPECT_TRUE(soon([&] { return get("/ready").status == 200; }));
  server.reset();
}

TEST_F(ApiTest, ShutdownCutsWhatDoesNotEnd) {
  engine.hold_tokens = true;
  start();
  HttpResponse answer;
  std::thread running([&] { answer = post("/v1/chat/completions", chat()); });
  engine.wait_submit(0);
  EXPECT_FALSE(server->shutdown(10));
  running.join();
  EXPECT_EQ(answer.status, 503) << answer.body;
}

TEST_F(ApiTest, AnEmbeddingThatIsNotNumbersIsAnError) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    engine.embedding = {1.0f, value};
    if (!server) start();
    const HttpResponse answer = post("/v1/embeddings", R"({"input":"a"})");
    EXPECT_EQ(answer.status, 500);
    EXPECT_NE(answer.body.find("not numbers"), std::string::npos) << answer.body;
  }
}

TEST_F(ApiTest, ManyEmbeddingsAreMadeAsTheyAreRead) {
  start();
  std::string inputs;
  for (int i = 0; i < 100; ++i) inputs += (i ? ",\"" : "\"") + std::to_string(i) + "\"";
  const HttpResponse answer = post("/v1/embeddings", R"({"input":[)" + inputs + "]}");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("transfer-encoding"), "chunked");
  const BodyJson data = BodyJson::parse(answer.body)["data"];
  ASSERT_EQ(data.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(data[static_cast<size_t>(i)]["index"], i);
}

// What a request holds goes back to the last byte, however it ends.
TEST_F(ApiTest, MemoryOfRequestsIsGivenBack) {
  const auto memory = std::make_shared<FixedByteBudget>(64 << 20);
  engine.memory = memory;
  start();
  const int64_t before = memory->taken_bytes();
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 200);
  EXPECT_EQ(post("/v1/chat/completions", "{").status, 400);
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("n":100,"logprobs":true,"top_logprobs":5)")).status, 200);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":["a","b"]})").status, 200);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":")" + std::string(2 << 20, 'x') + "\"}").status, 400);
  for (int wait = 0; memory->taken_bytes() > before && wait < 1000; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LE(memory->taken_bytes(), before);
}

// The numbers are in the sentence: what it takes, and what there is.
TEST_F(ApiTest, ARequestThatTakesMoreThanThereIsIsRefusedWithTheNumbers) {
  engine.memory = std::make_shared<FixedByteBudget>(4 << 20);
  start();
  const HttpResponse never = post("/v1/completions", R"({"prompt":")" + std::string(1 << 20, 'x') + "\"}");
  EXPECT_EQ(never.status, 413);
  std::string ids = "1";
  for (int i = 0; i < 200'000; ++i) ids += ",1";
  const HttpResponse tree = post("/v1/completions", R"({"prompt":[)" + ids + "]}");
  EXPECT_EQ(tree.status, 413) << tree.body;
  EXPECT_NE(tree.body.find("Reading this request takes about"), std::string::npos) << tree.body;
  EXPECT_NE(tree.body.find("--request-memory"), std::string::npos) << tree.body;
  ByteShare others(engine.memory);
  const auto take = [&] { return others.grow_to(engine.memory->most_bytes() * 7 / 8 - (1 << 20)); };
  for (int wait = 0; !take() && wait < 1000; ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_GT(others.bytes(), 0) << "what was refused has its memory still";
  const HttpResponse now = post("/v1/completions", R"({"prompt":")" + std::string(100 << 10, 'x') + "\"}");
  EXPECT_EQ(now.status, 429) << now.body;
  EXPECT_FALSE(now.header("retry-after").empty());
  others.release();
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 200);
}

// An answer is more than the kernel's buffers hold, so what is not read waits
// in the server.
class LongAnswerTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    engine.embedding.assign(6'000'000, 1.0f);  // 32 MB as base64
    start();
    const std::string body = R"({"input":"a","encoding_format":"base64"})";
    reader = std::make_unique<HttpClient>(HttpClientOptions{.port = server->port(), .read_timeout_ms = 30'000});
    ASSERT_TRUE(reader
                    ->send_raw("POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               "Content-Length: " +
                               std::to_string(body.size()) + "\r\n\r\n" + body)
                    .ok());
    ASSERT_TRUE(logs("end=stop"));  // complete, and handed to http/
  }
  std::unique_ptr<HttpClient> reader;
};

TEST_F(LongAnswerTest, ShutdownLetsASlowReaderFinish) {
  auto down = std::async(std::launch::async, [&] { return server->shutdown(30'000); });
  EXPECT_EQ(down.wait_for(std::chrono::milliseconds(1500)), std::future_status::timeout);
  const int64_t looks = engine.looks;
  const auto answer = reader->read_raw();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->ends_with("}")) << answer->size();
  EXPECT_GT(answer->size(), 32'000'000u);
  EXPECT_TRUE(down.get());
  EXPECT_EQ(engine.looks, looks) << "nobody asks a stopped engine for more";
}

TEST_F(LongAnswerTest, ShutdownTellsWhenItCutAnAnswer) { EXPECT_FALSE(server->shutdown(10)); }

}  // namespace
}  // namespace loralei
