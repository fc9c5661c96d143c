// SPDX-License-Identifier: Apache-2.0
#include "serve/server_events.h"

#include <atomic>
#include <cmath>
#include <future>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

AdapterBoard::Shown adapter(uint64_t id, AdapterTier tier, int32_t users, int64_t used_ns, bool on_device = false) {
  auto status = std::make_shared<AdapterStatus>();
  status->source.id = AdapterSourceId{id};
  status->source.label = "a" + std::to_string(id);
  status->tier = tier;
  status->users = users;
  status->on_device = on_device;
  return {status, used_ns};
}

std::vector<uint64_t> ids_of(const AdaptersTold& told) {
  std::vector<uint64_t> ids;
  for (const AdapterBoard::Shown& one : told.first) ids.push_back(one.status->source.id.value);
  return ids;
}

TEST(AdaptersTold, AreTheBusiestThenThoseOnTheirWayThenTheLatest) {
  const AdaptersTold told =
      busiest_adapters({adapter(1, AdapterTier::kSource, 0, 0), adapter(2, AdapterTier::kResident, 0, 50),
                        adapter(3, AdapterTier::kResident, 2, 40, true), adapter(4, AdapterTier::kLoading, 0, 0),
                        adapter(5, AdapterTier::kResident, 0, 90), adapter(6, AdapterTier::kResident, 7, 10),
                        adapter(7, AdapterTier::kFailed, 0, 0)},
                       5);
  EXPECT_EQ(ids_of(told), (std::vector<uint64_t>{6, 3, 4, 5, 2}));
  EXPECT_EQ(told.places, (std::array<int64_t, 5>{1, 1, 1, 3, 1})) << "all of them are counted";
  EXPECT_TRUE(busiest_adapters({}, 5).first.empty());
}

TEST(AdapterBoardShown, KnowsWhenAnAdapterWasLastUsed) {
  AdapterBoard board;
  const auto put = [&](int32_t users, int64_t uses, int64_t now_ns) {
    auto status = std::make_shared<AdapterStatus>();
    status->users = users;
    status->uses = uses;
    board.put(std::vector<AdapterNews>{{AdapterSourceId{1}, status}}, now_ns);
    return board.shown().at(0).used_ns;
  };
  EXPECT_EQ(put(0, 0, 10), 0) << "it was registered, no more";
  EXPECT_EQ(put(1, 1, 20), 20);
  EXPECT_EQ(put(0, 1, 50), 50) << "until then it was in use";
  EXPECT_EQ(put(0, 1, 60), 50);
  EXPECT_EQ(put(0, 2, 70), 70) << "between two news it came and went";
}

class EventsTest : public ApiTest {
 protected:
  HttpResponse ask(const std::string& target, HttpHeaders headers = {}) {
    HttpClient c = client();
    auto answer = c.request("GET", target, headers);
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? *answer : HttpResponse{};
  }
  BodyJson event(HttpHeaders headers = {}) {
    const HttpResponse answer = ask("/v1/admin/events?count=1&interval_ms=250", std::move(headers));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.header("content-type"), "text/event-stream; charset=utf-8");
    EXPECT_EQ(answer.body.find("data: "), 0u);
    return BodyJson::parse(answer.body.substr(6), nullptr, false);
  }
  void add_adapters(int count) {
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(server->add_adapter("a" + std::to_string(i), "/somewhere/a" + std::to_string(i)).ok());
  }
};

TEST_F(EventsTest, SayEverythingThatThePageShows) {
  engine.queues.queues.resize(2);
  engine.kv.holders = 1;
  engine.kv.first.resize(1);
  engine.kv.apps = {{.id = "mail", .tokens = 32}};
  engine.device = "cuda:0";
  start();
  add_adapters(3);
  const BodyJson told = event();
  ASSERT_TRUE(told.is_object());
  EXPECT_EQ(told["kind"], "server");
  EXPECT_EQ(told["server"]["model"], "base");
  EXPECT_EQ(told["server"]["ready"], true);
  EXPECT_EQ(told["memory"], BodyJson::parse(get("/v1/admin/memory").body));
  EXPECT_EQ(told["adapters"]["total"], 3);
  ASSERT_EQ(told["adapters"]["first"].size(), 3u);
  EXPECT_EQ(told["adapters"]["first"][0]["place"], "disk");
  EXPECT_TRUE(told["adapters"]["first"][0]["used_ago_s"].is_null());
  EXPECT_EQ(told["queues"]["queues"].size(), 2u);
  EXPECT_EQ(told["kv"]["held"]["holders"], 1);
  EXPECT_EQ(told["kv"]["apps"]["first"][0]["id"], "mail");
  EXPECT_EQ(told["residency"]["resident_bytes"], 77) << "the device's, where one computes";
  for (const char* part : {"requests", "rates", "ttft", "token_times"}) EXPECT_TRUE(told[part].is_object()) << part;
}

TEST_F(EventsTest, AreBoundedWhateverTheServerHolds) {
  engine.kv.apps.resize(500);
  for (size_t i = 0; i < engine.kv.apps.size(); ++i)
    engine.kv.apps[i] = {.id = "app" + std::to_string(i), .tokens = static_cast<int64_t>(i)};
  start();
  add_adapters(450);
  const BodyJson told = event();
  EXPECT_EQ(told["adapters"]["total"], 450);
  EXPECT_EQ(told["adapters"]["first"].size(), ServerEvents::kAdaptersTold);
  EXPECT_EQ(told["adapters"]["versions"]["disk"], 450);
  EXPECT_EQ(told["kv"]["apps"]["total"], 500);
  EXPECT_EQ(told["kv"]["apps"]["first"].size(), ServerEvents::kAppsTold);
  EXPECT_EQ(told["kv"]["apps"]["first"][0]["id"], "app499") << "those that use most";
}

