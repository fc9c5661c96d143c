// SPDX-License-Identifier: Apache-2.0
#include "serve/server_facts.h"

#include <algorithm>

#include "base/limits.h"
#include "schema/tool_calls.h"
#include "serve/plan.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

// As templates see it, else as the vocabulary writes it.
std::string special_token(const Tokenizer& tokenizer, const char* name, std::optional<TokenId> id) {
  const auto found = tokenizer.special_tokens().find(name);
  if (found != tokenizer.special_tokens().end()) return found->second;
  return id ? std::string(tokenizer.token_piece(*id)) : std::string();
}

std::string template_source(const TextModel& text, bool with_tools) {
  const auto& chat_template = text.chat_template(with_tools);
  return chat_template ? chat_template->source() : std::string();
}

// A default may be a version that another name means now.
float default_scale(const ServerFacts& facts, const CatalogueEntry& entry) {
  for (const AdapterRef& one : facts.defaults) {
    if (one.name == entry.name) return one.scale;
    const auto named = facts.catalogue.find(one.name);
    if (named && named->source == entry.source) return one.scale;
  }
  return 0.0f;
}

// Id and scale of those that requests get which name none.
void put_default_adapters(const ServerFacts& facts, JsonOut& out) {
  out.begin_array();
  if (!facts.defaults.empty()) {
    int64_t id = 0;
    for (const CatalogueEntry& entry : facts.catalogue.list()) {
      const float scale = default_scale(facts, entry);
      if (scale != 0.0f) out.begin_object().key("id").number(id).key("scale").real(scale).end_object();
      ++id;
    }
  }
  out.end_array();
}

void put_default_params(const ServerFacts& facts, JsonOut& out) {
  const SamplingParams sampling = sampling_of({}, facts.options.defaults, 0);
  out.begin_object();
  out.key("temperature").real(sampling.temperature).key("top_k").number(int64_t{sampling.top_k});
  out.key("top_p").real(sampling.top_p).key("min_p").real(sampling.min_p);
  out.key("repeat_penalty").real(1.0f).key("repetition_penalty").real(sampling.repetition_penalty);
  out.key("presence_penalty").real(sampling.presence_penalty);
  out.key("frequency_penalty").real(sampling.frequency_penalty);
  out.key("max_tokens").number(-1).key("n_predict").number(-1).key("ignore_eos").boolean(false);
  out.key("stream").boolean(false).key("n_probs").number(0).key("stop").begin_array().end_array();
  out.key("lora");
  put_default_adapters(facts, out);
  out.end_object();
}

int64_t total_tokens(const EngineStats& stats) { return stats.kv_blocks_total * kKvBlockTokens; }

}  // namespace

std::string props_body(const ServerFacts& facts) {
  const ServeOptions& options = facts.options;
  const Tokenizer& tokenizer = *facts.text.tokenizer();
  const std::string plain = template_source(facts.text, false), with_tools = template_source(facts.text, true);
  const auto& for_tools = facts.text.chat_template(true);
  JsonOut out;
  out.begin_object().key("default_generation_settings").begin_object();
  out.key("n_ctx").number(facts.engine.max_model_len()).key("params");
  put_default_params(facts, out);
  out.end_object();
  out.key("total_slots").number(options.max_running);
  out.key("model_alias").string(options.model_names.front()).key("model_path").string(options.model_path);
  out.key("modalities").begin_object();
  for (const char* none : {"vision", "audio", "video"}) out.key(none).boolean(false);
  out.end_object();
  out.key("endpoint_slots").boolean(false).key("endpoint_props").boolean(false).key("endpoint_metrics").boolean(true);
  out.key("chat_template").string(plain);
  if (with_tools != plain) out.key("chat_template_tool_use").string(with_tools);
  const bool calls = for_tools && detect_tool_call_form(with_tools);
  out.key("chat_template_caps").begin_object();
  out.key("supports_tools").boolean(for_tools && for_tools->shows_tools()).key("supports_tool_calls").boolean(calls);
  out.key("supports_parallel_tool_calls").boolean(calls && !takes_single_calls_only(with_tools)).end_object();
  out.key("bos_token").string(special_token(tokenizer, "bos_token", tokenizer.bos()));
  out.key("eos_token").string(special_token(tokenizer, "eos_token", tokenizer.eos()));
  out.key("build_info").string("loralei " + options.version + " (" + options.commit + ")");
  out.key("is_sleeping").boolean(false).end_object();
  return out.take();
}

