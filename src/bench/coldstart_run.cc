// SPDX-License-Identifier: Apache-2.0
#include "bench/coldstart_run.h"

#include <algorithm>
#include <set>

#include "base/units.h"
#include "bench/coldstart_figures.h"
#include "engine/emulated/emulated_backend.h"

namespace loralei {
namespace {

constexpr int kAlone = 5;  // requests whose first token is timed
constexpr int kWarmTogether = 8, kWarmTokens = 8, kWarmRounds = 2;
constexpr int64_t kBringNs = 120'000'000'000;  // for all adapters, beside what the link takes

EngineHostOptions host_options(const ColdServerOptions& options, ColdStart way) {
  EngineHostOptions host = options.host;
  host.engine.cold_start = way;
  if (options.fit_bytes > 0 && way != ColdStart::kCached) host.engine.adapter_bytes = options.fit_bytes;
  if (options.fit_bytes == 0) host.engine.adapter_keeping = AdapterKeeping::none();
  host.device = emulated_factory({.link = options.link});
  return host;
}

}  // namespace

std::vector<std::string> adapters_of(std::span<const WorkloadRequest> workload) {
  std::set<std::string> seen;
  std::vector<std::string> names;
  for (const WorkloadRequest& request : workload)
    if (seen.insert(request.adapter).second) names.push_back(request.adapter);
  return names;
}

Result<std::unique_ptr<ColdServer>> ColdServer::start(const ColdServerOptions& options, ColdStart way, LogSink& log) {
  std::unique_ptr<ColdServer> server(new ColdServer(options, way));
  TRY_ASSIGN(server->host_, EngineHost::start(host_options(options, way), log, {}));
  server->client_ = std::make_unique<EngineClient>(server->host_->engine(), server->clock_,
                                                   server->host_->file().config.vocab, options.seed);
  TRY(server->load());
  if (way == ColdStart::kCached) TRY(server->bring_all());
  TRY(server->warm_up());
  return server;
}

Status ColdServer::load() {
  for (size_t i = 0; i < options_.adapters.size(); ++i) {
    const AdapterSourceSpec source{{i + 1}, options_.adapters[i], options_.files[i % options_.files.size()]};
    TRY(client_->command(AdapterAction::kLoad, source));
    sources_[options_.adapters[i]] = source.id;
    adapter_bytes_ = std::max(adapter_bytes_, client_->status(source.id).bytes);
  }
  const EngineStats stats = host_->engine().stats();
  if (stats.adapter_evictions == 0) return {};
  return too_large("host memory has no room for " + std::to_string(options_.adapters.size()) + " adapters of " +
                   format_bytes(adapter_bytes_) + "; ask for fewer --requests, or state more --host-adapter-memory.");
}

// Until all are on the device.
Status ColdServer::bring_all() {
  const auto count = static_cast<int64_t>(sources_.size());
  const int64_t room = host_->engine().stats().device_memory.adapter_bytes_max;
  const auto link_ns =
      static_cast<int64_t>(static_cast<double>(count * adapter_bytes_) * 1e9 / options_.link.bytes_per_s);
  const int64_t until_ns = clock_.now_ns() + kBringNs + 2 * link_ns;
  const auto missing = [&] {
    return std::count_if(sources_.begin(), sources_.end(),
                         [&](const auto& source) { return !client_->status(source.second).on_device; });
  };
  if (count * adapter_bytes_ <= room)
    TRY(client_->follow([&] { return missing() == 0 || clock_.now_ns() >= until_ns; }));
  if (missing() == 0) return {};
  return too_large("the device has no room for all of " + std::to_string(count) + " adapters of " +
                   format_bytes(adapter_bytes_) + " (" + format_bytes(room) +
                   "), which --cold-start cached needs; ask for fewer --requests, or state more --adapter-memory.");
}

Status ColdServer::warm_up() {
  for (int round = 0; round < kWarmRounds; ++round) {
    for (size_t i = 0; i < kWarmTogether; ++i) {
      const AdapterSourceId adapter{i % sources_.size() + 1};
      TRY(client_->ask(options_.prompt_tokens, kWarmTokens, adapter));
    }
    TRY(client_->follow_to_the_end());
  }
  client_->forget_ended();
  return {};
}

Result<double> ColdServer::first_token_s(int32_t prompt_tokens) {
  std::vector<double> seconds;
  for (size_t i = 0; i < kAlone; ++i) {
    TRY_ASSIGN(const RequestId id, client_->ask(prompt_tokens, 1, AdapterSourceId{i % sources_.size() + 1}));
    TRY(client_->follow_to_the_end());
    seconds.push_back(client_->asked(id).first_token_s());
  }
  client_->forget_ended();
  return median(std::move(seconds));
}

Result<ColdRun> ColdServer::replay(std::span<const WorkloadRequest> workload) {
  const ColdStarts before = host_->engine().stats().cold_starts;
  const int64_t begin_ns = clock_.now_ns();
  std::vector<RequestId> ids;
  for (const WorkloadRequest& request : workload) {
    TRY(client_->follow_until(begin_ns + request.at_ns));
    TRY_ASSIGN(const RequestId id,
               client_->ask(request.prompt_tokens, request.output_tokens, sources_.at(request.adapter)));
    ids.push_back(id);
  }
  TRY(client_->follow_to_the_end());
  ColdRun run;
  for (const RequestId id : ids) {
    const std::vector<int64_t>& token_ns = client_->asked(id).token_ns;
    run.served.push_back({.first_ns = token_ns.front() - begin_ns,
                          .end_ns = token_ns.back() - begin_ns,
                          .tokens = static_cast<int32_t>(token_ns.size())});
    run.seconds = std::max(run.seconds, static_cast<double>(run.served.back().end_ns) * 1e-9);
  }
  run.starts = cold_starts_since(before, host_->engine().stats().cold_starts);
  client_->forget_ended();
  return run;
}

}  // namespace loralei
