// SPDX-License-Identifier: Apache-2.0
// The fields that several routes share, read from an open JsonReader. Private to wire/.
// Thread: pure functions. Ownership: values. Failure: kept in the reader.
#pragma once

#include "wire/json_in.h"
#include "wire/requests.h"

namespace loralei {

// model, adapter_id, lora_path, lora, adapters.
void read_model_ref(JsonReader& reader, ModelRef& model);
// Objects with an id or name and a scale, of the reader's field of that name.
void read_adapter_list(JsonReader& reader, std::string_view field, const OrderedJson& list,
                       std::vector<AdapterRef>& adapters);
// Sampling, limits, stops, streaming, structured output; not logprobs, which chat and
// completions spell differently.
void read_generation_fields(JsonReader& reader, GenerationFields& fields);
// llama.cpp's n_probs, which must agree with what the other fields said: whether there
// are log-probabilities, and with how many alternatives.
void read_n_probs(JsonReader& reader, GenerationFields& fields, std::optional<bool> logprobs,
                  std::optional<int64_t> top_logprobs);
// A list of token ids that lie in [0, kMaxVocab).
std::vector<TokenId> read_token_ids(JsonReader& reader, const OrderedJson& array, std::string_view field);
// The body of a chat request, or what another API's request says in its words.
Parsed<ChatRequest> read_chat_request(const OrderedJson& json);
// LORALEI_CHAT_PROMPT_FIELDS.
void read_chat_prompt(JsonReader& reader, WirePrompt& prompt);
// A string, a list of strings, a list of token ids, or a list of such lists.
std::vector<PromptInput> read_prompts(JsonReader& reader, std::string_view field, size_t max_prompts);

#define LORALEI_MODEL_FIELDS "model", "adapter_id", "lora_path", "lora", "adapters"
#define LORALEI_CHAT_PROMPT_FIELDS                                                                             \
  "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", \
      "enable_thinking", "reasoning_effort"
#define LORALEI_GENERATION_FIELDS                                                                                 \
  LORALEI_MODEL_FIELDS, "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",        \
      "repetition_penalty", "seed", "logit_bias", "n", "n_predict", "max_tokens", "max_completion_tokens",        \
      "min_tokens", "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens",  \
      "stream", "stream_options", "logprobs", "top_logprobs", "n_probs", "response_format", "guided_json",        \
      "guided_regex", "guided_choice", "structured_outputs", "json_schema", "cache_salt", "app_id", "kv_sharing", \
      "priority"

}  // namespace loralei
