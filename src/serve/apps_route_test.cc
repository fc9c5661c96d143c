// SPDX-License-Identifier: Apache-2.0
// What is told and said of the KV cache and of the applications that use it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

TEST_F(ApiTest, ApplicationsAreStatedAndShown) {
  start();
  engine.kv.apps = {{.id = "mail", .state = AppState::kBackground, .tokens = 64, .alone_tokens = 16}};
  const HttpResponse stated = send("PUT", "/v1/apps/my%20mail", R"({"state":"killed"})");
  EXPECT_EQ(stated.status, 200) << stated.body;
  EXPECT_EQ(BodyJson::parse(stated.body)["id"], "my mail");
  EXPECT_EQ(BodyJson::parse(stated.body)["bytes_freed"], 4096);
  ASSERT_EQ(engine.apps_stated.size(), 1u);
  EXPECT_EQ(engine.apps_stated[0], std::pair(std::string("my mail"), AppState::kKilled));
  const BodyJson shown = BodyJson::parse(get("/v1/apps").body)["apps"];
  ASSERT_EQ(shown.size(), 1u);
  EXPECT_EQ(shown[0]["id"], "mail");
  EXPECT_EQ(shown[0]["state"], "background");
  EXPECT_EQ(shown[0]["tokens"], 64);
  EXPECT_TRUE(shown[0]["pid"].is_null());
  EXPECT_EQ(send("PUT", "/v1/apps/mail", R"({"state":"asleep"})").status, 400);
  EXPECT_EQ(send("PUT", "/v1/apps/" + std::string(129, 'a'), R"({"state":"killed"})").status, 400);
  EXPECT_EQ(send("PUT", "/v1/apps/a%0Ab", R"({"state":"killed"})").status, 400);
  EXPECT_GE(send("PUT", "/v1/apps/", R"({"state":"killed"})").status, 400);
  EXPECT_EQ(engine.apps_stated.size(), 1u);
  EXPECT_EQ(send("PUT", "/v1/apps/mail", R"({"state":"foreground","pid":2147483647})").status, 404);
}

TEST_F(ApiTest, AnApplicationIsKilledWhenItsProcessEnds) {
  start();
  const int pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::string body = R"({"state":"foreground","pid":)" + std::to_string(pid) + "}";
  const HttpResponse stated = send("PUT", "/v1/apps/mail", body);
  EXPECT_EQ(stated.status, 200) << stated.body;
  engine.kv.apps = {{.id = "mail"}};
  EXPECT_EQ(BodyJson::parse(get("/v1/apps").body)["apps"][0]["pid"], pid);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  for (int i = 0; i < 2000 && engine.stated().size() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_EQ(engine.stated().size(), 2u);
  EXPECT_EQ(engine.stated()[1], std::pair(std::string("mail"), AppState::kKilled));
  EXPECT_TRUE(BodyJson::parse(get("/v1/apps").body)["apps"][0]["pid"].is_null());
}

TEST_F(ApiTest, ARequestNamesItsApplicationInBodyOrHeader) {
  start();
  const std::string named = R"({"prompt":"a","app_id":"mail"})", plain = R"({"prompt":"a"})";
  EXPECT_EQ(post("/v1/completions", named).status, 200);
  EXPECT_EQ(post("/v1/completions", plain, {{"X-App-Id", "notes"}}).status, 200);
  EXPECT_EQ(post("/v1/completions", named, {{"X-App-Id", "mail"}}).status, 200);
  EXPECT_EQ(post("/v1/completions", plain).status, 200);
  EXPECT_EQ(engine.wait_submit(0).app_id, "mail");
  EXPECT_EQ(engine.wait_submit(1).app_id, "notes");
  EXPECT_EQ(engine.wait_submit(2).app_id, "mail");
  EXPECT_EQ(engine.wait_submit(3).app_id, "");
  const HttpResponse both = post("/v1/completions", named, {{"X-App-Id", "notes"}});
  EXPECT_EQ(both.status, 400);
  EXPECT_NE(both.body.find("send one of them"), std::string::npos);
  EXPECT_EQ(post("/v1/completions", plain, {{"X-App-Id", std::string(129, 'a')}}).status, 400);
  EXPECT_EQ(post("/v1/completions", plain, {{"X-App-Id", "a"}, {"X-App-Id", "a"}}).status, 400);
}

TEST_F(ApiTest, KvIsShownByWhoHoldsItWithoutTextsOrSalts) {
  start();
  engine.kv.block_tokens = 16;
  engine.kv.total_tokens = 320;
  engine.kv.text_tokens = 32;
  engine.kv.held_tokens = 48;
  engine.kv.holders = 2;
  engine.kv.first.resize(2);
  engine.kv.first[0].tokens = 32;
  engine.kv.first[0].saved_s = 0.5;
  engine.kv.first[1].adapters = {{.version = "00ff", .scale = 0.5f, .from_token = 20}};
  engine.kv.first[1].salted = true;
  const HttpResponse answer = get("/v1/kv");
  EXPECT_EQ(answer.status, 200);
  const BodyJson body = BodyJson::parse(answer.body);
  EXPECT_EQ(body["total_tokens"], 320);
  EXPECT_EQ(body["text_tokens"], 32);
  EXPECT_EQ(body["held_tokens"], 48);
  EXPECT_EQ(body["holders"], 2);
  EXPECT_TRUE(body["first"][0]["adapters"].empty());
  EXPECT_EQ(body["first"][0]["saved_s"], 0.5);
  EXPECT_EQ(body["first"][0]["salted"], false);
  const BodyJson& adapter = body["first"][1]["adapters"][0];
  EXPECT_TRUE(adapter["name"].is_null()) << "no adapter has that version";
  EXPECT_EQ(adapter["version"], "00ff");
  EXPECT_EQ(adapter["scale"], 0.5);
  EXPECT_EQ(adapter["from_token"], 20);
  EXPECT_EQ(body["first"][1]["salted"], true);
  engine.next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  EXPECT_EQ(get("/v1/kv").status, 429);
}

}  // namespace
}  // namespace loralei
