// SPDX-License-Identifier: Apache-2.0
// What a router's choice costs: 60 replicas that know 10,000 adapters each, with many
// requests on each of them.
//
//   build/src/router/fleet_bench [replicas] [adapters] [requests a replica]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "base/prng.h"
#include "router/fleet.h"

namespace {

using namespace loralei;

class NoLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view) override {}
};

constexpr int kPicks = 20'000;

double us_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

size_t argument(int argc, char** argv, int at, size_t otherwise) {
  return argc > at ? static_cast<size_t>(std::strtoull(argv[at], nullptr, 10)) : otherwise;
}

std::string name_of(size_t adapter) { return "tenants/customer-" + std::to_string(adapter) + "/adapter"; }

}  // namespace

int main(int argc, char** argv) {
  const size_t replicas = argument(argc, argv, 1, 60), adapters = argument(argc, argv, 2, 10'000),
               requests = argument(argc, argv, 3, 64);
  NoLog log;
  const SteadyClock clock;
  FleetOptions options;
  options.profile = *device_profile("a10-llama2-7b");
  options.homes = true;
  Fleet fleet(options, clock, log);
  for (size_t i = 0; i < replicas; ++i) fleet.add({"10.0.0." + std::to_string(i), 8080});
  const int ranks[] = {8, 16, 32, 64, 128};
  for (size_t replica = 0; replica < replicas; ++replica) {
    for (size_t begin = 0; begin < adapters; begin += kReportAdaptersMost) {
      ReplicaReport report;
      report.boot = "boot", report.models = {"base"}, report.since = begin;
      report.cursor = begin + kReportAdaptersMost;
      report.sequences_max = static_cast<int32_t>(2 * requests);
      for (size_t i = begin; i < std::min(adapters, begin + kReportAdaptersMost); ++i) {
        report.adapters.push_back(
            {.name = name_of(i), .tier = static_cast<ReplicaTier>((i + replica) % 3), .rank = ranks[i % 5]});
      }
      fleet.take(replica, report);
    }
  }
  Prng random(1);
  std::vector<double> picks;
  std::deque<Placed> running;
  for (int i = 0; i < kPicks; ++i) {
    const std::string body = R"({"model": ")" + name_of(random.below(adapters)) + R"(", "stream": true, "prompt": ")" +
                             std::string(200 + random.below(2000), 'a') + "\"}";
    const RouteFacts facts = read_route_facts(body);
    const auto begin = std::chrono::steady_clock::now();
    auto place = fleet.place({.facts = &facts});
    picks.push_back(us_since(begin));
    if (!place.ok()) return std::fprintf(stderr, "%s\n", place.error().message.c_str()), 1;
    running.push_back(*place);
    fleet.answers(*place);
    if (running.size() <= replicas * requests) continue;
    fleet.ended(running.front(), AnswerCounts{100, 100});
    running.pop_front();
  }
  std::sort(picks.begin(), picks.end());
  const auto at = [&](double share) { return picks[static_cast<size_t>(share * (kPicks - 1))]; };
  std::printf("%zu replicas, %zu adapters, %zu requests: a pick takes %.1f us (P50), %.1f us (P99); asked: 50 us\n",
              replicas, adapters, running.size(), at(0.5), at(0.99));
  std::printf("adapters' names and places: %.1f MB; asked: 200 MB\n", static_cast<double>(fleet.memory_bytes()) * 1e-6);
  return 0;
}
