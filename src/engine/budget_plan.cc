// SPDX-License-Identifier: Apache-2.0
#include "engine/budget_plan.h"

#include <algorithm>

#include "kv/block_pool.h"

namespace loralei {
namespace {

constexpr int64_t kStreamingKvTokens = 1024;  // KV by default, where that is not more than an eighth of the budget
constexpr int32_t kStreamingSequences = 8;    // of the length asked for, within the same eighth

int64_t least_kv_bytes(const RunningMemory& memory) { return memory.kv_blocks_least * memory.asked.block_bytes; }

// Of one sequence.
int64_t kv_bytes_for(const MemoryRequest& request, int64_t tokens) {
  return request.tables.blocks_most(tokens) * request.block_bytes;
}

// What adapters and KV must have beside resident weights.
int64_t beside_resident_bytes(const RunningMemory& memory) {
  const int64_t little = std::max(least_kv_bytes(memory), kv_bytes_for(memory.asked, kResidentKvTokens));
  return kept_adapter_bytes(memory) + (memory.asked.kv_cache_bytes > 0 ? memory.asked.kv_cache_bytes : little);
}

}  // namespace

int64_t kept_adapter_bytes(const RunningMemory& memory) {
  return memory.asked.adapter_bytes > 0 ? memory.asked.adapter_bytes : memory.adapter_bytes;
}

int64_t streaming_kv_bytes(const MemoryRequest& request, int64_t budget_bytes) {
  if (request.kv_cache_bytes > 0) return request.kv_cache_bytes;
  const int64_t one = kv_bytes_for(request, std::max<int64_t>(1, request.max_model_len));
  const int32_t sequences = std::min(request.max_sequences, kStreamingSequences);
  const int64_t several = request.max_model_len > 0 ? one * sequences : kv_bytes_for(request, kStreamingKvTokens);
  const int64_t states = 2 * sequences * request.state_bytes;  // and a copy for each
  return std::max(one + request.state_bytes, std::min(several + states, budget_bytes / 8));
}

int64_t least_beside_resident_bytes(const MemoryRequest& request, int64_t budget_bytes) {
  const int64_t tokens = std::max(kResidentKvTokens, request.max_model_len);
  const int64_t kv =
      request.kv_cache_bytes > 0 ? request.kv_cache_bytes : kv_bytes_for(request, tokens) + request.state_bytes;
  if (request.adapter_bytes > 0) return kv + request.adapter_bytes;
  // A sequence of a stated length takes what it needs, and leaves something for adapters.
  return request.max_model_len > 0 ? kv + std::min(kv, budget_bytes / kStreamingAdapterPart) : kv;
}

BudgetShares share_budget(const RunningMemory& memory, int64_t budget_bytes) {
  const MemoryRequest& asked = memory.asked;
  const int64_t shared = budget_bytes - memory.kept_bytes;
  BudgetShares shares;
  shares.adapter_bytes = kept_adapter_bytes(memory);
  const int64_t left = shared - memory.whole_weight_bytes;  // beside resident weights
  const bool resident = left >= beside_resident_bytes(memory);
  int64_t kv = 0;
  if (resident) {
    kv = asked.kv_cache_bytes > 0 ? asked.kv_cache_bytes : std::min(left / 2, left - shares.adapter_bytes);
  } else {
    if (asked.adapter_bytes == 0)
      shares.adapter_bytes = std::max(shares.adapter_bytes, budget_bytes / kStreamingAdapterPart);
    kv = std::min(streaming_kv_bytes(asked, budget_bytes), shared - shares.adapter_bytes - memory.least_weight_bytes);
  }
  const int64_t blocks = std::clamp<int64_t>(kv / asked.block_bytes, memory.kv_blocks_least, memory.kv_blocks_most);
  shares.kv_blocks = static_cast<int32_t>(blocks);
  if (resident && asked.adapter_bytes == 0) shares.adapter_bytes = left - blocks * asked.block_bytes;
  shares.weight_bytes = shared - shares.adapter_bytes - blocks * asked.block_bytes;
  return shares;
}

int64_t least_budget_bytes(const RunningMemory& memory) {
  const int64_t rest = memory.kept_bytes + least_kv_bytes(memory) + memory.least_weight_bytes;
  int64_t streaming = rest + kept_adapter_bytes(memory);
  // The least of which, without the adapters' part, that much is left.
  constexpr int64_t kParts = kStreamingAdapterPart;
  if (memory.asked.adapter_bytes == 0) streaming = std::max(streaming, (rest - 1) * kParts / (kParts - 1) + 1);
  return std::min(streaming, memory.kept_bytes + memory.whole_weight_bytes + beside_resident_bytes(memory));
}

}  // namespace loralei
