// SPDX-License-Identifier: Apache-2.0
// Versions of adapters that are loaded over HTTP again and again: what their names mean,
// with a registry and without.
#include <gtest/gtest.h>

#include <deque>

#include "base/prng.h"
#include "serve/recorded_test_util.h"

namespace loralei {
namespace {

class VersionsTest : public RecordedTest {
 protected:
  // The next training step.
  void publish(const std::string& name, const std::string& digest, const std::string& more = "") {
    engine_now().versions[path(name)] = versions[path(name)] = digest;
    const HttpResponse answer = load(name, name, true, more);
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
  // Number and digest of each, and in front what the name means now.
  std::string kept(const std::string& name) {
    const BodyJson listed = BodyJson::parse(get("/v1/adapters").body);
    for (const BodyJson& row : listed["data"]) {
      if (row["name"] != name) continue;
      std::string text = row["number"].is_null() ? "-" : row["number"].dump();
      for (const BodyJson& one : row["versions"]) text += " " + one["number"].dump() + one["digest"].get<std::string>();
      return text;
    }
    return "none";
  }
  // Sources that a request is computed with, or what it is told.
  std::string use(const std::string& fields) {
    const HttpResponse answer = post("/v1/chat/completions", chat(fields));
    if (answer.status != 200) return std::to_string(answer.status) + " " + error_of(answer, "message");
    std::string text;
    for (const AdapterUse& adapter : engine_now().wait_submit(submits_++).adapters)
      text += (text.empty() ? "" : " ") + std::to_string(adapter.source.value);
    return text;
  }
  std::string use_model(const std::string& model) { return use(R"("model":")" + model + "\""); }
  // Of the load commands, in order.
  std::vector<AdapterCommand> loads() {
    std::vector<AdapterCommand> all;
    for (const AdapterCommand& command : engine_now().commands)
      if (command.action == AdapterAction::kLoad) all.push_back(command);
    return all;
  }
  std::string source(size_t load) { return std::to_string(loads().at(load).source.id.value); }
  size_t submits_ = 0;
};

TEST_F(VersionsTest, ANameMeansTheNewestAndTheKeptOnesHaveNamesOfTheirOwn) {
  options.keep_versions = 3;
  begin_without_registry();
  EXPECT_EQ(load("one", "one").status, 200);
  EXPECT_EQ(load("one", "one").status, 400) << "as ever, without load_inplace";
  EXPECT_EQ(kept("one"), "1 1v-one");
  for (int step = 2; step <= 5; ++step) publish("one", "d" + std::to_string(step));
  EXPECT_EQ(kept("one"), "5 3d3 4d4 5d5");
  EXPECT_EQ(use_model("one"), source(4));
  EXPECT_EQ(use_model("one@5"), source(4));
  EXPECT_EQ(use_model("one@3"), source(2));
  EXPECT_EQ(use_model("base:one@4"), source(3));
  for (const char* name : {"one@2", "one@6", "one@0", "one@03", "base:one@1"}) {
    EXPECT_EQ(use_model(name), "404 The model `" + std::string(name) +
                                   "` does not exist. Of `one` there are `one@3`, `one@4` and `one@5`.");
    EXPECT_EQ(get("/v1/models/" + std::string(name)).status, 404);
  }
  EXPECT_TRUE(use_model("two@1").starts_with("404 The model `two@1` does not exist. There is base"));
  const BodyJson models = BodyJson::parse(get("/v1/models").body)["data"];
  ASSERT_EQ(models.size(), 3u) << "two names of the base, and one";
  EXPECT_EQ(models[2]["id"], "one");
  EXPECT_EQ(BodyJson::parse(get("/v1/models/one@4").body)["id"], "one@4");
  EXPECT_EQ(BodyJson::parse(get("/v1/models/one@4").body)["root"], path("one"));
  EXPECT_EQ(BodyJson::parse(post("/v1/chat/completions", chat(R"("model":"one@4")")).body)["model"], "one@4");
  EXPECT_TRUE(soon([&] { return drops() == 2; })) << "1 and 2";
  for (const AdapterCommand& command : loads()) {
    EXPECT_TRUE(command.source.one_version);
    EXPECT_FALSE(command.reload);
  }
  EXPECT_TRUE(counts("loralei_adapter_requests_total{adapter=\"one\"} 5")) << "by the name, whatever the version";
  EXPECT_EQ(get("/metrics").body.find("one@"), std::string::npos);
  EXPECT_TRUE(counts("loralei_adapters_registered 1"));
}

TEST_F(VersionsTest, EveryRouteFollowsThem) {
  options.keep_versions = 2;
  begin_without_registry();
  publish("one", "d1");
  publish("one", "d2");
  const std::string old = source(0);
  const std::string model = R"({"model":"one@1",)";
  for (const auto& [route, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/chat/completions", R"("messages":[{"role":"user","content":"hi"}]})"},
           {"/v1/completions", R"("prompt":"hi"})"},
           {"/v1/embeddings", R"("input":"hi"})"},
           {"/v1/responses", R"("input":"hi"})"},
           {"/v1/messages", R"("max_tokens":4,"messages":[{"role":"user","content":"hi"}]})"}}) {
    const HttpResponse answer = post(route, model + body);
    EXPECT_EQ(answer.status, 200) << route << answer.body;
    EXPECT_EQ(BodyJson::parse(answer.body)["model"], "one@1") << route;
    EXPECT_EQ(std::to_string(engine_now().wait_submit(submits_++).adapters.at(0).source.value), old) << route;
  }
  EXPECT_EQ(post("/tokenize", model + R"("prompt":"hi"})").status, 200);
  EXPECT_EQ(post("/v1/messages/count_tokens", model + R"("messages":[{"role":"user","content":"hi"}]})").status, 200);
  // Sums, by whatever field: two versions of a name are two adapters, a version under two
  // names is one.
  EXPECT_EQ(use(R"("adapters":[{"name":"one@1"},{"name":"one@2"}])"), old + " " + source(1));
  EXPECT_EQ(use(R"("lora":[{"id":"one@1","scale":0.5},{"id":0,"scale":0.5}])"), old + " " + source(1));
  EXPECT_EQ(use(R"("adapters":[{"name":"one@2"},{"name":"one"}])"), "400 The adapter `one` is named twice.");
  EXPECT_EQ(use(R"("model":"one@2","adapter_id":"one")"), source(1)) << "the same under both names";
  EXPECT_TRUE(use(R"("model":"one@1","adapter_id":"one")").starts_with("400 "));
  EXPECT_TRUE(counts("loralei_adapter_requests_total{adapter=\"sum\"} 2"));
}

TEST_F(VersionsTest, DefaultsMayBeVersions) {
  options.keep_versions = 2;
  begin_without_registry();
  publish("one", "d1");
  publish("one", "d2");
  EXPECT_EQ(post("/lora-adapters", R"([{"id":"one@3","scale":1}])").status, 400);
  EXPECT_EQ(post("/lora-adapters", R"([{"id":"one","scale":1},{"id":"one@2","scale":1}])").status, 400);
  EXPECT_EQ(post("/lora-adapters", R"([{"id":"one@1","scale":0.5}])").status, 200);
  EXPECT_EQ(use(""), source(0));
  EXPECT_EQ(BodyJson::parse(get("/lora-adapters").body)[0]["scale"], 0.0) << "the name means another";
  publish("one", "d3");
  EXPECT_TRUE(use("").starts_with(
      "404 The adapter `one@1`, which POST /lora-adapters made the default of requests that name none, is not "
      "registered any more. Of `one` there are `one@2` and `one@3`. Name an adapter"));
  EXPECT_TRUE(logs("default adapter unloaded adapter=one@1"));
  EXPECT_EQ(post("/lora-adapters", R"([{"id":"one@3","scale":2}])").status, 200);
  EXPECT_EQ(BodyJson::parse(get("/lora-adapters").body)[0]["scale"], 2.0);
}

TEST_F(VersionsTest, WhatRunsOnARetiredVersionEndsWithIt) {
  begin_without_registry();
  publish("one", "d1");
  engine_now().hold_tokens = true;
  HttpResponse answer;
  std::thread asking([&] { answer = post("/v1/chat/completions", chat(R"("model":"one@1")")); });
  const Submit running = engine_now().wait_submit(0);
  publish("one", "d2");
  publish("one", "d3");
  EXPECT_TRUE(soon([&] { return drops() == 1; })) << "the second, which nobody uses";
  EXPECT_EQ(engine_now().commands.back().source.id, loads()[1].source.id);
  EXPECT_EQ(use_model("one@1"), "404 The model `one@1` does not exist. Of `one` there is only `one@3`.");
  engine_now().emit(running.id, 5, EndReason::kStop);
  asking.join();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(BodyJson::parse(answer.body)["model"], "one@1");
  EXPECT_TRUE(soon([&] { return drops() == 2; })) << "then its own";
  EXPECT_EQ(engine_now().commands.back().source.id, running.adapters[0].source);
}

TEST_F(VersionsTest, OneIsDroppedOrAll) {
  for (const bool kept_on_disk : {false, true}) {
    SCOPED_TRACE(kept_on_disk);
    std::filesystem::remove(file());
    options.keep_versions = 4;
    if (kept_on_disk)
      begin();
    else
      begin_without_registry();
    for (int step = 1; step <= 4; ++step) publish("one", "d" + std::to_string(step));
    HttpResponse answer = send("DELETE", "/v1/adapters/one@2", "");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(BodyJson::parse(answer.body)["name"], "one@2");
    EXPECT_EQ(BodyJson::parse(answer.body)["bytes_freed"], 123);
    EXPECT_EQ(kept("one"), "4 1d1 3d3 4d4");
    answer = send("DELETE", "/v1/adapters/one@2", "");
    EXPECT_EQ(answer.status, 404);
    EXPECT_EQ(error_of(answer, "message"),
              "The adapter `one@2` is not registered. Of `one` there are `one@1`, `one@3` and `one@4`.");
    EXPECT_EQ(unload("one@4").body, "Success: LoRA adapter 'one@4' removed successfully.");
    EXPECT_EQ(kept("one"), "3 1d1 3d3") << "the name means the next newest";
    answer = unload("one@4");
    EXPECT_EQ(answer.status, 404);
    EXPECT_NE(error_of(answer, "message").find("cannot be found. Of `one` there are `one@1` and `one@3`."),
              std::string::npos)
        << answer.body;
    publish("one", "d5");
    EXPECT_EQ(kept("one"), "5 1d1 3d3 5d5") << "4 is given to no other";
    answer = send("DELETE", "/v1/adapters/one", "");
    EXPECT_EQ(BodyJson::parse(answer.body)["bytes_freed"], 3 * 123);
    EXPECT_EQ(drops(), 5u);
    EXPECT_EQ(kept("one"), "none");
    EXPECT_EQ(use_model("one@3").substr(0, 3), "404");
    EXPECT_EQ(send("DELETE", "/v1/adapters/one", "").status, 404);
    EXPECT_EQ(get("/metrics").body.find("{adapter=\"one\"}"), std::string::npos);
    publish("one", "d6");
    EXPECT_EQ(kept("one"), "6 6d6");
    submits_ = 0;
  }
}

TEST_F(VersionsTest, WhatTheEngineWasNotToldToForgetStaysWithAllItsVersions) {
  for (const bool kept_on_disk : {false, true}) {
    SCOPED_TRACE(kept_on_disk);
    options.keep_versions = 3;
    if (kept_on_disk)
      begin();
    else
      begin_without_registry();
    for (int step = 1; step <= 3; ++step) publish("one", "d" + std::to_string(step));
    engine_now().next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
    EXPECT_EQ(unload("one").status, 429);
    EXPECT_EQ(unload("one@2").status, 429);
    EXPECT_EQ(unload("one@3").status, 429);
    engine_now().next_command = {};
    EXPECT_EQ(kept("one"), "3 1d1 2d2 3d3");
    EXPECT_EQ(drops(), 0u);
  }
  begin();
  EXPECT_EQ(kept("one"), "3 1d1 2d2 3d3");
}

TEST_F(VersionsTest, APinOfTheNameGoesOverAndAPinOfAVersionStays) {
  options.keep_versions = 3;
  begin_without_registry();
  publish("one", "d1");
  EXPECT_EQ(post("/v1/adapters/one/pin", "").status, 200);
  publish("one", "d2");
  EXPECT_EQ(loads()[1].replaces, loads()[0].source.id);
  const HttpResponse answer = post("/v1/adapters/one@2/pin", "");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(BodyJson::parse(answer.body)["name"], "one@2");
  EXPECT_EQ(engine_now().commands.back().source.id, loads()[1].source.id);
  publish("one", "d3");
  EXPECT_EQ(loads()[2].replaces.value, 0u) << "2 keeps its pin";
  EXPECT_EQ(post("/v1/adapters/one@3/pin", "").status, 200);
  EXPECT_EQ(post("/v1/adapters/one@3/unpin", "").status, 200);
  publish("one", "d4");
  EXPECT_EQ(loads()[3].replaces, loads()[2].source.id);
  EXPECT_EQ(post("/v1/adapters/one@1/pin", "").status, 404);
}

TEST_F(VersionsTest, PrefetchLoadsWhatTheNameMeansAndIsNotThere) {
  options.keep_versions = 3;
  begin();
  publish("one", "d1");
  publish("one", "d2");
  const size_t commands = engine_now().commands.size();
  HttpResponse answer = post("/v1/adapters/one/prefetch", "");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(BodyJson::parse(answer.body)["name"], "one");
  EXPECT_EQ(BodyJson::parse(answer.body)["in_memory"], true);
  EXPECT_EQ(engine_now().commands.size(), commands) << "it is there";
  begin();  // and now it is not
  engine_now().next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  EXPECT_EQ(post("/v1/adapters/one/prefetch", "").status, 429);
  engine_now().next_command = {};
  answer = post("/v1/adapters/one/prefetch", "");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(engine_now().commands.back().action, AdapterAction::kLoad);
  answer = post("/v1/adapters/one%401/prefetch", "");
  EXPECT_EQ(answer.status, 400) << "its files were overwritten";
  EXPECT_NE(error_of(answer, "message").find("are others than those that were loaded"), std::string::npos);
  EXPECT_EQ(post("/v1/adapters/two/prefetch", "").status, 404);
}

TEST_F(VersionsTest, NamesOfVersionsAreReserved) {
  for (const char* name : {"x@3", "a@b", "x@3b"}) write(name, "{}");
  options.model_names.push_back("m@7");
  begin_without_registry();
  for (const char* name : {"x@3", "x@0", "@3", "a@b@12"}) {
    const HttpResponse answer = load(name, "one");
    EXPECT_EQ(answer.status, 400) << name;
    EXPECT_NE(error_of(answer, "message").find("'@' and digits at its end name a version"), std::string::npos);
    EXPECT_FALSE(server->add_adapter(name, path("one")).ok());
  }
  EXPECT_EQ(load("m", "one").status, 400) << "m@7 is the base";
  const AdapterService::Rescan found = server->rescan();
  EXPECT_EQ(found.added, (std::vector<std::string>{"a@b", "one", "two", "x@3b"}));
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("x@3 is left out: 'x@3' cannot be an adapter's name"), std::string::npos);
  EXPECT_FALSE(use_model("a@b").starts_with("4"));
  EXPECT_EQ(use_model("one@1"),
            "404 The model `one@1` does not exist. `one` has no versions, since it was not loaded over HTTP.");
  EXPECT_EQ(use_model("m@7"), "") << "the base";
  // Loaded by hand it becomes a version, and what the folder was goes.
  EXPECT_EQ(kept("one"), "-");
  EXPECT_EQ(load("one", "one").status, 200);
  EXPECT_EQ(kept("one"), "1 1v-one");
  EXPECT_TRUE(soon([&] { return drops() == 1; }));
}

