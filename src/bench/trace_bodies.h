// SPDX-License-Identifier: Apache-2.0
// TraceBodies: what a workload's requests look like to the server that is to answer them.
//
// A request names its adapter as its model (vLLM, Loralei). Where GET /v1/models lists
// the base alone and GET /lora-adapters names files, its field `lora` has the number of
// the file of that name (llama-server, started with --lora-init-without-apply).
//
// Thread: create() the caller's; of() any.
// Failure: create() is a sentence where the server cannot be asked, names no tokens, or
// has adapters by number and none of that name: it would answer with the base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/trace.h"
#include "http/client.h"

namespace loralei {

class TraceBodies {
 public:
  static Result<TraceBodies> create(HttpClient& client, const Workload& workload, const TraceBenchOptions& options);
  // The body of POST /v1/completions.
  std::string of(const WorkloadRequest& request, size_t index) const;

 private:
  TraceBodies() = default;

  std::string model_;
  std::vector<int32_t> tokens_;               // of plain words
  std::map<std::string, std::string> names_;  // of the workload to the server's
  std::map<std::string, int64_t> numbers_;    // of the server's names, where it takes numbers
  bool ignore_eos_ = true;
};

}  // namespace loralei
