// SPDX-License-Identifier: Apache-2.0
// Adapters that come over HTTP, and those that leave again.
#include "serve/adapter_uploads.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "serve/recorded_test_util.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class UploadsTest : public RecordedTest {
 protected:
  using Files = std::vector<std::pair<std::string, std::string>>;

  void TearDown() override {
    server.reset();
    store_.reset();
    fs::remove_all(folder_);
    RecordedTest::TearDown();
  }
  void open_store(int64_t max_bytes = 0) {
    server.reset();
    store_.reset();
    store_ = AdapterStore::open({.folder = folder_, .max_bytes = max_bytes}).value();
    options.adapter_store.store = store_.get();
  }
  static Files peft(const std::string& weights) {
    return {{"adapter_config.json", "{}"}, {"adapter_model.safetensors", weights}};
  }
  static std::string form(const Files& files, const Files& fields) {
    std::string body;
    for (const auto& [name, value] : fields)
      body += "--XX\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
    for (const auto& [name, bytes] : files) {
      body += "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name +
              "\"\r\nContent-Type: application/octet-stream\r\n\r\n" + bytes + "\r\n";
    }
    return body + "--XX--\r\n";
  }
  HttpResponse send_form(const std::string& body, HttpHeaders headers = {}) {
    headers.emplace_back("Content-Type", "multipart/form-data; boundary=XX");
    HttpClient c = client();
    auto answer = c.request("POST", "/v1/adapters", headers, body);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? *answer : HttpResponse{};
  }
  HttpResponse upload(const Files& files, const Files& fields = {}) { return send_form(form(files, fields)); }
  HttpResponse blob(const std::string& digest, HttpHeaders headers = {}) {
    HttpClient c = client();
    return c.request("GET", "/v1/adapters/blobs/" + digest, headers).value();
  }
  HttpResponse load_stored(const std::string& name, const std::string& from, const std::string& more = "") {
    return post("/v1/load_lora_adapter", R"({"lora_name":")" + name + R"(","lora_path":")" + from + "\"" + more + "}");
  }

  const std::string folder_ = testing::TempDir() + "uploads_" + std::to_string(::getpid());
  std::unique_ptr<AdapterStore> store_;
};

