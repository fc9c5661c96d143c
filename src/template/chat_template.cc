// SPDX-License-Identifier: Apache-2.0
#include "template/chat_template.h"

#include <algorithm>

#include "template/jinja_json.h"
#include "template/jinja_text.h"

namespace loralei {

namespace {

struct Builtin {
  std::string_view name;
  std::string_view source;
};

constexpr Builtin kBuiltins[] = {
    {"chatml",
     "{% for message in messages %}"
     "{{ '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') ~ '<|im_end|>\\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama2",
     "{% set ns = namespace(system='') %}"
     "{% macro inst(text) %}"
     "{{ bos_token ~ '[INST] ' ~ ('<<SYS>>\\n' ~ ns.system ~ '\\n<</SYS>>\\n\\n' if ns.system else '') ~ text ~ ' "
     "[/INST]' }}"
     "{% endmacro %}"
     "{% for message in messages %}"
     "{% if message.role == 'system' %}"
     "{% set ns.system = (ns.system ~ '\\n\\n' if ns.system else '') ~ message.content %}"
     "{% elif message.role == 'assistant' %}"
     "{{ ' ' ~ (message.content or '') | trim ~ ' ' ~ eos_token }}"
     "{% else %}"
     "{{ inst(message.content | trim) }}"
     "{% set ns.system = '' %}"
     "{% endif %}"
     "{% endfor %}"
     "{% if ns.system %}{{ inst('') }}{% endif %}"},
    {"llama3",
     "{{ bos_token }}"
     "{% for message in messages %}"
     "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ (message.content or '') | trim ~ "
     "'<|eot_id|>' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {"mistral",
     "{{ bos_token }}"
     "{% set ns = namespace(system='') %}"
     "{% for message in messages %}"
     "{% if message.role == 'system' %}"
     "{% set ns.system = ns.system ~ message.content ~ '\\n\\n' %}"
     "{% elif message.role == 'assistant' %}"
     "{{ ' ' ~ (message.content or '') | trim ~ eos_token }}"
     "{% else %}"
     "{{ '[INST] ' ~ ns.system ~ message.content ~ ' [/INST]' }}"
     "{% set ns.system = '' %}"
     "{% endif %}"
     "{% endfor %}"
     "{% if ns.system %}{{ '[INST] ' ~ ns.system | trim ~ ' [/INST]' }}{% endif %}"},
    {"alpaca",
     "{{ bos_token }}"
     "{% for message in messages %}"
     "{% if message.role == 'system' %}"
     "{{ message.content ~ '\\n\\n' }}"
     "{% elif message.role == 'assistant' %}"
     "{{ '### Response:\\n' ~ (message.content or '') ~ eos_token ~ '\\n\\n' }}"
     "{% else %}"
     "{{ '### Instruction:\\n' ~ message.content ~ '\\n\\n' }}"
     "{% endif %}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"},
    {"vicuna",
     "{{ bos_token }}"
     "{% for message in messages %}"
     "{% if message.role == 'system' %}"
     "{{ message.content ~ '\\n\\n' }}"
     "{% elif message.role == 'assistant' %}"
     "{{ 'ASSISTANT: ' ~ (message.content or '') ~ eos_token ~ '\\n' }}"
     "{% else %}"
     "{{ 'USER: ' ~ message.content ~ '\\n' }}"
     "{% endif %}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"},
    {"zephyr",
     "{% for message in messages %}"
     "{{ '<|' ~ message.role ~ '|>\\n' ~ (message.content or '') ~ eos_token ~ '\\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
};

Result<JinjaValue> parse_json(const std::string& text, const char* what, JinjaValue::Kind wanted, Work& work) {
  TRY_ASSIGN(std::optional<JinjaValue> value, jinja_from_json_text(text, work));
  if (!value) return invalid_argument(std::string(what) + " is not valid JSON");
  if (value->kind() != wanted) {
    return invalid_argument(std::string(what) + " must be " +
                            (wanted == JinjaValue::Kind::kList ? "a JSON array" : "a JSON object"));
  }
  return std::move(*value);
}

constexpr std::string_view kDeveloper = "developer";
// As transformers has them; templates read the first two.
constexpr std::string_view kReasoningNames[] = {"reasoning_content", "thinking", "reasoning"};
// Behind the final message's content, to be found in the rendered text: transformers'
// own, which some templates know.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

enum class Arguments : unsigned char { kDict, kText };

JinjaValue tool_call_value(const ChatToolCall& call, Arguments form, Work& work) {
  JinjaValue arguments(call.arguments);
  if (form == Arguments::kDict) {
    Result<JinjaValue> parsed = parse_json(call.arguments, "arguments", JinjaValue::Kind::kDict, work);
    if (parsed.ok()) arguments = std::move(parsed).value();
  }
  JinjaValue function = jinja_dict({{"name", JinjaValue(call.name)}, {"arguments", std::move(arguments)}});
  std::vector<std::pair<std::string, JinjaValue>> fields;
  if (!call.id.empty()) fields.emplace_back("id", JinjaValue(call.id));
  fields.emplace_back("type", JinjaValue("function"));
  fields.emplace_back("function", std::move(function));
  return jinja_dict(std::move(fields));
}

// As the template shall see them.
struct View {
  Arguments arguments = Arguments::kDict;
  bool knows_developers = false;
};

// Servers and templates call reasoning by different names; it is shown under those
// that templates read.
void name_reasoning(const JinjaDict& more, std::vector<std::pair<std::string, JinjaValue>>& fields) {
  const JinjaValue* reasoning = nullptr;
  for (const std::string_view name : kReasoningNames) {
    const JinjaValue* value = more.find(name);
    if (reasoning == nullptr && value != nullptr && !value->is_none()) reasoning = value;
  }
  if (reasoning == nullptr) return;
  const auto standard =
      std::find_if(fields.begin(), fields.end(), [](const auto& field) { return field.first == kReasoningNames[0]; });
  if (standard != fields.end())
    standard->second = *reasoning;
  else
    fields.emplace_back(kReasoningNames[0], *reasoning);
  if (more.find(kReasoningNames[1]) == nullptr) fields.emplace_back(kReasoningNames[1], *reasoning);
}

Result<JinjaValue> message_value(const ChatMessage& message, const View& view, std::string_view tag, Work& work) {
  std::vector<std::pair<std::string, JinjaValue>> fields;
  const bool is_developer = message.role == kDeveloper && !view.knows_developers;
  fields.emplace_back("role", JinjaValue(is_developer ? std::string("system") : message.role));
  if (message.content)
    fields.emplace_back("content", JinjaValue(*message.content + std::string(tag)));
  else if (message.null_content)
    fields.emplace_back("content", JinjaValue::none());
  if (!message.name.empty()) fields.emplace_back("name", JinjaValue(message.name));
  if (!message.tool_call_id.empty()) fields.emplace_back("tool_call_id", JinjaValue(message.tool_call_id));
  if (!message.tool_calls.empty()) {
    std::vector<JinjaValue> calls;
    for (const ChatToolCall& call : message.tool_calls) calls.push_back(tool_call_value(call, view.arguments, work));
    fields.emplace_back("tool_calls", jinja_list(std::move(calls)));
  }
  if (!message.more.empty()) {
    TRY_ASSIGN(const JinjaValue more, parse_json(message.more, "a message", JinjaValue::Kind::kDict, work));
    for (const auto& [name, value] : more.as_dict().items) fields.emplace_back(name.as_string(), value);
    name_reasoning(more.as_dict(), fields);
  }
  return jinja_dict(std::move(fields));
}

Result<JinjaValue> make_context(const ChatPrompt& prompt, const View& view, Work& work) {
  std::vector<std::pair<std::string, JinjaValue>> fields;
  const auto set = [&](const std::string& name, JinjaValue value) {
    for (auto& [old_name, old] : fields) {
      if (old_name == name) {
        old = std::move(value);
        return;
      }
    }
    fields.emplace_back(name, std::move(value));
  };
  for (const auto& [name, text] : prompt.special_tokens) set(name, JinjaValue(text));
  if (!prompt.kwargs.empty()) {
    TRY_ASSIGN(const JinjaValue kwargs,
               parse_json(prompt.kwargs, "chat_template_kwargs", JinjaValue::Kind::kDict, work));
    for (const auto& [name, value] : kwargs.as_dict().items) {
      static constexpr std::string_view kReserved[] = {"messages", "tools", "documents", "add_generation_prompt"};
      if (std::find(std::begin(kReserved), std::end(kReserved), name.as_string()) != std::end(kReserved)) {
        return invalid_argument("chat_template_kwargs may not set '" + name.as_string() +
                                "': it is a field of the request itself");
      }
      if (fields.size() > 256) return invalid_argument("chat_template_kwargs has more than 256 fields");
      set(name.as_string(), value);
    }
  }
  std::vector<JinjaValue> messages;
  for (const ChatMessage& message : prompt.messages) {
    const bool continued = prompt.continue_final_message && &message == &prompt.messages.back();
    TRY_ASSIGN(JinjaValue value, message_value(message, view, continued ? kContinueTag : "", work));
    messages.push_back(std::move(value));
  }
  set("messages", jinja_list(std::move(messages)));
  JinjaValue tools = JinjaValue::none();
  if (!prompt.tools.empty()) {
    TRY_ASSIGN(tools, parse_json(prompt.tools, "tools", JinjaValue::Kind::kList, work));
  }
  set("tools", std::move(tools));
  JinjaValue documents = JinjaValue::none();
  if (!prompt.documents.empty()) {
    TRY_ASSIGN(documents, parse_json(prompt.documents, "documents", JinjaValue::Kind::kList, work));
  }
  set("documents", std::move(documents));
  set("add_generation_prompt", JinjaValue(prompt.add_generation_prompt));
  return jinja_dict(std::move(fields));
}

// Of all the texts of a prompt.
int64_t text_bytes(const ChatPrompt& prompt) {
  size_t bytes = prompt.tools.size() + prompt.documents.size() + prompt.kwargs.size();
  for (const ChatMessage& message : prompt.messages) {
    bytes += message.role.size() + message.name.size() + message.tool_call_id.size() + message.more.size();
    bytes += message.content ? message.content->size() : 0;
    for (const ChatToolCall& call : message.tool_calls)
      bytes += call.id.size() + call.name.size() + call.arguments.size();
  }
  return static_cast<int64_t>(bytes);
}

// Cuts everything behind the last message's text, so that the model goes on with it.
Result<std::string> cut_after_final_message(std::string text, const std::string& content) {
  const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);  // without the blank
  const std::string bare = jinja::strip(content, true, true);
  const size_t at = text.rfind(tag);
  bool shown = at != std::string::npos;
  if (shown) {
    const bool kept = text.compare(at, kContinueTag.size(), kContinueTag) == 0;
    text.resize(at);
    // A template that took the blank takes the content's own trailing white space, too.
    if (!kept && !bare.empty()) text = jinja::strip(text, false, true);
    shown = text.ends_with(kept ? jinja::strip(content, true, false) : bare);
  }
  if (shown) return text;
  return invalid_argument(
      "continue_final_message is set, but the chat template does not show the text of the final message; "
      "give the message text, or turn continue_final_message off");
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::shared_ptr<const JinjaTemplate> parsed)
    : source_(std::move(source)), template_(std::move(parsed)) {
  for (const char quote : {'\'', '"'})
    knows_developers_ |= source_.find(quote + std::string(kDeveloper) + quote) != std::string::npos;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string source) {
  TRY_ASSIGN(auto parsed, JinjaTemplate::parse(source));
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(std::move(source), std::move(parsed)));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::builtin(std::string_view name) {
  std::string names;
  for (const Builtin& builtin : kBuiltins) {
    if (builtin.name == name) return parse(std::string(builtin.source));
    names += (names.empty() ? "" : ", ") + std::string(builtin.name);
  }
  return not_found("there is no built-in chat template '" + std::string(name) + "'; choose one of " + names);
}

std::vector<std::string_view> ChatTemplate::builtin_names() {
  std::vector<std::string_view> names;
  for (const Builtin& builtin : kBuiltins) names.push_back(builtin.name);
  return names;
}

bool ChatTemplate::reads_field(std::string_view name) const {
  const auto holds = [&](std::string_view text) { return source_.find(text) != std::string::npos; };
  const bool is_reasoning =
      std::find(std::begin(kReasoningNames), std::end(kReasoningNames), name) != std::end(kReasoningNames);
  return holds(name) || (is_reasoning && (holds(kReasoningNames[0]) || holds(kReasoningNames[1])));
}

int64_t ChatTemplate::max_render_bytes(int64_t text_bytes) {
  return std::min(JinjaRenderLimits{}.max_held_bytes, (int64_t{32} << 20) + 16 * text_bytes);
}

Result<std::string> ChatTemplate::render(const ChatPrompt& prompt, Work* watched) const {
  if (prompt.messages.empty()) return invalid_argument("messages is empty; a chat needs at least one message");
  if (prompt.continue_final_message && prompt.add_generation_prompt) {
    return invalid_argument(
        "continue_final_message and add_generation_prompt exclude each other; set one of them to false");
  }
  const ChatMessage& final = prompt.messages.back();
  if (prompt.continue_final_message && !final.content)
    return invalid_argument("continue_final_message is set, but the final message has no content to continue");
  Work own;
  Work& work = watched != nullptr ? *watched : own;
  const int64_t bytes = text_bytes(prompt);
  JinjaRenderOptions options;
  options.unix_time_s = prompt.unix_time_s;
  options.limits.max_held_bytes = max_render_bytes(bytes);
  options.work = &work;
  const auto render_with = [&](Arguments arguments) -> Result<std::string> {
    if (!work.spend(bytes)) return work.error();
    TRY_ASSIGN(const JinjaValue context, make_context(prompt, {arguments, knows_developers_}, work));
    return template_->render(context, options);
  };
  Result<std::string> rendered = render_with(Arguments::kDict);
  const bool has_calls = std::any_of(prompt.messages.begin(), prompt.messages.end(),
                                     [](const ChatMessage& message) { return !message.tool_calls.empty(); });
  if (!rendered.ok() && has_calls && !work.stopped()) {
    if (Result<std::string> again = render_with(Arguments::kText); again.ok()) rendered = std::move(again);
  }
  TRY_ASSIGN(std::string text, std::move(rendered));
  if (!prompt.continue_final_message) return text;
  if (!work.spend(4 * static_cast<int64_t>(text.size()))) return work.error();
  return cut_after_final_message(std::move(text), *final.content);
}

Error no_chat_template(std::string_view model) {
  std::string names;
  for (const Builtin& builtin : kBuiltins) names += (names.empty() ? "" : ", ") + std::string(builtin.name);
  return invalid_argument(
      "the model '" + std::string(model) +
      "' has no chat template; use /v1/completions, or start the server with --chat-template FILE or one of " + names);
}

}  // namespace loralei
