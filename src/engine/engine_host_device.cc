// SPDX-License-Identifier: Apache-2.0
// A device computes in the place of the cores: its memory, what the host keeps beside it,
// and what the driver takes of it.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "engine/engine_host.h"
#include "engine/engine_host_parts.h"
#include "sys/cpu.h"
#include "sys/threads.h"
#include "weights/pack.h"

namespace loralei {

namespace {

// Helpers have the cores that the emulated device leaves, one each. Beside a GPU there
// are as many as are stated, where a way is stated that wants them.
AssistSetup assist_of(const EngineHostOptions& options, const DeviceBudget& device, int threads) {
  AssistSetup assist = options.assist;
  const ColdStart way = options.engine.cold_start;
  const bool begins_early = device.of_host || options.engine.cold_start_stated;
  const bool wanted = begins_early && (way == ColdStart::kAuto || way == ColdStart::kAssisted);
  const std::vector<int> cpus = allowed_cpus();
  const int left = std::max(0, usable_cpus() - threads);
  const int32_t stated = options.engine.assist_helpers;
  assist.helpers = !wanted ? 0 : stated >= 0 ? stated : device.of_host ? left : 0;
  assist.helpers = std::min(assist.helpers, kMaxAssistHelpers);
  assist.asked_for = stated >= 0;
  for (size_t i = static_cast<size_t>(threads); i < cpus.size(); ++i) assist.cpus.push_back(cpus[i]);
  return assist;
}

}  // namespace

Status leave_to_device(const DeviceBudget& device, bool stated, int64_t& budget_bytes) {
  if (!device.of_host) return {};
  if (!stated) budget_bytes = std::max<int64_t>(0, budget_bytes - device.bytes);
  const int64_t most = total_memory_bytes();
  if (most <= 0 || budget_bytes + device.bytes <= most) return {};
  return too_large(
      "--memory-budget " + format_bytes(budget_bytes) + " and the " + format_bytes(device.bytes) + " of " +
      device.device + " are more together than the " + format_bytes(most) +
      " that this machine, or its cgroup, has: lower one of --memory-budget and --gpu-memory-utilization.");
}

// What cannot do is refused before gigabytes are read; it is never streamed, so nothing
// is packed either.
Status EngineHost::check_device_room(const FixedBytes& fixed) const {
  const Parts& parts = *parts_;
  const DeviceBudget& budget = parts.device_budget;
  TRY_ASSIGN(const int64_t weight_bytes, WeightStore::bytes_needed(parts.file, parts.weight_options));
  const std::string need = "The model's weights need " + format_bytes(weight_bytes) + " of ";
  const std::string smaller = smaller_weights_advice(parts.file) + ", or run it with --device cpu";
  if (weight_bytes > budget.bytes) {
    return too_large(need + (budget.of_host ? "the device's" : "GPU") + " memory, and the budget of " + budget.device +
                     " is " + format_bytes(budget.bytes) + ": raise --gpu-memory-utilization, " + smaller + ".");
  }
  const int64_t free = parts.ledger->available_bytes(MemoryUse::kWeights) - fixed.outputs;
  if (weight_bytes > free && !budget.of_host) {
    return too_large(need + "host memory on their way to the GPU, and " + format_bytes(std::max<int64_t>(0, free)) +
                     " of the memory budget are free: raise --memory-budget, " + smaller +
                     ", which streams them from disk.");
  }
  if (const int64_t stated = parts.options.engine.host_adapter_bytes; stated > free) {
    return too_large("--host-adapter-memory " + format_bytes(stated) + " is more than the " +
                     format_bytes(std::max<int64_t>(0, free)) +
                     " of the memory budget that are free: lower it or raise --memory-budget.");
  }
  return {};
}

// Weights pass through host memory, unless that is the device's; then it holds adapters,
// to be copied to the device, and what every process needs.
Status EngineHost::use_device(const FixedBytes& fixed, EngineParts& engine, LogSink& log) {
  Parts& parts = *parts_;
  const DeviceBudget& budget = parts.device_budget;
  for (const std::string& note : budget.notes) log.log(LogLevel::kWarning, note);
  parts.device_ledger = std::make_unique<Ledger>(budget.bytes);
  parts.device_overhead.before_bytes = budget.taken_bytes;
  TRY(check_device_room(fixed));
  Ledger& weights_ledger = budget.of_host ? *parts.device_ledger : *parts.ledger;
  TRY_ASSIGN(parts.weights, WeightStore::load(parts.file, weights_ledger, parts.weight_options));
  const AssistSetup assist = assist_of(parts.options, budget, parts.pool->threads());
  const std::optional<ColdStart> cold_start =
      engine.options.cold_start_stated ? std::optional(engine.options.cold_start) : std::nullopt;
  TRY_ASSIGN(DeviceBackend backend,
             parts.options.device.make({parts.file.config, *parts.weights, *parts.ops, *parts.pool, fixed.limits,
                                        fixed.kv_dtype, memory_request(engine.options, parts.file.config, 0), assist,
                                        cold_start, *parts.device_ledger, *parts.ledger, &log}));
  if (!budget.of_host) parts.weights->release_matrices();
  parts.device = std::move(backend.owns);
  parts.plan = std::move(backend.plan);
  parts.computed_by = backend.name;
  engine.executor = std::move(backend.executor);
  parts.helpers = engine.executor->assist_state().helpers;
  engine.shared_adapters = parts.helpers > 0;
  watch_device(log);
  // Adapters on the device are copies: the host has room for as many, where that is a
  // sensible part of what is left.
  const int64_t left = std::max<int64_t>(0, parts.ledger->available_bytes(MemoryUse::kAdapters) - fixed.outputs);
  const int64_t stated = engine.options.host_adapter_bytes;
  engine.options.adapter_bytes = stated > 0 ? stated : std::clamp(parts.plan.adapter_bytes, left / 4, left / 4 * 3);
  return {};
}

// Whatever is taken and was not asked for is the driver's: the share set aside for
// it is an estimate.
void EngineHost::watch_device(LogSink& log) {
  Parts& parts = *parts_;
  if (!parts.options.device.taken_bytes) return;
  const auto taken = parts.options.device.taken_bytes();
  if (!taken.ok()) return;  // a step will say what it is
  const Ledger& ledger = *parts.device_ledger;
  const int64_t allowed = ledger.used_bytes(MemoryUse::kOther);
  const int64_t driver = *taken - parts.device_budget.taken_bytes - (ledger.used_bytes() - allowed);
  parts.device_overhead.since_bytes.store(std::max<int64_t>(0, driver), std::memory_order_relaxed);
  if (driver <= allowed || std::exchange(parts.overhead_told, true)) return;
  log.log(LogLevel::kWarning, "The driver, or other programs since, have taken " + format_bytes(driver) + " of " +
                                  parts.device_budget.device + ", and " + format_bytes(allowed) +
                                  " were set aside: lower --gpu-memory-utilization if it runs out of memory.");
}

}  // namespace loralei
