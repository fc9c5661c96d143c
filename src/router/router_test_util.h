// SPDX-License-Identifier: Apache-2.0
// Replicas that do as a test says, and a router in front of them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log_test_util.h"
#include "http/upstream_test_util.h"
#include "router/router_server.h"
#include "wire/replica_report.h"

namespace loralei {

inline std::string event(const std::string& data) { return "data: " + data + "\n\n"; }
inline const HttpHeaders kEvents = {{"Content-Type", "text/event-stream"}};
inline const HttpHeaders kJson = {{"Content-Type", "application/json"}};

using Answering = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;

// Answers that are not given yet. Thread-safe.
class HeldAnswers {
 public:
  void add(std::shared_ptr<ResponseWriter> writer) {
    const std::lock_guard lock(mutex_);
    writers_.push_back(std::move(writer));
  }
  void drop() {
    std::vector<std::shared_ptr<ResponseWriter>> writers;
    const std::lock_guard lock(mutex_);
    writers.swap(writers_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<ResponseWriter>> writers_;
};

// Reports by itself; everything else is the test's.
class FakeReplica final : public HttpHandler {
 public:
  explicit FakeReplica(Answering answer, int port = 0) : answer_(std::move(answer)) {
    HttpServerOptions options;
    options.port = port;
    auto server = HttpServer::start(options, *this, log_);
    EXPECT_TRUE(server.ok()) << server.error().message;
    server_ = *std::move(server);
    report.boot = "boot", report.cursor = 1, report.models = {"base"}, report.sequences_max = 64;
  }
  ~FakeReplica() override {
    server_.reset();
    held_.drop();
  }

  bool wants_body(const HttpHead&) override { return wants_bodies; }
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    if (request.path == "/v1/replica" && without_report) return (void)writer->respond(404, kJson, "{}");
    if (request.path != "/v1/replica") {
      ++asked;
      return answer_(std::move(request), std::move(writer));
    }
    if (silent) return held_.add(std::move(writer));
    const std::lock_guard lock(mutex_);
    writer->respond(200, {{"Content-Type", "application/json"}}, replica_report_body(report));
  }
  void say_not_ready() {
    const std::lock_guard lock(mutex_);
    report.ready = false;
  }
  UpstreamAddress address() const { return {"127.0.0.1", server_->port()}; }
  HttpServerStats stats() const { return server_->stats(); }

  ReplicaReport report;
  std::atomic<bool> silent{false};
  bool without_report = false;  // a server of another make
  std::atomic<bool> wants_bodies{true};
  std::atomic<int> asked{0};

 private:
  const Answering answer_;
  CollectingLog log_;
  std::mutex mutex_;
  HeldAnswers held_;
  std::unique_ptr<HttpServer> server_;
};

// Answers a request with some bytes of an answer, and breaks off. It reports as it
// should.
class BreakingReplica {
 public:
  // body: of a chunked answer of this type; without a type not even a head comes.
  explicit BreakingReplica(const std::string& type, const std::string& body = {}) {
    if (!type.empty()) {
      bytes_ = "HTTP/1.1 200 OK\r\nContent-Type: " + type + "\r\nTransfer-Encoding: chunked\r\n\r\n";
      char size[20];
      std::snprintf(size, sizeof size, "%zx\r\n", body.size());
      if (!body.empty()) bytes_ += size + body + "\r\n";
    }
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~BreakingReplica() {
    ended_ = true;
    accepting_.join();
    for (std::thread& one : serving_) one.join();
  }
  UpstreamAddress address() const { return server_.address(); }
  std::atomic<int> asked{0};

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
      const std::string request = peer.request();
      if (request.find("\r\n\r\n") == std::string::npos) return;
      if (request.starts_with("GET /v1/replica")) {
        ReplicaReport report;
        report.boot = "boot", report.cursor = 1, report.models = {"base"}, report.sequences_max = 64;
        peer.answer(replica_report_body(report));
        continue;
      }
      ++asked;
      peer.send(bytes_);
      ::shutdown(peer.fd(), SHUT_WR);
      peer.sees_the_end();
      return;
    }
  }

  std::string bytes_;
  RawServer server_;
  std::atomic<bool> ended_{false};
  std::vector<std::thread> serving_;
  std::thread accepting_;
};

struct RouterWorld {
  explicit RouterWorld(const std::vector<UpstreamAddress>& replicas, RouterServerOptions options = {}) {
    // So that a test knows who is asked first.
    if (options.fleet.policy == RoutePolicy::kRankAware) options.fleet.policy = RoutePolicy::kFirstFit;
    options.fleet.profile.step.linear = {{1, 0.01}};
    options.watch.interval_ms = 20;
    options.watch.timeout_ms = 200;
    options.fleet.health.out_first_ns = 50'000'000;
    options.replicas = replicas;
    auto started = RouterServer::start(options, clock, log);
    EXPECT_TRUE(started.ok()) << started.error().message;
    server = *std::move(started);
    server->wait_for_replicas(10'000);
    server->serve();
  }
  HttpClient client() { return HttpClient({.port = server->port()}); }
  Result<HttpResponse> post(const std::string& body = R"({"model": "base"})", const HttpHeaders& headers = {},
                            const std::string& path = "/v1/chat/completions") {
    HttpClient client = this->client();
    return client.request("POST", path, headers, body);
  }
  std::string metrics() { return client().get("/metrics")->body; }

  SteadyClock clock;
  CollectingLog log;
  std::unique_ptr<RouterServer> server;
};

// Until it is so; a test ends at its own limit.
inline void wait_until(const std::function<bool()>& so) {
  for (int i = 0; i < 30'000 && !so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(so());
}

}  // namespace loralei
