// SPDX-License-Identifier: Apache-2.0
// What is said of the KV cache as vLLM says it, so that whoever reads vLLM's events reads
// ours: msgpack of [ts, events, data_parallel_rank], each event an array that begins with
// its tag.
//
//   ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id,
//    medium, lora_name, extra_keys]
//   ["BlockRemoved", block_hashes, medium]
//   ["AllBlocksCleared"]
//
// Thread: pure functions, any. Ownership: values.
// Invariants: neighbours of one chain and one owner are one BlockStored. `extra_keys` is
// null but where there is a salt. Of a tier "GPU" is what is computed from, wherever
// that lies, and "STORAGE" is --kv-dir.
// Failure: none.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kv/kv_events.h"

namespace loralei {

// What an adapter of this version is served as; empty: nobody knows.
using AdapterNameOf = std::function<std::string(const Digest& version)>;

// What a request has to name to find such a block: "" for the base model. Never "" for
// anybody else; what no single name finds ("sql*0.5", "sum-0123456789abcdef") is told by
// words that nobody asks for.
std::string kv_owner_name(const KvOwner& owner, const AdapterNameOf& name_of);

// `seconds`: since 1970.
std::string kv_event_message(double seconds, std::span<const KvEvent> events, const AdapterNameOf& name_of);

}  // namespace loralei
