// SPDX-License-Identifier: Apache-2.0
#include "wire/json_in.h"

#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "wire/json_out.h"
#include "wire/requests.h"

namespace loralei {
namespace {

std::string number_text(double value) {
  JsonOut out;
  out.real(value);
  return out.take();
}

// What a route does with a field that it does not read.
enum class FieldRule : unsigned char {
  kMeaningless,  // documented somewhere, without meaning here: accepted
  kNeutralOnly,  // would change the result: only null and the neutral value are accepted
};
struct FieldEntry {
  const char* name;
  FieldRule rule;
  const char* neutral;  // kNeutralOnly: JSON text of the value that changes nothing; "" = only null
  const char* advice;   // kNeutralOnly: what to do instead; "" = nothing to say
};

constexpr FieldRule kAny = FieldRule::kMeaningless;
constexpr FieldRule kNeutral = FieldRule::kNeutralOnly;

constexpr FieldEntry kFields[] = {
    // Documented, without meaning on this server.
    {"user", kAny, "", ""},
    {"store", kAny, "", ""},
    {"metadata", kAny, "", ""},
    {"service_tier", kAny, "", ""},
    {"verbosity", kAny, "", ""},
    {"prediction", kAny, "", ""},
    {"safety_identifier", kAny, "", ""},
    {"prompt_cache_key", kAny, "", ""},
    {"prompt_cache_retention", kAny, "", ""},
    {"api_token", kAny, "", ""},
    {"request_id", kAny, "", ""},
    {"guided_decoding_backend", kAny, "", ""},
    {"spaces_between_special_tokens", kAny, "", ""},
    {"cache_prompt", kAny, "", ""},
    {"id_slot", kAny, "", ""},
    {"slot_id", kAny, "", ""},
    {"n_keep", kAny, "", ""},
    {"timings_per_token", kAny, "", ""},
    {"repeat_last_n", kAny, "", ""},
    {"mirostat_tau", kAny, "", ""},
    {"mirostat_eta", kAny, "", ""},
    {"dry_base", kAny, "", ""},
    {"dry_allowed_length", kAny, "", ""},
    {"dry_penalty_last_n", kAny, "", ""},
    {"dynatemp_exponent", kAny, "", ""},
    {"xtc_threshold", kAny, "", ""},
    // Would change the answer.
    {"suffix", kNeutral, "\"\"", "Only text before the completion is supported; put it into prompt"},
    {"audio", kNeutral, "", "This server answers with text"},
    {"modalities", kNeutral, "[\"text\"]", "This server answers with text"},
    {"web_search_options", kNeutral, "", ""},
    {"functions", kNeutral, "[]", "Use tools"},
    {"function_call", kNeutral, "\"none\"", "Use tool_choice"},
    {"best_of", kNeutral, "1", "Use n"},
    {"use_beam_search", kNeutral, "false", ""},
    {"length_penalty", kNeutral, "1.0", ""},
    {"early_stopping", kNeutral, "false", ""},
    {"typical_p", kNeutral, "1.0", ""},
    {"mirostat", kNeutral, "0", ""},
    {"dynatemp_range", kNeutral, "0.0", ""},
    {"xtc_probability", kNeutral, "0.0", ""},
    {"dry_multiplier", kNeutral, "0.0", ""},
    {"top_n_sigma", kNeutral, "-1.0", ""},
    {"tfs_z", kNeutral, "1.0", ""},
    {"repeat_penalty", kNeutral, "1.0", "Use repetition_penalty, which looks at all tokens of prompt and answer"},
    {"samplers", kNeutral, "", "The order of sampling steps is fixed"},
    {"grammar", kNeutral, "\"\"", "Use response_format, guided_regex or guided_choice"},
    {"guided_grammar", kNeutral, "\"\"", "Use response_format, guided_regex or guided_choice"},
    {"guided_whitespace_pattern", kNeutral, "", ""},
    {"structural_tag", kNeutral, "", ""},
    {"logits_processors", kNeutral, "[]", ""},
    {"logit_processors", kNeutral, "[]", ""},
    {"allowed_token_ids", kNeutral, "[]", "Use logit_bias or guided_choice"},
    {"bad_words", kNeutral, "[]", "Use logit_bias"},
    {"prompt_logprobs", kNeutral, "0", "Use echo with logprobs on /v1/completions"},
    {"truncate_prompt_tokens", kNeutral, "", "Shorten the prompt before sending it"},
    {"truncation", kNeutral, "\"disabled\"", "Shorten the prompt before sending it"},
    {"return_token_ids", kNeutral, "false", "Use logprobs or /tokenize"},
    {"return_tokens_as_token_ids", kNeutral, "false", "Use logprobs or /tokenize"},
    {"kv_transfer_params", kNeutral, "", ""},
    {"chat_template", kNeutral, "", "The template comes from the model or from --chat-template"},
    {"documents", kNeutral, "[]", "Send them to /v1/chat/completions, or put them into the prompt"},
    {"mm_processor_kwargs", kNeutral, "", ""},
    {"adapter_source", kNeutral, "\"local\"", "Requests only name adapters that are registered here"},
    {"merged_adapters", kNeutral, "", "Use adapters: [{name, scale}], which are summed"},
    {"prompt_embeds", kNeutral, "", ""},
    {"dimensions", kNeutral, "", "Embeddings have the model's own size"},
    {"echo", kNeutral, "false", "It is a field of /v1/completions"},
    // What other servers call by another name.
    {"max_new_tokens", kNeutral, "", "Use max_tokens"},
    {"min_new_tokens", kNeutral, "0", "Use min_tokens"},
    {"stop_sequences", kNeutral, "[]", "Use stop"},
    {"no_stop_trim", kNeutral, "false", "Use include_stop_str_in_output"},
    {"regex", kNeutral, "\"\"", "Use guided_regex or structured_outputs"},
    {"ebnf", kNeutral, "\"\"", "Use response_format, guided_regex or guided_choice"},
    {"stop_regex", kNeutral, "[]", "Use stop, which takes strings"},
    {"do_sample", kNeutral, "true", "Use temperature, where 0 is greedy"},
    {"num_beams", kNeutral, "1", ""},
    {"no_repeat_ngram_size", kNeutral, "0", "Use repetition_penalty or frequency_penalty"},
    {"custom_logit_processor", kNeutral, "", ""},
};

bool same_neutral(const OrderedJson& value, const char* neutral) {
  if (*neutral == '\0') return false;
  const OrderedJson expected = OrderedJson::parse(neutral, nullptr, false);
  if (value.is_number() && expected.is_number()) return value.get<double>() == expected.get<double>();
  return value == expected;
}

}  // namespace

ApiError invalid_field(std::string param, std::string message, std::string code) {
  return {400, std::move(message), "invalid_request_error", std::move(param), std::move(code), false};
}

const char* json_type_name(const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::null:
      return "null";
    case OrderedJson::value_t::object:
      return "an object";
    case OrderedJson::value_t::array:
      return "an array";
    case OrderedJson::value_t::string:
      return "a string";
    case OrderedJson::value_t::boolean:
      return "a boolean";
    case OrderedJson::value_t::number_float:
      return "a number";
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      return "an integer";
    default:
      return "something else";
  }
}

