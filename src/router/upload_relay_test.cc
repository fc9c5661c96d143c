// SPDX-License-Identifier: Apache-2.0
// Adapters that are uploaded through a router, to replicas that take, refuse and break
// off.
#include "router/upload_relay.h"

#include <algorithm>

#include "router/router_test_util.h"

namespace loralei {
namespace {

constexpr const char* kStored = R"({"digest": "d", "path": "store:d", "bytes": 3, "files": []})";
constexpr const char* kLoaded =
    R"({"name": "mine", "number": 1, "load_inplace": true, "pinned": false, "path": "store:d", "files": []})";
const HttpHeaders kForm = {{"Content-Type", "multipart/form-data; boundary=XX"}};

Answering says(int status, const std::string& body) {
  return [=](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(status, kJson, body); };
}

std::string text_of(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += std::to_string(text.size()) + ",";
  text.resize(bytes);
  return text;
}

// A replica with a store.
class Keeper {
 public:
  explicit Keeper(Answering answer) : replica(std::move(answer)) { replica.report.store = true; }
  UpstreamAddress address() const { return replica.address(); }
  FakeReplica replica;
};

// One that does byte by byte what a test says: with each upload's connection, when its
// head is read.
class ScriptedKeeper {
 public:
  using Script = std::function<void(RawPeer& peer, const std::string& head)>;
  explicit ScriptedKeeper(Script script) : script_(std::move(script)) {
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedKeeper() {
    ended_ = true;
    accepting_.join();
    for (std::thread& one : serving_) one.join();
  }
  UpstreamAddress address() const { return server_.address(); }
  std::atomic<int> asked{0}, running{0};

  static void go_on(RawPeer& peer) { peer.send("HTTP/1.1 100 Continue\r\n\r\n"); }
  static void answer(RawPeer& peer, int status, const std::string& body, const std::string& fields = "") {
    peer.send("HTTP/1.1 " + std::to_string(status) + " Answer\r\n" + fields + "Content-Type: application/json\r\n" +
              "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // True when so many bytes have come.
  static bool read(RawPeer& peer, size_t bytes) {
    std::string part(bytes, ' ');
    return bytes == 0 ||
           (peer.readable() && ::recv(peer.fd(), part.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
  }

 private:
  void accept_all() {
    while (!ended_) {
      if (!server_.has_one()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      serving_.emplace_back([this, peer = std::make_shared<RawPeer>(server_.accept())] { serve(*peer); });
    }
  }
  void serve(RawPeer& peer) {
    while (!ended_) {
      pollfd one{.fd = peer.fd(), .events = POLLIN, .revents = 0};
      if (::poll(&one, 1, 1) <= 0) continue;
      std::string head;
      char byte = 0;
      while (!head.ends_with("\r\n\r\n") && ::recv(peer.fd(), &byte, 1, 0) == 1) head += byte;
      if (!head.ends_with("\r\n\r\n")) return;
      if (head.starts_with("GET /v1/replica")) {
        ReplicaReport report;
        report.boot = "boot", report.cursor = 1, report.models = {"base"}, report.store = true;
        report.running = running;
        peer.answer(replica_report_body(report));
        continue;
      }
      ++asked;
      return script_(peer, head);
    }
  }

  const Script script_;
  RawServer server_;
  std::atomic<bool> ended_{false};
  std::vector<std::thread> serving_;
  std::thread accepting_;
};

// What happened, in order. Thread-safe.
class Log {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(what);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  bool has(const std::string& what) const {
    const auto all = lines();
    return std::find(all.begin(), all.end(), what) != all.end();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct UploadWorldOfTest : RouterWorld {
  using RouterWorld::RouterWorld;
  HttpResponse upload(const std::string& body, const HttpHeaders& headers = kForm) {
    const auto answer = post(body, headers, "/v1/adapters");
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? *answer : HttpResponse{};
  }
  static std::string head(size_t bytes) {
    return "POST /v1/adapters HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=XX\r\n"
           "Content-Length: " +
           std::to_string(bytes) + "\r\n\r\n";
  }
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// ---- to one, and then to all ----

TEST(UploadRelay, GoesToOneReplicaAndIsLoadedByTheOthers) {
  std::string seen, key, type;
  Keeper a([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    EXPECT_EQ(request.path, "/v1/adapters");
    seen = request.body, key = request.header("authorization"), type = request.header("content-type");
    EXPECT_EQ(request.header("x-request-id"), "abc");
    writer->respond(200, kJson, kLoaded);
  });
  std::atomic<int> loads{0};
  const Answering loading = [&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    ++loads;
    EXPECT_EQ(request.target, "/v1/load_lora_adapter");
    EXPECT_EQ(request.body, R"({"lora_name":"mine","lora_path":"store:d","load_inplace":true,"pinned":false})");
    EXPECT_EQ(request.header("authorization"), "Bearer boss");
    EXPECT_EQ(request.header("content-type"), "application/json");
    EXPECT_EQ(request.header("content-language"), "");
    writer->respond(200, {{"Content-Type", "text/plain"}}, "Success");
  };
  Keeper b(loading);
  FakeReplica c(loading);  // whether it has a store is its business
  b.replica.report.running = 7;
  RouterServerOptions options;
  options.admin_key = "boss";
  UploadWorldOfTest world({a.address(), b.address(), c.address()}, options);
  const std::string body = text_of(1'000'000);
  const HttpResponse answer = world.upload(
      body, {kForm[0], {"Authorization", "Bearer boss"}, {"X-Request-Id", "abc"}, {"Content-Language", "de"}});
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, kLoaded);
  EXPECT_EQ(answer.header("content-type"), "application/json");
  EXPECT_EQ(answer.header("x-loralei-replicas"), "3 of 3");
  EXPECT_EQ(answer.header("x-request-id"), "abc");
  EXPECT_TRUE(seen == body);
  EXPECT_EQ(key, "Bearer boss");
  EXPECT_EQ(type, kForm[0].second);
  EXPECT_EQ(a.replica.asked, 1);
  EXPECT_EQ(loads, 2);
  EXPECT_TRUE(holds(world.metrics(), R"(loralei_router_requests_total{route="/v1/adapters",status="200"} 1)"));
}

TEST(UploadRelay, WithoutANameTheAnswerIsTheReplicasOwn) {
  Keeper a(says(200, kStored));
  FakeReplica b(says(200, "{}"));
  UploadWorldOfTest world({a.address(), b.address()});
  EXPECT_EQ(world.upload("form").body, kStored);
  EXPECT_EQ(b.asked, 0);
}

TEST(UploadRelay, OfOneReplicaIsDoneWithIt) {
  Keeper a(says(200, kLoaded));
  UploadWorldOfTest world({a.address()});
  const HttpResponse answer = world.upload("form");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, kLoaded);
  EXPECT_EQ(answer.header("x-loralei-replicas"), "1 of 1");
}

TEST(UploadRelay, APartIsNotTakenForTheWhole) {
  Keeper a(says(200, kLoaded)), b(says(503, R"({"why": "no peer has it"})")), resting(says(200, "{}"));
  b.replica.report.running = 7, resting.replica.report.ready = false;
  UploadWorldOfTest world({a.address(), b.address(), resting.address()});
  const HttpResponse answer = world.upload("form");
  EXPECT_EQ(answer.status, 502);
  EXPECT_EQ(answer.header("x-loralei-replicas"), "2 of 3");
  for (const std::string& part :
       {address_text(a.address()) + " answered with status 200",
        address_text(b.address()) + " answered with status 503", std::string("no peer has it"),
        address_text(resting.address()) + " is not_ready and was not asked", std::string("send it again")})
    EXPECT_TRUE(holds(answer.body, part)) << part << " in " << answer.body;
  EXPECT_EQ(resting.replica.asked, 0);
}

TEST(UploadRelay, AReplicaThatLeavesBehindItsAnswerHasDoneItAndTheOthersAreAsked) {
  ScriptedKeeper a([](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    ScriptedKeeper::read(peer, 4);
    ScriptedKeeper::answer(peer, 200, kLoaded, "Connection: close\r\n");
  });
  FakeReplica b(says(503, R"({"why": "no peer has it"})"));
  UploadWorldOfTest world({a.address(), b.address()});
  const HttpResponse answer = world.upload("form");
  EXPECT_EQ(answer.status, 502);
  EXPECT_TRUE(holds(answer.body, address_text(a.address()) + " answered with status 200")) << answer.body;
  EXPECT_EQ(b.asked, 1);
}

TEST(UploadRelay, AnAnswerThatCannotBeReadIsNoneToSpread) {
  FakeReplica other(says(200, "{}"));
  for (const std::string& said : {std::string("nonsense"), std::string(R"({"name": "mine", "path": "/etc"})"),
                                  "{\"path\": \"" + std::string(300'000, 'x') + "\"}"}) {
    Keeper a(says(200, said));
    UploadWorldOfTest world({a.address(), other.address()});
    const HttpResponse answer = world.upload("form");
    EXPECT_EQ(answer.status, 502);
    EXPECT_TRUE(holds(answer.body, "is not known")) << answer.body;
  }
  EXPECT_EQ(other.asked, 0);
}

// ---- who takes it ----

TEST(UploadRelay, TheOneThatHasLeastToDo) {
  Keeper busy(says(200, kStored)), idle(says(200, kStored));
  FakeReplica without(says(200, kStored));
  busy.replica.report.running = 3, idle.replica.report.waiting = 1;
  UploadWorldOfTest world({without.address(), busy.address(), idle.address()});
  EXPECT_EQ(world.upload("form").status, 200);
  EXPECT_EQ(idle.replica.asked, 1);
}

TEST(UploadRelay, WhereNobodyKeepsAdaptersIsSaid) {
  FakeReplica without(says(200, kStored));
  UploadWorldOfTest none({without.address()});
  HttpResponse answer = none.upload("form");
  EXPECT_EQ(answer.status, 403);
  EXPECT_TRUE(holds(answer.body, "start them with --adapter-store DIR")) << answer.body;
  Keeper resting(says(200, kStored));
  resting.replica.report.ready = false;
  UploadWorldOfTest later({without.address(), resting.address()});
  answer = later.upload("form");
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(holds(answer.body, "No replica that keeps adapters is up")) << answer.body;
  EXPECT_EQ(answer.header("retry-after"), "1");
  UploadWorldOfTest nobody({resting.address()});
  EXPECT_TRUE(holds(nobody.upload("form").body, "No replica is up"));
  EXPECT_EQ(without.asked + resting.replica.asked, 0);
}

TEST(UploadRelay, OneThatDoesNotWantItGetsNothingAndAnotherIsAsked) {
  for (const int status : {403, 404, 405, 429, 501, 503}) {
    SCOPED_TRACE(status);
    std::string seen, taken;
    Keeper a([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      seen += request.body;
      writer->respond(status, kJson, R"({"who": "a"})");
    });
    Keeper b([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      taken = request.body;
      writer->respond(200, kJson, kStored);
    });
    a.replica.wants_bodies = false, b.replica.report.running = 1;
    UploadWorldOfTest world({a.address(), b.address()});
    EXPECT_EQ(world.upload(text_of(300'000)).status, 200);
    EXPECT_EQ(a.replica.asked, 1);
    EXPECT_EQ(seen, "");
    EXPECT_TRUE(taken == text_of(300'000));
    b.replica.wants_bodies = false;
    EXPECT_TRUE(holds(world.metrics(), "loralei_router_retries_total 1"));
  }
}

TEST(UploadRelay, TheLastRefusalIsTheAnswer) {
  Keeper a(says(403, R"({"who": "a"})")), b(says(503, R"({"who": "b"})")), c(says(200, kStored));
  a.replica.wants_bodies = b.replica.wants_bodies = false;
  b.replica.report.running = 1, c.replica.report.running = 2;
  RouterServerOptions options;
  options.retries = 1;
  UploadWorldOfTest world({a.address(), b.address(), c.address()}, options);
  const HttpResponse answer = world.upload("form");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body, R"({"who": "b"})");
  EXPECT_EQ(c.replica.asked, 0);
}

TEST(UploadRelay, ARefusalThatAnotherWouldSayTooIsPassedOn) {
  for (const int status : {400, 401, 413, 415}) {
    Keeper a(says(status, R"({"who": "a"})")), b(says(200, kStored));
    a.replica.wants_bodies = false, b.replica.report.running = 1;
    UploadWorldOfTest world({a.address(), b.address()});
    const HttpResponse answer = world.upload("form");
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.body, R"({"who": "a"})");
    EXPECT_EQ(b.replica.asked, 0);
  }
}

TEST(UploadRelay, BrokenOffBeforeAnyByteItGoesElsewhere) {
  ScriptedKeeper a([](RawPeer& peer, const std::string& head) {
    EXPECT_TRUE(holds(head, "Expect: 100-continue")) << head;
    peer.close();
  });
  std::string taken;
  Keeper b([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    taken = request.body;
    writer->respond(200, kJson, kStored);
  });
  b.replica.report.running = 1;
  UploadWorldOfTest world({a.address(), b.address()});
  EXPECT_EQ(world.upload(text_of(300'000)).status, 200);
  EXPECT_EQ(a.asked, 1);
  EXPECT_TRUE(taken == text_of(300'000));
}

// ---- what breaks off in its midst ----

TEST(UploadRelay, BrokenOffInItsMidstItIsToBeSentAgain) {
  ScriptedKeeper a([](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    ScriptedKeeper::read(peer, 10'000);
    peer.reset();
  });
  Keeper b(says(200, kStored));
  b.replica.report.running = 1;
  UploadWorldOfTest world({a.address(), b.address()});
  const HttpResponse answer = world.upload(text_of(10'000'000));
  EXPECT_EQ(answer.status, 502);
  EXPECT_TRUE(holds(answer.body, "Nothing of it is kept; send it again")) << answer.body;
  EXPECT_TRUE(holds(answer.body, address_text(a.address()))) << answer.body;
  EXPECT_EQ(b.replica.asked, 0) << "a second time";
}

TEST(UploadRelay, BrokenOffBehindItsLastByteNobodyKnows) {
  ScriptedKeeper a([](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    ScriptedKeeper::read(peer, 4);
    peer.close();
  });
  Keeper b(says(200, kStored));
  b.replica.report.running = 1;
  UploadWorldOfTest world({a.address(), b.address()});
  const HttpResponse answer = world.upload("form");
  EXPECT_EQ(answer.status, 502);
  EXPECT_TRUE(holds(answer.body, "is not known")) << answer.body;
  EXPECT_TRUE(holds(answer.body, "load_inplace=true")) << answer.body;
  EXPECT_EQ(b.replica.asked, 0);
}

TEST(UploadRelay, ARefusalInItsMidstIsTheAnswer) {
  ScriptedKeeper a([](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    ScriptedKeeper::read(peer, 10'000);
    ScriptedKeeper::answer(peer, 429, R"({"why": "sixteen"})", "Retry-After: 7\r\n");
    peer.sees_the_end();
  });
  UploadWorldOfTest world({a.address()});
  const HttpResponse answer = world.upload(text_of(10'000'000));
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.header("retry-after"), "7");
  EXPECT_EQ(answer.body, R"({"why": "sixteen"})");
}

TEST(UploadRelay, AGoodAnswerToHalfOfItIsNone) {
  ScriptedKeeper a([](RawPeer& peer, const std::string&) {
    ScriptedKeeper::answer(peer, 200, kLoaded);
    peer.sees_the_end();
  });
  FakeReplica b(says(200, "{}"));
  UploadWorldOfTest world({a.address(), b.address()});
  const HttpResponse answer = world.upload(text_of(100'000));
  EXPECT_EQ(answer.status, 502);
  EXPECT_TRUE(holds(answer.body, "before it had the whole upload")) << answer.body;
  EXPECT_EQ(b.asked, 0);
}

// It keeps its connections, and says nothing.
TEST(UploadRelay, AReplicaThatStandsStillIsNotWaitedFor) {
  HeldAnswers kept;
  Keeper *still = nullptr, *last = nullptr;
  const auto holding = [&](Keeper*& which) {
    return [&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
      kept.add(std::move(writer));
      which->replica.silent = true;
    };
  };
  Keeper a(holding(still)), b(says(200, kLoaded)), c(holding(last));
  still = &a, last = &c;
  b.replica.report.running = 1, c.replica.report.running = 2;
  UploadWorldOfTest world({a.address(), b.address(), c.address()});
  HttpResponse answer = world.upload("form");
  EXPECT_EQ(answer.status, 502);
  EXPECT_TRUE(holds(answer.body, "is not known: it does not answer any more")) << answer.body;
  // Nor for one of the others, and the next upload has its turn.
  wait_until([&] { return world.server->replicas()[0].health == HealthState::kOut; });
  answer = world.upload("form");
  EXPECT_EQ(answer.status, 502);
  EXPECT_TRUE(holds(answer.body, address_text(c.address()) + " broke off: it does not answer any more")) << answer.body;
  EXPECT_TRUE(holds(answer.body, address_text(b.address()) + " answered with status 200")) << answer.body;
  EXPECT_EQ(world.upload("form").status, 502);
  kept.drop();
}

// ---- what is refused here ----

TEST(UploadRelay, ItsOwnLimitCounts) {
  std::string seen;
  Keeper a([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    seen = request.body;
    writer->respond(200, kJson, kStored);
  });
  RouterServerOptions options;
  options.http.limits.max_body_bytes = 1000;
  options.max_upload_bytes = 4'000'000;
  UploadWorldOfTest world({a.address()}, options);
  EXPECT_EQ(world.upload(text_of(3'000'000)).status, 200);
  EXPECT_TRUE(seen == text_of(3'000'000));
  const HttpResponse answer = world.upload(text_of(5'000'000));
  EXPECT_EQ(answer.status, 413);
  EXPECT_TRUE(holds(answer.body, "limit of 4000000 bytes")) << answer.body;
  EXPECT_EQ(world.post(std::string(2000, ' '), kJson)->status, 413);
  EXPECT_EQ(a.replica.asked, 1);
}

TEST(UploadRelay, OnlyWhoMayAndAForm) {
  Keeper a(says(200, kStored));
  RouterServerOptions options;
  options.admin_key = "boss";
  options.http.limits.max_body_bytes = 1000;
  UploadWorldOfTest with_key({a.address()}, options);
  EXPECT_EQ(with_key.upload("form").status, 401);
  EXPECT_EQ(with_key.upload(text_of(100'000)).status, 401) << "whatever its length";
  EXPECT_EQ(with_key.upload("form", {kForm[0], {"Authorization", "Bearer other"}}).status, 401);
  options.admin_key.clear();
  options.http.host = "0.0.0.0";
  UploadWorldOfTest reachable({a.address()}, options);
  EXPECT_EQ(reachable.upload("form").status, 403);
  UploadWorldOfTest world({a.address()});
  EXPECT_EQ(world.upload("form", {kForm[0], {"Origin", "http://elsewhere"}}).status, 403);
  HttpResponse answer = world.upload("{}", kJson);
  EXPECT_EQ(answer.status, 415);
  EXPECT_TRUE(holds(answer.body, "must be a form")) << answer.body;
  answer = world.upload("");
  EXPECT_EQ(answer.status, 400);
  EXPECT_TRUE(holds(answer.body, "has no body")) << answer.body;
  EXPECT_EQ(a.replica.asked, 0);
  EXPECT_EQ(world.upload("no form at all").status, 200) << "what is in it is the replica's to judge";
}

// ---- clients ----

TEST(UploadRelay, OfUnknownLengthAndOfNone) {
  std::string seen = "nothing";
  Keeper a([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    seen = request.body;
    writer->respond(200, kJson, kStored);
  });
  UploadWorldOfTest world({a.address()});
  const std::string head =
      "POST /v1/adapters HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=XX\r\n"
      "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const auto& [body, want] :
       {std::pair("4\r\nform\r\n2\r\n, \r\n5\r\nwhole\r\n0\r\n\r\n", "form, whole"), std::pair("0\r\n\r\n", "")}) {
    HttpClient client = world.client();
    ASSERT_TRUE(client.send_raw(head + body).ok());
    const auto answer = client.read_raw();
    ASSERT_TRUE(answer.ok());
    EXPECT_TRUE(answer->starts_with("HTTP/1.1 200")) << *answer;
    EXPECT_EQ(seen, want);
  }
}

TEST(UploadRelay, ASlowClientIsWaitedForAndOneThatIsTooSlowIsNot) {
  Log log;
  ScriptedKeeper a([&](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    for (int i = 0; i < 5; ++i) {
      if (!ScriptedKeeper::read(peer, 100)) return log.add("gone");
      log.add("part " + std::to_string(i));
    }
    ScriptedKeeper::answer(peer, 200, kStored);
  });
  {
    RouterServerOptions options;
    options.upstream.send_timeout_ms = 1;  // no fault of the replica
    UploadWorldOfTest world({a.address()}, options);
    HttpClient client = world.client();
    ASSERT_TRUE(client.send_raw(UploadWorldOfTest::head(500)).ok());
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(client.send_raw(std::string(100, 'x')).ok());
      wait_until([&] { return log.has("part " + std::to_string(i)); });
    }
    const auto answer = client.read_raw(15);
    EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200"));
  }
  RouterServerOptions options;
  options.http.read_timeout_ms = 50;
  UploadWorldOfTest world({a.address()}, options);
  HttpClient client = world.client();
  ASSERT_TRUE(client.send_raw(UploadWorldOfTest::head(500) + std::string(100, 'x')).ok());
  const auto answer = client.read_raw();
  EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 408")) << *answer;
  wait_until([&] { return log.has("gone"); });
}

TEST(UploadRelay, ASlowReplicaMakesItsClientWait) {
  constexpr size_t kSystemBytes = 48'000'000, kAll = 150'000'000, kStep = 1'000'000;  // of two connections
  std::atomic<size_t> sent{0};
  bool bounded = true;
  ScriptedKeeper a([&](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    for (size_t read = 0; read < kAll; read += kStep) {
      bounded = bounded && sent <= read + kSystemBytes;
      if (!ScriptedKeeper::read(peer, kStep)) return;
    }
    ScriptedKeeper::answer(peer, 200, kStored);
  });
  UploadWorldOfTest world({a.address()});
  HttpClient client = world.client();
  ASSERT_TRUE(client.send_raw(UploadWorldOfTest::head(kAll)).ok());
  const std::string part(kStep, 'x');
  for (; sent < kAll; sent += kStep) ASSERT_TRUE(client.send_raw(part).ok());
  const auto answer = client.read_raw(15);
  EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(bounded);
}

TEST(UploadRelay, AClientThatLeavesTakesItAlong) {
  std::atomic<int> parts{0}, gone{0};
  ScriptedKeeper a([&](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    parts += ScriptedKeeper::read(peer, 100) ? 1 : 0;
    gone += peer.sees_the_end() ? 1 : 0;
  });
  UploadWorldOfTest world({a.address()});
  for (int i = 1; i <= 3; ++i) {
    {
      HttpClient client = world.client();
      // The last one is all there, but for one byte.
      ASSERT_TRUE(client.send_raw(UploadWorldOfTest::head(i == 3 ? 101 : 100'000) + std::string(100, 'x')).ok());
      wait_until([&] { return parts == i; });
    }
    wait_until([&] { return gone == i; });
  }
  EXPECT_TRUE(holds(world.metrics(), "end=\"left\"")) << world.metrics();
}

TEST(UploadRelay, BehindItsLastByteItGoesOnWithoutItsClient) {
  std::shared_ptr<ResponseWriter> held;
  std::atomic<bool> whole{false};
  Keeper a([&](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
    held = std::move(writer);
    whole = true;
  });
  FakeReplica b(says(200, "{}"));
  UploadWorldOfTest world({a.address(), b.address()});
  {
    HttpClient client = world.client();
    ASSERT_TRUE(client.send_raw(UploadWorldOfTest::head(4) + "form").ok());
    wait_until([&] { return whole.load(); });
  }
  bool gone = false;  // all but who asks for it
  wait_until([&] { return gone = gone || holds(world.metrics(), "loralei_router_clients 1"); });
  EXPECT_FALSE(held->closed());
  held->respond(200, kJson, kLoaded);
  wait_until([&] { return b.asked == 1; });
}

// ---- several at once ----

// A replica that says when it has most and all of a body, and answers when it may.
struct Ordered {
  explicit Ordered(Log& log, size_t bytes)
      : keeper([this, &log, bytes](RawPeer& peer, const std::string& head) {
          const std::string name = head.substr(head.find("X-Request-Id: ") + 14, 1);
          ScriptedKeeper::go_on(peer);
          if (!ScriptedKeeper::read(peer, bytes - 10)) return;
          log.add("most of " + name);
          if (!ScriptedKeeper::read(peer, 10)) return log.add("end of " + name);
          log.add("all of " + name);
          const std::string number = std::to_string(name[0] - '0');
          EXPECT_TRUE(may_answer.wait_for(name[0] - '0'));
          ScriptedKeeper::answer(peer, 200, R"({"name": "mine", "path": "store:)" + number + "\"}");
        }) {}
  Counter may_answer;
  ScriptedKeeper keeper;
};

std::string head_of(int number, size_t bytes) {
  std::string head = UploadWorldOfTest::head(bytes);
  head.insert(head.size() - 2, "X-Request-Id: " + std::to_string(number) + "\r\n");
  return head;
}

// Else the replicas would end with different ones.
TEST(UploadRelay, TheyTakeEffectOneAfterTheOtherEverywhere) {
  constexpr size_t kBytes = 100'000;
  Log log;
  Counter may_load;
  Ordered a(log, kBytes);
  FakeReplica b([&](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    const size_t at = request.body.find("store:");
    const std::string number = request.body.substr(at + 6, 1);
    log.add("load of " + number);
    if (number == "1") {
      EXPECT_TRUE(may_load.wait_for(1));
    }
    log.add("loaded " + number);
    writer->respond(200, kJson, "{}");
  });
  UploadWorldOfTest world({a.keeper.address(), b.address()});
  HttpClient first = world.client(), second = world.client();
  ASSERT_TRUE(first.send_raw(head_of(1, kBytes) + text_of(kBytes)).ok());
  wait_until([&] { return log.has("all of 1"); });
  ASSERT_TRUE(second.send_raw(head_of(2, kBytes) + text_of(kBytes - 10)).ok());
  wait_until([&] { return log.has("most of 2"); });  // streams meanwhile
  ASSERT_TRUE(second.send_raw(std::string(10, 'x')).ok());
  const auto others = [&] {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(world.client().get("/health")->status, 200);
  };
  others();
  a.may_answer.add();
  wait_until([&] { return log.has("load of 1"); });
  others();
  EXPECT_FALSE(log.has("all of 2")) << "before the one before it was loaded by all";
  may_load.add();
  auto answer = first.read_raw(15);
  EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200")) << *answer;
  a.may_answer.add();
  answer = second.read_raw(15);
  EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200")) << *answer;
  EXPECT_EQ(log.lines(), (std::vector<std::string>{"most of 1", "all of 1", "most of 2", "load of 1", "loaded 1",
                                                   "all of 2", "load of 2", "loaded 2"}));
}

TEST(UploadRelay, WhoLeavesWhileItWaitsHoldsNobodyUp) {
  constexpr size_t kBytes = 100'000;
  Log log;
  Ordered a(log, kBytes);
  UploadWorldOfTest world({a.keeper.address()});
  HttpClient first = world.client(), third = world.client();
  {
    HttpClient second = world.client();
    ASSERT_TRUE(first.send_raw(head_of(1, kBytes) + text_of(kBytes)).ok());
    wait_until([&] { return log.has("all of 1"); });
    ASSERT_TRUE(second.send_raw(head_of(2, kBytes) + text_of(kBytes - 10)).ok());
    wait_until([&] { return log.has("most of 2"); });
    ASSERT_TRUE(second.send_raw(std::string(10, 'x')).ok());
    ASSERT_TRUE(third.send_raw(head_of(3, kBytes) + text_of(kBytes - 10)).ok());
    wait_until([&] { return log.has("most of 3"); });
    ASSERT_TRUE(third.send_raw(std::string(10, 'x')).ok());
  }
  wait_until([&] { return log.has("end of 2"); });
  for (int i = 0; i < 3; ++i) a.may_answer.add();
  for (HttpClient* client : {&first, &third}) {
    const auto answer = client->read_raw(15);
    EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200")) << *answer;
  }
  EXPECT_FALSE(log.has("all of 2"));
}

TEST(UploadRelay, AReplicaThatDoesNotWaitForATurnIsNotTheClientsFault) {
  constexpr size_t kBytes = 100'000;
  Log log;
  Ordered a(log, kBytes);
  ScriptedKeeper b([](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    ScriptedKeeper::answer(peer, 408, "{}");
    peer.sees_the_end();
  });
  UploadWorldOfTest world({a.keeper.address(), b.address()});
  HttpClient first = world.client();
  ASSERT_TRUE(first.send_raw(head_of(1, kBytes) + text_of(kBytes)).ok());
  wait_until([&] { return log.has("all of 1"); });
  a.keeper.running = 5;
  wait_until([&] { return world.server->replicas()[0].reported_running == 5; });
  const HttpResponse late = world.upload("form");
  EXPECT_EQ(late.status, 503);
  EXPECT_TRUE(holds(late.body, "Other uploads take effect first")) << late.body;
  EXPECT_EQ(late.header("retry-after"), "1");
  a.may_answer.add();
  const auto answer = first.read_raw(15);
  EXPECT_TRUE(answer.ok()) << answer.error().message;
}

// ---- the end ----

TEST(UploadRelay, TheEndOfTheRouterEndsThemWhereverTheyAre) {
  constexpr size_t kBytes = 100'000;
  Log log;
  Ordered a(log, kBytes);
  {
    UploadWorldOfTest world({a.keeper.address()});
    HttpClient first = world.client(), second = world.client(), third = world.client();
    ASSERT_TRUE(first.send_raw(head_of(1, kBytes) + text_of(kBytes)).ok());
    wait_until([&] { return log.has("all of 1"); });
    ASSERT_TRUE(second.send_raw(head_of(2, kBytes) + text_of(kBytes - 10)).ok());
    wait_until([&] { return log.has("most of 2"); });
    ASSERT_TRUE(second.send_raw(std::string(10, 'x')).ok());
    ASSERT_TRUE(third.send_raw(head_of(3, kBytes) + text_of(kBytes - 10)).ok());
    wait_until([&] { return log.has("most of 3"); });
    EXPECT_FALSE(world.server->shutdown(50));
    for (HttpClient* client : {&first, &second, &third}) {
      const auto answer = client->read_raw();
      EXPECT_TRUE(!answer.ok() || !answer->starts_with("HTTP/1.1 200"));
    }
  }
  wait_until([&] { return log.has("end of 2") && log.has("end of 3"); });
  a.may_answer.add();
}

TEST(UploadRelay, OneThatHasBegunIsDoneByARouterThatDrains) {
  std::atomic<bool> most{false};
  ScriptedKeeper a([&](RawPeer& peer, const std::string&) {
    ScriptedKeeper::go_on(peer);
    ScriptedKeeper::read(peer, 4);
    most = true;
    ScriptedKeeper::read(peer, 4);
    ScriptedKeeper::answer(peer, 200, kStored);
  });
  UploadWorldOfTest world({a.address()});
  HttpClient client = world.client();
  ASSERT_TRUE(client.send_raw(UploadWorldOfTest::head(8) + "form").ok());
  wait_until([&] { return most.load(); });
  world.server->begin_drain();
  EXPECT_EQ(world.upload("form").status, 503);
  ASSERT_TRUE(client.send_raw("form").ok());
  const auto answer = client.read_raw(15);
  EXPECT_TRUE(answer.ok() && answer->starts_with("HTTP/1.1 200")) << *answer;
}

}  // namespace
}  // namespace loralei
