// SPDX-License-Identifier: Apache-2.0
// Generated models and adapters of real shapes with random weights, for speed figures on
// machines without a model at hand.
//
// One thread; files are made once under a cache folder (temporary name, then rename, so
// an interrupted run leaves nothing half made) and found there again. Weights come from
// a seed. GGUF files open in other tools too (llama vocabulary of 32,000 plain tokens).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "formats/model_config.h"

namespace loralei {

// The shapes of docs/benchmarks.md, and small ones for tests ("...-tiny", "...-nano").
// Mixtures of experts have a second name with kSkewedShape behind it: the same, but for
// routers that prefer some experts to others, as trained ones do.
Result<ModelConfig> bench_shape(const std::string& name);
inline constexpr std::string_view kSkewedShape = "-skewed";
bool is_skewed_shape(std::string_view name);

using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Answers the path of CACHE/SHAPE-QUANT.gguf, made if absent. quant: f32, f16, bf16,
// f16_of_bf16 (f16 numbers that are of bf16 too, as those of models trained in it),
// q8_0, q4_0, q4_1, q5_0, q5_1, q4_k_m, q5_k, q6_k, q2_k, q3_k_m, iq4_nl, iq4_xs or
// mxfp4, each mixed much as llama-quantize does: quantised models below 8 bits have a
// q6_k head (mxfp4 a q8_0 one), q4_k_m keeps attn_v and ffn_down of some layers in q6_k,
// q3_k_m in q4_k, q2_k in q3_k; where a row is not whole blocks of 256 the format that
// llama-quantize takes instead.
Result<std::string> generated_model(const std::string& cache_dir, const std::string& shape, const std::string& quant,
                                    const Progress& progress);

// Answers the path of an adapter CACHE/SHAPE-TARGETS-rRANK-NUMBER, made if absent: a PEFT
// folder (bf16), or the same name with .gguf, a GGUF LoRA file (f16) that llama.cpp loads
// too. targets: "qkv", "qkvo" or "all".
enum class AdapterFormat { kPeft, kGguf };
Result<std::string> generated_adapter(const std::string& cache_dir, const std::string& shape,
                                      const std::string& targets, int rank, int number,
                                      AdapterFormat format = AdapterFormat::kPeft);

}  // namespace loralei
