// SPDX-License-Identifier: Apache-2.0
#include "wire/generation_fields.h"

#include <charconv>

namespace loralei {
namespace {

constexpr size_t kKvSharingBytesMost = 16;

constexpr double kMaxScale = 1000.0;  // of an adapter; far beyond what makes sense, far below what overflows

std::string quoted(const JsonReader& reader, std::string_view field) { return "'" + reader.path_of(field) + "'"; }

void read_stops(JsonReader& reader, GenerationFields& fields) {
  const OrderedJson* stop = reader.find("stop");
  if (!stop) return;
  const auto add = [&](const OrderedJson& value) {
    if (!value.is_string()) {
      return reader.fail("stop", quoted(reader, "stop") + " must be a string or a list of strings.", "invalid_type");
    }
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return reader.fail("stop", "A stop string may not be empty.");
    if (text.size() > kMaxStopBytes) {
      return reader.fail("stop", "A stop string may not be longer than " + std::to_string(kMaxStopBytes) + " bytes.");
    }
    fields.stop.push_back(text);
  };
  if (!stop->is_array()) return add(*stop);
  const OrderedJson* list = reader.find_array("stop", kMaxStopStrings);
  for (size_t i = 0; list && i < list->size(); ++i) add((*list)[i]);
}

void read_logit_bias(JsonReader& reader, GenerationFields& fields) {
  const OrderedJson* bias = reader.find_object("logit_bias");
  if (!bias) return;
  if (bias->size() > static_cast<size_t>(kMaxLogitBias)) {
    return reader.fail("logit_bias", "'logit_bias' has more than " + std::to_string(kMaxLogitBias) + " entries.");
  }
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc{} || end != key.data() + key.size() || id < 0 || id >= kMaxVocab) {
      return reader.fail("logit_bias", "The keys of 'logit_bias' are token ids; '" + key.substr(0, 32) + "' is none.");
    }
    const auto number = reader.as_real(value, "logit_bias", -100.0, 100.0);
    if (!number) return;
    fields.logit_bias.emplace_back(id, static_cast<float>(*number));
  }
}

void read_stream_options(JsonReader& reader, GenerationFields& fields) {
  fields.stream = reader.boolean("stream").value_or(false);
  const OrderedJson* options = reader.find_object("stream_options");
  if (!options) return;
  if (!fields.stream)
    return reader.fail("stream_options", "'stream_options' is only allowed together with stream: true.");
  JsonReader inner(*options, "stream_options.");
  fields.include_usage = inner.boolean("include_usage").value_or(false);
  fields.continuous_usage_stats = inner.boolean("continuous_usage_stats").value_or(false);
  (void)inner.boolean("include_obfuscation");  // padding against traffic analysis: meaningless without it
  check_fields(inner, *options, {"include_usage", "continuous_usage_stats", "include_obfuscation"},
               fields.unknown_fields);
  if (inner.failed()) reader.adopt(inner.error());
}

// At most one field may ask for structured output.
bool claim_output(JsonReader& reader, GenerationFields& fields, std::string_view field) {
  if (!fields.output.param.empty()) {
    reader.fail(field, "'" + fields.output.param + "' and '" + reader.path_of(field) +
                           "' both ask for structured output; send one.");
    return false;
  }
  fields.output.param = reader.path_of(field);
  return true;
}

// A schema as an object, a boolean, or (vLLM) as JSON text in a string.
void read_schema(JsonReader& reader, GenerationFields& fields, std::string_view field, const OrderedJson& schema) {
  if (!claim_output(reader, fields, field)) return;
  fields.output.format = OutputFormat::kJsonSchema;
  if (schema.is_string()) {
    auto parsed = parse_json_object(schema.get_ref<const std::string&>());
    if (!parsed.ok())
      return reader.fail(
          field, quoted(reader, field) + " holds a schema as text that cannot be read: " + parsed.error().message);
    fields.output.schema = compact_json(*parsed);
  } else if (schema.is_object() || schema.is_boolean()) {
    fields.output.schema = compact_json(schema);
  } else {
    reader.fail(field, quoted(reader, field) + " must be a JSON schema, that is an object.", "invalid_type");
  }
}

