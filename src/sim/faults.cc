// SPDX-License-Identifier: Apache-2.0
#include "sim/faults.h"

#include "workload/draws.h"

namespace loralei::sim {
namespace {

constexpr double kFailingLoads = 0.05, kSlowLoads = 0.1, kSlowUploads = 0.1, kFailingUploads = 0.03, kCancels = 0.15;
constexpr double kSlowness = 20;
constexpr double kCancelWithinNs = 5e9, kBudgetEveryNs = 4e9, kChurnEveryNs = 2e9, kAppsEveryNs = 1e9;
constexpr double kClockStepEveryNs = 5e9, kClockStepNs = 10e9;
constexpr double kLeastBudget = 0.4;

int64_t some_ns(Prng& random, double mean_ns) { return 1 + static_cast<int64_t>(exponential_draw(random) * mean_ns); }

}  // namespace

Faults::Faults(std::optional<uint64_t> seed)
    : any_(seed.has_value()),
      loads_(stream_seed(seed.value_or(0), "loads")),
      links_(stream_seed(seed.value_or(0), "links")),
      clients_(stream_seed(seed.value_or(0), "clients")),
      budgets_(stream_seed(seed.value_or(0), "budgets")),
      churn_(stream_seed(seed.value_or(0), "churn")),
      clocks_(stream_seed(seed.value_or(0), "clocks")),
      copies_(stream_seed(seed.value_or(0), "copies")),
      apps_(stream_seed(seed.value_or(0), "apps")) {}

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

}  // namespace loralei::sim
