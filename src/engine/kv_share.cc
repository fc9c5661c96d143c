// SPDX-License-Identifier: Apache-2.0
// How the loop shares its memory between KV and adapters: what KvRoom is told and asked.
#include <algorithm>

#include "engine/loop.h"
#include "kv/block_count.h"

namespace loralei {
namespace {

constexpr size_t kNextMost = 4;  // of those that wait, for whose blocks room is made ahead

}  // namespace

KvRoomParts EngineLoop::kv_room_parts() {
  return {.joint = parts_.joint_kv,
          .kv = parts_.kv.get(),
          .ledger = parts_.ledger,
          .clock = parts_.clock,
          .adapter_floor_bytes = parts_.adapter_floor_bytes,
          .reserve_part = parts_.reserve_part,
          .resize = [this](int32_t blocks) { return resize_kv(blocks); },
          .worth = [this] { return kv_worth(); }};
}

KvWorth EngineLoop::kv_worth() const {
  return {.row_s = times_.prompt_row_s(), .load_s = [this](const KvIdentity& identity) {
            double sum = 0;
            for (int32_t index = 0; index < identity_adapters(identity); ++index)
              sum += registry_.missing_load_s(identity_part(identity, index).digest);
            return sum;
          }};
}

// New blocks that those that run want for their known text and a token more.
int32_t EngineLoop::blocks_of_running() const {
  int32_t blocks = 0;
  for (const Sequence* sequence : running_) {
    const auto held = static_cast<int32_t>(sequence->lease.blocks().size());
    blocks += std::max(0, kv_blocks_for(static_cast<int32_t>(sequence->text().size()) + 1) - held);
  }
  return blocks;
}

// Others than KV and adapters want so many bytes: KV beyond its floor, then adapters that
// nobody uses.
void EngineLoop::give_way(int64_t bytes) {
  const int64_t before = parts_.ledger->used_bytes(MemoryUse::kAdapters);
  const int64_t left = bytes - kv_room_.give_back(bytes);
  if (left > 0) registry_.evict_idle(std::max<int64_t>(0, before - left));
  kv_room_.count_adapters_to_others(before - parts_.ledger->used_bytes(MemoryUse::kAdapters));
}

// Blocks for those that run and the next to be asked, before they are planned.
void EngineLoop::fit_kv() {
  if (!kv_room_.joint()) return;
  const int32_t running = blocks_of_running();
  int32_t next = 0;
  admission_.for_first(kNextMost, [&](SeqId id) { next += kv_blocks_for(sequences_.at(id)->waiting.rows + 1) + 1; });
  if (next > 0) next += static_cast<int32_t>(running_.size());  // StepPlanner leaves each a spare one
  kv_room_.set_closed(registry_.is_impatient());
  kv_room_.fit(running, next, registry_.idle_adapters());
}

}  // namespace loralei
