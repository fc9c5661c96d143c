// SPDX-License-Identifier: Apache-2.0
// Requests on their way through a router, with replicas that break off.
#include "router/relay.h"

#include "router/router_test_util.h"

namespace loralei {
namespace {

const Answering kGood = [](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
  writer->respond(200, kJson, R"({"ok": true, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})");
};
const Answering kGoodStream = [](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
  writer->start_stream(200, kEvents);
  writer->write(event("one") + event("two"));
  writer->finish();
};
constexpr const char* kEventType = "text/event-stream";
Answering says(int status, const std::string& body) {
  return [=](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(status, kJson, body); };
}

TEST(Relay, PassesARequestAndItsAnswerOn) {
  std::string seen, id, forwarded, host;
  FakeReplica replica([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    seen = request.method + " " + request.target + " " + request.body;
    id = request.header("x-request-id");
    forwarded = request.header("x-forwarded-for");
    host = request.header("host");
    writer->respond(201, {{"Content-Type", "application/json"}, {"X-Mine", "yes"}}, "{}");
  });
  RouterWorld world({replica.address()});
  const auto answer = world.post(R"({"model": "base", "n": 2})", {{"X-Request-Id", "abc"}}, "/v1/completions?a=b");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->status, 201);
  EXPECT_EQ(answer->header("x-mine"), "yes");
  EXPECT_EQ(answer->body, "{}");
  EXPECT_EQ(seen, R"(POST /v1/completions?a=b {"model": "base", "n": 2})");
  EXPECT_EQ(id, "abc");
  EXPECT_EQ(forwarded, "127.0.0.1");
  EXPECT_EQ(host, "127.0.0.1:" + std::to_string(replica.address().port));
}

TEST(Relay, SendsElsewhereWhatBreaksOffBeforeAnyContent) {
  const std::pair<const char*, const char*> kSaid[] = {{"", ""},
                                                       {kEventType, ""},
                                                       {kEventType, ": ping\n\n"},
                                                       {kEventType, "data: hal"},
                                                       {"application/json", "{\"ok\": "}};
  for (const auto& [type, said] : kSaid) {
    SCOPED_TRACE(std::string(type) + " " + said);
    BreakingReplica bad(type, said);
    FakeReplica good(kGoodStream);
    RouterWorld world({bad.address(), good.address()});
    const auto answer = world.post(R"({"model": "base", "stream": true})");
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, (*said == ':' ? said : "") + event("one") + event("two"));
    EXPECT_GE(bad.asked, 1);
    EXPECT_LE(bad.asked, 2);  // once more where its kept connection might have been closed before
    EXPECT_NE(world.metrics().find("loralei_router_retries_total 1"), std::string::npos);
  }
}

TEST(Relay, EndsAStreamThatBrokeOffWithOneErrorBehindItsLastEvent) {
  BreakingReplica bad(kEventType, event("one") + "data: tw");
  FakeReplica good(kGoodStream);
  RouterWorld world({bad.address(), good.address()});
  const auto answer = world.post(R"({"model": "base", "stream": true})");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body.find(event("one") + "data: {\"error\":"), 0u) << answer->body;
  EXPECT_NE(answer->body.find("broke off"), std::string::npos);
  EXPECT_EQ(answer->body.find("tw\n"), std::string::npos);
  EXPECT_EQ(good.asked, 0);

  BreakingReplica bad_message(kEventType, "event: x\n" + event("one"));
  RouterWorld messages({bad_message.address()});
  const auto error = messages.post(R"({"model": "base", "stream": true})", {}, "/v1/messages");
  ASSERT_TRUE(error.ok());
  EXPECT_NE(error->body.find("event: error\ndata: {\"type\":\"error\""), std::string::npos) << error->body;
}

