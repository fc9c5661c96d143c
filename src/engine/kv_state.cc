// SPDX-License-Identifier: Apache-2.0
// What the KV cache holds and for whom: made when somebody asks.
#include "engine/kv_state.h"

#include <algorithm>
#include <utility>

#include "adapters/adapter.h"
#include "engine/loop.h"

namespace loralei {
namespace {

// `text_bytes`: of a block of text in all layers.
KvHolder holder_of(const KvHeld& held, int64_t block_bytes, int64_t text_bytes, double row_s) {
  KvHolder holder;
  for (int32_t index = 0; index < identity_adapters(held.identity); ++index) {
    const KvIdentityPart part = identity_part(held.identity, index);
    holder.adapters.push_back({.version = digest_hex(part.digest),
                               .scale = part.scale,
                               .from_token = part.first_position,
                               .from_layer = part.first_layer});
  }
  holder.salted = identity_salted(held.identity);
  holder.tokens = int64_t{held.blocks} * kKvBlockTokens;
  holder.bytes = held.blocks * text_bytes;
  holder.raw_tokens = int64_t{held.raw} * kKvBlockTokens;
  holder.alone_coded_tokens = int64_t{held.alone_coded} * kKvBlockTokens;
  holder.delta_tokens = int64_t{held.deltas} * kKvBlockTokens;
  holder.gone_tokens = int64_t{held.nowhere} * kKvBlockTokens;
  holder.stored_bytes = held.pool_blocks * block_bytes + held.coded_bytes;
  holder.running_tokens = int64_t{held.leased} * kKvBlockTokens;
  holder.alone_tokens = int64_t{held.alone} * kKvBlockTokens;
  holder.hit_tokens = static_cast<int64_t>(held.times_found) * kKvBlockTokens;
  holder.saved_s = static_cast<double>(holder.hit_tokens) * row_s;
  return holder;
}

}  // namespace

void EngineLoop::receive(const KvCommand& command) {
  const KvCache& kv = *parts_.kv;
  const KvSummary summary = kv.summary();
  KvState state;
  state.block_tokens = kKvBlockTokens;
  const auto tokens_of = [this](int32_t blocks) { return text_blocks(blocks) * kKvBlockTokens; };
  state.block_bytes = kv.block_bytes() * kv.tables().count();
  state.total_tokens = tokens_of(kv.total());
  state.free_tokens = tokens_of(kv.free());
  state.running_tokens = tokens_of(kv.leased());
  state.cached_tokens = tokens_of(kv.cached());
  state.text_tokens = int64_t{summary.texts} * kKvBlockTokens;
  state.coded = kv.coded();
  if (keeps_states()) state.states = kv.state_counts();
  if (parts_.kv_disk != nullptr) state.disk = parts_.kv_disk->stats();
  state.restored_tokens = kv.restored_blocks() * kKvBlockTokens;
  state.holders = static_cast<int32_t>(summary.held.size());
  for (const KvHeld& held : summary.held) {
    state.held_tokens += int64_t{held.blocks} * kKvBlockTokens;
    if (std::ssize(state.first) < command.listed_max)
      state.first.push_back(holder_of(held, kv.block_bytes(), state.block_bytes, times_.prompt_row_s()));
  }
  for (const KvApps::Shown& app : kv.apps().shown()) {
    state.apps.push_back({.id = app.name,
                          .state = app.state,
                          .tokens = int64_t{app.blocks} * kKvBlockTokens,
                          .alone_tokens = int64_t{app.alone} * kKvBlockTokens});
  }
  output_->replies.push_back({.ticket = command.ticket, .kv = std::make_shared<const KvState>(std::move(state))});
}

void EngineLoop::receive(const AppCommand& command) {
  const int32_t free = parts_.kv->free();
  const Result<int32_t> gone = parts_.kv->state_app(command.id, command.state);
  CommandReply reply{.ticket = command.ticket};
  if (gone.ok()) {
    const int32_t blocks = parts_.kv->tables().has_windows() ? parts_.kv->free() - free : *gone;
    reply.bytes_freed = blocks * parts_.kv->block_bytes();
  } else {
    reply.status = gone.error();
  }
  output_->replies.push_back(std::move(reply));
}

}  // namespace loralei
