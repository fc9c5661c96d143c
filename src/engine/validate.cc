// SPDX-License-Identifier: Apache-2.0
#include "engine/validate.h"

#include <cmath>
#include <string>

#include "base/limits.h"

namespace loralei {
namespace {

Status validate_sampling(const SamplingParams& params) {
  const auto refuse = [](const std::string& what) { return Status(invalid_argument(what)); };
  if (!(params.temperature >= 0.0f) || !std::isfinite(params.temperature))
    return refuse("temperature must be a number of at least 0");
  if (params.top_k < 0) return refuse("top_k must be at least 0 (0 switches it off)");
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) return refuse("top_p must lie above 0 and at most at 1");
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) return refuse("min_p must lie between 0 and 1");
  if (!(params.repetition_penalty > 0.0f) || !std::isfinite(params.repetition_penalty))
    return refuse("repetition_penalty must be above 0");
  if (!std::isfinite(params.presence_penalty) || !std::isfinite(params.frequency_penalty))
    return refuse("penalties must be finite numbers");
  if (params.logit_bias.size() > static_cast<size_t>(kMaxLogitBias)) {
    return refuse("logit_bias names more than " + std::to_string(kMaxLogitBias) + " tokens");
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (std::isnan(bias)) return refuse("logit_bias of token " + std::to_string(token) + " is not a number");
  }
  if (params.logprobs > kMaxTopLogprobs)
    return refuse("at most " + std::to_string(kMaxTopLogprobs) + " log-probabilities per token can be listed");
  if ((params.grammar == nullptr) != (params.vocab_trie == nullptr))
    return refuse("a grammar needs the vocabulary's trie beside it");
  return {};
}

}  // namespace

Status validate_submit(const Submit& submit, const SubmitLimits& limits) {
  const auto prompt = static_cast<int64_t>(submit.prompt.size());
  if (prompt == 0) return invalid_argument("the prompt is empty");
  if (submit.max_tokens < 0 || submit.min_tokens < 0)
    return invalid_argument("max_tokens and min_tokens must not be negative");
  const bool generates = submit.pooling == Pooling::kNone && submit.max_tokens > 0;
  if (prompt + (generates ? 1 : 0) > limits.max_model_len) {
    return invalid_argument("the prompt has " + std::to_string(prompt) +
                            " tokens, but prompt and output together may have at most " +
                            std::to_string(limits.max_model_len) + "; shorten the prompt");
  }
  if (submit.pooling == Pooling::kNone && submit.max_tokens == 0 && !submit.prompt_logprobs) {
    return invalid_argument("max_tokens is 0: nothing would be computed");
  }
  if (submit.choices < 1 || submit.choices > kMaxChoices) {
    return invalid_argument("n must lie between 1 and " + std::to_string(kMaxChoices));
  }
  if (submit.pooling != Pooling::kNone && (submit.choices != 1 || submit.prompt_logprobs)) {
    return invalid_argument("an embedding has one choice and no log-probabilities");
  }
  if (submit.adapters.size() > static_cast<size_t>(kMaxAdaptersPerRequest)) {
    return invalid_argument("at most " + std::to_string(kMaxAdaptersPerRequest) +
                            " adapters can be summed in one request");
  }
  for (const AdapterUse& use : submit.adapters) {
    if (!std::isfinite(use.scale)) return invalid_argument("the scale of an adapter is not a finite number");
  }
  if (submit.kv_sharing.value_or(KvSharing::kExact) > limits.kv_sharing) {
    const auto name = [](KvSharing sharing) { return std::string(kKvSharingNames[static_cast<size_t>(sharing)]); };
    return invalid_argument("kv_sharing is " + name(*submit.kv_sharing) + ", looser than the " +
                            name(limits.kv_sharing) + " that this server was started with (--kv-sharing)");
  }
  for (const TokenId token : submit.prompt) {
    if (token < 0) return invalid_argument("the prompt holds the token id " + std::to_string(token));
  }
  return validate_sampling(submit.sampling);
}

}  // namespace loralei