std::string compact_json(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

void JsonReader::fail(std::string_view field, std::string message, std::string code) {
  if (!error_) error_ = invalid_field(path_of(field), std::move(message), std::move(code));
}

const OrderedJson* JsonReader::find(std::string_view field) const {
  if (error_) return nullptr;
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const OrderedJson* JsonReader::find_array(std::string_view field, size_t max_items) {
  const OrderedJson* value = find(field);
  if (!value) return nullptr;
  if (!value->is_array()) {
    fail(field, "'" + path_of(field) + "' must be an array, not " + json_type_name(*value) + ".", "invalid_type");
    return nullptr;
  }
  if (value->size() > max_items) {
    fail(field,
         "'" + path_of(field) + "' has " + std::to_string(value->size()) + " entries; at most " +
             std::to_string(max_items) + " are accepted.",
         "array_above_max_length");
    return nullptr;
  }
  return value;
}

const OrderedJson* JsonReader::find_object(std::string_view field) {
  const OrderedJson* value = find(field);
  if (!value || value->is_object()) return value;
  fail(field, "'" + path_of(field) + "' must be an object, not " + json_type_name(*value) + ".", "invalid_type");
  return nullptr;
}

std::optional<std::string> JsonReader::string(std::string_view field, size_t max_bytes) {
  const OrderedJson* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    fail(field, "'" + path_of(field) + "' must be a string, not " + json_type_name(*value) + ".", "invalid_type");
    return std::nullopt;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    fail(field, "'" + path_of(field) + "' is longer than " + std::to_string(max_bytes) + " bytes.",
         "string_above_max_length");
    return std::nullopt;
  }
  return text;
}

std::string JsonReader::required_string(std::string_view field, size_t max_bytes) {
  auto text = string(field, max_bytes);
  if (!text || text->empty()) fail(field, "'" + path_of(field) + "' is missing.", "missing_required_parameter");
  return text.value_or("");
}

std::optional<bool> JsonReader::boolean(std::string_view field) {
  const OrderedJson* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) {
    fail(field, "'" + path_of(field) + "' must be true or false, not " + json_type_name(*value) + ".", "invalid_type");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<double> JsonReader::as_real(const OrderedJson& value, std::string_view field, double low, double high) {
  if (!value.is_number()) {
    fail(field, "'" + path_of(field) + "' must be a number, not " + json_type_name(value) + ".", "invalid_type");
    return std::nullopt;
  }
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) {  // also NaN
    fail(field, "'" + path_of(field) + "' must lie between " + number_text(low) + " and " + number_text(high) +
                    ", not " + number_text(number) + ".");
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> JsonReader::as_integer(const OrderedJson& value, std::string_view field, int64_t low,
                                              int64_t high) {
  const auto out_of_range = [&] {
    fail(field, "'" + path_of(field) + "' must lie between " + std::to_string(low) + " and " + std::to_string(high) +
                    ", not " + compact_json(value) + ".");
    return std::nullopt;
  };
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) return out_of_range();
    number = static_cast<int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>()) {
    // 16.0 is what some languages write for 16.
    const double real = value.get<double>();
    if (!(std::fabs(real) < 9.0e15)) return out_of_range();
    number = static_cast<int64_t>(real);
  } else {
    fail(field,
         "'" + path_of(field) + "' must be an integer, not " +
             (value.is_number() ? compact_json(value) : json_type_name(value)) + ".",
         "invalid_type");
    return std::nullopt;
  }
  if (number < low || number > high) return out_of_range();
  return number;
}

std::optional<double> JsonReader::real(std::string_view field, double low, double high) {
  const OrderedJson* value = find(field);
  return value ? as_real(*value, field, low, high) : std::nullopt;
}

std::optional<int64_t> JsonReader::integer(std::string_view field, int64_t low, int64_t high) {
  const OrderedJson* value = find(field);
  return value ? as_integer(*value, field, low, high) : std::nullopt;
}

void note_unknown(std::vector<std::string>& unknown, std::string name) {
  if (unknown.size() > kMaxUnknownFields) return;
  if (name.size() > 64) name.resize(64);
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';  // it goes to a log line
  }
  if (std::find(unknown.begin(), unknown.end(), name) != unknown.end()) return;
  unknown.push_back(unknown.size() < kMaxUnknownFields ? std::move(name) : "...");
}

void check_fields(JsonReader& reader, const OrderedJson& object, std::initializer_list<std::string_view> known,
                  std::vector<std::string>& unknown) {
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    const OrderedJson& value = item.value();
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto entry =
        std::find_if(std::begin(kFields), std::end(kFields), [&](const FieldEntry& e) { return name == e.name; });
    if (entry == std::end(kFields)) {
      note_unknown(unknown, reader.path_of(name));
      continue;
    }
    if (entry->rule == FieldRule::kMeaningless || value.is_null() || same_neutral(value, entry->neutral)) continue;
    reader.fail(name,
                "'" + reader.path_of(name) + "' is not supported" +
                    (*entry->neutral ? std::string(" with a value other than ") + entry->neutral : "") + "." +
                    (*entry->advice ? std::string(" ") + entry->advice + "." : ""),
                "unsupported_parameter");
    return;
  }
}

}  // namespace loralei
