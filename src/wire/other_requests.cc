// SPDX-License-Identifier: Apache-2.0
// Completions, embeddings, tokenize, and the requests about adapters and apps.
#include "base/units.h"
#include "wire/generation_fields.h"

namespace loralei {

Parsed<CompletionRequest> parse_completion_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  JsonReader reader(*json);
  CompletionRequest request;
  GenerationFields& common = request.common;
  read_generation_fields(reader, common);
  request.prompts = read_prompts(reader, "prompt", kMaxPrompts);
  request.echo = reader.boolean("echo").value_or(false);
  request.add_special_tokens = reader.boolean("add_special_tokens").value_or(true);
  // Here logprobs is the number of alternatives, and 0 asks for the chosen token's alone.
  const OrderedJson* logprobs = reader.find("logprobs");
  if (logprobs && logprobs->is_boolean()) {
    common.logprobs = logprobs->get<bool>();
    read_n_probs(reader, common, common.logprobs, std::nullopt);
  } else {
    const auto count = reader.integer("logprobs", 0, kMaxTopLogprobs);
    common.logprobs = count.has_value();
    common.top_logprobs = static_cast<int>(count.value_or(0));
    read_n_probs(reader, common, count ? std::optional(true) : std::nullopt, count);
  }
  if (reader.find("top_logprobs"))
    reader.fail("top_logprobs", "On /v1/completions the number of alternatives is given by 'logprobs'.");
  const auto best_of = reader.integer("best_of", 1, kMaxChoices);
  if (best_of && *best_of != common.n) {
    reader.fail("best_of", "'best_of' other than n is not supported: ask for n and choose.", "unsupported_parameter");
  }
  if (common.max_tokens == 0 && !request.echo)
    reader.fail("max_tokens", "'max_tokens' of 0 is only allowed with echo: true.");
  if (request.prompts.size() * static_cast<size_t>(common.n) > static_cast<size_t>(kMaxPrompts)) {
    reader.fail("n", "The number of prompts times n may not exceed " + std::to_string(kMaxPrompts) + ".");
  }
  check_fields(reader, *json, {LORALEI_GENERATION_FIELDS, "prompt", "echo", "add_special_tokens", "best_of"},
               common.unknown_fields);
  if (reader.failed()) return reader.error();
  return request;
}

Parsed<EmbeddingRequest> parse_embedding_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  JsonReader reader(*json);
  EmbeddingRequest request;
  read_model_ref(reader, request.model);
  request.inputs = read_prompts(reader, "input", kMaxEmbeddingInputs);
  const std::string format = reader.string("encoding_format", 64).value_or("float");
  request.base64 = format == "base64";
  if (!request.base64 && format != "float")
    reader.fail("encoding_format", "'encoding_format' must be float or base64.");
  request.add_special_tokens = reader.boolean("add_special_tokens").value_or(true);
  request.priority = static_cast<int>(reader.integer("priority", INT_MIN, INT_MAX).value_or(0));
  check_fields(reader, *json, {LORALEI_MODEL_FIELDS, "input", "encoding_format", "add_special_tokens", "priority"},
               request.unknown_fields);
  if (reader.failed()) return reader.error();
  return request;
}

Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  JsonReader reader(*json);
  TokenizeRequest request;
  read_model_ref(reader, request.model);
  request.is_chat = reader.find("messages") != nullptr;
  // vLLM says prompt, llama.cpp content.
  const char* text = reader.find("content") ? "content" : "prompt";
  if (request.is_chat) {
    if (reader.find(text)) reader.fail(text, std::string("Send either 'messages' or '") + text + "'.");
    read_chat_prompt(reader, request.chat);
    size_t bytes = request.chat.documents.size();
    for (const WireMessage& message : request.chat.messages) bytes += message.content.size() + message.more.size();
    if (bytes > kMaxTokenizeBytes) {
      reader.fail("messages", "'messages' and 'documents' hold more than " + std::to_string(kMaxTokenizeBytes) +
                                  " bytes of text; send them in several requests.");
    }
  } else if (auto value = reader.string(text, kMaxTokenizeBytes)) {
    request.text = std::move(*value);
  } else {
    reader.fail("prompt", "'prompt' is missing.", "missing_required_parameter");
  }
  const char* special = reader.find("add_special") ? "add_special" : "add_special_tokens";
  request.add_special_tokens = reader.boolean(special).value_or(!request.is_chat);
  const char* pieces = reader.find("with_pieces") ? "with_pieces" : "return_token_strs";
  request.return_token_strs = reader.boolean(pieces).value_or(false);
  check_fields(reader, *json,
               {LORALEI_MODEL_FIELDS, LORALEI_CHAT_PROMPT_FIELDS, "prompt", "content", "add_special",
                "add_special_tokens", "with_pieces", "return_token_strs", "parse_special"},
               request.unknown_fields);
  if (reader.failed()) return reader.error();
  return request;
}

