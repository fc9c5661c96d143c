// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "wire/generation_fields.h"

namespace loralei {
namespace {

constexpr size_t kMaxEffortBytes = 32;
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

bool is_function_name(std::string_view name) {
  if (name.empty() || name.size() > 64) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
}

// A string, or an array of text parts, which are joined by newlines.
void read_content(JsonReader& reader, WireMessage& message) {
  const OrderedJson* content = reader.find("content");
  if (!content) return;
  message.has_content = true;
  if (content->is_string()) {
    message.content = content->get<std::string>();
    return;
  }
  if (!content->is_array()) {
    return reader.fail("content", "'" + reader.path_of("content") + "' must be a string or an array of text parts.",
                       "invalid_type");
  }
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string at = "content[" + std::to_string(i) + "]";
    const OrderedJson& part = (*content)[i];
    if (i > 0) message.content += '\n';
    if (part.is_string()) {
      message.content += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object())
      return reader.fail(at, "'" + reader.path_of(at) + "' must be an object with type and text.", "invalid_type");
    JsonReader inner(part, reader.path_of(at) + ".");
    const std::string type = inner.required_string("type", 64);
    if (type != "text" && !inner.failed()) {
      inner.fail("type", "Content parts of the type '" + type + "' are not supported: this server reads text only.",
                 "unsupported_content_type");
    }
    const OrderedJson* text = inner.find("text");
    if (!text || !text->is_string())
      inner.fail("text", "'" + inner.path_of("text") + "' must be a string.", "invalid_type");
    if (inner.failed()) return reader.adopt(inner.error());
    message.content += text->get_ref<const std::string&>();
  }
}

void read_tool_calls(JsonReader& reader, WireMessage& message) {
  const OrderedJson* calls = reader.find_array("tool_calls", kMaxRequestTools);
  for (size_t i = 0; calls && i < calls->size(); ++i) {
    const std::string at = "tool_calls[" + std::to_string(i) + "]";
    if (!(*calls)[i].is_object())
      return reader.fail(at, "'" + reader.path_of(at) + "' must be an object.", "invalid_type");
    JsonReader entry((*calls)[i], reader.path_of(at) + ".");
    const OrderedJson* function = entry.find_object("function");
    if (!function)
      entry.fail("function", "'" + entry.path_of("function") + "' is missing.", "missing_required_parameter");
    if (entry.failed()) return reader.adopt(entry.error());
    JsonReader inner(*function, entry.path_of("function") + ".");
    ToolCall call;
    call.id = entry.string("id", 256).value_or("");
    call.name = inner.required_string("name", 256);
    const OrderedJson* arguments = inner.find("arguments");
    // Some clients send the object itself instead of its text.
    if (arguments) call.arguments = arguments->is_string() ? arguments->get<std::string>() : compact_json(*arguments);
    if (const std::string what = too_complex(call.arguments); !what.empty())  // a template may read it
      inner.fail("arguments", "'" + inner.path_of("arguments") + "' " + what + ".");
    if (entry.failed()) return reader.adopt(entry.error());
    if (inner.failed()) return reader.adopt(inner.error());
    message.tool_calls.push_back(std::move(call));
  }
}

// Fields that the route does not read itself: a template may (reasoning_content,
// thinking ...).
void read_other_fields(JsonReader& reader, const OrderedJson& object, WireMessage& message,
                       std::vector<std::string>& names) {
  static constexpr std::string_view kRead[] = {"role", "content", "name", "tool_call_id", "tool_calls"};
  static constexpr std::string_view kSaysNothing[] = {"refusal", "annotations"};  // of the API's own answers
  const auto is_in = [](const auto& list, const std::string& name) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  for (const auto& [name, value] : object.items()) {
    if (is_in(kRead, name)) continue;
    if (!value.is_null() && (name == "audio" || name == "function_call")) {
      return reader.fail(name,
                         "'" + reader.path_of(name) + "' is not supported. " +
                             (name == "audio" ? "This server reads text." : "Use tool_calls."),
                         "unsupported_parameter");
    }
    message.more += (message.more.empty() ? "{" : ",") + compact_json(OrderedJson(name)) + ":" + compact_json(value);
    if (!value.is_null() && !is_in(kSaysNothing, name)) note_unknown(names, name);
  }
  if (!message.more.empty()) message.more += "}";
}

void read_messages(JsonReader& reader, WirePrompt& prompt) {
  const OrderedJson* list = reader.find_array("messages", kMaxMessages);
  if (!list || list->empty()) {
    return reader.fail("messages", "'messages' is missing or empty.", "missing_required_parameter");
  }
  prompt.messages.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string at = "messages[" + std::to_string(i) + "]";
    if (!(*list)[i].is_object())
      return reader.fail(at, "'" + at + "' must be an object with role and content.", "invalid_type");
    JsonReader inner((*list)[i], at + ".");
    WireMessage message;
    message.role = inner.required_string("role", 64);
    if (!inner.failed() && std::find(std::begin(kRoles), std::end(kRoles), message.role) == std::end(kRoles)) {
      inner.fail("role", "'" + at + ".role' must be system, developer, user, assistant or tool.");
    }
    read_content(inner, message);
    message.null_content = !message.has_content && (*list)[i].contains("content");
    read_tool_calls(inner, message);
    message.name = inner.string("name", 256).value_or("");
    message.tool_call_id = inner.string("tool_call_id", 256).value_or("");
    if (!message.tool_calls.empty() && message.role != "assistant") {
      inner.fail("tool_calls", "Only messages of the assistant may have tool_calls.");
    }
    if (!message.has_content && message.role != "assistant") {
      inner.fail("content", "'" + at + ".content' is missing.", "missing_required_parameter");
    }
    read_other_fields(inner, (*list)[i], message, prompt.message_fields);
    if (inner.failed()) return reader.adopt(inner.error());
    prompt.messages.push_back(std::move(message));
  }
}

