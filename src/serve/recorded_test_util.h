// SPDX-License-Identifier: Apache-2.0
// For tests: a server over a fake engine, whose adapters come over HTTP, begun again and
// again on the same files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/server_test_util.h"
#include "store/adapter_store.h"
#include "store/sqlite_registry.h"

namespace loralei {

class RecordedTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    base_ = std::filesystem::path(testing::TempDir()) / ("loralei-records-" + std::to_string(::getpid()));
    std::filesystem::remove_all(base_);
    for (const char* name : {"one", "two"}) write(name, "{}");
    options.adapter_roots = {(base_ / "root").string()};
  }
  void TearDown() override {
    server.reset();
    std::filesystem::remove_all(base_);
  }
  std::string path(const std::string& name) const { return (base_ / "root" / name).string(); }
  std::string file() const { return (base_ / "adapters.db").string(); }
  void write(const std::string& name, const std::string& config) {
    std::filesystem::create_directories(path(name));
    std::ofstream(path(name) + "/adapter_config.json") << config;
  }
  // Another process, as far as files tell.
  AdapterService::Rescan begin(const std::string& base = "base-1") {
    bind_next();
    auto registry = open_sqlite_registry(file(), {.keep_versions = options.keep_versions});
    EXPECT_TRUE(registry.ok()) << registry.error().message;
    const auto stamp = [this](const std::string& adapter) -> Result<std::string> {
      TRY_ASSIGN(const FileStamp found, files->stamp(adapter + "/adapter_config.json"));
      return std::to_string(found.inode) + ":" + std::to_string(found.mtime_ns);
    };
    AdapterService::Rescan restored = server->restore_adapters({std::move(*registry), base, stamp});
    server->serve();
    return restored;
  }
  // One that keeps nothing.
  void begin_without_registry() {
    bind_next();
    server->serve();
  }
  FakeEngine& engine_now() { return *engines_.back(); }
  HttpResponse load(const std::string& name, const std::string& from, bool in_place = false,
                    const std::string& more = "") {
    return post("/v1/load_lora_adapter", R"({"lora_name":")" + name + R"(","lora_path":")" + path(from) + "\"" +
                                             (in_place ? R"(,"load_inplace":true)" : "") + more + "}");
  }
  HttpResponse unload(const std::string& name) {
    return post("/v1/unload_lora_adapter", R"({"lora_name":")" + name + "\"}");
  }
  std::string root_of(const std::string& name) {
    const HttpResponse answer = get("/v1/models/" + name);
    return answer.status == 200 ? BodyJson::parse(answer.body)["root"].get<std::string>() : "none";
  }
  size_t drops() {
    return static_cast<size_t>(
        std::count_if(engine_now().commands.begin(), engine_now().commands.end(),
                      [](const AdapterCommand& command) { return command.action == AdapterAction::kDrop; }));
  }
  std::map<std::string, std::string> versions;                         // of the next engine
  std::vector<std::pair<std::string, std::string>> command_line = {};  // name, path

 private:
  void bind_next() {
    server.reset();
    engines_.push_back(std::make_unique<FakeEngine>());
    engine_now().length = 512;
    engine_now().eos = engine.eos;
    engine_now().script = engine.script;
    engine_now().versions = versions;
    files = std::make_unique<RootedFileSystem>(disk, options.adapter_roots);
    for (const auto& [name, place] : command_line) files->add_root(place);
    if (options.adapter_store.store != nullptr)
      files->add_wide_root(options.adapter_store.store->folder() + "/adapters");
    auto started = ApiServer::start(options, engine_now(), text, *files, clock, log);
    EXPECT_TRUE(started.ok()) << started.error().message;
    server = std::move(*started);
    for (const auto& [name, place] : command_line) EXPECT_TRUE(server->add_adapter(name, place).ok());
  }

  std::filesystem::path base_;
  std::vector<std::unique_ptr<FakeEngine>> engines_;
};

}  // namespace loralei
