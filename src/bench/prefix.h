// SPDX-License-Identifier: Apache-2.0
// What bench prefix's parts share: modes of one server that are asked the same requests
// in turn, and what is told of each.
//
// One thread. Failure: a sentence when the measurement cannot be made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/prefix_run.h"
#include "bench/rig.h"

namespace loralei {

struct PrefixBench {
  PrefixRunOptions run;  // but for memory and lengths
  std::string label;     // of the model
  int vocab = 0;

  PrefixTexts texts() const { return {vocab, run.text, run.seed}; }
};
Result<PrefixBench> open_prefix_bench(const BenchOptions& options, int adapters, LogSink& log);

// One mode's figures, by round.
struct PrefixFigures {
  PrefixMode mode;
  std::vector<double> mean_ms = {}, p50_ms = {}, p99_ms = {};
  std::vector<double> cached = {};                     // share of the prompts' tokens
  std::vector<double> findable = {};                   // what a cache of each adapter's own would find at most
  std::vector<double> computed_tokens = {};            // of prompts
  std::vector<double> borrowed_tokens = {};            // of these, with lower layers of somebody else
  std::vector<double> decoding_ms = {};                // for a request and its answer, in the mean
  std::vector<double> encoded = {};                    // what a block takes encoded, of a block; where some are
  int64_t steps = 0, beyond_budget = 0;                // of all rounds; beyond: with more memory in use than there is
  std::shared_ptr<const MemoryTrace> trace = nullptr;  // of the last round
};
using PrefixModes = std::vector<PrefixFigures>;
PrefixModes prefix_modes(std::span<const PrefixMode> modes);

// In rounds until enough of them were quiet every mode is asked the requests of a number
// (from 1; again where the round is repeated).
using RequestsOfRound = std::function<std::vector<PrefixRequest>(uint64_t number)>;
Status measure_prefix(const BenchOptions& options, const PrefixBench& bench, const RequestsOfRound& requests,
                      PrefixModes& modes, QuietRounds& rounds);

// By round, of the mean time to the first token.
std::vector<double> prefix_ratios(const PrefixModes& modes, std::string_view one, std::string_view other);
// What is computed where nothing ever leaves, of what this mode computes.
double prefix_least_ratio(const PrefixModes& modes, std::string_view mode);
void add_prefix_rows(const std::string& prefix, const PrefixModes& modes, BenchReport& report);

// That in no step of any mode more was in use than there is.
void add_budget_target(const std::string& prefix, const PrefixModes& modes, BenchReport& report);

Status bench_prefix_agents(const BenchOptions& options, LogSink& log, BenchReport& report);

}  // namespace loralei
