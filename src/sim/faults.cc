// SPDX-License-Identifier: Apache-2.0
#include "sim/faults.h"

#include <algorithm>

#include "workload/draws.h"

namespace loralei::sim {
namespace {

constexpr double kFailingLoads = 0.05, kSlowLoads = 0.1, kSlowUploads = 0.1, kFailingUploads = 0.03, kCancels = 0.15;
constexpr double kSlowness = 20;
constexpr double kCancelWithinNs = 5e9, kBudgetEveryNs = 4e9, kChurnEveryNs = 2e9, kAppsEveryNs = 1e9;
constexpr double kClockStepEveryNs = 5e9, kClockStepNs = 10e9;
constexpr double kLeastBudget = 0.4;
constexpr double kDeathEveryNs = 10e9, kDownNs = 8e9;
constexpr double kEtcdTroubleEveryNs = 6e9, kAwayNs = 15e9, kNoLeaderNs = 1e9, kSlowNs = 5e9;
constexpr double kSlowLatencyNs = 400e6;  // at most: a round trip is within an attempt
constexpr double kCutEveryNs = 12e9, kCutNs = 12e9;

int64_t some_ns(Prng& random, double mean_ns) { return 1 + static_cast<int64_t>(exponential_draw(random) * mean_ns); }

}  // namespace

Faults::Faults(std::optional<uint64_t> seed, const FaultKinds& kinds)
    : any_(seed.has_value() && kinds.engine),
      fleet_(seed.has_value() ? kinds : FaultKinds{false, false, false, false}),
      loads_(stream_seed(seed.value_or(0), "loads")),
      links_(stream_seed(seed.value_or(0), "links")),
      clients_(stream_seed(seed.value_or(0), "clients")),
      budgets_(stream_seed(seed.value_or(0), "budgets")),
      churn_(stream_seed(seed.value_or(0), "churn")),
      clocks_(stream_seed(seed.value_or(0), "clocks")),
      copies_(stream_seed(seed.value_or(0), "copies")),
      apps_(stream_seed(seed.value_or(0), "apps")),
      deaths_(stream_seed(seed.value_or(0), "deaths")),
      etcd_(stream_seed(seed.value_or(0), "etcd")),
      cuts_(stream_seed(seed.value_or(0), "cuts")) {}

bool Faults::load_fails() { return any_ && loads_.uniform() < kFailingLoads; }
double Faults::load_slowness() { return any_ && loads_.uniform() < kSlowLoads ? kSlowness : 1; }
double Faults::upload_slowness() { return any_ && links_.uniform() < kSlowUploads ? kSlowness : 1; }
bool Faults::upload_fails() { return any_ && copies_.uniform() < kFailingUploads; }

std::optional<int64_t> Faults::cancel_after_ns() {
  if (!any_ || clients_.uniform() >= kCancels) return std::nullopt;
  return static_cast<int64_t>(clients_.uniform() * kCancelWithinNs);
}

int64_t Faults::next_budget_change_ns() { return some_ns(budgets_, kBudgetEveryNs); }
double Faults::next_budget() { return kLeastBudget + (1 - kLeastBudget) * budgets_.uniform(); }
int64_t Faults::next_churn_ns() { return some_ns(churn_, kChurnEveryNs); }
uint64_t Faults::churned(uint64_t adapters) { return below_draw(churn_, adapters); }
int64_t Faults::next_app_change_ns() { return some_ns(apps_, kAppsEveryNs); }
uint64_t Faults::app(uint64_t apps) { return below_draw(apps_, apps); }
uint64_t Faults::app_state(uint64_t states) { return below_draw(apps_, states); }
int64_t Faults::next_clock_step_ns() { return some_ns(clocks_, kClockStepEveryNs); }
int64_t Faults::clock_step_ns() { return some_ns(clocks_, kClockStepNs); }

int64_t Faults::next_death_ns() { return some_ns(deaths_, kDeathEveryNs); }
uint64_t Faults::dead(uint64_t replicas) { return below_draw(deaths_, replicas); }
int64_t Faults::down_ns() { return some_ns(deaths_, kDownNs); }

int64_t Faults::next_etcd_trouble_ns() { return some_ns(etcd_, kEtcdTroubleEveryNs); }

// Every other one is a compaction, which is the least of them.
EtcdTrouble Faults::etcd_trouble() {
  const uint64_t drawn = below_draw(etcd_, 2 * static_cast<uint64_t>(EtcdTrouble::kCompaction));
  return static_cast<EtcdTrouble>(std::min(drawn, static_cast<uint64_t>(EtcdTrouble::kCompaction)));
}

int64_t Faults::etcd_trouble_ns(EtcdTrouble trouble) {
  return some_ns(etcd_, trouble == EtcdTrouble::kAway   ? kAwayNs
                        : trouble == EtcdTrouble::kSlow ? kSlowNs
                                                        : kNoLeaderNs);
}
int64_t Faults::slow_latency_ns() { return 1 + static_cast<int64_t>(kSlowLatencyNs * etcd_.uniform()); }

int64_t Faults::next_cut_ns() { return some_ns(cuts_, kCutEveryNs); }
uint64_t Faults::cut_off(uint64_t of) { return below_draw(cuts_, of); }
int64_t Faults::cut_ns() { return some_ns(cuts_, kCutNs); }

}  // namespace loralei::sim
