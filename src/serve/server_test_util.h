// SPDX-License-Identifier: Apache-2.0
// The API server over loopback with a fake engine and a small real tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/log_test_util.h"
#include "http/client.h"
#include "serve/api_server.h"
#include "serve/fake_engine_test_util.h"
#include "sys/file.h"
#include "sys/rooted_file_system.h"

namespace loralei {

using BodyJson = nlohmann::json;

class ApiTest : public testing::Test {
 protected:
  // A request is counted and logged after its answer has left, so a client may be
  // faster than both.
  static bool soon(const std::function<bool()>& holds) {
    for (int i = 0; i < 3000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  bool logs(const std::string& line) {
    return soon([&] { return log.text().find(line) != std::string::npos; });
  }
  bool counts(const std::string& sample) {
    return soon([&] { return get("/metrics").body.find(sample) != std::string::npos; });
  }

  void SetUp() override {
    auto loaded = Tokenizer::from_directory(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-gpt2");
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    tokenizer = *loaded;
    auto chatml = ChatTemplate::builtin("chatml");
    ASSERT_TRUE(chatml.ok());
    auto made = TextModel::make(tokenizer, *chatml, "base");
    ASSERT_TRUE(made.ok()) << made.error().message;
    text = *made;
    engine.length = 512;
    engine.eos = tokenizer->eos().value_or(0);
    engine.script = [this](const Submit&, int) { return ids("Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80 done"); };
    options.model_names = {"base", "alias"};
    options.version = "0.0.test";
  }
  void bind() {
    files = std::make_unique<RootedFileSystem>(disk, options.adapter_roots);
    for (const std::string& path : command_line_adapters) files->add_root(path);
    auto started = ApiServer::start(options, engine, text, *files, clock, log);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server = std::move(*started);
  }
  void start() {
    bind();
    server->serve();
  }
  std::vector<TokenId> ids(const std::string& s) { return tokenizer->encode(s, {.add_special = false}).value(); }
  // As patient as a sanitizer is slow.
  HttpClient client() const { return HttpClient({.port = server->port(), .read_timeout_ms = 300'000}); }
  HttpResponse post(const std::string& path, const std::string& body, HttpHeaders headers = {}) {
    return send("POST", path, body, std::move(headers));
  }
  HttpResponse send(const std::string& method, const std::string& path, const std::string& body,
                    HttpHeaders headers = {}) {
    headers.emplace_back("Content-Type", "application/json");
    HttpClient c = client();
    auto answer = c.request(method, path, headers, body);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? *answer : HttpResponse{};
  }
  HttpResponse get(const std::string& path) {
    HttpClient c = client();
    auto answer = c.get(path);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? *answer : HttpResponse{};
  }
  std::vector<std::string> events(const std::string& path, const std::string& body) {
    HttpClient c = client();
    SseParser sse;
    std::vector<std::string> out;
    auto answer = c.post_json(path, body, [&](std::string_view piece) {
      return sse.feed(piece, [&](std::string_view event) {
        out.emplace_back(event);
        return true;
      });
    });
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return out;
  }
  static std::string chat(const std::string& more = "") {
    return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
  }
  static std::string error_of(const HttpResponse& response, const char* field) {
    const BodyJson body = BodyJson::parse(response.body, nullptr, false);
    if (!body.is_object() || !body.contains("error")) return "no error body: " + response.body;
    return body["error"][field].is_string() ? body["error"][field].get<std::string>() : body["error"][field].dump();
  }

  FakeEngine engine;
  ServeOptions options;
  PosixFileSystem disk;
  std::vector<std::string> command_line_adapters;
  std::unique_ptr<RootedFileSystem> files;
  SteadyClock clock;
  CollectingLog log;
  Tokenizer::Ptr tokenizer;
  std::shared_ptr<const TextModel> text;
  std::unique_ptr<ApiServer> server;  // last: it borrows the rest
};

inline const std::string kScripted = "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80 done";

}  // namespace loralei