TEST_F(VersionsTest, WhatTheEngineSaysOfAVersionsFilesNamesTheVersion) {
  options.keep_versions = 2;
  begin_without_registry();
  publish("one", "d1");
  publish("one", "d2");
  engine_now().hold_tokens = true;
  size_t asked = 0;
  const auto told = [&](const std::string& fields) {
    HttpResponse answer;
    std::thread asking([&] { answer = post("/v1/chat/completions", chat(fields)); });
    TokenEvent event;
    event.id = engine_now().wait_submit(asked++).id;
    event.end = EndReason::kError;
    event.error = corrupt("adapter \"one\" was not loaded: the files at /p are others");
    engine_now().emit(event);
    asking.join();
    return error_of(answer, "message");
  };
  EXPECT_EQ(told(R"("model":"one@1")"), "adapter \"one@1\" was not loaded: the files at /p are others");
  EXPECT_EQ(told(R"("model":"one")"), "adapter \"one@2\" was not loaded: the files at /p are others");
  EXPECT_EQ(told(R"("adapters":[{"name":"one@1"},{"name":"one@2"}])"),
            "adapter \"one\" was not loaded: the files at /p are others")
      << "which of them is not known";
}

TEST_F(VersionsTest, AllKeptOnesAreThereAfterARestartAndTheirDigestsAreAskedFor) {
  options.keep_versions = 3;
  begin();
  for (int step = 1; step <= 5; ++step) publish("one", "d" + std::to_string(step));
  publish("two", "t1");
  for (int restart = 0; restart < 2; ++restart) {
    const AdapterService::Rescan found = begin();
    submits_ = 0;
    EXPECT_EQ(found.added, (std::vector<std::string>{"one", "two"}));
    EXPECT_TRUE(found.notes.empty());
    EXPECT_EQ(kept("one"), "5 3d3 4d4 5d5");
    EXPECT_EQ(kept("two"), "1 1t1");
    std::map<std::string, std::string> sources;
    for (const AdapterCommand& command : engine_now().commands) {
      EXPECT_EQ(command.action, AdapterAction::kAdd) << "nothing is read before its first use";
      sources[command.source.expected_digest] = std::to_string(command.source.id.value);
    }
    EXPECT_EQ(sources.size(), 4u);
    EXPECT_EQ(use_model("one"), sources["d5"]);
    EXPECT_EQ(use_model("one@3"), sources["d3"]);
  }
  options.keep_versions = 2;
  begin();
  EXPECT_EQ(kept("one"), "5 4d4 5d5");
  publish("one", "d6");
  EXPECT_EQ(kept("one"), "6 5d5 6d6");
}