TEST(Relay, SendsElsewhereWhatAReplicaCannotTakeNow) {
  for (const int status : {429, 502, 503, 504}) {
    FakeReplica busy(says(status, R"({"busy": 1})")), good(kGood);
    RouterWorld world({busy.address(), good.address()});
    EXPECT_EQ(world.post()->status, 200) << status;
    EXPECT_EQ(busy.asked, 1);
  }
  FakeReplica first(says(503, R"({"first": 1})")), second(says(429, R"({"second": 1})"));
  RouterWorld world({first.address(), second.address()});
  const auto answer = world.post();
  EXPECT_EQ(answer->status, 429);
  EXPECT_EQ(answer->body, R"({"second": 1})");  // in the last one's own words
}

TEST(Relay, PassesARefusalOn) {
  for (const int status : {400, 401, 413, 422, 500}) {
    FakeReplica bad(says(status, R"({"why": 1})")), good(kGood);
    RouterWorld world({bad.address(), good.address()});
    EXPECT_EQ(world.post()->status, status);
    EXPECT_EQ(good.asked, 0);
  }
}

TEST(Relay, AsksOthersForANameThatOneDoesNotKnow) {
  FakeReplica without(says(404, R"({"no": 1})")), with(kGood);
  RouterWorld world({without.address(), with.address()});
  EXPECT_EQ(world.post(R"({"model": "new"})")->status, 200);
  EXPECT_EQ(without.asked, 1);
  FakeReplica other(says(404, R"({"no": 2})"));
  RouterWorld nobody({without.address(), other.address()});
  EXPECT_EQ(nobody.post(R"({"model": "none"})")->body, R"({"no": 2})");
}

TEST(Relay, AsksWhatAModelIsWhereItIs) {
  FakeReplica without(says(404, "{}")), with(says(200, R"({"id": "a/b"})"));
  with.report.adapters = {{.name = "a/b"}};
  RouterWorld world({without.address(), with.address()});
  EXPECT_EQ(world.client().get("/v1/models/a%2Fb")->body, R"({"id": "a/b"})");
  EXPECT_EQ(without.asked, 0);
}

// After comments only a stream fits, whatever comes from elsewhere.
TEST(Relay, PutsNoOtherAnswerBehindComments) {
  BreakingReplica bad(kEventType, ": ping\n\n");
  FakeReplica other(says(200, "\"" + std::string(3 << 20, 'y') + "\""));
  RouterServerOptions options;
  options.retries = 1;
  RouterWorld world({bad.address(), other.address()}, options);
  const auto answer = world.post(R"({"model": "base", "stream": true})");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body.find(": ping\n\ndata: {\"error\""), 0u) << answer->body.substr(0, 200);
  EXPECT_LT(answer->body.size(), 1000u);
}

// The first adapter of one replica is not that of another.
TEST(Relay, RefusesPlacesInListsOfAdapters) {
  FakeReplica replica(kGood);
  RouterWorld world({replica.address()});
  const auto answer = world.post(R"({"lora": [{"id": 0, "scale": 1.0}]})");
  EXPECT_EQ(answer->status, 400);
  EXPECT_NE(answer->body.find("name the adapter instead"), std::string::npos);
  EXPECT_NE(answer->body.find("\"param\":\"lora\""), std::string::npos) << answer->body;
  EXPECT_EQ(replica.asked, 0);
}

// Its replica stands still and keeps the connection.
TEST(Relay, EndsAStreamThatRestsTooLong) {
  HeldAnswers kept;
  FakeReplica rests([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->start_stream(200, kEvents);
    writer->write(event("one"));
    kept.add(writer);
  });
  RouterServerOptions options;
  options.upstream.body_timeout_ms = 50;
  RouterWorld world({rests.address()}, options);
  const auto answer = world.post(R"({"model": "base", "stream": true})");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body.find(event("one") + "data: {\"error\""), 0u) << answer->body;
  kept.drop();
}