std::string tokenizer_info_body(const ServerFacts& facts) {
  const Tokenizer& tokenizer = *facts.text.tokenizer();
  const TokenizerSettings& settings = tokenizer.settings();
  JsonOut out;
  out.begin_object();
  // The class that transformers loads a tokenizer.json with where nothing names another.
  out.key("tokenizer_class")
      .string(settings.tokenizer_class.empty() ? "PreTrainedTokenizerFast" : settings.tokenizer_class);
  out.key("model_max_length").number(facts.engine.max_model_len()).key("vocab_size").number(tokenizer.vocab_size());
  out.key("add_bos_token").boolean(tokenizer.adds_bos()).key("add_eos_token").boolean(tokenizer.adds_eos());
  SpecialTokenMap special = settings.special_tokens;
  if (tokenizer.bos()) special.emplace("bos_token", special_token(tokenizer, "bos_token", tokenizer.bos()));
  if (tokenizer.eos()) special.emplace("eos_token", special_token(tokenizer, "eos_token", tokenizer.eos()));
  for (const auto& [name, text] : special) out.key(name).string(text);
  out.key("additional_special_tokens").begin_array();
  for (const std::string& token : settings.additional_special_tokens) out.string(token);
  out.end_array().key("clean_up_tokenization_spaces").boolean(false);
  out.key("chat_template").string_or_null(template_source(facts.text, false)).end_object();
  return out.take();
}

std::string server_info_body(const ServerFacts& facts) {
  const ServeOptions& options = facts.options;
  const EngineStats stats = facts.engine.stats();
  const int64_t length = facts.engine.max_model_len();
  const std::string& name = options.model_names.front();
  JsonOut out;
  out.begin_object();
  out.key("model_path").string(options.model_path).key("tokenizer_path").string(options.model_path);
  out.key("served_model_name").string(name).key("version").string(options.version);
  out.key("system_fingerprint").string(facts.engine.fingerprint());
  out.key("device").string(stats.device.empty() ? "cpu" : stats.device);
  out.key("paced_as").string_or_null(stats.paced_as);
  out.key("context_length").number(length).key("max_model_len").number(length);
  out.key("max_total_num_tokens").number(total_tokens(stats));
  out.key("max_running_requests").number(options.max_running);
  out.key("max_queued_requests").number(options.max_preparing);
  for (const char* one : {"tp_size", "dp_size", "pp_size"}) out.key(one).number(1);
  out.key("is_embedding").boolean(false).key("enable_lora").boolean(true);
  out.key("lora_paths").begin_array();
  for (const CatalogueEntry& entry : facts.catalogue.list())
    out.begin_object().key("lora_name").string(entry.name).key("lora_path").string(entry.path).end_object();
  out.end_array();
  out.key("internal_states").begin_array().begin_object();
  out.key("num_running_reqs")
      .number(stats.running)
      .key("num_waiting_reqs")
      .number(stats.waiting + stats.waiting_for_adapter);
  out.end_object().end_array();
  out.key("vllm_config").begin_object();
  out.key("model_config").begin_object().key("model").string(options.model_path);
  out.key("tokenizer").string(options.model_path).key("served_model_name").begin_array();
  for (const std::string& each : options.model_names) out.string(each);
  out.end_array().key("max_model_len").number(length).end_object();
  out.key("cache_config").begin_object().key("block_size").number(kKvBlockTokens);
  out.key("num_gpu_blocks").number(stats.kv_blocks_total).end_object();
  out.key("scheduler_config").begin_object().key("max_num_seqs").number(options.max_running).end_object();
  return out.end_object().end_object().take();
}

std::string model_info_body(const ServerFacts& facts) {
  const ServeOptions& options = facts.options;
  JsonOut out;
  out.begin_object().key("model_path").string(options.model_path).key("tokenizer_path").string(options.model_path);
  out.key("is_generation").boolean(true).key("preferred_sampling_params").null();
  out.key("weight_version").string(facts.engine.fingerprint());
  out.key("has_image_understanding").boolean(false).key("has_audio_understanding").boolean(false).end_object();
  return out.take();
}

std::string lora_adapters_body(const ServerFacts& facts) {
  JsonOut out;
  out.begin_array();
  int64_t id = 0;
  for (const CatalogueEntry& entry : facts.catalogue.list()) {
    out.begin_object().key("id").number(id++).key("name").string(entry.name).key("path").string(entry.path);
    out.key("scale").real(default_scale(facts, entry)).end_object();
  }
  return out.end_array().take();
}

}  // namespace loralei
