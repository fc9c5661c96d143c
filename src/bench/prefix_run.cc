// SPDX-License-Identifier: Apache-2.0
#include "bench/prefix_run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "bench/engine_client.h"
#include "kv/block_count.h"

namespace loralei {
namespace {

constexpr double kOwnersRecentS = 300;  // KvUtility's, of somebody who takes his time

EngineHostOptions host_options(const PrefixRunOptions& options, const PrefixMode& mode) {
  EngineHostOptions host = options.host;
  EngineOptions& engine = host.engine;
  engine.max_model_len = options.tokens_max + kKvBlockTokens;
  // One runs at a time; KV has no more than so many could fill.
  engine.max_sequences = options.kv_blocks / kv_blocks_for(static_cast<int32_t>(engine.max_model_len)) + 1;
  engine.kv_cache_bytes = options.kv_blocks * options.block_bytes;
  engine.prefix_cache = mode.prefix_cache;
  engine.kv_sharing = mode.sharing;
  if (mode.sharing == KvSharing::kExact) engine.kv_delta = KvDelta::kSteps;  // there are none
  engine.kv_eviction = mode.eviction;
  engine.kv_utility.recent_s = kOwnersRecentS * options.day_s;
  return host;
}

std::string app_name(int32_t app) { return "app-" + std::to_string(app); }

class Replay {
 public:
  Replay(EngineHost& host, const PrefixRunOptions& options, const PrefixMode& mode)
      : client_(host.engine(), clock_, host.file().config.vocab, options.seed),
        texts_(host.file().config.vocab, options.text, options.seed),
        options_(options),
        mode_(mode) {}

  Status load(std::span<const PrefixRequest> requests) {
    int32_t adapters = 0;
    for (const PrefixRequest& request : requests) adapters = std::max(adapters, request.adapter + 1);
    for (int32_t i = 0; i < adapters; ++i) {
      const auto number = static_cast<size_t>(i) % options_.adapters.size();
      TRY(client_.command(AdapterAction::kLoad,
                          {source_of(i), "prefix-" + std::to_string(i), options_.adapters[number]}));
    }
    return {};
  }

  Status ask(const PrefixRequest& request, PrefixRun& run) {
    std::this_thread::sleep_for(std::chrono::duration<double>(request.think * options_.think_s));
    for (const PrefixRequest::Told& told : request.told) {
      if (mode_.context) TRY(client_.command(AppCommand{.id = app_name(told.app), .state = told.state}));
    }
    TRY_ASSIGN(const RequestId id, submit(request, request.prompt));
    run.first_ms.push_back(client_.asked(id).first_token_s() * 1e3);
    run.prompt_tokens.push_back(request.prompt_tokens());
    run.cached_tokens.push_back(client_.asked(id).cached_tokens);
    run.borrowed_tokens.push_back(client_.asked(id).borrowed_tokens);
    client_.forget_ended();
    if (!mode_.prefix_cache || request.answer_tokens == 0) return {};
    std::vector<TextPart> answered = request.prompt;
    answered.back().tokens += request.answer_tokens;
    TRY(submit(request, answered));
    client_.forget_ended();
    return {};
  }

 private:
  static AdapterSourceId source_of(int32_t adapter) { return {static_cast<uint64_t>(adapter) + 1}; }

  // To its end.
  Result<RequestId> submit(const PrefixRequest& request, std::span<const TextPart> prompt) {
    Submit asked;
    for (const TextPart& part : prompt) texts_.tell(part, asked.prompt);
    if (request.adapter != PrefixRequest::kBase) asked.adapters.push_back({source_of(request.adapter), 1.0f});
    if (mode_.context) asked.app_id = app_name(request.app);
    asked.max_tokens = 1;
    asked.sampling.temperature = 0;
    asked.ignore_eos = true;
    TRY_ASSIGN(const RequestId id, client_.ask(std::move(asked)));
    TRY(client_.follow_to_the_end());
    return id;
  }

  const SteadyClock clock_;
  EngineClient client_;
  const PrefixTexts texts_;
  const PrefixRunOptions& options_;
  const PrefixMode& mode_;
};

}  // namespace

Result<PrefixRun> run_prefix(const PrefixRunOptions& options, const PrefixMode& mode,
                             std::span<const PrefixRequest> requests, MemoryTrace* trace, LogSink& log) {
  EngineHostOptions host_of_mode = host_options(options, mode);
  if (trace != nullptr) host_of_mode.on_step = trace->on_step();
  TRY_ASSIGN(const std::unique_ptr<EngineHost> host, EngineHost::start(host_of_mode, log, {}));
  // Blocks that lend take more, so that there are fewer.
  const int32_t blocks = host->engine().stats().kv_blocks_total;
  if (mode.sharing == KvSharing::kBorrow ? blocks > options.kv_blocks : blocks != options.kv_blocks)
    return too_large("memory has no room for " + format_bytes(options.kv_blocks * options.block_bytes) +
                     " of KV; give --memory-budget more, or take a smaller --scale.");
  Replay replay(*host, options, mode);
  TRY(replay.load(requests));
  if (trace != nullptr) trace->watch(host.get());
  PrefixRun run;
  Status status;
  const SteadyClock clock;
  const double begin_s = clock.now_s();
  for (const PrefixRequest& request : requests) {
    if (!(status = replay.ask(request, run)).ok()) break;
  }
  run.wall_s = clock.now_s() - begin_s;
  host->engine().stop();
  if (trace != nullptr) trace->watch(nullptr);
  if (!status.ok()) return std::move(status).error();
  run.coded = host->engine().stats().kv_coded;
  return run;
}

}  // namespace loralei
