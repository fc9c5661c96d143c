// SPDX-License-Identifier: Apache-2.0
#include "serve/plan.h"

#include <algorithm>
#include <cfloat>
#include <climits>

#include "base/printable.h"
#include "serve/request_app.h"

namespace loralei {
namespace {

constexpr int kCompletionTokens = 16;     // the API's default for /v1/completions
constexpr int64_t kEchoEntryBytes = 128;  // of one log-probability, with its token: held, and as text of the answer

// Empty: the server's.
Parsed<std::optional<KvSharing>> kv_sharing_of(const std::string& named) {
  if (named.empty()) return std::optional<KvSharing>();
  for (size_t i = 0; i < kKvSharingNames.size(); ++i) {
    if (named == kKvSharingNames[i]) return std::optional(static_cast<KvSharing>(i));
  }
  ApiError error = api_error_of_status(
      400, "'kv_sharing' is '" + printable(named) + "'; send exact, lossless, bounded or borrow, or leave it out.");
  error.param = "kv_sharing";
  return error;
}

ApiError at(Error error, std::string param) { return to_api_error(error, std::move(param)); }

// Beyond the length nobody counts a prompt's tokens to the end: it has at least so many.
ApiError too_long(int64_t length, int64_t prompt, std::optional<int> max_tokens, const char* param) {
  const std::string least = prompt > length ? "at least " : "";
  std::string message = "This model's maximum context length is " + std::to_string(length) + " tokens. However, ";
  if (max_tokens) {
    message += "you requested " + least + std::to_string(prompt + *max_tokens) + " tokens (" + least +
               std::to_string(prompt) + " in the prompt, " + std::to_string(*max_tokens) +
               " for the completion). Shorten the prompt or ask for fewer tokens.";
  } else {
    message += "your prompt has " + least + std::to_string(prompt) +
               " tokens, which leaves no room for an answer. Shorten the prompt.";
  }
  ApiError error = api_error_of_status(400, std::move(message));
  error.param = param;
  error.code = "context_length_exceeded";
  return error;
}

// What chat and completions plans have in common; prompts and max_tokens come later.
Parsed<GenerationPlan> common_plan(const PlanInputs& inputs, const GenerationFields& fields,
                                   const MakeAnswer& make_answer) {
  auto model =
      resolve_model_for(inputs.key, fields.model, inputs.options.model_names, inputs.catalogue, inputs.defaults);
  if (!model.ok()) return model.error();
  GenerationPlan plan;
  plan.model = std::move(*model);
  auto text = text_of(inputs.texts, plan.model);
  if (!text.ok()) return text.error();
  plan.text = std::move(*text);
  plan.response_id = inputs.response_id;
  plan.form = make_answer({inputs.response_id, inputs.unix_time_s, plan.model.shown, inputs.engine.fingerprint()});
  plan.submit.adapters = plan.model.adapters;
  plan.submit.sampling = sampling_of(fields, inputs.options.defaults, inputs.random_seed);
  plan.submit.choices = fields.n;
  plan.submit.min_tokens = fields.min_tokens;
  plan.submit.ignore_eos = fields.ignore_eos;
  plan.submit.stop_ids = plan.named_stop_ids = fields.stop_token_ids;
  if (!fields.ignore_eos) {
    // The tokenizer's own end stays one where it is named, too, as vLLM has it.
    if (const auto eos = plan.text->tokenizer()->eos()) std::erase(plan.named_stop_ids, *eos);
    // The engine knows where the model's turns end; an adapter's may end at another
    // token of its tokenizer.
    auto& stops = plan.submit.stop_ids;
    for (const TokenId id : plan.text->tokenizer()->end_ids()) {
      if (std::find(stops.begin(), stops.end(), id) == stops.end()) stops.push_back(id);
    }
  }
  plan.submit.cache_salt = cache_salt_of(inputs.cache_holder, fields.cache_salt);
  Parsed<std::string> app = app_of(inputs.app_id, fields.app_id);
  if (!app.ok()) return app.error();
  plan.submit.app_id = std::move(*app);
  auto sharing = kv_sharing_of(fields.kv_sharing);
  if (!sharing.ok()) return sharing.error();
  plan.submit.kv_sharing = *sharing;
  plan.submit.priority = fields.priority;
  plan.submit.client = inputs.client;
  plan.submit.slo = inputs.slo;
  const int vocab = plan.text->tokenizer()->vocab_size();
  for (const auto& [id, bias] : fields.logit_bias) {
    if (id < vocab) continue;
    ApiError error = api_error_of_status(400, "'logit_bias' names the token id " + std::to_string(id) +
                                                  ", but the vocabulary has " + std::to_string(vocab) + " tokens.");
    error.param = "logit_bias";
    return error;
  }
  plan.stop = compile_stop_strings(fields.stop);
  plan.include_stop = fields.include_stop_str_in_output;
  plan.skip_special = fields.skip_special_tokens;
  plan.stream = fields.stream;
  plan.logprobs = fields.logprobs;
  plan.arrived_ns = inputs.arrived_ns;
  return plan;
}

// Holds generation to `grammar`, if there is one.
std::optional<ApiError> constrain(const PlanInputs& inputs, GenerationPlan& plan, Parsed<GrammarPtr> grammar) {
  if (!grammar.ok()) return grammar.error();
  if (!*grammar) return std::nullopt;
  auto trie = plan.text->vocab_trie(inputs.options.vocab_size, inputs.options.end_ids, inputs.engine.request_memory());
  if (!trie.ok()) return to_api_error(trie.error());
  plan.submit.sampling.grammar = std::move(*grammar);
  plan.submit.sampling.vocab_trie = std::move(*trie);
  return std::nullopt;
}

// Tools: the form in which this model writes calls, to be read back from the text.
std::optional<ApiError> plan_tools(GenerationPlan& plan, const ChatRequest& request) {
  const auto& chat_template = plan.text->chat_template(true);
  const auto form = chat_template ? detect_tool_call_form(chat_template->source()) : std::nullopt;
  const auto refuse = [](std::string message, const char* param) {
    ApiError error = api_error_of_status(400, std::move(message));
    error.param = param;
    error.code = "unsupported_parameter";
    return error;
  };
  if (!form) {
    const bool shown = chat_template && chat_template->shows_tools();
    return refuse(std::string("This model's chat template ") +
                      (shown ? "asks for tool calls in a form that is not known here" : "shows no tools to the model") +
                      "; leave 'tools' out, choose another model, or start the server with a --chat-template that asks "
                      "for calls in <tool_call></tool_call>.",
                  "tools");
  }
  if (request.common.output.format != OutputFormat::kText) {
    return refuse(
        "Tools and '" + request.common.output.param + "' cannot be combined; send one of them, or tool_choice none.",
        "tools");
  }
  plan.tools = form;
  plan.skip_special = false;  // some models mark calls by special tokens; those that end a turn are never text
  return std::nullopt;
}

// Whether there may be reasoning in the answer to the rendered prompt,
// and how it is told.
std::optional<Reasoning> plan_reasoning(GenerationPlan& plan, const ChatRequest& request, const std::string& rendered) {
  const auto form = plan.text->reasoning(plan.tools.has_value());
  if (!form) return std::nullopt;
  const WirePrompt& prompt = request.prompt;
  std::string_view continued;
  if (prompt.continue_final_message) continued = prompt.messages.back().content;
  const Reasoning reasoning{*form, reasoning_begin(*form, rendered, continued)};
  if (request.separate_reasoning) plan.reasoning = reasoning;
  plan.show_reasoning = request.include_reasoning;
  const auto show = [&](std::string_view mark) {
    if (const auto id = plan.text->tokenizer()->find_token(mark)) plan.marks.push_back(*id);
  };
  show(form->open);
  show(form->close);
  for (const std::string_view token : form->tokens) {
    if (!token.empty()) show(token);
  }
  return reasoning;
}

// The grammar of a chat's answer.
std::optional<ApiError> constrain_chat(const PlanInputs& inputs, GenerationPlan& plan, const ChatRequest& request,
                                       const std::optional<Reasoning>& reasoning) {
  if (!plan.tools) return constrain(inputs, plan, inputs.grammars.of_output(request.common.output, reasoning));
  const std::string& source = plan.text->chat_template(true)->source();
  const bool parallel = request.parallel_tool_calls && !takes_single_calls_only(source);
  return constrain(inputs, plan, inputs.grammars.of_tools(*plan.tools, parallel, request, reasoning));
}

ApiError too_few(int32_t min_tokens, int64_t limit, bool by_context) {
  const std::string wanted = std::to_string(min_tokens), held = std::to_string(limit);
  std::string message = "'min_tokens' is " + wanted + ", but ";
  if (by_context)
    message += "the context leaves room for " + held + " tokens behind the prompt. Shorten the prompt";
  else
    message += "without 'max_tokens' there are " + held + " tokens at most. Send 'max_tokens' of at least " + wanted;
  ApiError error = api_error_of_status(400, message + " or lower 'min_tokens'.");
  error.param = "min_tokens";
  error.code = "invalid_value";
  return error;
}

EncodeWithin within(const PlanInputs& inputs) { return {inputs.work, inputs.engine.max_model_len()}; }

// How many tokens a text has at least, where that alone is more than the model takes.
std::optional<int64_t> surely_more(const PlanInputs& inputs, const TextModel& text, const std::string& prompt) {
  const int64_t length = inputs.engine.max_model_len();
  if (static_cast<int64_t>(prompt.size()) <= length) return std::nullopt;
  const int64_t least = text.tokenizer()->least_tokens(prompt);
  return least > length ? std::optional(least) : std::nullopt;
}

// Fills max_tokens for the shortest prompt (Generation cuts it to the room behind a
// longer one), or says why the prompts do not fit.
std::optional<ApiError> fit(const PlanInputs& inputs, GenerationPlan& plan, std::optional<int> max_tokens,
                            std::optional<int> fallback, const char* param) {
  const int64_t length = inputs.engine.max_model_len();
  int64_t longest = 0, shortest = length;
  for (const auto& prompt : plan.prompts) {
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
    shortest = std::min(shortest, static_cast<int64_t>(prompt.size()));
  }
  const int64_t room = length - longest;
  if (room < 0 || (room == 0 && max_tokens.value_or(1) > 0) || (max_tokens && *max_tokens > room)) {
    return too_long(length, longest, max_tokens, param);
  }
  const int64_t wanted = max_tokens ? *max_tokens : fallback.value_or(INT_MAX);
  plan.submit.max_tokens = static_cast<int32_t>(std::min(wanted, length - shortest));
  const int64_t least = std::min(wanted, room);  // of what the prompts get
  if (plan.submit.min_tokens > least) return too_few(plan.submit.min_tokens, least, room <= wanted);
  return std::nullopt;
}

// A prompt is small where it arrives and large where it is echoed: once for every choice,
// and with log-probabilities as many entries for every token.
std::optional<ApiError> fit_echo(const GenerationPlan& plan) {
  int64_t bytes = 0, tokens = 0;
  for (const std::string& text : plan.echo_texts) bytes += static_cast<int64_t>(text.size());
  for (const auto& prompt : plan.prompts) tokens += static_cast<int64_t>(prompt.size());
  const int64_t entries = plan.logprobs ? 1 + plan.submit.sampling.logprobs : 0;
  const int64_t held = plan.submit.choices * (bytes + tokens * entries * kEchoEntryBytes);
  if (plan.echo_texts.empty() || held <= kMaxEchoBytes) return std::nullopt;
  std::string message =
      "'echo' of " + std::to_string(tokens) + " prompt tokens with 'n' of " + std::to_string(plan.submit.choices);
  if (plan.logprobs) message += " and 'logprobs' of " + std::to_string(plan.submit.sampling.logprobs);
  message += " would take about " + format_bytes(held) + ", more than the " + format_bytes(kMaxEchoBytes) +
             " that one answer may take. Lower 'n'" + (plan.logprobs ? " or 'logprobs'" : "") +
             ", or send fewer or shorter prompts.";
  ApiError error = api_error_of_status(400, std::move(message));
  error.param = "echo";
  error.code = "invalid_value";
  return error;
}

}  // namespace

SamplingParams sampling_of(const GenerationFields& fields, const SamplingDefaults& defaults, uint64_t random_seed) {
  SamplingParams out;
  const auto pick = [](const std::optional<double>& asked, const std::optional<double>& shipped, double api) {
    return static_cast<float>(asked ? *asked : shipped ? *shipped : api);
  };
  out.temperature = pick(fields.temperature, defaults.temperature, 1.0);
  if (!fields.temperature && defaults.do_sample == false) out.temperature = 0.0f;
  // The API takes 0, the engine does not: either way the most likely token stays alone.
  out.top_p = std::max(FLT_MIN, pick(fields.top_p, defaults.top_p, 1.0));
  out.min_p = pick(fields.min_p, defaults.min_p, 0.0);
  out.repetition_penalty = pick(fields.repetition_penalty, defaults.repetition_penalty, 1.0);
  out.top_k = std::max(0, fields.top_k ? *fields.top_k : defaults.top_k.value_or(0));
  out.presence_penalty = static_cast<float>(fields.presence_penalty.value_or(0.0));
  out.frequency_penalty = static_cast<float>(fields.frequency_penalty.value_or(0.0));
  out.seed = fields.seed ? static_cast<uint64_t>(*fields.seed) : random_seed;
  out.logit_bias = fields.logit_bias;
  out.logprobs = fields.logprobs ? fields.top_logprobs : -1;
  return out;
}

Parsed<std::shared_ptr<const TextModel>> text_of(TextModels& texts, const ResolvedModel& model) {
  // A sum of adapters has no tokenizer of its own.
  if (model.entries.size() != 1) return texts.base();
  auto text = texts.for_adapter(model.entries.front());
  if (!text.ok()) return to_api_error(text.error(), "model");
  return std::move(*text);
}

std::string cache_salt_of(const std::optional<std::string>& holder, const std::string& salt) {
  return holder ? *holder + ":" + salt : salt;
}

StreamUsage stream_usage(const GenerationFields& fields) {
  return {fields.include_usage, fields.continuous_usage_stats};
}

Parsed<GenerationPlan> plan_chat(const PlanInputs& inputs, const ChatRequest& request, const MakeAnswer& make_answer) {
  auto plan = common_plan(inputs, request.common, make_answer);
  if (!plan.ok()) return plan;
  const bool with_tools = request.tool_choice != WireToolChoice::kNone && !request.prompt.tools.empty();
  if (with_tools) {
    if (auto error = plan_tools(*plan, request)) return *error;
  }
  if (const Status shown = plan->text->check_documents(request.prompt, with_tools); !shown.ok())
    return at(shown.error(), "documents");
  const auto rendered = plan->text->render_chat(request.prompt, with_tools, inputs.unix_time_s, inputs.work);
  if (!rendered.ok()) return at(rendered.error(), "messages");
  const int64_t length = inputs.engine.max_model_len();
  if (const auto least = surely_more(inputs, *plan->text, *rendered))
    return too_long(length, *least, request.common.max_tokens, "messages");
  const auto reasoning = plan_reasoning(*plan, request, *rendered);
  if (auto error = constrain_chat(inputs, *plan, request, reasoning)) return *error;
  auto ids = plan->text->encode_rendered(*rendered, request.add_special_tokens, within(inputs));
  if (!ids.ok()) return at(std::move(ids).error(), "messages");
  plan->prompts.push_back(std::move(*ids));
  if (auto error = fit(inputs, *plan, request.common.max_tokens, std::nullopt, "messages")) return *error;
  return plan;
}

Parsed<GenerationPlan> plan_completion(const PlanInputs& inputs, const CompletionRequest& request) {
  auto plan = common_plan(inputs, request.common, [&](ResponseHead head) {
    return make_completion_answer(std::move(head), stream_usage(request.common));
  });
  if (!plan.ok()) return plan;
  if (auto error = constrain(inputs, *plan, inputs.grammars.of_output(request.common.output))) return *error;
  const int64_t length = inputs.engine.max_model_len();
  for (const PromptInput& prompt : request.prompts) {
    if (const auto least = surely_more(inputs, *plan->text, prompt.text))
      return too_long(length, *least, request.common.max_tokens, "prompt");
    auto ids = plan->text->encode_prompt(prompt, request.add_special_tokens, within(inputs));
    if (!ids.ok()) return at(std::move(ids).error(), "prompt");
    if (const auto tokens = static_cast<int64_t>(ids->size()); tokens > length)
      return too_long(length, tokens, request.common.max_tokens, "prompt");
    if (request.echo) {
      plan->echo_texts.push_back(
          prompt.is_tokens ? plan->text->tokenizer()->decode(*ids, {.skip_special = plan->skip_special}) : prompt.text);
    }
    plan->prompts.push_back(std::move(*ids));
  }
  const auto fallback = request.common.no_token_limit ? std::nullopt : std::optional(kCompletionTokens);
  if (auto error = fit(inputs, *plan, request.common.max_tokens, fallback, "prompt")) return *error;
  if (auto error = fit_echo(*plan)) return *error;
  plan->own_seeds = !request.common.seed;
  plan->submit.prompt_logprobs = request.echo && (request.common.logprobs || plan->submit.max_tokens == 0);
  return plan;
}

Parsed<EmbeddingPlan> plan_embedding(const PlanInputs& inputs, const EmbeddingRequest& request) {
  auto model =
      resolve_model_for(inputs.key, request.model, inputs.options.model_names, inputs.catalogue, inputs.defaults);
  if (!model.ok()) return model.error();
  auto text = text_of(inputs.texts, *model);
  if (!text.ok()) return text.error();
  EmbeddingPlan plan;
  plan.head = {"embd-" + inputs.response_id, inputs.unix_time_s, model->shown, inputs.engine.fingerprint()};
  plan.model = std::move(*model);
  const int64_t length = inputs.engine.max_model_len();
  const auto refuse = [&](int64_t tokens) {
    ApiError error = api_error_of_status(400, "This model's maximum context length is " + std::to_string(length) +
                                                  " tokens, and one input has at least " + std::to_string(tokens) +
                                                  ". Shorten it or send it in parts.");
    error.param = "input";
    error.code = "context_length_exceeded";
    return error;
  };
  for (const PromptInput& input : request.inputs) {
    if (const auto least = surely_more(inputs, **text, input.text)) return refuse(*least);
    auto ids = (*text)->encode_prompt(input, request.add_special_tokens, within(inputs));
    if (!ids.ok()) return at(std::move(ids).error(), "input");
    if (static_cast<int64_t>(ids->size()) > length) return refuse(static_cast<int64_t>(ids->size()));
    plan.inputs.push_back(std::move(*ids));
  }
  plan.submit.adapters = plan.model.adapters;
  plan.submit.max_tokens = 0;
  plan.submit.cache_salt = cache_salt_of(inputs.cache_holder, "");
  plan.submit.pooling = inputs.options.pooling;
  plan.submit.priority = request.priority;
  plan.submit.client = inputs.client;
  plan.submit.slo = inputs.slo;
  plan.submit.app_id = inputs.app_id;
  plan.base64 = request.base64;
  plan.arrived_ns = inputs.arrived_ns;
  return plan;
}

}  // namespace loralei
