// SPDX-License-Identifier: Apache-2.0
#include "serve/replica_page.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "http/query.h"

namespace loralei {

void ReplicaPage::change(const std::string& name, Known& known) {
  changes_.erase(known.changed);
  known.changed = ++last_;
  changes_.emplace(last_, &name);
}

void ReplicaPage::note(std::vector<ReplicaAdapter> now) {
  std::sort(now.begin(), now.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  auto at = known_.begin();
  const auto leaves = [&](decltype(at) it) {
    if (std::exchange(it->second.gone, true)) return;
    ++gone_;
    change(it->first, it->second);
  };
  for (ReplicaAdapter& adapter : now) {
    for (; at != known_.end() && at->first < adapter.name; ++at) leaves(at);
    if (at == known_.end() || at->first != adapter.name) at = known_.emplace_hint(at, adapter.name, Known{});
    Known& known = at->second;
    if (known.changed == 0 || known.gone || known.adapter != adapter) {
      if (std::exchange(known.gone, false)) --gone_;
      known.adapter = std::move(adapter);
      change(at->first, known);
    }
    ++at;
  }
  for (; at != known_.end(); ++at) leaves(at);
  for (auto oldest = changes_.begin(); gone_ > kGoneKept;) {
    const auto known = known_.find(*oldest->second);
    if (!known->second.gone) {
      ++oldest;
      continue;
    }
    forgotten_ = std::max(forgotten_, oldest->first);
    oldest = changes_.erase(oldest);
    known_.erase(known);
    --gone_;
  }
}

void ReplicaPage::fill(std::vector<ReplicaAdapter> now, std::string_view boot, uint64_t since, ReplicaReport& report) {
  const std::lock_guard lock(mutex_);
  note(std::move(now));
  if (boot != boot_ || since > last_ || since < forgotten_) since = 0;
  report.boot = boot_;
  report.since = report.cursor = since;
  auto next = changes_.upper_bound(since);
  for (; next != changes_.end(); ++next) {
    if (report.adapters.size() + report.gone.size() == kReportAdaptersMost) break;
    const Known& known = known_.at(*next->second);
    report.cursor = next->first;
    if (!known.gone) {
      report.adapters.push_back(known.adapter);
    } else if (since > 0) {  // who begins has nothing to forget
      report.gone.push_back(*next->second);
    }
  }
  report.more = next != changes_.end();
  if (!report.more) report.cursor = last_;
}

std::vector<ReplicaAdapter> replica_adapters(const std::vector<CatalogueEntry>& entries, const AdapterList& statuses) {
  std::unordered_map<AdapterSourceId, const AdapterStatus*> by_source;
  for (const auto& status : statuses) by_source.emplace(status->source.id, status.get());
  std::vector<ReplicaAdapter> adapters;
  adapters.reserve(entries.size());
  for (const CatalogueEntry& entry : entries) {
    ReplicaAdapter adapter{.name = entry.name};
    if (const auto found = by_source.find(entry.source); found != by_source.end()) {
      const AdapterStatus& status = *found->second;
      adapter.version = status.version;
      adapter.rank = status.rank;
      adapter.bytes = status.bytes;
      adapter.uses = status.uses;
      adapter.failed = status.tier == AdapterTier::kFailed;
      if (status.tier == AdapterTier::kResident) adapter.tier = ReplicaTier::kMemory;
      if (status.tier == AdapterTier::kResident && status.on_device) adapter.tier = ReplicaTier::kDevice;
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

std::string replica_body(ReplicaPage& page, std::string_view query, const ServeOptions& options, const Engine& engine,
                         bool ready, std::vector<ReplicaAdapter> adapters) {
  const EngineStats stats = engine.stats();
  ReplicaReport report;
  uint64_t since = 0;
  const std::string_view number = query_value(query, "since").value_or("");
  std::from_chars(number.data(), number.data() + number.size(), since);
  if (options.told_rank_bytes > 0)
    for (ReplicaAdapter& adapter : adapters) adapter.bytes = adapter.rank * options.told_rank_bytes;
  page.fill(std::move(adapters), query_value(query, "boot").value_or(""), since, report);
  report.ready = ready;
  report.models = options.model_names;
  report.base = options.base_digest;
  report.store = options.adapter_store.store != nullptr;
  report.sequences_max = options.max_running;
  report.waiting_max = options.max_preparing;
  report.kv_tokens = stats.kv_blocks_total * kKvBlockTokens;
  report.model_len = engine.max_model_len();
  // Adapters of another model's size would not be of this one's room.
  report.adapter_bytes = options.told_rank_bytes > 0 ? 0 : stats.adapter_bytes_max;
  report.running = stats.running;
  report.waiting = stats.waiting;
  report.kv_tokens_free = (stats.kv_blocks_total - stats.kv_blocks_used) * kKvBlockTokens;
  report.cost = options.cost;
  return replica_report_body(report);
}

}  // namespace loralei
