// SPDX-License-Identifier: Apache-2.0
// The picker over gRPC, asked by gRPC's own client. Not under the thread sanitizer: the
// system's gRPC is built without it, so that whatever its threads hand over looks like a
// race.
#ifndef LORALEI_THREAD_SANITIZER
#include "epp/picker_server.h"

#include <epp/ext_proc.grpc.pb.h>
#include <epp/health.grpc.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "epp/exchange_test_util.h"
#include "http/client.h"
#include "router/router_test_util.h"

namespace loralei {
namespace {

using Health = ::grpc::health::v1::HealthCheckResponse;

const Answering kGood = [](HttpRequest, std::shared_ptr<ResponseWriter> writer) { writer->respond(200, kJson, "{}"); };

struct ServerWorld {
  explicit ServerWorld(const std::vector<UpstreamAddress>& replicas, PickerServerOptions options = {}) {
    options.port = options.metrics_port = 0;
    options.fleet.policy = RoutePolicy::kFirstFit;
    options.fleet.profile.step.linear = {{1, 0.01}};
    options.watch.interval_ms = 20;
    options.replicas = replicas;
    auto started = PickerServer::start(options, clock, log);
    EXPECT_TRUE(started.ok()) << started.error().message;
    server = *std::move(started);
    server->wait_for_replicas(10'000);
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials());
    stub = ext_proc::ExternalProcessor::NewStub(channel);
  }
  int32_t running() const {
    int32_t sum = 0;
    for (const ReplicaState& state : server->replicas()) sum += state.sent;
    return sum;
  }
  // What it says of a service; UNKNOWN where it knows none of that name.
  Health::ServingStatus health(const std::string& service) {
    ::grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    Health answer;
    grpc::ClientContext context;
    const grpc::Status status = ::grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &answer);
    if (status.ok()) return answer.status();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    return Health::UNKNOWN;
  }

