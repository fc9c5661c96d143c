// SPDX-License-Identifier: Apache-2.0
// Another memory budget while requests run: what takes long is prepared beside steps,
// the change happens between two.
#include <algorithm>
#include <utility>

#include "base/units.h"
#include "engine/budget_plan.h"
#include "engine/engine_host_parts.h"
#include "engine/start.h"
#include "kv/block_pool.h"
#include "weights/pack.h"

namespace loralei {
namespace {

void log_budget(const Ledger& ledger, LogSink& log) {
  LogFields fields = {{"budget_bytes", ledger.budget_bytes()}};
  std::string sentence = format_bytes(ledger.budget_bytes());
  const auto add = [&](const char* name, MemoryUse use) {
    fields.emplace_back(name, ledger.used_bytes(use));
    sentence += std::string(", ") + memory_use_name(use) + " " + format_bytes(ledger.used_bytes(use));
  };
  add("weights_bytes", MemoryUse::kWeights);
  add("adapters_bytes", MemoryUse::kAdapters);
  add("kv_bytes", MemoryUse::kKv);
  add("scratch_bytes", MemoryUse::kScratch);
  add("other_bytes", MemoryUse::kOther);
  log.event(LogLevel::kInfo, "memory budget", fields, sentence);
}

}  // namespace

StreamingOptions EngineHost::streaming(int64_t weight_bytes) const {
  const EngineHostOptions& options = parts_->options;
  StreamingOptions streaming;
  streaming.weight_bytes = weight_bytes;
  streaming.residency = options.residency;
  streaming.rows_max = std::max(options.engine.step_tokens, options.engine.max_sequences);
  streaming.packed_path = parts_->packed_path;
  streaming.pool = parts_->pool.get();
  streaming.open_reader = options.open_stream;
  streaming.read_ahead = options.read_ahead;
  return streaming;
}

RunningMemory EngineHost::running_memory(int64_t idle_adapter_bytes) const {
  const Parts& parts = *parts_;
  const Ledger& ledger = *parts.ledger;
  RunningMemory memory;
  memory.kept_bytes = ledger.used_bytes(MemoryUse::kScratch) + ledger.used_bytes(MemoryUse::kRequests) +
                      ledger.used_bytes(MemoryUse::kOther) + parts.plan.state_bytes;
  memory.adapter_bytes = std::max<int64_t>(0, ledger.used_bytes(MemoryUse::kAdapters) - idle_adapter_bytes);
  memory.whole_weight_bytes = parts.weights->whole_bytes();
  memory.least_weight_bytes = parts.weights->least_bytes(parts.options.residency.policy);
  memory.kv_blocks_least = static_cast<int32_t>(parts.kv_tables.blocks_most(parts.plan.max_model_len));
  memory.kv_blocks_most = parts.kv_blocks_max;
  memory.asked = asked_of(parts.options.engine, parts.plan.kv_bytes / parts.plan.kv_blocks, parts.kv_tables);
  if (memory.asked.kv_cache_bytes > 0)  // of which states keep theirs
    memory.asked.kv_cache_bytes =
        std::max(memory.asked.block_bytes, memory.asked.kv_cache_bytes - parts.plan.state_bytes);
  return memory;
}

// Refused where the weights could neither be held nor streamed through what that
// budget leaves them.
Result<BudgetShares> EngineHost::shares_of(int64_t budget, int64_t idle_adapter_bytes) const {
  const RunningMemory memory = running_memory(idle_adapter_bytes);
  const BudgetShares shares = share_budget(memory, budget);
  const auto plan = parts_->weights->plan_for(shares.weight_bytes, parts_->options.residency);
  if (plan.ok()) return shares;
  const int64_t least = least_budget_bytes(memory);
  return too_large(
      plan.error().message + " The least this server can do with is " + format_bytes(least) + " (" +
      std::to_string(least) + " bytes): it keeps " +
      format_bytes(memory.kept_bytes + kept_adapter_bytes(memory) + memory.kv_blocks_least * memory.asked.block_bytes) +
      " for activations, requests, itself, " +
      (memory.asked.adapter_bytes > 0 ? "its --adapter-memory" : "adapters in use") +
      " and the KV cache of one sequence of " + std::to_string(parts_->plan.max_model_len) +
      " tokens; start it with a smaller --max-model-len to go lower.");
}

// Beside running steps: what takes long. Reads what does not change while it runs.
Status EngineHost::prepare_budget(int64_t budget, int64_t idle_adapter_bytes, const std::stop_token& stop,
                                  LogSink& log) {
  TRY(check_budget(budget));
  Parts& parts = *parts_;
  {
    const std::lock_guard lock(parts.packed_mutex);
    TRY_ASSIGN(const BudgetShares shares, shares_of(budget, idle_adapter_bytes));
    if (shares.weight_bytes >= parts.weights->whole_bytes() || !parts.packed_path.empty()) return {};
  }
  std::string path;
  if (const auto found = find_packed(parts.file, parts.weight_options, parts.options.cache_dir, log)) {
    path = found->path;
  } else {
    TRY_ASSIGN(const PackedFile packed, pack_beside_steps(parts.weight_options, stop, log));
    path = packed.path;
  }
  const std::lock_guard lock(parts.packed_mutex);
  parts.packed_path = path;
  return {};
}

// With as many threads as the budget has memory for.
Result<PackedFile> EngineHost::pack_beside_steps(WeightOptions options, const std::stop_token& stop, LogSink& log) {
  Parts& parts = *parts_;
  TRY_ASSIGN(const PackMemory memory, pack_memory(parts.file, options));
  std::optional<Grant> grant;
  for (; options.threads > 0; --options.threads) {
    if ((grant = parts.ledger->try_lend(MemoryUse::kOther, memory.bytes(options.threads)))) break;
  }
  if (!grant) {
    return too_large("Laying the model out for streaming takes " + format_bytes(memory.bytes(1)) +
                     " beside running requests, and of the memory budget " +
                     format_bytes(parts.ledger->available_bytes(MemoryUse::kOther)) +
                     " are free; do it beforehand with 'loralei pack', or start with the smaller budget.");
  }
  options.stop = stop;
  options.progress = [&log, tenths = int64_t{0}](int64_t done_bytes, int64_t total_bytes) mutable {
    if (done_bytes * 10 < (tenths + 1) * total_bytes) return;
    tenths = done_bytes * 10 / total_bytes;
    log.log(LogLevel::kInfo, "packing " + format_bytes(done_bytes) + " of " + format_bytes(total_bytes));
  };
  return make_packed(parts.file, options, parts.options.cache_dir, log);
}

// Between two steps. What shrinks comes first, so that the sum never exceeds the larger
// of both budgets.
Status EngineHost::apply_budget(int64_t budget, const RoomMaker& room, LogSink& log) {
  Parts& parts = *parts_;
  Ledger& ledger = *parts.ledger;
  WeightStore& weights = *parts.weights;
  if (Status mended = mend_packed(log); !mended.ok())
    return std::move(mended).error().with_context("The memory budget stays at " + format_bytes(ledger.budget_bytes()));
  TRY_ASSIGN(BudgetShares shares, shares_of(budget, room.idle_adapter_bytes));
  if (shares.weight_bytes < weights.whole_bytes()) {
    if (parts.packed_path.empty()) {  // prepare_budget() found room for all of them
      return Error{ErrorCode::kOverloaded,
                   "Adapters came into use while the budget was to change, and the weights no "
                   "longer fit beside them; ask again."};
    }
    if (Status opened = weights.open_packed_file(parts.file, parts.weight_options, parts.packed_path); !opened.ok()) {
      parts.packed_path.clear();  // looked for, or made, again
      return opened;
    }
    TRY_ASSIGN(shares, shares_of(budget, room.idle_adapter_bytes));  // now that it is known what a pass reads
  }
  const int64_t before = ledger.budget_bytes(), block_bytes = parts.plan.kv_bytes / parts.plan.kv_blocks;
  const int64_t kv_now_bytes = ledger.used_bytes(MemoryUse::kKv) - parts.plan.state_bytes;
  const auto kv_now = static_cast<int32_t>(kv_now_bytes / block_bytes);
  if (budget > before) CHECK(ledger.set_budget(budget));
  room.shrink_adapters(shares.adapter_bytes);
  if (shares.kv_blocks < kv_now) CHECK(room.resize_kv(shares.kv_blocks));  // only growing can be refused
  Status status;
  const int64_t weights_before = weights.resident_bytes();
  if (shares.weight_bytes < weights.whole_bytes() || weights.resident_bytes() < weights.whole_bytes())
    status = weights.resize(parts.file, parts.weight_options, streaming(shares.weight_bytes), log);
  // A failed change is in vain where no more is held than before; with less, a smaller
  // budget is kept all the same.
  const int64_t weights_now = weights.resident_bytes();
  const bool in_vain =
      !status.ok() && (budget > before ? weights_now <= weights_before : weights_now == weights_before);
  const bool held = !in_vain && weights_now <= shares.weight_bytes && ledger.set_budget(budget);
  // In vain: everything as it was, but for prefixes and idle adapters evicted.
  const int32_t kv_blocks = held ? shares.kv_blocks : room.kv_blocks;
  if (const Status grown = room.resize_kv(kv_blocks); !grown.ok())
    log.log(LogLevel::kWarning, "The KV cache stays smaller than it might be: " + grown.error().message);
  if (!held) {
    if (budget > before) CHECK(ledger.set_budget(before));
    const std::string stays = "The memory budget stays at " + format_bytes(before);
    if (!status.ok()) return std::move(status).error().with_context(stays);
    return too_large(stays + ": " + format_bytes(ledger.used_bytes()) + " are in use.");
  }
  // What a resident model leaves is shared as at start.
  const bool stated = parts.options.engine.adapter_bytes > 0;
  const int64_t held_bytes = ledger.used_bytes(MemoryUse::kAdapters), left = budget - ledger.used_bytes() + held_bytes;
  const int64_t floor =
      stated || weights.streams() ? shares.adapter_bytes : std::max(held_bytes, default_adapter_bytes(left));
  room.set_adapter_floor(floor);
  ledger.set_cap(MemoryUse::kAdapters,
                 joint_memory(parts.options.engine).adapters ? joint_adapter_bytes(left, floor, budget) : floor);
  log_budget(ledger, log);
  log_lines(log, LogLevel::kInfo, weights.describe());
  if (!status.ok())
    return std::move(status).error().with_context("The memory budget is " + format_bytes(budget) +
                                                  " now, but not all weights could be read");
  return {};
}

}  // namespace loralei
