// SPDX-License-Identifier: Apache-2.0
// A list of PrefixRequests through an engine that is started anew for it, closed: each is
// asked when its think time behind the answer before has passed, as by somebody who
// reads and writes. Meanwhile the engine may encode what rests.
//
// One token is generated: the time to it is measured. The answer that the request tells
// of is then computed as a prompt behind it, uncounted: its blocks are those that
// generating it would leave in the cache (chunked = whole), and every mode is asked the
// same.
//
// Thread: one, and those of the engine. Ownership: runs own their engine.
// Failure: what the engine refuses, in a sentence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/memory_trace.h"
#include "bench/prefix_workload.h"
#include "engine/engine_host.h"

namespace loralei {

// What of the cache is used.
struct PrefixMode {
  const char* name = "";
  bool prefix_cache = true;
  KvSharing sharing = KvSharing::kExact;
  KvEviction eviction = KvEviction::kLru;
  bool context = false;  // it is told which application asks, and how they stand
};

struct PrefixRunOptions {
  EngineHostOptions host;             // of every mode
  std::vector<std::string> adapters;  // files; the i-th adapter is the i-th of them, and from the first again
  int64_t block_bytes = 0;            // of KV
  int32_t kv_blocks = 0;              // that it has
  int32_t tokens_max = 0;             // of a prompt with its answer
  double think_s = 0;                 // in the mean
  double day_s = 1e-3;                // a second of the owner is so many here
  std::vector<TokenId> text;
  uint64_t seed = 1;
};

// By request, in their order.
struct PrefixRun {
  std::vector<double> first_ms;
  std::vector<int32_t> prompt_tokens, cached_tokens;
  std::vector<int32_t> borrowed_tokens;  // of those that are not cached
  double wall_s = 0;                     // of all, think times and answers with them
  KvCoded coded;                         // at the end
};

// `trace`: gets the samples of this run; may be null.
Result<PrefixRun> run_prefix(const PrefixRunOptions& options, const PrefixMode& mode,
                             std::span<const PrefixRequest> requests, MemoryTrace* trace, LogSink& log);

}  // namespace loralei
