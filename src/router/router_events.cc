// SPDX-License-Identifier: Apache-2.0
#include "router/router_events.h"

#include <chrono>
#include <utility>

namespace loralei {

void put_replicas(const std::vector<ReplicaState>& replicas, JsonOut& out) {
  out.begin_array();
  for (const ReplicaState& state : replicas) {
    out.begin_object().key("replica").string(state.name).key("state").string(health_state_name(state.health));
    out.key("why").string_or_null(state.why).key("requests").number(state.sent).key("waiting").number(state.waiting);
    out.key("reported_running").number(state.reported_running).key("reported_waiting").number(state.reported_waiting);
    out.key("sequences_max").number(state.sequences_max).key("adapters").number(static_cast<int64_t>(state.adapters));
    out.key("adapters_in_memory").number(static_cast<int64_t>(state.adapters_in_memory));
    out.key("adapters_on_device").number(static_cast<int64_t>(state.adapters_on_device));
    out.key("picks").number(static_cast<int64_t>(state.picks));
    out.key("failures").number(static_cast<int64_t>(state.failures));
    out.key("reports").boolean(state.reports).key("own_cost").boolean(state.own_cost).end_object();
  }
  out.end_array();
}

std::string RouterEvents::snapshot(bool draining) {
  const std::vector<ReplicaState> replicas = fleet_.states();
  const std::vector<std::string> bases = fleet_.base_names();
  const int64_t now_ns = clock_.now_ns();
  uint64_t picks = 0;
  int64_t running = 0, waiting = 0;
  for (const ReplicaState& replica : replicas) {
    picks += replica.picks;
    running += replica.sent - replica.waiting;
    waiting += replica.waiting;
  }
  const double passed_s = before_ns_ > 0 ? static_cast<double>(now_ns - before_ns_) * 1e-9 : 0;
  const bool has_rate = passed_s > 0 && picks >= picks_before_;
  const auto unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  JsonOut out;
  out.begin_object().key("kind").string("router").key("unix_ms").number(static_cast<int64_t>(unix_ms.count()));
  out.key("server").begin_object().key("version").string(version_);
  out.key("model").string_or_null(bases.empty() ? "" : bases.front());
  const bool ready = !draining && fleet_.any_usable();
  out.key("ready").boolean(ready).key("draining").boolean(draining).key("cannot").begin_array();
  if (!ready) {
    out.begin_object().key("what").string("requests").key("why");
    out.string(draining ? "The router is draining." : "No replica is up.").end_object();
  }
  out.end_array().end_object();
  out.key("requests").begin_object().key("running").number(running).key("waiting").number(waiting).end_object();
  out.key("rates").begin_object().key("over_s").real(passed_s).key("requests_per_s");
  out.real(has_rate ? static_cast<double>(picks - picks_before_) / passed_s : 0.0).end_object();
  out.key("replicas");
  put_replicas(replicas, out);
  size_t total = 0;
  const std::vector<std::string> names = fleet_.first_adapter_names(kAdaptersTold, total);
  out.key("adapters").begin_object().key("total").number(static_cast<int64_t>(total)).key("first").begin_array();
  for (const std::string& name : names) out.begin_object().key("name").string(name).end_object();
  out.end_array().end_object();
  before_ns_ = now_ns;
  picks_before_ = picks;
  return out.end_object().take();
}

}  // namespace loralei
