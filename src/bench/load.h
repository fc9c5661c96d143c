// SPDX-License-Identifier: Apache-2.0
// Closed batches against a running engine: submit a set of requests at once, follow every
// token, tell when what happened.
//
// Thread: one; it is the engine's only consumer of output. Failure: a request that ends
// with an error makes the whole run an error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/api.h"

namespace loralei {

struct BatchSpec {
  int sequences = 1;
  int prompt_tokens = 32;
  int new_tokens = 32;
  std::vector<std::string> adapters;  // sequence i uses adapters[i % size]; empty: the base
  uint64_t seed = 1;          // prompts differ between seeds and sequences, so that no prefix is found in the cache
  bool same_prompts = false;  // the same in every run, whatever the seed: found in the cache from the second on
  int vocab = 32000;
  float temperature = 0;  // 0: the most likely token
  float top_p = 1;
};

// Times in nanoseconds from the submit of the batch.
struct BatchTimes {
  std::vector<int64_t> first_token_ns;  // by sequence
  std::vector<int64_t> last_token_ns;
  int64_t wall_ns = 0;
  int64_t decode_tokens = 0;  // tokens between the last sequence's first token and the first sequence's end
  int64_t decode_ns = 0;      // that span
  double decode_tok_s() const {
    return decode_ns > 0 ? 1e9 * static_cast<double>(decode_tokens) / static_cast<double>(decode_ns) : 0;
  }
};

class BatchRunner {
 public:
  BatchRunner(Engine& engine, const Clock& clock) : engine_(engine), clock_(clock) {}
  Result<BatchTimes> run(const BatchSpec& spec);
  Status unload(const std::string& name);
  AdapterSourceId source(const std::string& name) const { return sources_.at(name); }
  // Loads adapters, as many at a time as the engine has threads for.
  Status load(const std::vector<std::string>& names, const std::vector<std::string>& paths);
  Status set_memory(int64_t budget_bytes);

 private:
  Result<CommandReply> wait_reply(uint64_t ticket);
  Engine& engine_;
  const Clock& clock_;
  std::map<std::string, AdapterSourceId> sources_;  // of what is loaded
  uint64_t next_id_ = 1;
};

}  // namespace loralei
