// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_plan.h"

#include <algorithm>

#include "base/limits.h"
#include "base/units.h"
#include "kv/block_count.h"

namespace loralei {
namespace {

constexpr int64_t kBlocksMost = int64_t{INT32_MAX} / kKvBlockTokens;  // positions in the cache are 32 bits wide
constexpr int64_t kDeviceAdapterShare = 8;                            // of what is left on a device one part at least

const char* budget_flag(const MemoryRequest& request) {
  return request.on_device ? "--gpu-memory-utilization" : "--memory-budget";
}

// Of a few tokens.
int64_t least_bytes(const MemoryRequest& request) {
  return request.tables.count() * request.block_bytes + request.state_bytes;
}

// What KV may take.
int64_t kv_limit(const MemoryRequest& request) {
  if (request.kv_cache_bytes > 0) return request.kv_cache_bytes;
  if (!request.on_device) {
    const int64_t most_blocks = request.left_bytes / request.block_bytes;
    constexpr int64_t kBesideState = 1024;  // tokens, where a state alone takes much
    const int64_t length = std::max(request.max_model_len, request.state_bytes > 0 ? kBesideState : 0);
    const int64_t blocks = std::min(request.tables.blocks_most(length), most_blocks);
    const int64_t one = blocks * request.block_bytes + request.state_bytes;
    const int64_t beside_adapters = request.left_bytes - request.adapter_bytes;
    return std::min(std::max(request.left_bytes / 2, one), std::max(least_bytes(request), beside_adapters));
  }
  return request.left_bytes -
         (request.adapter_bytes > 0 ? request.adapter_bytes : request.left_bytes / kDeviceAdapterShare);
}

// What sequences can use, or all that is stated where prefixes take the rest.
int64_t wanted_blocks(const MemoryRequest& request, int64_t wanted_len) {
  if (request.kv_cache_bytes > 0 && request.keeps_prefixes) return kBlocksMost;
  // Capped before multiplying: a hostile config may claim 2^60 positions.
  const int64_t blocks_most = request.left_bytes / request.block_bytes + 1;
  return std::min(std::min(request.tables.blocks_most(wanted_len), blocks_most) * request.max_sequences, kBlocksMost);
}

// Slots of states within so much for these and blocks.
void share_states(const MemoryRequest& request, int64_t bytes, MemoryPlan& plan) {
  constexpr int64_t kCopies = 2, kCopiesPart = 4;
  plan.max_sequences = request.max_sequences;
  if (request.state_bytes == 0) return;
  const int64_t wanted = int64_t{request.max_sequences} * (request.keeps_prefixes ? 1 + kCopies : 1);
  const int64_t slots = std::min(wanted, std::max<int64_t>(1, bytes / 2 / request.state_bytes));
  const int64_t running = request.keeps_prefixes ? std::max<int64_t>(1, slots - slots / kCopiesPart) : slots;
  plan.state_slots = static_cast<int32_t>(slots);
  plan.state_bytes = slots * request.state_bytes;
  plan.max_sequences = static_cast<int32_t>(std::min<int64_t>(request.max_sequences, running));
  if (plan.max_sequences == request.max_sequences) return;
  plan.notes.push_back("At most " + std::to_string(plan.max_sequences) + " sequences run at once, fewer than the " +
                       std::to_string(request.max_sequences) + " of --max-num-seqs: each has a state of " +
                       format_bytes(request.state_bytes) +
                       " beside its KV, and states have half of the KV cache's memory (raise --kv-cache-memory for "
                       "more).");
}

std::string unused_kv(const MemoryRequest& request, const MemoryPlan& plan) {
  const std::string why =
      plan.kv_blocks == kBlocksMost
          ? "it can have " + std::to_string(kBlocksMost) + " blocks of " + std::to_string(kKvBlockTokens) + " tokens"
          : "--max-num-seqs " + std::to_string(request.max_sequences) + " sequences of " +
                std::to_string(plan.max_model_len) + " tokens need no more, and no prefix is kept behind them";
  return "The KV cache takes " + format_bytes(plan.kv_bytes) + " of the " + format_bytes(request.kv_cache_bytes) +
         " it was given: " + why + ".";
}

Error adapters_too_large(const MemoryRequest& request, int64_t left_bytes, const char* after) {
  return too_large("--adapter-memory " + format_bytes(request.adapter_bytes) + " is more than the " +
                   format_bytes(std::max<int64_t>(0, left_bytes)) + " left after " + after + "; lower it or raise " +
                   budget_flag(request) + ".");
}

}  // namespace

Result<MemoryPlan> plan_memory(const MemoryRequest& request) {
  CHECK(request.block_bytes > 0 && request.max_sequences > 0 && request.model_len_max > 0);
  if (request.max_model_len > request.model_len_max) {
    return invalid_argument("--max-model-len " + std::to_string(request.max_model_len) + " is more than the " +
                            std::to_string(request.model_len_max) + " positions this model can tell apart.");
  }
  const bool kv_takes_the_rest = request.on_device && request.kv_cache_bytes == 0;
  if (kv_takes_the_rest && request.adapter_bytes > request.left_bytes - least_bytes(request))
    return adapters_too_large(request, request.left_bytes - least_bytes(request), "weights and activations");
  const char* const kv_flag = kv_takes_the_rest ? budget_flag(request) : "--kv-cache-memory";
  MemoryPlan plan;
  const int64_t wanted_len = request.max_model_len > 0 ? request.max_model_len : request.model_len_max;
  share_states(request, kv_limit(request), plan);
  const int64_t block_limit = std::max<int64_t>(0, kv_limit(request) - plan.state_bytes) / request.block_bytes;
  const int64_t blocks = std::min(wanted_blocks(request, wanted_len), block_limit);
  plan.kv_blocks = static_cast<int32_t>(blocks);
  plan.kv_bytes = blocks * request.block_bytes;
  const int64_t needed = plan.kv_bytes + plan.state_bytes;
  if (blocks < request.tables.count() || needed > request.left_bytes) {
    return too_large("The KV cache would need " + format_bytes(std::max(needed, least_bytes(request))) + " but " +
                     format_bytes(std::max<int64_t>(0, request.left_bytes)) + " are left after the weights; raise " +
                     budget_flag(request) + " or lower --kv-cache-memory.");
  }
  plan.max_model_len = wanted_len;
  const int64_t held_tokens = request.tables.tokens_within(blocks);
  if (held_tokens < wanted_len) {
    if (request.max_model_len > 0) {
      return too_large("One sequence of --max-model-len " + std::to_string(wanted_len) + " needs " +
                       format_bytes(request.tables.blocks_most(wanted_len) * request.block_bytes) +
                       " of KV cache but it has " + format_bytes(plan.kv_bytes) + "; lower --max-model-len to " +
                       std::to_string(held_tokens) + " or raise " + kv_flag + ".");
    }
    plan.max_model_len = held_tokens;
    plan.notes.push_back("The KV cache holds " + std::to_string(held_tokens) + " tokens, fewer than the model's " +
                         std::to_string(wanted_len) + "; sequences are limited to that (raise " + kv_flag +
                         " for more).");
  }
  if (request.kv_cache_bytes > 0 && blocks < block_limit) plan.notes.push_back(unused_kv(request, plan));
  const int64_t after_kv = request.left_bytes - needed;
  plan.adapter_bytes = request.adapter_bytes > 0 ? request.adapter_bytes
                       : request.on_device       ? after_kv
                                                 : default_adapter_bytes(after_kv);
  if (plan.adapter_bytes > after_kv) return adapters_too_large(request, after_kv, "weights and KV cache");
  return plan;
}

}  // namespace loralei