TEST_F(VersionsTest, OtherFilesAtAVersionsPathAreToldAndTheNameMeansNoOther) {
  options.keep_versions = 3;
  for (const char* name : {"a", "b", "c"}) write(name, "{}");
  begin();
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(load("one", name, true).status, 200);
  // The newest is gone, the one before has been overwritten.
  std::filesystem::remove_all(path("c"));
  write("b", "{ \"r\": 4 }");
  versions = {{path("b"), "other"}};
  AdapterService::Rescan found = begin();
  EXPECT_EQ(found.added, (std::vector<std::string>{"one"}));
  ASSERT_EQ(found.notes.size(), 2u);
  EXPECT_NE(found.notes[0].find("'one@2' of the registry is not served: the files at"), std::string::npos)
      << found.notes[0];
  EXPECT_NE(found.notes[1].find("'one@3' of the registry is not served: No adapter found at"), std::string::npos);
  EXPECT_EQ(kept("one"), "3 1v-one 2v-one 3v-one");
  const BodyJson all = BodyJson::parse(get("/v1/adapters").body)["data"][0]["versions"];
  EXPECT_EQ(all[1]["state"], "failed");
  EXPECT_NE(all[1]["error"].get<std::string>().find("are others than those that were loaded"), std::string::npos);
  EXPECT_EQ(root_of("one"), path("c")) << "its first use will tell";
  EXPECT_EQ(root_of("one@1"), path("a"));
}

