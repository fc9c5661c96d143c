// SPDX-License-Identifier: Apache-2.0
#include "router/router_events.h"

#include <future>

#include <nlohmann/json.hpp>

#include "router/router_test_util.h"

namespace loralei {
namespace {

const Answering kGood = [](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(200, kJson, "{}"); };

nlohmann::json event_of(RouterWorld& world) {
  HttpClient client = world.client();
  const auto answer = client.get("/v1/admin/events?count=1&interval_ms=250");
  EXPECT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->header("content-type"), "text/event-stream; charset=utf-8");
  return nlohmann::json::parse(answer->body.substr(6), nullptr, false);
}

TEST(RouterEvents, TellOfReplicasAndOfWhatTheyHave) {
  FakeReplica a(kGood), b(kGood);
  a.report.adapters = {{.name = "sql"}, {.name = "json"}};
  b.report.adapters = {{.name = "sql"}};
  RouterWorld world({a.address(), b.address()});
  const nlohmann::json told = event_of(world);
  EXPECT_EQ(told["kind"], "router");
  EXPECT_EQ(told["server"]["model"], "base");
  EXPECT_EQ(told["server"]["ready"], true);
  ASSERT_EQ(told["replicas"].size(), 2u);
  EXPECT_EQ(told["replicas"][0]["state"], "up");
  EXPECT_EQ(told["replicas"][0]["adapters"], 2);
  HttpClient client = world.client();
  EXPECT_EQ(nlohmann::json::parse(client.get("/v1/replicas")->body)["data"], told["replicas"]);
  EXPECT_EQ(told["adapters"]["total"], 2);
  EXPECT_EQ(told["adapters"]["first"][0]["name"], "json");
  a.say_not_ready();
  b.say_not_ready();
  wait_until([&] { return event_of(world)["server"]["ready"] == false; });
  EXPECT_EQ(event_of(world)["server"]["cannot"][0]["why"], "No replica is up.");
}

TEST(RouterEvents, NameNoMoreAdaptersThanAPageShows) {
  FakeReplica a(kGood);
  for (int i = 0; i < 300; ++i) a.report.adapters.push_back({.name = "a" + std::to_string(i)});
  RouterWorld world({a.address()});
  const nlohmann::json told = event_of(world);
  EXPECT_EQ(told["adapters"]["total"], 300);
  EXPECT_EQ(told["adapters"]["first"].size(), RouterEvents::kAdaptersTold);
}

TEST(RouterEvents, AreForWhoHasTheAdminKey) {
  FakeReplica a(kGood);
  RouterServerOptions options;
  options.admin_key = "boss";
  RouterWorld world({a.address()}, options);
  HttpClient client = world.client();
  EXPECT_EQ(client.get("/v1/admin/events?count=1")->status, 401);
  const HttpHeaders boss = {{"Authorization", "Bearer boss"}};
  EXPECT_EQ(client.request("GET", "/v1/admin/events?interval_ms=1", boss)->status, 400);
  EXPECT_EQ(client.request("GET", "/v1/admin/events?count=1", boss)->status, 200);
  EXPECT_EQ(a.asked, 0) << "no replica is asked";
}

TEST(RouterEvents, EndWithTheRoutersDrain) {
  FakeReplica a(kGood);
  RouterWorld world({a.address()});
  std::promise<void> began;
  std::string body;
  bool first = true;
  std::thread following([&] {
    HttpClient client = world.client();
    const auto answer = client.request("GET", "/v1/admin/events", {}, {}, [&](std::string_view piece) {
      body += piece;
      if (std::exchange(first, false)) began.set_value();
      return true;
    });
    EXPECT_TRUE(answer.ok());
  });
  began.get_future().wait();
  world.server->begin_drain();
  following.join();
  EXPECT_NE(body.find("event: end"), std::string::npos);
}

TEST(RouterEvents, BrowsersGetTheSamePageAsFromAServer) {
  FakeReplica a(kGood);
  RouterWorld world({a.address()});
  HttpClient client = world.client();
  EXPECT_EQ(client.get("/")->header("content-type"), "text/plain; charset=utf-8");
  EXPECT_EQ(client.get("/")->header("vary"), "Accept");
  const auto page = client.request("GET", "/", {{"Accept", "text/html"}});
  EXPECT_EQ(page->header("content-type"), "text/html; charset=utf-8");
  EXPECT_FALSE(page->header("content-security-policy").empty());
  const auto style = client.get("/dashboard/style.css");
  EXPECT_EQ(style->status, 200);
  const HttpHeaders have = {{"If-None-Match", std::string(style->header("etag"))}};
  EXPECT_EQ(client.request("GET", "/dashboard/style.css", have)->status, 304);
  EXPECT_EQ(client.get("/dashboard/nothing")->status, 404);
}

}  // namespace
}  // namespace loralei
