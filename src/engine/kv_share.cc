// SPDX-License-Identifier: Apache-2.0
// How the loop shares its memory between KV and adapters: what KvRoom is told and asked.
#include <algorithm>
#include <utility>

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
    blocks += std::max(0, kv_blocks_for(static_cast<int32_t>(sequence->text().size()) + 1) - sequence->lease.places());
  }
  return blocks * parts_.kv->tables().count();
}

// Others than KV and adapters want so many bytes: KV beyond its floor, then adapters that
// nobody uses.
void EngineLoop::give_way(int64_t bytes) {
  const int64_t before = parts_.ledger->used_bytes(MemoryUse::kAdapters);
  const int64_t left = bytes - kv_room_.give_back(bytes);
  if (left > 0) registry_.evict_idle(std::max<int64_t>(0, before - left));
  kv_room_.count_adapters_to_others(before - parts_.ledger->used_bytes(MemoryUse::kAdapters));
}

// Blocks for those that run and the next to be asked, before they are planned: of a joint
// memory, and of what is encoded.
void EngineLoop::fit_kv() {
  KvCache& kv = *parts_.kv;
  if (!kv_room_.joint() && kv.pages() == 0) return;
  const int32_t running = blocks_of_running();
  int32_t next = 0;
  const int32_t tables = kv.tables().count();
  admission_.for_first(kNextMost, [&](SeqId id) {
    next += static_cast<int32_t>(kv.tables().blocks_most(sequences_.at(id)->waiting.rows + 1)) + tables;
  });
  if (next > 0) next += static_cast<int32_t>(running_.size()) * tables;  // StepPlanner leaves each a spare one
  kv_room_.set_closed(registry_.is_impatient());
  kv_room_.fit(running, next, registry_.idle_adapters());
  if (kv.pages() > 0) make_available(running);
}

// What is encoded gives way to those that run and to the next: the one that found no
// room last, else the first that waits; but for what that one is to find.
void EngineLoop::make_available(int32_t running) {
  KvCache& kv = *parts_.kv;
  int32_t wanted = running;
  const auto add = [&](const Sequence& next) {
    wanted += kv_blocks_for(static_cast<int32_t>(next.text().size()) + 1) + static_cast<int32_t>(running_.size()) + 1;
    if (kv.available() < wanted) kv.use_soon(next.request->key, next.text(), match_limit(next));
  };
  const auto refused = refused_ ? sequences_.find(*refused_) : sequences_.end();
  if (refused != sequences_.end() && refused->second->phase == SeqPhase::kWaiting) {
    add(*refused->second);
  } else {
    admission_.for_first(1, [&](SeqId id) { add(*sequences_.at(id)); });
  }
  kv.make_available(wanted);
}

// Nothing runs: what nobody leases is encoded, a little at a time. False: there is no
// more.
bool EngineLoop::rest_idle() {
  if (!running_.empty() || !parts_.kv->wants_rest()) return false;
  rest_owed_ns_ = 0;
  return rest_some() > 0;
}

// The steps that are found with the first ones are kept for the next process; then what
// is encoded goes to disk as it is.
int32_t EngineLoop::rest_some() {
  const int32_t rested = parts_.kv->rest();
  if (parts_.keep_kv_grid && parts_.kv_disk != nullptr && parts_.kv->grid()) {
    parts_.kv_disk->learn_grid(
        parts_.kv->grid()->digest(),
        [grid = *parts_.kv->grid(), keep = std::exchange(parts_.keep_kv_grid, nullptr)] { return keep(grid); });
  }
  return rested;
}

void EngineLoop::owe_rest() {
  constexpr int64_t kRestPart = 10, kRestMostNs = 20'000'000;
  rest_owed_ns_ = std::min(rest_owed_ns_ + pass_ns_ / kRestPart, kRestMostNs);
}

// And where much runs, a tenth of the time, as long as blocks may become scarce: once
// everybody has what the step before brought him.
void EngineLoop::rest_between_steps() {
  constexpr int32_t kReadyPart = 8;  // of all blocks, for those who come next
  const int32_t wanted = blocks_of_running() + parts_.kv->total() / kReadyPart;
  while (rest_owed_ns_ > 0 && parts_.kv->should_rest(wanted)) {
    const int64_t begin_ns = parts_.clock->now_ns();
    if (rest_some() == 0) return;
    rest_owed_ns_ -= std::max<int64_t>(1, parts_.clock->now_ns() - begin_ns);
  }
}

}  // namespace loralei