void read_choices(JsonReader& reader, GenerationFields& fields, std::string_view field) {
  const OrderedJson* list = reader.find_array(field, kMaxGuidedChoices);
  if (!list || !claim_output(reader, fields, field)) return;
  fields.output.format = OutputFormat::kChoice;
  for (const OrderedJson& choice : *list) {
    if (!choice.is_string())
      return reader.fail(field, quoted(reader, field) + " must be a list of strings.", "invalid_type");
    fields.output.choices.push_back(choice.get<std::string>());
  }
  if (fields.output.choices.empty()) reader.fail(field, quoted(reader, field) + " may not be empty.");
}

void read_regex(JsonReader& reader, GenerationFields& fields, std::string_view field) {
  auto regex = reader.string(field, 64 * 1024);
  if (!regex || !claim_output(reader, fields, field)) return;
  fields.output.format = OutputFormat::kRegex;
  fields.output.regex = std::move(*regex);
}

void read_response_format(JsonReader& reader, GenerationFields& fields) {
  const OrderedJson* format = reader.find_object("response_format");
  if (!format) return;
  JsonReader inner(*format, "response_format.");
  const std::string type = inner.required_string("type", 64);
  if (type == "json_object") {
    // llama.cpp takes a schema here too.
    if (const OrderedJson* schema = inner.find("schema")) {
      read_schema(inner, fields, "schema", *schema);
    } else if (claim_output(inner, fields, "type")) {
      fields.output.format = OutputFormat::kJsonObject;
    }
  } else if (type == "json_schema") {
    const OrderedJson* holder = inner.find_object("json_schema");
    const auto schema = holder ? holder->find("schema") : OrderedJson::const_iterator{};
    if (!holder || schema == holder->end()) {
      inner.fail("json_schema.schema", "'response_format.json_schema.schema' is missing.",
                 "missing_required_parameter");
    } else {
      JsonReader described(*holder, "response_format.json_schema.");
      read_schema(inner, fields, "json_schema.schema", *schema);
      fields.output.strict = described.boolean("strict").value_or(false);
      if (described.failed()) inner.adopt(described.error());
    }
  } else if (!inner.failed() && type != "text") {
    inner.fail("type", "'response_format.type' must be text, json_object or json_schema.");
  }
  if (inner.failed()) reader.adopt(inner.error());
}

void read_structured_outputs(JsonReader& reader, GenerationFields& fields) {
  const OrderedJson* holder = reader.find_object("structured_outputs");
  if (!holder) return;
  JsonReader inner(*holder, "structured_outputs.");
  if (const OrderedJson* schema = inner.find("json")) read_schema(inner, fields, "json", *schema);
  read_regex(inner, fields, "regex");
  read_choices(inner, fields, "choice");
  if (inner.boolean("json_object").value_or(false) && claim_output(inner, fields, "json_object")) {
    fields.output.format = OutputFormat::kJsonObject;
  }
  std::vector<std::string> unknown;
  check_fields(inner, *holder, {"json", "regex", "choice", "json_object"}, unknown);
  if (!unknown.empty())
    inner.fail(unknown[0].substr(19), "'" + unknown[0] + "' is not supported; use json, regex, choice or json_object.",
               "unsupported_parameter");
  if (inner.failed()) reader.adopt(inner.error());
}

void read_structured_output(JsonReader& reader, GenerationFields& fields) {
  read_response_format(reader, fields);
  for (const char* field : {"guided_json", "json_schema"}) {
    if (const OrderedJson* schema = reader.find(field)) read_schema(reader, fields, field, *schema);
  }
  read_regex(reader, fields, "guided_regex");
  read_choices(reader, fields, "guided_choice");
  read_structured_outputs(reader, fields);
}