void read_tools(JsonReader& reader, std::vector<ToolSpec>& tools) {
  const OrderedJson* list = reader.find_array("tools", kMaxRequestTools);
  for (size_t i = 0; list && i < list->size(); ++i) {
    const std::string at = "tools[" + std::to_string(i) + "]";
    const OrderedJson& entry = (*list)[i];
    if (!entry.is_object()) return reader.fail(at, "'" + at + "' must be an object.", "invalid_type");
    JsonReader outer(entry, at + ".");
    const std::string type = outer.string("type", 64).value_or("function");
    if (type != "function") outer.fail("type", "'" + at + ".type' must be function.");
    const OrderedJson* function = outer.find_object("function");
    if (!function) outer.fail("function", "'" + at + ".function' is missing.", "missing_required_parameter");
    if (outer.failed()) return reader.adopt(outer.error());
    JsonReader inner(*function, at + ".function.");
    ToolSpec tool;
    tool.name = inner.required_string("name");
    if (!inner.failed() && !is_function_name(tool.name)) {
      inner.fail("name", "'" + at + ".function.name' must be 1 to 64 letters, digits, '_', '-' or '.'.");
    }
    tool.description = inner.string("description").value_or("");
    if (const OrderedJson* parameters = inner.find_object("parameters")) tool.parameters = compact_json(*parameters);
    tool.strict = inner.boolean("strict").value_or(false);
    tool.json = compact_json(entry);
    if (inner.failed()) return reader.adopt(inner.error());
    for (const ToolSpec& other : tools) {
      if (other.name == tool.name) return reader.fail(at, "Two tools are named '" + tool.name + "'.");
    }
    tools.push_back(std::move(tool));
  }
}

// For templates that show them, as transformers takes them.
void read_documents(JsonReader& reader, WirePrompt& prompt) {
  const OrderedJson* list = reader.find_array("documents", kMaxDocuments);
  for (size_t i = 0; list && i < list->size(); ++i) {
    const std::string at = "documents[" + std::to_string(i) + "]";
    if (!(*list)[i].is_object())
      return reader.fail(at, "'" + at + "' must be an object, as with title and text.", "invalid_type");
  }
  if (list) prompt.documents = compact_json(*list);
}

