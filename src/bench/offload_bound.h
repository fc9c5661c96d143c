// SPDX-License-Identifier: Apache-2.0
// What the offload benches share: FlexInfer's eq. 4, what a budget leaves for weights,
// and what must be read at least.
//
//   T >= max(compute, least_bytes / disk)
//   least_bytes = touched - (budget - fixed)
//   fixed       = KV + activations + process
//                 + min(window, 128 MiB, three layers' streamed bytes)
//
// One thread. Failure: as scenarios.h.
#pragma once

#include "bench/rig.h"

namespace loralei {

struct OffloadBytes {
  double budget = 0, kv = 0, scratch = 0, other = 0, window = 0;
  double fixed = 0;    // with the window as it counts
  double planned = 0;  // read in a pass
  double least = 0;    // that any plan must read in a pass, stored as these weights are
};
// others_bytes: of the budget and of the process, what models opened before in
// this process hold.
OffloadBytes offload_bytes(const Rig& rig, double others_bytes = 0);

// The options of a rig whose weights are streamed: activations for `step_tokens` rows,
// a KV cache for `kv_tokens`.
void size_for_offload(BenchOptions& options, int step_tokens, int kv_tokens);
void set_budget(BenchOptions& options, double budget_gb);

// The packed file of the model in `rig`, which is resident; made where there is none.
Result<std::string> packed_file_of(const Rig& rig, const BenchOptions& options, LogSink& log);

// `requests` requests of --prompt + --gen tokens beside one alone, under each budget.
Status bench_together(const BenchOptions& options, LogSink& log, BenchReport& report);
// A model that was streamed and then got memory for everything, beside one that
// was loaded whole.
Status bench_resident_pairs(const BenchOptions& options, LogSink& log, BenchReport& report);

}  // namespace loralei
