// SPDX-License-Identifier: Apache-2.0
#include "engine/model_host.h"

#include <utility>
#include <vector>

#include "base/units.h"
#include "engine/engine_host_parts.h"
#include "engine/start.h"
#include "model/linear_state.h"

namespace loralei {

// What an engine would be made of.
struct ModelHost::Engine {
  EngineParts parts;
  std::vector<Grant> adapters;
};

ModelHost::ModelHost() : host_(new EngineHost()), engine_(std::make_unique<Engine>()) {}
ModelHost::~ModelHost() = default;

Result<std::unique_ptr<ModelHost>> ModelHost::start(const EngineHostOptions& options, LogSink& log,
                                                    const LoadProgress& progress) {
  if (options.device) return unsupported("This runs on the cores alone; leave out --device, or say --device cpu.");
  std::unique_ptr<ModelHost> host(new ModelHost());
  EngineHostOptions whole = options;
  whole.whole_windows = true;  // whoever makes steps of their own has one table
  TRY(host->host_->prepare(whole, log, progress, host->engine_->parts));
  if (state_floats(host->file().config) > 0) {
    return unsupported(
        "Steps of one's own are for models whose layers all have KV; this one's linear layers keep a state of a whole "
        "text instead.");
  }
  return host;
}

Executor& ModelHost::executor() { return *engine_->parts.executor; }
Ledger& ModelHost::ledger() { return *host_->parts_->ledger; }
const std::string& ModelHost::fingerprint() const { return host_->weights().fingerprint(); }
int64_t ModelHost::max_model_len() const { return host_->parts_->plan.max_model_len; }

Result<std::shared_ptr<const Adapter>> ModelHost::load_adapter(const std::string& path, AdapterVersionId version) {
  const EngineOptions& options = engine_->parts.options;
  AdapterLoadOptions load{.strict = options.adapter_strict, .int8 = options.adapter_int8};
  load.bytes_max = ledger().available_bytes(MemoryUse::kAdapters);
  TRY_ASSIGN(AdapterLoad loaded, engine_->parts.adapters.load(path, load, version));
  const int64_t bytes = loaded.adapter != nullptr ? loaded.adapter->bytes : loaded.bytes_needed;
  auto grant = ledger().try_grant(MemoryUse::kAdapters, bytes);
  if (loaded.adapter == nullptr || !grant) {
    return too_large("The adapter at '" + path + "' needs " + format_bytes(bytes) + ", and " +
                     format_bytes(load.bytes_max) + " of the memory budget are left; raise --memory-budget.");
  }
  if (loaded.adapter->rank_max > executor().limits().rank_max) {
    return too_large("The adapter at '" + path + "' has rank " + std::to_string(loaded.adapter->rank_max) +
                     "; raise --max-lora-rank.");
  }
  engine_->adapters.push_back(*std::move(grant));
  return std::move(loaded.adapter);
}

}  // namespace loralei
