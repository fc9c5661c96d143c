// SPDX-License-Identifier: Apache-2.0
// ColdServer: an engine on the emulated device that starts requests in one way, with the
// adapters of a workload in host memory (`cached`: on the device), asked as the workload
// says.
//
// Thread: one, and those of the engine. Ownership: owns the engine; its helpers end with
// it. Invariants: adapters were loaded and steps were computed before start() answers, so
// that the engine knows how long both take.
// Failure: what the engine refuses, in a sentence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "bench/engine_client.h"
#include "device/emulated/link.h"
#include "engine/engine_host.h"
#include "workload/served.h"
#include "workload/workload.h"

namespace loralei {

struct ColdServerOptions {
  EngineHostOptions host;             // of every way, but for the device
  std::vector<std::string> files;     // the i-th adapter is the i-th of them, and from the first again
  std::vector<std::string> adapters;  // their names
  LinkSpeed link;                     // to the device
  int64_t fit_bytes = 0;              // adapters stay on the device, which has room for so many; 0: unused ones leave
  int32_t prompt_tokens = 1;          // of a request that warms up
  uint64_t seed = 1;                  // of prompts
};

struct ColdRun {
  std::vector<ServedRequest> served;
  ColdStarts starts;
  double seconds = 0;  // to the end of the last one
};

class ColdServer {
 public:
  static Result<std::unique_ptr<ColdServer>> start(const ColdServerOptions& options, ColdStart way, LogSink& log);

  // Of requests that are asked alone on the first adapters, whose answers are one token.
  Result<double> first_token_s(int32_t prompt_tokens);
  // Of adapters that it was started with.
  Result<ColdRun> replay(std::span<const WorkloadRequest> workload);
  int64_t adapter_bytes() const { return adapter_bytes_; }  // of the largest

 private:
  ColdServer(const ColdServerOptions& options, ColdStart way) : options_(options), way_(way) {}
  Status load();
  Status bring_all();
  Status warm_up();

  const ColdServerOptions options_;
  const ColdStart way_;
  const SteadyClock clock_;
  std::unique_ptr<EngineHost> host_;
  std::unique_ptr<EngineClient> client_;
  std::map<std::string, AdapterSourceId> sources_;
  int64_t adapter_bytes_ = 0;
};

// The names of its adapters, each once, in the order in which they are asked.
std::vector<std::string> adapters_of(std::span<const WorkloadRequest> workload);

}  // namespace loralei
