// SPDX-License-Identifier: Apache-2.0
#include "serve/readiness.h"

#include <algorithm>

#include "base/printable.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

constexpr int64_t kEngineMs = 120'000;         // a step; several times the last where weights come from a slow disk
constexpr int64_t kStepsMs = 8;                // of the last
constexpr int64_t kRequestThreadsMs = 20'000;  // text, HTTP and the dispatcher work in slices of milliseconds
constexpr int64_t kLoadMs = 300'000;           // of an adapter, from whatever disk
constexpr int64_t kLogMs = 5'000;
constexpr size_t kNamesTold = 5;

int64_t limit_ms(std::string_view who, const EngineStats& stats) {
  if (who == "engine") return std::max(kEngineMs, static_cast<int64_t>(kStepsMs * stats.step_ms_last));
  return who == "adapter loader" ? kLoadMs : kRequestThreadsMs;
}

// Adapters whose last load failed; when all did, more than their files may be wrong.
void add_adapters(const AdapterList& adapters, std::vector<Impediment>& out) {
  std::string names, first;
  size_t failed = 0;
  for (const auto& adapter : adapters) {
    if (adapter->tier != AdapterTier::kFailed) continue;
    if (failed++ == 0) first = adapter->error;
    if (failed <= kNamesTold) names += (failed > 1 ? ", " : "") + printable(adapter->source.label);
  }
  if (failed == 0) return;
  if (failed > kNamesTold) names += " and " + std::to_string(failed - kNamesTold) + " more";
  const bool all = failed == adapters.size();
  out.push_back({all ? "adapters" : "some adapters",
                 std::string(all ? "No adapter could be loaded: " : "These could not be loaded: ") + names + ". " +
                     printable(first)});
}

}  // namespace

bool engine_is_stuck(const ServerState& state) {
  return std::any_of(state.silences.begin(), state.silences.end(), [&](const Heartbeats::Silence& silence) {
    return silence.who == "engine" && silence.ms > limit_ms(silence.who, state.stats);
  });
}

std::vector<Impediment> impediments(const ServerState& state) {
  std::vector<Impediment> out;
  if (!state.health.ok()) out.push_back({"requests", state.health.error().message, 0, true});
  if (!state.stats.ready.ok()) out.push_back({"requests", state.stats.ready.error().message, 0, true});
  if (state.draining) out.push_back({"requests", "The server is draining.", 0, true});
  for (const Heartbeats::Silence& silence : state.silences) {
    if (silence.ms <= limit_ms(silence.who, state.stats)) continue;
    const bool loads = silence.who == "adapter loader";
    out.push_back({loads ? "adapters" : "requests", "A thread (" + std::string(silence.who) + ") has made no progress.",
                   silence.ms / 1000, !loads});
  }
  if (state.max_queued > 0 && state.stats.waiting + state.stats.waiting_for_adapter >= state.max_queued) {
    out.push_back({"requests", std::to_string(state.max_queued) + " requests are waiting already.", 0, true});
  }
  add_adapters(state.adapters, out);
  if (state.log.stuck_ms > kLogMs) {
    out.push_back({"logs",
                   "Nobody takes the log's lines; " + std::to_string(state.log.dropped_lines) +
                       " have been dropped since the start.",
                   state.log.stuck_ms / 1000});
  }
  return out;
}

bool is_ready(const std::vector<Impediment>& impediments) {
  return std::none_of(impediments.begin(), impediments.end(), [](const Impediment& one) { return one.all; });
}

std::string readiness_body(const std::vector<Impediment>& impediments) {
  JsonOut out;
  out.begin_object().key("status").string(is_ready(impediments) ? "ready" : "not ready");
  if (!impediments.empty()) {
    out.key("cannot").begin_array();
    for (const Impediment& one : impediments) {
      out.begin_object().key("what").string(one.what).key("why").string(one.why);
      if (one.since_s > 0) out.key("since_s").number(one.since_s);
      out.end_object();
    }
    out.end_array();
  }
  return out.end_object().take();
}

}  // namespace loralei
