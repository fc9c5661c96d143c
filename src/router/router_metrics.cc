// SPDX-License-Identifier: Apache-2.0
#include "router/router_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>

namespace loralei {
namespace {

constexpr std::array<const char*, 4> kAttemptEnds = {"answered", "refused", "failed", "left"};
const prometheus::Histogram::BucketBoundaries kPickSeconds = {1e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 1e-3, 1e-2};
const prometheus::Histogram::BucketBoundaries kFirstSeconds = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640};

}  // namespace

struct RouterMetrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter()
          .Name("loralei_router_requests_total")
          .Help("Requests by route and status; 0: the client left or was cut off.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& attempts = prometheus::BuildCounter()
                                                          .Name("loralei_router_attempts_total")
                                                          .Help("Requests on replicas, by how they ended.")
                                                          .Register(registry);
  prometheus::Counter& retries = prometheus::BuildCounter()
                                     .Name("loralei_router_retries_total")
                                     .Help("Requests that were sent to another replica.")
                                     .Register(registry)
                                     .Add({});
  prometheus::Family<prometheus::Counter>& hedges = prometheus::BuildCounter()
                                                        .Name("loralei_router_hedges_total")
                                                        .Help("Streams that were sent to a second replica beside.")
                                                        .Register(registry);
  prometheus::Counter& hedges_sent = hedges.Add({{"what", "sent"}});
  prometheus::Counter& hedges_won = hedges.Add({{"what", "won"}});
  prometheus::Histogram& first_bytes = prometheus::BuildHistogram()
                                           .Name("loralei_router_first_bytes_seconds")
                                           .Help("From a request's arrival to the first bytes of its answer.")
                                           .Register(registry)
                                           .Add({}, kFirstSeconds);
  prometheus::Histogram& picks = prometheus::BuildHistogram()
                                     .Name("loralei_router_pick_seconds")
                                     .Help("Choosing a replica.")
                                     .Register(registry)
                                     .Add({}, kPickSeconds);
};

RouterMetrics::RouterMetrics() : impl_(std::make_unique<Impl>()) {}
RouterMetrics::~RouterMetrics() = default;

void RouterMetrics::request_done(const char* route, int status) {
  impl_->requests.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

void RouterMetrics::attempt_done(const std::string& replica, AttemptEnd end) {
  impl_->attempts.Add({{"replica", replica}, {"end", kAttemptEnds[static_cast<size_t>(end)]}}).Increment();
}

void RouterMetrics::retried() { impl_->retries.Increment(); }
void RouterMetrics::hedged(bool won) { (won ? impl_->hedges_won : impl_->hedges_sent).Increment(); }
void RouterMetrics::first_bytes(double seconds) { impl_->first_bytes.Observe(seconds); }
void RouterMetrics::pick(double seconds) { impl_->picks.Observe(seconds); }

std::string RouterMetrics::render(const Fleet& fleet, const PlacementController* placement, const HttpServerStats& http,
                                  const UpstreamStats& upstream) const {
  prometheus::Registry now;
  const auto gauge = [&](const char* name, const char* help) -> prometheus::Family<prometheus::Gauge>& {
    return prometheus::BuildGauge().Name(name).Help(help).Register(now);
  };
  const auto counter = [&](const char* name, const char* help) -> prometheus::Family<prometheus::Counter>& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(now);
  };
  auto& up = gauge("loralei_router_replica_up", "1: requests are sent there.");
  auto& sent = gauge("loralei_router_replica_requests", "Requests of this router that are there.");
  auto& waiting = gauge("loralei_router_replica_waiting", "Of these, without a token yet.");
  auto& reported = gauge("loralei_router_replica_reported_requests", "Requests there by its last report, of whoever.");
  auto& adapters = gauge("loralei_router_replica_adapters", "Adapters by where they are at best.");
  auto& picks = counter("loralei_router_picks_total", "Requests that were sent there.");
  auto& failures = counter("loralei_router_replica_failures_total", "Requests and looks at it that broke off.");
  // One that left may stand beside one that joined with its address.
  for (const ReplicaState& state : fleet.states()) {
    const prometheus::Labels labels = {{"replica", state.name}};
    const auto of_tier = [&](const char* tier, size_t count) {
      adapters.Add({{"replica", state.name}, {"tier", tier}}).Increment(static_cast<double>(count));
    };
    const bool usable = state.health == HealthState::kUp || state.health == HealthState::kReturning;
    up.Add(labels).Increment(usable ? 1 : 0);
    sent.Add(labels).Increment(state.sent);
    waiting.Add(labels).Increment(state.waiting);
    reported.Add(labels).Increment(state.reported_running + state.reported_waiting);
    of_tier("device", state.adapters_on_device);
    of_tier("memory", state.adapters_in_memory - state.adapters_on_device);
    of_tier("disk", state.adapters - state.adapters_in_memory);
    picks.Add(labels).Increment(static_cast<double>(state.picks));
    failures.Add(labels).Increment(static_cast<double>(state.failures));
  }
  counter("loralei_router_shed_total", "Requests refused because nobody could keep their objectives.")
      .Add({})
      .Increment(static_cast<double>(fleet.shed()));
  counter("loralei_router_objectives_missed_total", "Requests sent where they will miss them, as predicted.")
      .Add({})
      .Increment(static_cast<double>(fleet.missed()));
  gauge("loralei_router_clients", "Connections of clients.").Add({}).Set(static_cast<double>(http.connections));
  gauge("loralei_router_upstream_connections", "Connections to replicas.")
      .Add({})
      .Set(static_cast<double>(upstream.connections));
  if (placement != nullptr) {
    const PlacementFigures figures = placement->figures();
    gauge("loralei_router_leads", "1: this router says where adapters have their homes.").Add({}).Set(figures.leads);
    gauge("loralei_router_adapters_placed", "Adapters that were given homes.")
        .Add({})
        .Set(static_cast<double>(figures.adapters));
    auto& asked = counter("loralei_router_prefetches_total", "Adapters that replicas were asked to bring.");
    asked.Add({{"end", "brought"}}).Increment(static_cast<double>(figures.brought));
    asked.Add({{"end", "refused"}}).Increment(static_cast<double>(figures.refused));
    asked.Add({{"end", "failed"}}).Increment(static_cast<double>(figures.failed));
  }
  auto families = impl_->registry.Collect();
  for (auto& more : now.Collect()) families.push_back(std::move(more));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace loralei