TEST(Relay, TriesNoMoreOftenThanIsAllowed) {
  BreakingReplica a(kEventType), b(kEventType), c(kEventType);
  FakeReplica d(kGood);
  RouterServerOptions options;
  options.retries = 2;
  RouterWorld world({a.address(), b.address(), c.address(), d.address()}, options);
  const auto answer = world.post(R"({"model": "base", "stream": true})");
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, 502);
  EXPECT_NE(answer->body.find("\"error\""), std::string::npos);
  EXPECT_EQ(d.asked, 0);
}

TEST(Relay, SaysWhenNobodyIsThere) {
  auto gone = std::make_unique<FakeReplica>(kGood);
  RouterWorld world({gone->address()});
  gone.reset();
  const auto answer = world.post();
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(world.client().get("/ready")->status, 503);
  const auto again = world.post();
  EXPECT_EQ(again->status, 503);
  EXPECT_EQ(again->header("retry-after"), "1");
}

// A hundred megabytes for a client that does not read yet.
TEST(Relay, MakesAReplicaWaitForASlowClient) {
  std::atomic<int64_t> written{0};
  constexpr int64_t kAll = 100 << 20;
  const std::string chunk = event(std::string(8000, 'x'));
  FakeReplica replica([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->start_stream(200, kEvents);
    auto produce = std::make_shared<std::function<void()>>();
    *produce = [&, writer, again = std::weak_ptr(produce)] {
      while (writer->wants_more() && written < kAll) {
        if (!writer->write(chunk)) return;
        written += static_cast<int64_t>(chunk.size());
      }
      if (written >= kAll) return writer->finish();
      writer->on_room([produce = again.lock()] { (*produce)(); });
    };
    (*produce)();
  });
  RouterWorld world({replica.address()});
  HttpClient client = world.client();
  int64_t read = 0, seen_before = -1;
  const auto answer = client.request("POST", "/v1/completions", {}, R"({"stream": true})", [&](std::string_view piece) {
    if (seen_before < 0) {
      // Until nothing moves any more: what is under way then lies in buffers.
      int64_t last = -1;
      for (int same = 0; same < 20;) {
        same = written == last ? same + 1 : 0;
        last = written;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      seen_before = last;
    }
    read += static_cast<int64_t>(piece.size());
    return true;
  });
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_LT(seen_before, 24 << 20);  // sockets' buffers among it
  EXPECT_EQ(read, written);
  EXPECT_GE(read, kAll);
}

TEST(Relay, CancelsWhatItsClientHasLeft) {
  std::atomic<bool> told{false};
  HeldAnswers kept;
  FakeReplica replica([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    writer->on_closed([&] { told = true; });
    writer->start_stream(200, kEvents);
    writer->write(event("one"));
    kept.add(writer);
  });
  RouterWorld world({replica.address()});
  {
    HttpClient client = world.client();
    const auto answer =
        client.request("POST", "/v1/completions", {}, R"({"stream": true})", [](std::string_view) { return false; });
    EXPECT_FALSE(answer.ok());
  }
  wait_until([&] { return told.load(); });
  wait_until([&] { return world.server->replicas()[0].sent == 0; });
  kept.drop();
}

TEST(Relay, LeavesAReplicaThatDoesNotAnswerAnyMore) {
  HeldAnswers kept;
  FakeReplica hangs([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    hangs.silent = true;
    kept.add(writer);
  });
  FakeReplica good(kGood);
  RouterWorld world({hangs.address(), good.address()});
  const auto answer = world.post();
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(hangs.asked, 1);
  EXPECT_EQ(world.server->replicas()[0].health, HealthState::kOut);
  kept.drop();
}

TEST(Relay, RefusesWhatNobodyCanServeInTime) {
  FakeReplica replica(kGood);
  RouterServerOptions options;
  options.fleet.shed = true;
  RouterWorld world({replica.address()}, options);
  EXPECT_EQ(world.post(R"({"model": "base"})", {{"x-llm-d-slo-tpot-ms", "1000"}})->status, 200);
  const auto refused = world.post(R"({"model": "base"})", {{"x-llm-d-slo-tpot-ms", "1"}});
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->header("retry-after"), "1");
  EXPECT_EQ(world.post(R"({"model": "base"})", {{"x-llm-d-slo-tpot-ms", "soon"}})->status, 400);
}

