// SPDX-License-Identifier: Apache-2.0
// From a parsed request to a plan the engine can be given: names resolved,
// prompt rendered and tokenised, lengths checked, sampling values filled from the
// model's defaults.
//
// Thread: text threads, several at once.
// Ownership: plans are values.
// Invariants: prompt + max_tokens never exceeds the model's length; the seed
// is always set.
// Failure: an ApiError that names the field; too long prompts with the numbers, as soon
// as it is known that they are (from their bytes, or while they are tokenised: then they
// have at least so many tokens). Where the work was stopped the error is nobody's answer.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "serve/embedding.h"
#include "serve/generation.h"
#include "serve/options.h"
#include "serve/structured_output.h"
#include "serve/text_model.h"

namespace loralei {

struct PlanInputs {
  const ServeOptions& options;
  const Engine& engine;
  const Catalogue& catalogue;
  TextModels& texts;
  GrammarCache& grammars;
  std::string response_id;   // without its prefix
  uint64_t random_seed = 0;  // for requests that name none
  int64_t unix_time_s = 0;
  int64_t arrived_ns = 0;
  // The name of the key that sent it (AccessPolicy), or nullopt where all keys share the
  // prefix cache.
  std::optional<std::string> cache_holder;
  ClientId client = {};
  RequestSlo slo = {};
  std::string app_id;                // of the header; empty: it has none
  Work* work = nullptr;              // what the request spends on its text; may be null
  std::vector<AdapterRef> defaults;  // DefaultAdapters::now()
  const NamedKey* key = nullptr;     // whose it is; null: it may use everything
};

// What separates prefixes in the engine (Submit::cache_salt). No salt of one holder's
// requests gives what one of another's does: the number ends at the first colon.
std::string cache_salt_of(const std::optional<std::string>& holder, const std::string& salt);

// A request's own values first, then the model's, then the API's.
SamplingParams sampling_of(const GenerationFields& fields, const SamplingDefaults& defaults, uint64_t random_seed);
StreamUsage stream_usage(const GenerationFields& fields);
// How a request is answered, given a head whose id has no prefix.
using MakeAnswer = std::function<std::unique_ptr<AnswerForm>(ResponseHead)>;
Parsed<GenerationPlan> plan_chat(const PlanInputs& inputs, const ChatRequest& request, const MakeAnswer& make_answer);
Parsed<GenerationPlan> plan_completion(const PlanInputs& inputs, const CompletionRequest& request);
Parsed<EmbeddingPlan> plan_embedding(const PlanInputs& inputs, const EmbeddingRequest& request);
// The text model of a request's one adapter, or the base's.
Parsed<std::shared_ptr<const TextModel>> text_of(TextModels& texts, const ResolvedModel& model);

}  // namespace loralei
