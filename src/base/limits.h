// SPDX-License-Identifier: Apache-2.0
// Every limit of the program in one place, each with its reason. What users may change is
// an option whose default stands here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace loralei {

// --- KV cache
inline constexpr int kKvBlockTokens = 16;  // mechanisms: blocks of 16 tokens

// --- engine defaults (options)
inline constexpr int kDefaultMaxSequences = 256;
inline constexpr int kDefaultMaxQueued = 1024;
inline constexpr int kDefaultStepTokens = 512;  // token budget of a step: bounds the decode stall by a long prompt
inline constexpr int kDraftTokensMax = 8;       // guessed tokens of a sequence in one step: more are rarely all right
inline constexpr int kDraftingSequences = 4;    // logits are kept for whole drafts of so many sequences

inline constexpr int64_t kMaxModelLen = 1 << 28;  // tokens of a sequence: positions are 32-bit

// --- what one request may ask for
inline constexpr int64_t kDefaultMaxBodyBytes = 8 * kMiB;
inline constexpr int kMaxChoices = 128;           // n, as the OpenAI API
inline constexpr int kMaxStopStrings = 16;        // the API says 4; a few more do no harm
inline constexpr int kMaxTopLogprobs = 20;        // as the OpenAI API
inline constexpr int kMaxAdaptersPerRequest = 8;  // weighted sum
inline constexpr int kMaxLogitBias = 1024;
inline constexpr double kMaxTemperature = 100;
inline constexpr double kMinRepetitionPenalty = 0.01, kMaxRepetitionPenalty = 10;
// Of /tokenize and /detokenize, whose answers are many times as large: an id of two bytes
// may stand for hundreds.
inline constexpr size_t kMaxTokenizeBytes = 4 * kMiB;
inline constexpr size_t kMaxDetokenizeIds = 1 << 18;
inline constexpr int64_t kMaxEchoBytes = 256 * kMiB;  // prompts in an answer: they multiply with n and logprobs

// --- files
inline constexpr int64_t kMaxJsonBytes = 256 * kMiB;  // config, tokenizer.json (real ones: 17 MiB)
// Of an adapter, whose tokenizer files are read for added tokens, settings and
// templates alone. The largest real ones have 33 MiB, 1.2 MiB (Gemma's, with 6,400 added
// tokens) and a few KiB.
inline constexpr int64_t kMaxAdapterTokenizerBytes = 64 * kMiB;
inline constexpr int64_t kMaxAdapterTokenizerConfigBytes = 8 * kMiB;  // and added_tokens.json
inline constexpr int64_t kMaxAdapterTokensMapBytes = 1 * kMiB;        // special_tokens_map.json
inline constexpr int64_t kMaxAdapterAddedTokens = 1 << 16;
inline constexpr int64_t kMaxAdapterConfigBytes = 4 * kMiB;  // adapter_config.json: target_modules may name every layer
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100 * kMiB;  // the format's own limit
inline constexpr int kMaxJsonDepth = 128;
inline constexpr int kMaxTensors = 1 << 20;
inline constexpr int kMaxTensorDims = 8;
inline constexpr int kMaxShards = 4096;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxVocab = 1 << 21;
inline constexpr int kMaxLoraRank = 4096;

}  // namespace loralei
