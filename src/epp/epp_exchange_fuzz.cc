// SPDX-License-Identifier: Apache-2.0
// Any messages of a gateway, each behind its length in two bytes (the lower first): what
// place() counted ends once, nothing is held in the end, and a body goes back as it came.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/fixed_byte_budget.h"
#include "epp/exchange.h"

namespace loralei {
namespace {

constexpr size_t kBodyBytesMost = 4096;

struct World {
  World() : fleet(options(), clock, log) {
    clock.advance_ns(1'000'000'000);
    for (const char* host : {"10.0.0.1", "fd00::1"}) {
      ReplicaReport report;
      report.boot = "boot", report.cursor = 1, report.models = {"base"}, report.sequences_max = 8;
      report.adapters = {{.name = "sql", .tier = ReplicaTier::kDisk, .rank = 8}};
      fleet.take(fleet.add({host, 8080}), report);
    }
    world.memory = memory;
    world.fallbacks = 1;
    world.max_body_bytes = kBodyBytesMost;
  }
  static FleetOptions options() {
    FleetOptions options;
    options.profile.step.linear = {{1, 0.01}};
    return options;
  }

  ManualClock clock;
  NullLogSink log;
  RouterMetrics metrics;
  Fleet fleet;
  std::shared_ptr<FixedByteBudget> memory = std::make_shared<FixedByteBudget>(2 * kBodyBytesMost);
  PickWorld world{.fleet = fleet, .metrics = metrics, .clock = clock, .log = log};
};

void run(World& world, const uint8_t* data, size_t size) {
  PickExchange exchange(world.world);
  std::string sent, back;
  bool placed = false;
  while (size >= 2) {
    const size_t bytes = std::min<size_t>(data[0] + 256u * data[1], size - 2);
    ext_proc::ProcessingRequest message;
    const bool readable = message.ParseFromArray(data + 2, static_cast<int>(bytes));
    data += 2 + bytes, size -= 2 + bytes;
    if (!readable) continue;  // gRPC ends the stream
    if (!exchange.over() && !placed) sent += message.request_body().body();
    exchange.take(message);
    for (ext_proc::ProcessingResponse answer; exchange.next(answer);) {
      if (answer.has_request_headers()) placed = true;
      CHECK(placed || !answer.has_request_body());
      back += answer.request_body().response().body_mutation().streamed_response().body();
      CHECK(answer.IsInitialized() && !answer.SerializeAsString().empty());
    }
  }
  CHECK(back.empty() || back == sent);
}

}  // namespace
}  // namespace loralei

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace loralei;
  static World& world = *new World;
  run(world, data, size);
  CHECK(world.memory->taken_bytes() == 0);
  for (const ReplicaState& state : world.fleet.states()) CHECK(state.sent == 0);
  return 0;
}
