// SPDX-License-Identifier: Apache-2.0
// Generated models and adapters of real shapes with random weights, for speed figures on machines without a model at
// hand.
//
// One thread; files are made once under a cache folder (temporary name, then rename, so an interrupted run leaves
// nothing half made) and found there again. Weights come from a seed. GGUF files open in other tools too (llama
// vocabulary of 32,000 plain tokens).
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "formats/model_config.h"

namespace loralei {

// "llama-1b", "llama-7b": shapes of docs/benchmarks.md.
Result<ModelConfig> bench_shape(const std::string& name);

using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Answers the path of CACHE/SHAPE-QUANT.gguf, made if absent. quant: f32, f16, bf16, q8_0, q4_0 (q4_0 with a q6_k head,
// as the field's tools do).
Result<std::string> generated_model(const std::string& cache_dir, const std::string& shape, const std::string& quant,
                                    const Progress& progress);

// Answers the path of a PEFT folder CACHE/SHAPE-TARGETS-rRANK-NUMBER, made if absent. targets: "qkvo" or "all".
Result<std::string> generated_adapter(const std::string& cache_dir, const std::string& shape,
                                      const std::string& targets, int rank, int number);

}  // namespace loralei
