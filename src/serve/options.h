// SPDX-License-Identifier: Apache-2.0
// What the server may be told; apps/ fills it from flags and the config file. A plain
// value, read-only after the start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/api.h"
#include "http/server.h"
#include "wire/key_file.h"

namespace loralei {

class AdapterPeers;
class AdapterStore;

// Sampling values of the model's generation_config.json; a request's own come first,
// then these, then the API's.
struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<bool> do_sample;  // false: greedy unless the request names a temperature
};

// What a server that keeps adapters is given (serve/adapter_uploads.h); borrowed. Without
// a store it takes none.
struct AdapterStoreUse {
  AdapterStore* store = nullptr;
  AdapterPeers* peers = nullptr;  // null: none are asked
  int64_t max_upload_bytes = int64_t{4} << 30;
};

// Whose requests find each other's prompts in the prefix cache: those of everybody,
// or those of the same key.
enum class PrefixCacheScope : uint8_t { kServer, kKey };

struct ServeOptions {
  HttpServerOptions http;
  std::vector<std::string> model_names;    // of the base; the first is its id, the others are accepted too; never empty
  std::string model_path;                  // shown as the base's root
  std::vector<std::string> api_keys;       // --api-key, --api-key-file; empty: /v1 is open
  std::vector<NamedKey> named_keys;        // --keys, beside those; empty: there are none
  std::string admin_key;                   // --admin-key; empty: admin routes answer on loopback only
  std::vector<std::string> allowed_hosts;  // --allowed-host: Host headers beside local ones; "*": every one
  std::optional<PrefixCacheScope> prefix_cache_scope;  // unset: kKey where several keys may call /v1
  std::vector<std::string> cors_origins;               // --cors-origin; "*" allows every origin
  std::vector<std::string> adapter_roots;  // --adapter-dir: adapters loaded over HTTP lie below one of these
  int64_t keep_versions = 1;               // --keep-versions: of each name that is loaded over HTTP, the newest
  AdapterStoreUse adapter_store;           // --adapter-store, --adapter-peer
  SamplingDefaults defaults;
  int64_t vocab_size = 0;             // of the model's logits; 0: as many as the tokenizer has tokens
  std::vector<TokenId> end_ids;       // the model's end-of-sequence ids, besides the tokenizer's
  Pooling pooling = Pooling::kLast;   // --pooling of /v1/embeddings
  int text_threads = 2;               // how many requests are parsed, rendered and tokenised at once
  int max_preparing = 256;            // requests waiting for those threads; more are refused with 429
  int max_running = 0;                // sequences computed at once: told, not held to
  int metrics_adapters = 100;         // adapters with labels of their own in /metrics
  bool vllm_metrics = true;           // the aliases under vllm:
  int64_t ping_interval_ms = 15'000;  // silence after which a stream gets a comment
  // At the beginning of a drain, before anything is refused; on any thread, perhaps more
  // than once, and must not wait. Absent: nobody is told.
  std::function<void()> on_drain;
  // For /v1/replica: the base's digest, and a profile of what steps cost here, as JSON.
  std::string base_digest, cost;
  // Of a paced server: an adapter is told to be so large for each of its ranks, as that
  // is what loading it takes the time of; 0: it is told as it is.
  int64_t told_rank_bytes = 0;
  // For /version.
  std::string version, commit, build, isa;
};

}  // namespace loralei
