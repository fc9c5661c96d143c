// SPDX-License-Identifier: Apache-2.0
#include "router/router_server.h"

#include "router/router_test_util.h"

namespace loralei {
namespace {

const Answering kGood = [](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const bool known = request.header("authorization") != "Bearer wrong";
  writer->respond(known ? 200 : 401, kJson, known ? "{}" : R"({"who": 1})");
};

TEST(RouterServer, ShowsTheModelsOfAllToWhomAReplicaWould) {
  FakeReplica a(kGood), b(kGood);
  a.report.adapters = {{.name = "sql"}};
  b.report.adapters = {{.name = "json"}};
  RouterWorld world({a.address(), b.address()});
  HttpClient client = world.client();
  const auto models = client.get("/v1/models");
  ASSERT_EQ(models->status, 200);
  for (const char* name : {"\"base\"", "\"sql\"", "\"json\""}) EXPECT_NE(models->body.find(name), std::string::npos);
  const auto refused = client.request("GET", "/v1/models", {{"Authorization", "Bearer wrong"}});
  EXPECT_EQ(refused->status, 401);
  EXPECT_EQ(refused->body, R"({"who": 1})");
}

TEST(RouterServer, SaysHowItIs) {
  FakeReplica a(kGood);
  RouterWorld world({a.address()});
  HttpClient client = world.client();
  EXPECT_EQ(client.get("/health")->status, 200);
  EXPECT_EQ(client.get("/ready")->status, 200);
  EXPECT_EQ(client.get("/version")->status, 200);
  EXPECT_NE(client.get("/")->body.find("router"), std::string::npos);
  EXPECT_NE(client.get("/metrics")->body.find("loralei_router_replica_up"), std::string::npos);
  EXPECT_NE(client.get("/v1/replicas")->body.find("\"state\":\"up\""), std::string::npos);
  EXPECT_EQ(client.get("/nothing")->status, 404);
  EXPECT_EQ(client.request("PUT", "/v1/models")->status, 404);
  a.say_not_ready();
  wait_until([&] { return client.get("/ready")->status == 503; });
}

TEST(RouterServer, ShowsTheFleetToWhoHasTheAdminKey) {
  FakeReplica a(kGood);
  RouterServerOptions options;
  options.admin_key = "boss";
  RouterWorld world({a.address()}, options);
  HttpClient client = world.client();
  EXPECT_EQ(client.get("/v1/replicas")->status, 401);
  EXPECT_EQ(client.request("GET", "/v1/replicas", {{"Authorization", "Bearer boss"}})->status, 200);
}

TEST(RouterServer, TellsWhatItCannotParse) {
  FakeReplica a(kGood);
  RouterWorld world({a.address()});
  HttpClient client = world.client();
  ASSERT_TRUE(client.send_raw("NONSENSE\r\n\r\n").ok());
  const auto answer = client.read_raw();
  ASSERT_TRUE(answer.ok());
  EXPECT_NE(answer->find("400"), std::string::npos);
}

TEST(RouterServer, AsksServersOfAnotherMakeForTheirModels) {
  FakeReplica loralei(kGood);
  // A route that is not there.
  FakeReplica strange([](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    if (request.path == "/v1/models")
      return (void)writer->respond(200, kJson, R"({"data": [{"id": "base"}, {"id": "sql", "parent": "base"}]})");
    writer->respond(200, kJson, R"({"said": "strange"})");
  });
  strange.without_report = true;
  RouterWorld world({loralei.address(), strange.address()});
  wait_until([&] { return world.server->replicas()[1].health == HealthState::kUp; });
  EXPECT_EQ(world.post(R"({"model": "sql"})")->body, R"({"said": "strange"})");
  EXPECT_FALSE(world.server->replicas()[1].reports);
}

TEST(RouterServer, SpreadsLoadsToAll) {
  std::atomic<int> loads{0};
  const auto loading = [&](int status) {
    return [&loads, status](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      ++loads;
      EXPECT_EQ(request.body, "{}");
      writer->respond(status, {{"Content-Type", "text/plain"}}, "status " + std::to_string(status));
    };
  };
  FakeReplica a(loading(200)), b(loading(200)), c(loading(404));
  RouterWorld same({a.address(), b.address()});
  const auto good = same.post("{}", kJson, "/v1/load_lora_adapter");
  EXPECT_EQ(good->status, 200);
  EXPECT_EQ(good->body, "status 200");
  EXPECT_EQ(good->header("x-loralei-replicas"), "2 of 2");
  EXPECT_EQ(loads, 2);
  RouterWorld mixed({a.address(), c.address()});
  const auto bad = mixed.post("{}", kJson, "/v1/load_lora_adapter");
  EXPECT_EQ(bad->status, 502);
  EXPECT_NE(bad->body.find("status 404"), std::string::npos);
  // What is not there need not be removed.
  EXPECT_EQ(mixed.post("{}", kJson, "/v1/unload_lora_adapter")->status, 200);
}

// To a replica on this machine whatever comes through the router is local.
TEST(RouterServer, KeepsStrangersFromTheAdminRoutesOfReplicas) {
  const std::pair<const char*, const char*> kRoutes[] = {{"POST", "/v1/load_lora_adapter"},
                                                         {"POST", "/v1/unload_lora_adapter"},
                                                         {"POST", "/v1/adapters/a/pin"},
                                                         {"DELETE", "/v1/adapters/a"}};
  FakeReplica keyed(kGood), open(kGood);
  RouterServerOptions options;
  options.admin_key = "boss";
  RouterWorld with_key({keyed.address()}, options);
  options.admin_key.clear();
  options.http.host = "0.0.0.0";
  RouterWorld reachable({open.address()}, options);
  for (const auto& [method, path] : kRoutes) {
    SCOPED_TRACE(path);
    HttpClient client = with_key.client(), other = reachable.client();
    EXPECT_EQ(client.request(method, path, kJson, "{}")->status, 401);
    EXPECT_EQ(other.request(method, path, kJson, "{}")->status, 403);
    EXPECT_EQ(keyed.asked + open.asked, 0);
    HttpHeaders right = kJson;
    right.emplace_back("Authorization", "Bearer boss");
    EXPECT_EQ(client.request(method, path, right, "{}")->status, 200);
    keyed.asked = 0;
  }
  RouterWorld local({open.address()});
  HttpHeaders foreign = kJson;
  foreign.emplace_back("Origin", "http://elsewhere");
  EXPECT_EQ(local.post("{}", foreign, "/v1/load_lora_adapter")->status, 403);
  EXPECT_EQ(open.asked, 0);
  EXPECT_EQ(local.post("{}", kJson, "/v1/load_lora_adapter")->status, 200);
}

// What it had before it would answer with when it is back.
TEST(RouterServer, SaysWhoWasNotAskedToLoad) {
  FakeReplica up(kGood), resting(kGood);
  resting.report.ready = false;
  RouterWorld world({up.address(), resting.address()});
  const auto answer = world.post("{}", kJson, "/v1/load_lora_adapter");
  EXPECT_EQ(answer->status, 502);
  EXPECT_EQ(answer->header("x-loralei-replicas"), "1 of 2");
  EXPECT_NE(answer->body.find(address_text(resting.address()) + " is not_ready and was not asked"), std::string::npos)
      << answer->body;
  EXPECT_EQ(up.asked, 1);
  EXPECT_EQ(resting.asked, 0);
}

TEST(RouterServer, EndsWhatRunsAtItsEnd) {
  HeldAnswers kept;
  FakeReplica hangs([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) { kept.add(writer); });
  RouterWorld world({hangs.address()});
  std::thread client([&] { EXPECT_FALSE(world.post().ok()); });
  wait_until([&] { return hangs.asked == 1; });
  EXPECT_FALSE(world.server->shutdown(50));
  client.join();
  kept.drop();
}

}  // namespace
}  // namespace loralei