  SteadyClock clock;
  CollectingLog log;
  std::unique_ptr<PickerServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<ext_proc::ExternalProcessor::Stub> stub;
};

// A gateway's stream.
struct Gateway {
  explicit Gateway(ServerWorld& world) : stream(world.stub->Process(&context)) {}
  ~Gateway() { context.TryCancel(); }
  PickerAnswer ask(const GatewayMessage& message) {
    EXPECT_TRUE(stream->Write(message));
    PickerAnswer answer;
    EXPECT_TRUE(stream->Read(&answer));
    return answer;
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<GatewayMessage, PickerAnswer>> stream;
};

const GatewayMessage kGet = head_of("GET", "/v1/models", true);

TEST(PickerServer, SaysWhereARequestGoes) {
  FakeReplica replica(kGood);
  ServerWorld world({replica.address()});
  Gateway gateway(world);
  const std::string text(100'000, 'x');
  EXPECT_TRUE(gateway.stream->Write(post()));
  EXPECT_TRUE(gateway.stream->Write(body(text)));
  EXPECT_EQ(endpoint_of(gateway.ask(body("y", true))), address_text(replica.address()));
  std::string back;
  PickerAnswer piece;
  while (back.size() < text.size() + 1 && gateway.stream->Read(&piece)) back += piece_of(piece.request_body());
  EXPECT_EQ(back, text + "y");
  EXPECT_EQ(world.running(), 1);
  EXPECT_TRUE(gateway.ask(answer_head(200)).has_response_headers());
  EXPECT_EQ(piece_of(gateway.ask(answer_body("{}", true)).response_body()), "{}");
  EXPECT_EQ(world.running(), 0);
  gateway.stream->WritesDone();
  EXPECT_FALSE(gateway.stream->Read(&piece));
  EXPECT_TRUE(gateway.stream->Finish().ok());
  wait_until([&] { return world.server->streams() == 0; });
  EXPECT_EQ(replica.asked, 0) << "the gateway asks it";
}

TEST(PickerServer, WhoLeavesFreesItsReplica) {
  FakeReplica replica(kGood);
  ServerWorld world({replica.address()});
  {
    Gateway gateway(world);
    gateway.ask(kGet);
    EXPECT_EQ(world.running(), 1);
  }
  wait_until([&] { return world.running() == 0 && world.server->streams() == 0; });
}

TEST(PickerServer, ServesSoManyStreams) {
  FakeReplica replica(kGood);
  PickerServerOptions options;
  options.max_streams = 2;
  ServerWorld world({replica.address()}, options);
  {
    Gateway first(world), second(world), third(world);
    EXPECT_FALSE(endpoint_of(first.ask(kGet)).empty());
    EXPECT_FALSE(endpoint_of(second.ask(kGet)).empty());
    EXPECT_EQ(third.ask(kGet).immediate_response().status().code(), 429);
  }
  wait_until([&] { return world.server->streams() == 0; });
  Gateway again(world);
  EXPECT_FALSE(endpoint_of(again.ask(kGet)).empty());
}

TEST(PickerServer, SaysWhetherThereIsAnybody) {
  FakeReplica replica(kGood);
  ServerWorld world({replica.address()});
  const std::string name = "envoy.service.ext_proc.v3.ExternalProcessor";
  for (const std::string& service : {std::string(), std::string("readiness"), name})
    EXPECT_EQ(world.health(service), Health::SERVING) << service;
  EXPECT_EQ(world.health("another"), Health::UNKNOWN);
  HttpClient client({.port = world.server->metrics_port()});
  EXPECT_EQ(client.get("/ready")->status, 200);
  replica.say_not_ready();
  wait_until([&] { return world.health("readiness") == Health::NOT_SERVING; });
  EXPECT_EQ(world.health(name), Health::NOT_SERVING);
  EXPECT_EQ(world.health("liveness"), Health::SERVING);
  EXPECT_EQ(client.get("/ready")->status, 503);
  EXPECT_EQ(client.get("/health")->status, 200);
  EXPECT_EQ(client.get("/v1/models")->status, 404);
  EXPECT_EQ(client.request("GET", "/metrics", {{"Host", "example.org"}}, "")->status, 403);
  EXPECT_NE(client.get("/metrics")->body.find("loralei_router_replica_up{"), std::string::npos);
  Gateway gateway(world);
  EXPECT_EQ(gateway.ask(kGet).immediate_response().status().code(), 503);
}

TEST(PickerServer, EndsAStreamThatBreaksTheProtocol) {
  FakeReplica replica(kGood);
  ServerWorld world({replica.address()});
  Gateway gateway(world);
  gateway.ask(kGet);
  EXPECT_TRUE(gateway.stream->Write(kGet));
  PickerAnswer answer;
  EXPECT_FALSE(gateway.stream->Read(&answer));
  const grpc::Status status = gateway.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("ext_proc"), std::string::npos);
  // What is not even gRPC.
  HttpClient client({.port = world.server->port()});
  EXPECT_FALSE(client.get("/").ok() && client.get("/")->status == 200);
  Gateway another(world);
  EXPECT_FALSE(endpoint_of(another.ask(kGet)).empty());
}

// One that reads on while nobody takes what it says takes all of it here.
TEST(PickerServer, WhoDoesNotReadIsNotReadFrom) {
  FakeReplica replica(kGood);
  ServerWorld world({replica.address()});
  Gateway gateway(world);
  gateway.ask(kGet);
  gateway.ask(answer_head(200));
  constexpr int kPieces = 320;
  std::atomic<int> written{0};
  std::thread writes([&] {
    const GatewayMessage piece = answer_body(std::string(64 * 1024, 'x'));
    while (written < kPieces && gateway.stream->Write(piece)) ++written;
  });
  for (int before = -1; before != written;) {
    before = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_LT(written, kPieces);
  PickerAnswer answer;
  int read = 0;
  for (; read < kPieces && gateway.stream->Read(&answer); ++read)
    EXPECT_EQ(piece_of(answer.response_body()).size(), 65536u);
  EXPECT_EQ(read, kPieces);
  writes.join();
}

TEST(PickerServer, WhatRunsHasItsTimeAtTheEnd) {
  FakeReplica replica(kGood);
  {
    ServerWorld world({replica.address()});
    Gateway gateway(world);
    gateway.ask(kGet);
    std::thread ends([&] {
      gateway.ask(answer_head(200));
      gateway.ask(answer_body("", true));
      gateway.stream->WritesDone();
      gateway.stream->Finish();
    });
    EXPECT_TRUE(world.server->shutdown(60'000));
    ends.join();
    EXPECT_TRUE(world.server->shutdown(0)) << "a second time does nothing";
  }
  ServerWorld world({replica.address()});
  Gateway gateway(world);
  gateway.ask(kGet);
  EXPECT_FALSE(world.server->shutdown(0));
  EXPECT_EQ(world.running(), 0);
  EXPECT_EQ(world.server->streams(), 0);
}

TEST(PickerServer, StartsWithWhatItCanUse) {
  SteadyClock clock;
  CollectingLog log;
  PickerServerOptions options;
  options.port = 0;
  EXPECT_NE(PickerServer::start(options, clock, log).error().message.find("--replica"), std::string::npos);
  options.replicas = {{"localhost", 1}};
  EXPECT_NE(PickerServer::start(options, clock, log).error().message.find("http://IP:PORT"), std::string::npos);
  options.replicas = {{"127.0.0.1", 1}};
  const auto first = PickerServer::start(options, clock, log);
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  const auto second = PickerServer::start(options, clock, log);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(second.error().message.find("--port"), std::string::npos);
}

}  // namespace
}  // namespace loralei
#endif  // LORALEI_THREAD_SANITIZER