// max_tokens under each of its names; -1 (llama.cpp) means no limit.
void read_max_tokens(JsonReader& reader, GenerationFields& fields) {
  const char* from = nullptr;
  for (const char* field : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    const auto value = reader.integer(field, -1, INT_MAX);
    if (!value) continue;
    if (from && fields.max_tokens.value_or(-1) != *value) {
      return reader.fail(field, std::string("'") + from + "' and '" + field + "' mean the same and differ; send one.");
    }
    from = field;
    fields.no_token_limit = *value < 0;
    if (*value >= 0) fields.max_tokens = static_cast<int>(*value);
  }
}

bool is_printable(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace

void read_adapter_list(JsonReader& reader, std::string_view field, const OrderedJson& list,
                       std::vector<AdapterRef>& adapters) {
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = reader.path_of(field) + "[" + std::to_string(i) + "].";
    if (!list[i].is_object())
      return reader.fail(field, quoted(reader, field) + " must hold objects with a name and a scale.", "invalid_type");
    JsonReader entry(list[i], path);
    AdapterRef ref;
    const OrderedJson* id = entry.find("id");
    if (id && !id->is_string()) {
      ref.index = static_cast<int>(entry.as_integer(*id, "id", 0, INT_MAX).value_or(0));
    } else {
      ref.name = entry.required_string(id ? "id" : "name", kMaxNameBytes);
    }
    const char* scale = entry.find("weight") && !entry.find("scale") ? "weight" : "scale";
    ref.scale = static_cast<float>(entry.real(scale, -kMaxScale, kMaxScale).value_or(1.0));
    std::vector<std::string> unknown;
    check_fields(entry, list[i], {"id", "name", "scale", "weight"}, unknown);
    if (!unknown.empty())
      entry.fail(unknown[0].substr(path.size()),
                 "'" + unknown[0] + "' is not a field of an adapter entry: use name and scale.");
    if (entry.failed()) return reader.adopt(entry.error());
    adapters.push_back(std::move(ref));
  }
}

void read_model_ref(JsonReader& reader, ModelRef& model) {
  model.model = reader.string("model", kMaxNameBytes).value_or("");
  const auto claim = [&](std::string_view field) {
    if (!model.adapters_param.empty()) {
      reader.fail(field,
                  "'" + model.adapters_param + "' and '" + std::string(field) + "' both name adapters; send one.");
      return false;
    }
    model.adapters_param = field;
    return true;
  };
  for (const char* field : {"adapter_id", "lora_path"}) {
    auto name = reader.string(field, kMaxNameBytes);
    model.names_none |= name && name->empty();  // the base, as LoRAX and SGLang have it
    if (!name || name->empty()) continue;
    if (claim(field)) model.adapters.push_back({std::move(*name), -1, 1.0f});
  }
  for (const char* field : {"lora", "adapters"}) {
    const OrderedJson* list = reader.find_array(field, kMaxAdaptersPerRequest);
    model.names_none |= list && list->empty();
    if (list && !list->empty() && claim(field)) read_adapter_list(reader, field, *list, model.adapters);
  }
}