TEST_F(UploadsTest, OneThatIsNamedIsServedAtOnce) {
  open_store();
  begin_without_registry();
  const HttpResponse answer = upload(peft("w"), {{"name", "mine"}, {"pinned", "true"}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const BodyJson body = BodyJson::parse(answer.body);
  const std::string digest = body["digest"];
  EXPECT_EQ(body["name"], "mine");
  EXPECT_EQ(body["number"], 1);
  EXPECT_EQ(body["load_inplace"], false);
  EXPECT_EQ(body["pinned"], true) << "for a router, which has the others load it as this one did";
  EXPECT_EQ(body["path"], "store:" + digest);
  EXPECT_EQ(body["bytes"], 3);
  EXPECT_EQ(body["files"][1]["sha256"], sha256_hex("w"));
  EXPECT_EQ(root_of("mine"), store_->folder_of(digest));
  const AdapterCommand& load = engine_now().commands.front();
  EXPECT_EQ(load.action, AdapterAction::kLoad);
  EXPECT_EQ(load.source.path, store_->folder_of(digest));
  EXPECT_EQ(engine_now().commands.back().action, AdapterAction::kPin);
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("model":"mine")")).status, 200);
  EXPECT_EQ(upload(peft("other"), {{"name", "mine"}}).status, 400) << "there is one of that name";
  EXPECT_TRUE(soon([&] { return store_->stats().adapters == 1; })) << "and what was refused goes again";
  const HttpResponse next = upload(peft("other"), {{"name", "mine"}, {"load_inplace", "true"}});
  EXPECT_EQ(next.status, 200);
  EXPECT_EQ(BodyJson::parse(next.body)["load_inplace"], true);
  EXPECT_EQ(BodyJson::parse(get("/v1/replica").body)["store"], true);
  EXPECT_TRUE(soon([&] { return store_->stats().adapters == 1; })) << "what nothing means any more goes";
  EXPECT_FALSE(store_->find(digest).has_value());
}

TEST_F(UploadsTest, OneWithoutANameIsKeptAndLoadedByItsDigest) {
  open_store();
  begin_without_registry();
  const HttpResponse answer = upload({{"dir\\sub/x.gguf", "GGUF"}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const std::string path = BodyJson::parse(answer.body)["path"], digest = BodyJson::parse(answer.body)["digest"];
  EXPECT_EQ(path, "store:" + digest + "/x.gguf");
  EXPECT_TRUE(engine_now().commands.empty());
  EXPECT_EQ(BodyJson::parse(get("/v1/adapters/blobs").body)["data"][0]["digest"], digest);
  for (const std::string& wrong :
       {std::string("store:"), "store:" + std::string(64, '0'), std::string("store:../../etc"),
        "store:" + digest + "/y.gguf", "store:" + digest + "/../x.gguf"})
    EXPECT_NE(load_stored("mine", wrong).status, 200) << wrong;
  EXPECT_EQ(load_stored("base", path).status, 409);
  EXPECT_TRUE(store_->find(digest).has_value()) << "a load that was refused takes nothing along";
  EXPECT_EQ(load_stored("mine", path).status, 200);
  EXPECT_EQ(load_stored("too", "store:" + digest).status, 200);
  EXPECT_EQ(root_of("mine"), store_->folder_of(digest) + "/x.gguf");
  EXPECT_EQ(unload("mine").status, 200);
  EXPECT_TRUE(store_->find(digest).has_value()) << "another name means it";
  EXPECT_EQ(unload("too").status, 200);
  EXPECT_TRUE(soon([&] { return !store_->find(digest).has_value(); }));
}

TEST_F(UploadsTest, BlobsAreSentWholeAndFromTheMiddle) {
  open_store();
  begin_without_registry();
  std::string weights;
  for (int i = 0; weights.size() < 2'000'000; ++i) weights += std::to_string(i * 7919);
  ASSERT_EQ(upload(peft(weights)).status, 200);
  const std::string sha = sha256_hex(weights);
  const HttpResponse whole = blob(sha);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.header("etag"), "\"" + sha + "\"");
  EXPECT_TRUE(whole.body == weights);
  const HttpResponse rest = blob(sha, {{"Range", "bytes=1234567-"}});
  EXPECT_EQ(rest.status, 206);
  EXPECT_EQ(rest.header("content-range"),
            "bytes 1234567-" + std::to_string(weights.size() - 1) + "/" + std::to_string(weights.size()));
  EXPECT_TRUE(rest.body == weights.substr(1234567));
  EXPECT_EQ(blob(sha, {{"Range", "bytes=" + std::to_string(weights.size()) + "-"}}).status, 416);
  for (const char* all : {"bytes=0-", "bytes=5-9", "bytes=-5", "bytes=x", "lines=5-"})
    EXPECT_EQ(blob(sha, {{"Range", all}}).status, 200) << all;
  const std::string manifest = blob(store_->list().front().digest()).body;
  EXPECT_EQ(sha256_hex(manifest), store_->list().front().digest());
  for (const std::string& absent : {std::string(64, '0'), std::string("lock"), std::string("..%2Flock")})
    EXPECT_EQ(blob(absent).status, 404) << absent;
}

TEST_F(UploadsTest, OnlyWhoHasTheAdminKey) {
  options.api_keys = {"user"};
  options.admin_key = "admin";
  open_store();
  begin_without_registry();
  const std::string body = form(peft("w"), {});
  for (const auto& [key, status] : {std::pair("", 401), std::pair("user", 403)}) {
    const HttpHeaders headers = {{"Authorization", std::string("Bearer ") + key}};
    EXPECT_EQ(send_form(body, headers).status, status) << key;
    EXPECT_EQ(blob(sha256_hex("w"), headers).status, status) << key;
  }
  EXPECT_EQ(store_->stats().bytes, 0) << "nothing of it was read";
  EXPECT_EQ(send_form(body, {{"Authorization", "Bearer admin"}}).status, 200);
  EXPECT_EQ(blob(sha256_hex("w"), {{"Authorization", "Bearer admin"}}).body, "w");
}

TEST_F(UploadsTest, WhatIsWrongIsToldAndLeavesNothing) {
  options.adapter_store.max_upload_bytes = 4 << 20;
  open_store();
  begin_without_registry();
  const std::string good = form(peft("w"), {});
  const auto error = [&](const HttpResponse& answer) {
    return std::to_string(answer.status) + " " + error_of(answer, "message");
  };
  EXPECT_NE(error(upload({{"adapter_config.json", "{}"}})).find("400 An adapter needs adapter_model"),
            std::string::npos);
  EXPECT_NE(error(upload({{"adapter_model.bin", "w"}})).find("pickle"), std::string::npos);
  EXPECT_NE(error(upload(peft("w"), {{"nme", "x"}})).find("field 'nme'"), std::string::npos);
  EXPECT_NE(error(upload(peft("w"), {{"name", ""}})).find("empty"), std::string::npos);
  EXPECT_NE(error(upload(peft("w"), {{"name", std::string(2000, 'x')}})).find("longer than 1024"), std::string::npos);
  EXPECT_NE(error(upload(peft("w"), {{"name", "a@1"}})).find("400 'a@1' cannot"), std::string::npos);
  EXPECT_NE(error(upload(peft("w"), {{"name", "base"}})).find("409"), std::string::npos);
  EXPECT_NE(error(upload(peft("w"), {{"pinned", "yes"}})).find("true or false"), std::string::npos);
  EXPECT_NE(error(send_form(good.substr(0, good.size() - 10))).find("ends before its last boundary"),
            std::string::npos);
  EXPECT_NE(error(post("/v1/adapters", "{}")).find("415 The body must be a form"), std::string::npos);
  EXPECT_NE(error(send("POST", "/v1/adapters", "")).find("no body"), std::string::npos);
  EXPECT_EQ(send_form(good, {{"Origin", "http://evil.example"}}).status, 403) << "web pages can send forms";
  EXPECT_EQ(upload(peft(std::string(5 << 20, 'w'))).status, 413);
  EXPECT_NE(error(upload({{"broken.gguf", "w"}}, {{"name", "mine"}})).find("file is broken"), std::string::npos);
  EXPECT_TRUE(soon([&] { return store_->stats().bytes == 0; })) << store_->stats().bytes;
  EXPECT_TRUE(fs::is_empty(folder_ + "/blobs"));
  EXPECT_TRUE(soon([&] { return fs::is_empty(folder_ + "/incoming"); }));
}

TEST_F(UploadsTest, AServerWithoutAStoreSaysSo) {
  begin_without_registry();
  EXPECT_NE(error_of(upload(peft("w")), "message").find("--adapter-store DIR"), std::string::npos);
  EXPECT_EQ(get("/v1/adapters/blobs").status, 403);
  EXPECT_EQ(BodyJson::parse(get("/v1/replica").body)["store"], false);
  EXPECT_EQ(blob(std::string(64, '0')).status, 403);
  EXPECT_NE(load_stored("x", "store:" + std::string(64, '0')).body.find("--adapter-store"), std::string::npos);
}

TEST_F(UploadsTest, ARegistryFindsThemWhereverTheStoreIs) {
  open_store();
  begin();
  ASSERT_EQ(upload(peft("w"), {{"name", "mine"}}).status, 200);
  const std::string digest = store_->list().front().digest();
  server.reset();
  store_.reset();
  const std::string moved = folder_ + "_moved";
  fs::remove_all(moved);
  fs::rename(folder_, moved);
  store_ = AdapterStore::open({.folder = moved}).value();
  options.adapter_store.store = store_.get();
  EXPECT_EQ(begin().added, std::vector<std::string>{"mine"});
  EXPECT_EQ(root_of("mine"), store_->folder_of(digest));
  EXPECT_TRUE(store_->find(digest).has_value()) << "the end of a server takes nothing along";
  EXPECT_EQ(unload("mine").status, 200);
  EXPECT_TRUE(soon([&] { return store_->stats().adapters == 0; }));
  // A store that is gone is a note, and no adapter.
  ASSERT_EQ(upload(peft("w"), {{"name", "mine"}}).status, 200);
  server.reset();
  store_.reset();
  fs::remove_all(moved);
  open_store();
  const auto restored = begin();
  EXPECT_TRUE(restored.added.empty());
  ASSERT_EQ(restored.notes.size(), 1u);
  EXPECT_NE(restored.notes[0].find("The adapter store has no adapter"), std::string::npos) << restored.notes[0];
}

TEST_F(UploadsTest, AFullStoreRefusesWhileAllIsInUse) {
  open_store(3000);
  begin_without_registry();
  EXPECT_EQ(upload(peft(std::string(1000, 'a')), {{"name", "a"}}).status, 200);
  EXPECT_EQ(upload(peft(std::string(1000, 'b'))).status, 200);
  EXPECT_EQ(upload(peft(std::string(1000, 'c')), {{"name", "c"}}).status, 200);  // in the place of b
  const HttpResponse full = upload(peft(std::string(1000, 'd')), {{"name", "d"}});
  EXPECT_EQ(full.status, 429) << full.body;
  EXPECT_EQ(unload("a").status, 200);
  EXPECT_TRUE(soon([&] { return store_->stats().adapters == 1; }));
  EXPECT_EQ(upload(peft(std::string(1000, 'd')), {{"name", "d"}}).status, 200);
}

}  // namespace
}  // namespace loralei