TEST_F(EventsTest, TellTimesOfTheAnswersThatWereJustGiven) {
  start();
  EXPECT_EQ(event()["ttft"]["count"], 0);
  EXPECT_TRUE(event()["ttft"]["p50_s"].is_null());
  ASSERT_EQ(post("/v1/chat/completions", chat()).status, 200);
  const BodyJson told = event();
  EXPECT_EQ(told["ttft"]["count"], 1);
  EXPECT_EQ(told["token_times"]["count"], ids(kScripted).size()) << "the end is a token, too";
  EXPECT_GE(told["token_times"]["p99_s"].get<double>(), told["token_times"]["p50_s"].get<double>());
}

TEST_F(EventsTest, AnEngineThatIsBusyDelaysNone) {
  engine.next_command = Error{ErrorCode::kOverloaded, "Too many commands are waiting."};
  start();
  const BodyJson told = event();
  EXPECT_TRUE(told["queues"].is_null());
  EXPECT_TRUE(told["kv"]["held"].is_null());
}

TEST_F(EventsTest, AskForTheAdminKeyAndABoundedInterval) {
  options.api_keys = {"user"};
  options.admin_key = "boss";
  start();
  EXPECT_EQ(ask("/v1/admin/events").status, 401);
  EXPECT_EQ(ask("/v1/admin/events", {{"Authorization", "Bearer wrong"}}).status, 401);
  EXPECT_EQ(ask("/v1/admin/events", {{"Authorization", "Bearer user"}}).status, 403);
  EXPECT_EQ(ask("/v1/admin/events?key=boss").status, 401) << "no key stands in a URL";
  const HttpHeaders boss = {{"Authorization", "Bearer boss"}};
  const HttpResponse refused = ask("/v1/admin/events?interval_ms=10", boss);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error_of(refused, "message"), "interval_ms is a whole number from 250 to 60000.");
  HttpClient c = client();
  EXPECT_EQ(c.request("HEAD", "/v1/admin/events", boss)->status, 200);
  EXPECT_TRUE(event(boss).is_object());
}

TEST_F(EventsTest, EndWithTheServersDrain) {
  start();
  std::promise<void> began;
  std::atomic<bool> first{true};
  std::string body;
  std::thread following([&] {
    HttpClient c = client();
    const auto answer = c.request("GET", "/v1/admin/events", {}, {}, [&](std::string_view piece) {
      body += piece;
      if (first.exchange(false)) began.set_value();
      return true;
    });
    EXPECT_TRUE(answer.ok()) << "it has an end";
  });
  began.get_future().wait();
  server->begin_drain();
  following.join();
  EXPECT_NE(body.find("event: end\ndata: {\"why\":"), std::string::npos);
  EXPECT_EQ(ask("/v1/admin/events").status, 503);
}

TEST_F(EventsTest, ManyStreamsGetTheSameEvents) {
  start();
  std::vector<std::string> bodies(20);
  std::vector<std::thread> following;
  for (std::string& body : bodies)
    following.emplace_back([&] { body = ask("/v1/admin/events?count=3&interval_ms=500").body; });
  for (std::thread& one : following) one.join();
  std::set<std::string> different;
  for (const std::string& body : bodies) {
    SseParser sse;
    int events = 0;
    sse.feed(body, [&](std::string_view event) {
      different.emplace(event);
      ++events;
      return true;
    });
    EXPECT_EQ(events, 3);
  }
  EXPECT_LT(different.size(), 40u) << "60 were sent; without sharing each would be another";
}

TEST_F(EventsTest, BrowsersGetThePageAndOthersTheText) {
  options.api_keys = {"user"};
  options.admin_key = "boss";
  start();
  const HttpResponse text = ask("/", {{"Accept", "*/*"}});
  EXPECT_EQ(text.header("content-type"), "text/plain; charset=utf-8");
  EXPECT_EQ(text.header("vary"), "Accept");
  EXPECT_EQ(text.body.find("Loralei 0.0.test, serving base with 0 adapters"), 0u);
  const HttpResponse page = ask("/", {{"Accept", "text/html"}});
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.header("vary"), "Accept");
  EXPECT_FALSE(page.header("content-security-policy").empty());
  EXPECT_FALSE(page.header("x-request-id").empty());
  const HttpResponse script = ask("/dashboard/app.js");
  EXPECT_EQ(script.status, 200);
  EXPECT_EQ(script.header("content-type"), "text/javascript; charset=utf-8");
  const HttpHeaders have = {{"If-None-Match", std::string(script.header("etag"))}};
  EXPECT_EQ(ask("/dashboard/app.js", have).status, 304);
  EXPECT_EQ(ask("/dashboard/nothing.js").status, 404);
  EXPECT_EQ(ask("/dashboard/..%2Fpages.cc").status, 404);
  EXPECT_TRUE(counts("handler=\"/dashboard/{name}\",method=\"GET\",status=\"304\"} 1"));
}

}  // namespace
}  // namespace loralei