// Loads, unloads, drops of one version and restarts, beside a naive list.
TEST_F(VersionsTest, AgreesWithANaiveOne) {
  for (const int64_t keep : {1, 3}) {
    const uint64_t seed = 300 + static_cast<uint64_t>(keep);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    std::filesystem::remove(file());
    versions.clear();
    options.keep_versions = keep;
    begin();
    std::map<std::string, std::deque<std::pair<int64_t, std::string>>> naive;  // number, digest
    std::map<std::string, int64_t> last;
    for (int step = 0; step < 120; ++step) {
      const std::string name = prng.below(2) == 0 ? "one" : "two";
      auto& known = naive[name];
      const uint64_t what = prng.below(10);
      if (what < 5) {
        const std::string digest = "d" + std::to_string(step);
        publish(name, digest);
        known.emplace_back(++last[name], digest);
        if (known.size() > static_cast<size_t>(keep)) known.pop_front();
      } else if (what < 6) {
        EXPECT_EQ(unload(name).status, known.empty() ? 404 : 200);
        known.clear();
      } else if (what < 9) {
        const int64_t number = std::max<int64_t>(0, last[name] - static_cast<int64_t>(prng.below(4)));
        const auto erased = std::erase_if(known, [&](const auto& one) { return one.first == number; });
        const std::string route = "/v1/adapters/" + name + "@" + std::to_string(number);
        EXPECT_EQ(send("DELETE", route, "").status, erased == 0 ? 404 : 200);
      } else {
        begin();
      }
      for (const auto& [each, versions] : naive) {
        std::string text = versions.empty() ? "none" : std::to_string(versions.back().first);
        for (const auto& [number, digest] : versions) text += " " + std::to_string(number) + digest;
        ASSERT_EQ(kept(each), text) << "step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace loralei