Parsed<DetokenizeRequest> parse_detokenize_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  JsonReader reader(*json);
  DetokenizeRequest request;
  read_model_ref(reader, request.model);
  const OrderedJson* tokens = reader.find_array("tokens", kMaxDetokenizeIds);
  if (tokens)
    request.tokens = read_token_ids(reader, *tokens, "tokens");
  else
    reader.fail("tokens", "'tokens' is missing.", "missing_required_parameter");
  check_fields(reader, *json, {LORALEI_MODEL_FIELDS, "tokens"}, request.unknown_fields);
  if (reader.failed()) return reader.error();
  return request;
}

Parsed<LoadLoraRequest> parse_load_lora_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return vllm_error(400, json.error().message);
  JsonReader reader(*json);
  LoadLoraRequest request;
  auto name = reader.string("lora_name", kMaxNameBytes);
  auto path = reader.string("lora_path", 4096);
  if (!name || name->empty() || !path || path->empty()) {
    reader.fail("lora_name", "Both 'lora_name' and 'lora_path' must be provided.");
  }
  request.load_inplace = reader.boolean("load_inplace").value_or(false);
  request.pinned = reader.boolean("pinned").value_or(false);
  if (reader.failed()) return vllm_error(400, reader.error().message);
  request.name = std::move(*name);
  request.path = std::move(*path);
  if (request.path.find('\0') != std::string::npos) return vllm_error(400, "'lora_path' holds a NUL character.");
  for (const char c : request.name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == ',') {
      return vllm_error(400, "'lora_name' may not hold control characters or commas.");
    }
  }
  return request;
}

Parsed<UnloadLoraRequest> parse_unload_lora_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return vllm_error(400, json.error().message);
  JsonReader reader(*json);
  auto name = reader.string("lora_name", kMaxNameBytes);
  if (!reader.failed() && (!name || name->empty())) reader.fail("lora_name", "'lora_name' must be provided.");
  if (reader.failed()) return vllm_error(400, reader.error().message);
  return UnloadLoraRequest{std::move(*name)};
}

// The entries of a request's `lora`, but for the scale, which must be said: one that is
// left out is 0 there and 1 here.
Parsed<LoraScalesRequest> parse_lora_scales_request(std::string_view body) {
  auto list = parse_json_array(body);
  if (!list.ok()) return list.error();
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string entry = "[" + std::to_string(i) + "]";
    const OrderedJson& value = (*list)[i];
    if (!value.is_object())
      return invalid_field(entry, "The request body must be an array of objects with 'id' and 'scale'.",
                           "invalid_type");
    const auto scale = value.find("scale");
    if (scale == value.end() || scale->is_null()) {
      return invalid_field(entry + ".scale", "'" + entry + ".scale' is missing; 0 switches an adapter off.",
                           "missing_required_parameter");
    }
  }
  const OrderedJson none = OrderedJson::object();
  JsonReader reader(none);
  LoraScalesRequest request;
  read_adapter_list(reader, "", *list, request.adapters);
  if (reader.failed()) return reader.error();
  return request;
}

// A number of bytes, or a text with a unit as on the command line.
Parsed<SetMemoryRequest> parse_set_memory_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  JsonReader reader(*json);
  SetMemoryRequest request;
  const OrderedJson* value = reader.find("budget_bytes");
  if (value == nullptr) {
    reader.fail("budget_bytes", "'budget_bytes' is missing.", "missing_required_parameter");
  } else if (value->is_string()) {
    auto bytes = parse_bytes(value->get_ref<const std::string&>());
    if (!bytes.ok()) {
      reader.fail("budget_bytes", bytes.error().message);
    } else if (*bytes > 0) {
      request.budget_bytes = *bytes;
    } else {
      reader.fail("budget_bytes", "'budget_bytes' is a number of bytes, or a text like \"2GiB\".");
    }
  } else if (auto bytes = reader.as_integer(*value, "budget_bytes", 1, kMaxStatedBytes)) {
    request.budget_bytes = *bytes;
  }
  if (reader.failed()) return reader.error();
  return request;
}

Parsed<AppStateRequest> parse_app_state_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  JsonReader reader(*json);
  AppStateRequest request;
  const std::string state = reader.required_string("state", 64);
  if (state == "foreground")
    request.state = AppStateKind::kForeground;
  else if (state == "background")
    request.state = AppStateKind::kBackground;
  else if (state == "killed")
    request.state = AppStateKind::kKilled;
  else
    reader.fail("state", "'state' must be foreground, background or killed.");
  request.pid = reader.integer("pid", 1, INT_MAX);
  if (request.pid && request.state == AppStateKind::kKilled)
    reader.fail("pid", "'pid' is of a process that runs; whoever is killed has none.");
  if (reader.failed()) return reader.error();
  return request;
}

}  // namespace loralei