void read_generation_fields(JsonReader& reader, GenerationFields& fields) {
  read_model_ref(reader, fields.model);
  fields.temperature = reader.real("temperature", 0.0, kMaxTemperature);
  fields.top_p = reader.real("top_p", 0.0, 1.0);
  fields.min_p = reader.real("min_p", 0.0, 1.0);
  fields.presence_penalty = reader.real("presence_penalty", -2.0, 2.0);
  fields.frequency_penalty = reader.real("frequency_penalty", -2.0, 2.0);
  fields.repetition_penalty = reader.real("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty);
  if (const auto top_k = reader.integer("top_k", -1, INT_MAX)) fields.top_k = static_cast<int>(*top_k);
  fields.seed = reader.integer("seed", INT64_MIN, INT64_MAX);
  if (fields.seed == -1) fields.seed.reset();  // vLLM's and llama.cpp's "random"
  read_max_tokens(reader, fields);
  fields.min_tokens = static_cast<int>(reader.integer("min_tokens", 0, INT_MAX).value_or(0));
  if (fields.max_tokens && fields.min_tokens > *fields.max_tokens) {
    reader.fail("min_tokens", "'min_tokens' is " + std::to_string(fields.min_tokens) + ", more than the maximum of " +
                                  std::to_string(*fields.max_tokens) + " tokens.");
  }
  fields.n = static_cast<int>(reader.integer("n", 1, kMaxChoices).value_or(1));
  fields.ignore_eos = reader.boolean("ignore_eos").value_or(false);
  fields.include_stop_str_in_output = reader.boolean("include_stop_str_in_output").value_or(false);
  fields.skip_special_tokens = reader.boolean("skip_special_tokens").value_or(true);
  read_stops(reader, fields);
  if (const OrderedJson* ids = reader.find_array("stop_token_ids", kMaxStopTokenIds)) {
    fields.stop_token_ids = read_token_ids(reader, *ids, "stop_token_ids");
  }
  read_logit_bias(reader, fields);
  read_stream_options(reader, fields);
  read_structured_output(reader, fields);
  fields.cache_salt = reader.string("cache_salt", 1024).value_or("");
  fields.app_id = reader.string("app_id", kAppIdBytesMost).value_or("");
  if (!is_printable(fields.app_id)) reader.fail("app_id", "'app_id' may not hold control characters.");
  fields.kv_sharing = reader.string("kv_sharing", kKvSharingBytesMost).value_or("");
  fields.priority = static_cast<int>(reader.integer("priority", INT_MIN, INT_MAX).value_or(0));
}

void read_n_probs(JsonReader& reader, GenerationFields& fields, std::optional<bool> logprobs,
                  std::optional<int64_t> top_logprobs) {
  const auto count = reader.integer("n_probs", 0, kMaxTopLogprobs);
  if (!count) return;
  if (logprobs.value_or(*count > 0) != (*count > 0) || top_logprobs.value_or(*count) != *count) {
    return reader.fail("n_probs", "'n_probs' and the fields about logprobs contradict each other; send one of them.");
  }
  fields.logprobs = *count > 0;
  fields.top_logprobs = static_cast<int>(*count);
}

std::vector<TokenId> read_token_ids(JsonReader& reader, const OrderedJson& array, std::string_view field) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const OrderedJson& value : array) {
    const auto id = reader.as_integer(value, field, 0, kMaxVocab - 1);
    if (!id) return {};
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

std::vector<PromptInput> read_prompts(JsonReader& reader, std::string_view field, size_t max_prompts) {
  std::vector<PromptInput> prompts;
  const OrderedJson* value = reader.find(field);
  if (!value) {
    reader.fail(field, "'" + std::string(field) + "' is missing.", "missing_required_parameter");
    return prompts;
  }
  const auto wrong = [&] {
    reader.fail(field,
                "'" + std::string(field) +
                    "' must be a string, a list of strings, a list of token ids, or a list of such lists.",
                "invalid_type");
  };
  const auto add_tokens = [&](const OrderedJson& list) {
    if (list.empty()) return reader.fail(field, "'" + std::string(field) + "' holds an empty list of token ids.");
    prompts.push_back({true, {}, read_token_ids(reader, list, field)});
  };
  if (value->is_string()) {
    prompts.push_back({false, value->get<std::string>(), {}});
  } else if (!value->is_array()) {
    wrong();
  } else if (value->empty()) {
    reader.fail(field, "'" + std::string(field) + "' may not be an empty list.");
  } else if ((*value)[0].is_number()) {
    add_tokens(*value);
  } else if (value->size() > max_prompts) {
    reader.fail(field,
                "'" + std::string(field) + "' has " + std::to_string(value->size()) + " entries; at most " +
                    std::to_string(max_prompts) + " are accepted.",
                "array_above_max_length");
  } else {
    for (const OrderedJson& entry : *value) {
      if (entry.is_string())
        prompts.push_back({false, entry.get<std::string>(), {}});
      else if (entry.is_array())
        add_tokens(entry);
      else
        wrong();
    }
  }
  return prompts;
}

}  // namespace loralei