void read_tool_choice(JsonReader& reader, ChatRequest& request) {
  const OrderedJson* choice = reader.find("tool_choice");
  if (!choice) return;
  if (choice->is_string()) {
    const auto& text = choice->get_ref<const std::string&>();
    if (text == "none")
      request.tool_choice = WireToolChoice::kNone;
    else if (text == "required")
      request.tool_choice = WireToolChoice::kRequired;
    else if (text != "auto")
      return reader.fail("tool_choice", "'tool_choice' must be auto, none, required or one function.");
  } else if (choice->is_object()) {
    JsonReader outer(*choice, "tool_choice.");
    if (outer.string("type", 64).value_or("function") != "function") {
      outer.fail("type", "'tool_choice.type' must be function.", "unsupported_parameter");
    }
    const OrderedJson* function = outer.find_object("function");
    if (!function) outer.fail("function", "'tool_choice.function' is missing.", "missing_required_parameter");
    if (outer.failed()) return reader.adopt(outer.error());
    JsonReader inner(*function, "tool_choice.function.");
    request.tool_choice = WireToolChoice::kFunction;
    request.tool_choice_name = inner.required_string("name");
    if (inner.failed()) return reader.adopt(inner.error());
    const auto& tools = request.prompt.tools;
    if (std::none_of(tools.begin(), tools.end(),
                     [&](const ToolSpec& t) { return t.name == request.tool_choice_name; })) {
      return reader.fail("tool_choice", "'tool_choice' names a function that is not among 'tools'.");
    }
  } else {
    return reader.fail("tool_choice", "'tool_choice' must be a string or an object.", "invalid_type");
  }
  if (request.tool_choice == WireToolChoice::kRequired && request.prompt.tools.empty()) {
    reader.fail("tool_choice", "'tool_choice' is required, but there are no 'tools'.");
  }
}

}  // namespace

void read_chat_prompt(JsonReader& reader, WirePrompt& prompt) {
  read_messages(reader, prompt);
  read_tools(reader, prompt.tools);
  read_documents(reader, prompt);
  const auto add_prompt = reader.boolean("add_generation_prompt");
  prompt.continue_final_message = reader.boolean("continue_final_message").value_or(false);
  if (prompt.continue_final_message && add_prompt.value_or(false)) {
    reader.fail("continue_final_message", "'continue_final_message' and 'add_generation_prompt' exclude each other.");
  }
  prompt.add_generation_prompt = add_prompt.value_or(!prompt.continue_final_message);
  if (const OrderedJson* kwargs = reader.find_object("chat_template_kwargs"))
    prompt.template_kwargs = compact_json(*kwargs);
  prompt.enable_thinking = reader.boolean("enable_thinking");
  prompt.reasoning_effort = reader.string("reasoning_effort", kMaxEffortBytes).value_or("");
}

Parsed<ChatRequest> parse_chat_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  return read_chat_request(*json);
}

Parsed<ChatRequest> read_chat_request(const OrderedJson& json) {
  JsonReader reader(json);
  ChatRequest request;
  read_generation_fields(reader, request.common);
  read_chat_prompt(reader, request.prompt);
  read_tool_choice(reader, request);
  request.parallel_tool_calls = reader.boolean("parallel_tool_calls").value_or(true);
  request.separate_reasoning = reader.boolean("separate_reasoning").value_or(true);
  request.include_reasoning = reader.boolean("include_reasoning").value_or(true);
  request.add_special_tokens = reader.boolean("add_special_tokens").value_or(false);
  const auto logprobs = reader.boolean("logprobs");
  const auto top_logprobs = reader.integer("top_logprobs", 0, kMaxTopLogprobs);
  request.common.logprobs = logprobs.value_or(false);
  request.common.top_logprobs = static_cast<int>(top_logprobs.value_or(0));
  read_n_probs(reader, request.common, logprobs, top_logprobs);
  if (request.common.top_logprobs > 0 && !request.common.logprobs)
    reader.fail("top_logprobs", "'top_logprobs' needs logprobs: true.");
  check_fields(reader, json,
               {LORALEI_GENERATION_FIELDS, LORALEI_CHAT_PROMPT_FIELDS, "tool_choice", "parallel_tool_calls",
                "separate_reasoning", "include_reasoning", "add_special_tokens"},
               request.common.unknown_fields);
  if (reader.failed()) return reader.error();
  return request;
}

}  // namespace loralei
