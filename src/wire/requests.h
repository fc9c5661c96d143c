// SPDX-License-Identifier: Apache-2.0
// Requests of the HTTP API as native structs, and the functions that make them from JSON.
// No JSON travels further than this room, except where it is data by itself (a schema,
// a tool, template arguments): there it is compact JSON text.
//
// Thread: pure functions and plain values.
// Ownership: values own their strings.
// Invariants of a parsed request: all text is valid UTF-8; numbers are finite and in
// their ranges; sizes are within base/limits.h and the limits below; an absent field
// and null are the same, but for what a template sees of a message. Duplicate JSON keys:
// the last one wins.
// Fields that the API documents but that mean nothing here are accepted (docs/api.md
// lists them); fields that would change the result and are not supported are refused;
// unknown ones are named in unknown_fields, for the caller to count and log.
// Failure: an ApiError with status 400, a sentence, and the field in `param`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "wire/errors.h"

namespace loralei {

inline constexpr int kMaxMessages = 8192;     // a long agent history has hundreds
inline constexpr int kMaxRequestTools = 128;  // as the OpenAI API
inline constexpr int kMaxDocuments = 8192;
inline constexpr int kMaxPrompts = 256;           // prompts of one completions request
inline constexpr int kMaxEmbeddingInputs = 2048;  // as the OpenAI API
inline constexpr int kMaxStopTokenIds = 64;
inline constexpr int kMaxGuidedChoices = 4096;
inline constexpr size_t kMaxNameBytes = 512;           // of a model, adapter or app
inline constexpr size_t kMaxStopBytes = 1024;          // of one stop string: output is held back by as much
inline constexpr int kMaxJsonMembers = kMaxLogitBias;  // of one object: look-ups in ordered objects are linear
// Strings, lists and objects of one request, which take many times their text in memory;
// numbers are not counted.
inline constexpr int kMaxJsonValues = 1 << 18;
inline constexpr size_t kMaxUnknownFields = 16;  // named; more are only counted by the last name "..."

// One adapter named in a request: by name, or (llama.cpp) by its place in
// the adapter list.
struct AdapterRef {
  std::string name;
  int index = -1;  // >= 0: the place, and name is empty
  float scale = 1.0f;
};

// What names the weights. `adapters` is empty when only `model` says it.
struct ModelRef {
  std::string model;  // empty = the base
  std::vector<AdapterRef> adapters;
  std::string adapters_param;  // the field `adapters` came from: adapter_id, lora_path, lora or adapters
  bool names_none = false;     // such a field is there and empty: the base itself, whatever adapters are the default
};

enum class OutputFormat : unsigned char { kText, kJsonObject, kJsonSchema, kRegex, kChoice };
struct StructuredOutput {
  OutputFormat format = OutputFormat::kText;
  std::string param;                 // the field it came from, for errors
  std::string schema;                // kJsonSchema: JSON text
  std::optional<bool> strict;        // kJsonSchema in OpenAI's field, where absent means false; vLLM's have none
  std::string regex;                 // kRegex
  std::vector<std::string> choices;  // kChoice
};

// What completions and chat have in common. Absent sampling values come from the model's
// generation_config.json.
struct GenerationFields {
  ModelRef model;
  std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<int> top_k;       // <= 0 = off
  std::optional<int64_t> seed;    // never -1, which asks for a random one
  std::optional<int> max_tokens;  // absent = the route's default
  bool no_token_limit = false;    // max_tokens -1: what the context holds
  int min_tokens = 0;
  int n = 1;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  std::vector<std::pair<TokenId, float>> logit_bias;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;           // stream_options
  bool continuous_usage_stats = false;  // stream_options (vLLM): usage in every chunk
  bool logprobs = false;
  int top_logprobs = 0;  // alternatives per token
  StructuredOutput output;
  std::string cache_salt;  // empty = shared prefix cache
  std::string app_id;
  std::string kv_sharing;  // empty: the server's
  int priority = 0;
  std::vector<std::string> unknown_fields;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text, as the model wrote it
};

struct WireMessage {
  std::string role;          // system, developer, user, assistant, tool
  std::string content;       // text parts joined by newlines
  bool has_content = false;  // false: null or absent
  bool null_content = false;
  std::string name;
  std::string tool_call_id;
  std::vector<ToolCall> tool_calls;
  std::string more;  // JSON object text: all other fields, as they came, for the template; empty = none
};

struct ToolSpec {
  std::string name;
  std::string description;
  std::string parameters;  // JSON schema text; empty = none given
  bool strict = false;
  std::string json;  // the whole entry as JSON text, for the template
};

enum class WireToolChoice : unsigned char { kAuto, kNone, kRequired, kFunction };

// What makes a prompt out of messages; chat and tokenize have it.
struct WirePrompt {
  std::vector<WireMessage> messages;
  std::vector<ToolSpec> tools;
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string template_kwargs;  // JSON object text; empty = none
  // What such objects usually say of reasoning, as fields of their own; template_kwargs
  // counts more.
  std::optional<bool> enable_thinking;
  std::string reasoning_effort;  // "low", ...; "none": also enable_thinking false; empty = not said
  std::string documents;         // JSON array text, for the template; empty = none
  // Names of messages' other fields, each once and bounded as unknown_fields: who knows
  // the template knows whether it reads them.
  std::vector<std::string> message_fields;
};

// Memory that reading a body of JSON takes at most, beside the body itself: asked of the
// text, before anything is built, and of its length alone, before it is there.
int64_t json_parse_bytes(std::string_view body);
int64_t json_parse_bytes_of_length(int64_t body_bytes);

struct ChatRequest {
  GenerationFields common;
  WirePrompt prompt;
  WireToolChoice tool_choice = WireToolChoice::kAuto;
  std::string tool_choice_name;  // kFunction
  bool parallel_tool_calls = true;
  bool separate_reasoning = true;   // false: reasoning stays in the content, between its marks
  bool include_reasoning = true;    // false: it is left out
  bool add_special_tokens = false;  // those of the tokenizer, besides the template's
};

// Text, or token ids when `is_tokens`.
struct PromptInput {
  bool is_tokens = false;
  std::string text;
  std::vector<TokenId> tokens;
};

struct CompletionRequest {
  GenerationFields common;
  std::vector<PromptInput> prompts;  // never empty
  bool echo = false;
  bool add_special_tokens = true;
};

struct EmbeddingRequest {
  ModelRef model;
  std::vector<PromptInput> inputs;  // never empty
  bool base64 = false;
  bool add_special_tokens = true;
  int priority = 0;
  std::vector<std::string> unknown_fields;
};

struct TokenizeRequest {
  ModelRef model;
  bool is_chat = false;
  std::string text;  // !is_chat
  WirePrompt chat;   // is_chat
  bool add_special_tokens = true;
  bool return_token_strs = false;
  std::vector<std::string> unknown_fields;
};

struct DetokenizeRequest {
  ModelRef model;
  std::vector<TokenId> tokens;
  std::vector<std::string> unknown_fields;
};

struct LoadLoraRequest {
  std::string name, path;
  bool load_inplace = false;
  bool pinned = false;
};
struct UnloadLoraRequest {
  std::string name;
};

// llama.cpp's: adapters by place (or name) and their scales, 0 for those that
// are switched off.
struct LoraScalesRequest {
  std::vector<AdapterRef> adapters;
};

struct SetMemoryRequest {
  int64_t budget_bytes = 0;
};

// PUT /v1/apps/{name}
inline constexpr size_t kAppIdBytesMost = 128;
enum class AppStateKind : unsigned char { kForeground, kBackground, kKilled };
struct AppStateRequest {
  AppStateKind state = AppStateKind::kForeground;
  std::optional<int64_t> pid;  // of its process, on the server's machine
};

Parsed<ChatRequest> parse_chat_request(std::string_view body);
Parsed<CompletionRequest> parse_completion_request(std::string_view body);
Parsed<EmbeddingRequest> parse_embedding_request(std::string_view body);
Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body);
Parsed<DetokenizeRequest> parse_detokenize_request(std::string_view body);
// Errors of these two have vLLM's types.
Parsed<LoadLoraRequest> parse_load_lora_request(std::string_view body);
Parsed<UnloadLoraRequest> parse_unload_lora_request(std::string_view body);
Parsed<LoraScalesRequest> parse_lora_scales_request(std::string_view body);
Parsed<SetMemoryRequest> parse_set_memory_request(std::string_view body);
Parsed<AppStateRequest> parse_app_state_request(std::string_view body);

}  // namespace loralei