TEST(Relay, PassesALongAnswerOn) {
  const std::string body = "\"" + std::string(3 << 20, 'y') + "\"";
  FakeReplica replica(says(200, body));
  RouterWorld world({replica.address()});
  const auto answer = world.post();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body, body);
}

// What cannot be kept is not kept, and comes all the same.
TEST(Relay, PassesAnAnswerOnForWhichThereIsNoMemory) {
  const std::string body = "\"" + std::string(900'000, 'y') + "\"";
  FakeReplica replica(says(200, body));
  RouterServerOptions options;
  options.http.memory = std::make_shared<FixedByteBudget>(256 * 1024);
  RouterWorld world({replica.address()}, options);
  const auto answer = world.post();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->body, body);
  EXPECT_EQ(answer->header("content-length"), "");
  FakeReplica same(says(200, body));
  RouterWorld rich({same.address()});
  EXPECT_EQ(rich.post()->header("content-length"), std::to_string(body.size()));
}

// Many clients and replicas that break off at random: every request has one answer. Also
// where many are on two replicas at a time.
void answers_every_request_once(int64_t hedge_after_ms) {
  const uint64_t seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mutex mutex;
  Prng random(seed);
  const auto draw = [&](uint64_t below) {
    const std::lock_guard lock(mutex);
    return random.below(below);
  };
  const Answering chance = [&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    const uint64_t fate = draw(6);
    if (hedge_after_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(draw(6)));
    if (fate == 0) {  // cut somewhere
      writer->start_stream(200, kEvents);
      writer->write(event("one") + "data:");
      return;
    }
    if (fate == 1) return says(503, "{}")(std::move(request), std::move(writer));
    kGoodStream(std::move(request), std::move(writer));
  };
  FakeReplica a(chance), b(chance);
  BreakingReplica c(kEventType, event("one") + "data:");
  RouterServerOptions options;
  options.fleet.policy = RoutePolicy::kRandom;
  options.hedge_after_ms = hedge_after_ms;
  RouterWorld world({a.address(), b.address(), c.address()}, options);
  std::vector<std::thread> clients;
  std::atomic<int> good{0}, cut{0}, refused{0}, wrong{0};
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      HttpClient client = world.client();
      for (int k = 0; k < 40; ++k) {
        const bool leaves = draw(8) == 0;
        const auto answer =
            client.request("POST", "/v1/completions", {}, R"({"stream": true})",
                           leaves ? [](std::string_view) { return false; } : HttpClient::BodyCallback());
        if (leaves) continue;
        if (!answer.ok()) {
          ++wrong;
        } else if (answer->status != 200) {
          ++(answer->status == 502 || answer->status == 503 ? refused : wrong);
        } else if (answer->body == event("one") + event("two")) {
          ++good;
        } else {
          ++(answer->body.starts_with(event("one") + "data: {\"error\"") ? cut : wrong);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(good, 0);
  EXPECT_GT(cut + refused, 0);
  const bool none = world.metrics().find("loralei_router_hedges_total{what=\"sent\"} 0") != std::string::npos;
  EXPECT_EQ(none, hedge_after_ms == 0);
  wait_until([&] {
    int32_t sent = 0;
    for (const ReplicaState& state : world.server->replicas()) sent += state.sent;
    return sent == 0;
  });
}

TEST(Relay, AnswersEveryRequestOnce) { answers_every_request_once(0); }
TEST(Relay, AnswersEveryRequestOnceThoughItIsOnTwoReplicas) { answers_every_request_once(1); }

}  // namespace
}  // namespace loralei
