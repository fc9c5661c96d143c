// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "wire/generation_fields.h"
#include "wire/responses_api.h"

namespace loralei {
namespace {

constexpr size_t kMaxItems = kMaxMessages;
constexpr const char* kWholeInput =
    " This server stores nothing between requests: send the whole conversation as input.";

// Fields of the API that this reads itself; all others are the chat API's.
constexpr std::string_view kRead[] = {"input",
                                      "instructions",
                                      "tools",
                                      "tool_choice",
                                      "text",
                                      "max_output_tokens",
                                      "include",
                                      "reasoning",
                                      "truncation",
                                      "background",
                                      "previous_response_id",
                                      "conversation",
                                      "prompt",
                                      "metadata",
                                      "stream_options",
                                      "max_tool_calls",
                                      "top_logprobs",
                                      "context_management"};

class Translator {
 public:
  explicit Translator(OrderedJson body) : body_(std::move(body)), reader_(body_) {}

  Parsed<ResponsesRequest> run() {
    refuse_what_needs_a_store();
    read_input();
    read_tools();
    read_tool_choice();
    read_text();
    read_rest();
    if (reader_.failed()) return reader_.error();
    pass_on_others();
    if (reader_.failed()) return reader_.error();
    auto chat = read_chat_request(chat_);
    if (!chat.ok()) return chat.error();
    if (chat->common.n != 1) return invalid_field("n", "A response has one choice; leave 'n' out.");
    ResponsesRequest request{std::move(*chat), std::move(echo_)};
    request.echo.parallel_tool_calls = request.chat.parallel_tool_calls;
    return request;
  }

 private:
  void refuse_what_needs_a_store() {
    for (const char* field : {"previous_response_id", "conversation"}) {
      if (reader_.find(field))
        reader_.fail(field, "'" + std::string(field) + "' is not supported." + kWholeInput, "unsupported_parameter");
    }
    if (reader_.find("prompt")) {
      reader_.fail("prompt", "'prompt' names a template stored at OpenAI; send its text as instructions and input.",
                   "unsupported_parameter");
    }
    if (reader_.boolean("background").value_or(false)) {
      reader_.fail("background", "'background' is not supported: the answer is not kept. Use stream, or wait for it.",
                   "unsupported_parameter");
    }
  }

  OrderedJson& add_message(const char* role) {
    messages_.push_back(OrderedJson::object({{"role", role}}));
    return messages_.back();
  }
  // The assistant's message that items of one turn belong to.
  OrderedJson& assistant_message() {
    if (!messages_.empty() && turn_open_) return messages_.back();
    OrderedJson& message = add_message("assistant");
    if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, "");
    turn_open_ = true;
    return message;
  }

  void read_input() {
    if (const OrderedJson* instructions = reader_.find("instructions")) {
      if (!instructions->is_string())
        return reader_.fail("instructions", "'instructions' must be a string.", "invalid_type");
      add_message("system")["content"] = *instructions;
      echo_.instructions = repeated(*instructions, "null");
    }
    const OrderedJson* input = reader_.find("input");
    if (!input) return reader_.fail("input", "'input' is missing.", "missing_required_parameter");
    if (input->is_string()) {
      add_message("user")["content"] = *input;
      return;
    }
    if (!input->is_array())
      return reader_.fail("input", "'input' must be a string or a list of items.", "invalid_type");
    if (input->empty() || input->size() > kMaxItems)
      return reader_.fail("input", "'input' must have 1 to " + std::to_string(kMaxItems) + " items.");
    for (size_t i = 0; i < input->size() && !reader_.failed(); ++i) {
      const std::string at = "input[" + std::to_string(i) + "]";
      if (!(*input)[i].is_object()) return reader_.fail(at, "'" + at + "' must be an object.", "invalid_type");
      JsonReader item((*input)[i], at + ".");
      read_item(item, at);
      if (item.failed()) reader_.adopt(item.error());
    }
    if (messages_.empty()) reader_.fail("input", "'input' holds no message.");
  }

  void read_item(JsonReader& item, const std::string& at) {
    const std::string type = item.string("type", 64).value_or("message");
    if (type == "message") {
      read_message(item);
    } else if (type == "function_call") {
      read_call(item);
    } else if (type == "function_call_output") {
      turn_open_ = false;
      OrderedJson content = text_of(item, "output");
      OrderedJson& message = add_message("tool");
      message["tool_call_id"] = item.required_string("call_id", 256);
      message["content"] = std::move(content);
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else if (type == "item_reference") {
      item.fail("type", "'" + at + "' names an item stored at OpenAI." + kWholeInput, "unsupported_parameter");
    } else if (!item.failed()) {
      item.fail("type",
                "Input items of the type '" + type +
                    "' are not supported; message, function_call, "
                    "function_call_output and reasoning are.",
                "unsupported_parameter");
    }
  }

  void read_message(JsonReader& item) {
    const std::string role = item.required_string("role", 64);
    OrderedJson content = text_of(item, "content");
    if (item.failed()) return;
    if (role == "assistant") {
      turn_open_ = turn_open_ && !messages_.back().contains("content") && !messages_.back().contains("tool_calls");
      assistant_message()["content"] = std::move(content);
      return;
    }
    turn_open_ = false;
    add_message(role.c_str())["content"] = std::move(content);
  }

  void read_call(JsonReader& item) {
    OrderedJson call = {
        {"id", item.required_string("call_id", 256)},
        {"type", "function"},
        {"function",
         {{"name", item.required_string("name", 256)}, {"arguments", item.string("arguments").value_or("")}}}};
    if (item.failed()) return;
    OrderedJson& message = assistant_message();
    if (!message.contains("tool_calls")) message["tool_calls"] = OrderedJson::array();
    message["tool_calls"].push_back(std::move(call));
  }

  // Shown to templates that read it, with the turn's message; what is encrypted or empty
  // says nothing here.
  void read_reasoning(JsonReader& item) {
    turn_open_ = false;
    for (const char* field : {"content", "summary"}) {
      const OrderedJson* parts = item.find_array(field, kMaxItems);
      for (size_t i = 0; parts && i < parts->size(); ++i) {
        const OrderedJson& part = (*parts)[i];
        if (!part.is_object() || !part.contains("text") || !part["text"].is_string())
          return item.fail(field, "'" + item.path_of(field) + "' must be a list of parts with a text.", "invalid_type");
        reasoning_ += (reasoning_.empty() ? "" : "\n") + part["text"].get_ref<const std::string&>();
      }
      if (!reasoning_.empty()) return;
    }
  }

  // A string, or text parts as the chat API has them.
  OrderedJson text_of(JsonReader& item, const char* field) {
    const OrderedJson* content = item.find(field);
    if (!content) return "";
    if (content->is_string()) return *content;
    const OrderedJson* list = item.find_array(field, kMaxItems);
    OrderedJson parts = OrderedJson::array();
    for (size_t i = 0; list && i < list->size(); ++i) {
      const std::string at = std::string(field) + "[" + std::to_string(i) + "]";
      const OrderedJson& part = (*list)[i];
      const OrderedJson kind = part.is_object() ? part.value("type", OrderedJson()) : OrderedJson();
      const std::string type = kind.is_string() ? kind.get<std::string>() : "?";
      const char* text = type == "refusal" ? "refusal" : "text";
      if (type != "input_text" && type != "output_text" && type != "text" && type != "refusal") {
        item.fail(at,
                  "'" + item.path_of(at) + "' is of the type '" + type.substr(0, 64) +
                      "', which is not supported: this server reads text only.",
                  "unsupported_content_type");
        return "";
      }
      if (!part.contains(text) || !part[text].is_string()) {
        item.fail(at, "'" + item.path_of(at) + "' has no text.", "invalid_type");
        return "";
      }
      parts.push_back({{"type", "text"}, {"text", part[text]}});
    }
    if (parts.size() == 1) return parts[0]["text"];
    if (parts.empty()) return "";
    return parts;
  }

  void read_tools() {
    const OrderedJson* list = reader_.find_array("tools", kMaxRequestTools);
    OrderedJson tools = OrderedJson::array();
    for (size_t i = 0; list && i < list->size(); ++i) {
      const std::string at = "tools[" + std::to_string(i) + "]";
      if (!(*list)[i].is_object()) return reader_.fail(at, "'" + at + "' must be an object.", "invalid_type");
      const std::string type =
          (*list)[i].value("type", OrderedJson("function")).is_string() ? (*list)[i].value("type", "function") : "";
      if (type != "function") {
        return reader_.fail(
            at + ".type",
            "Tools of the type '" + type.substr(0, 64) +
                "' run at OpenAI; here a model calls functions alone, which the client runs. Leave it out.",
            "unsupported_parameter");
      }
      OrderedJson function = OrderedJson::object();
      for (const auto& [key, value] : (*list)[i].items()) {
        if (key != "type" && !value.is_null()) function[key] = value;
      }
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    if (!list) return;
    echo_.tools = repeated(*list, "[]");
    chat_["tools"] = std::move(tools);
  }

  void read_tool_choice() {
    const OrderedJson* choice = reader_.find("tool_choice");
    if (!choice) return;
    echo_.tool_choice = repeated(*choice, "\"auto\"");
    if (!choice->is_object()) {
      chat_["tool_choice"] = *choice;
      return;
    }
    JsonReader inner(*choice, "tool_choice.");
    const std::string type = inner.required_string("type", 64);
    if (type != "function" && !inner.failed())
      inner.fail("type", "'tool_choice.type' must be function.", "unsupported_parameter");
    chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", inner.required_string("name")}}}};
    if (inner.failed()) reader_.adopt(inner.error());
  }

  void read_text() {
    const OrderedJson* text = reader_.find_object("text");
    if (!text) return;
    echo_.text = repeated(*text, echo_.text);
    JsonReader outer(*text, "text.");
    (void)outer.string("verbosity", 64);  // of OpenAI's models
    const OrderedJson* format = outer.find_object("format");
    if (outer.failed()) return reader_.adopt(outer.error());
    if (!format) return;
    JsonReader inner(*format, "text.format.");
    const std::string type = inner.required_string("type", 64);
    if (type == "json_schema") {
      OrderedJson schema = OrderedJson::object();
      for (const auto& [key, value] : format->items()) {
        if (key != "type" && !value.is_null()) schema[key] = value;
      }
      chat_["response_format"] = {{"type", type}, {"json_schema", std::move(schema)}};
    } else {
      chat_["response_format"] = {{"type", type}};
    }
    if (inner.failed()) reader_.adopt(inner.error());
  }

  void read_rest() {
    if (const auto limit = reader_.integer("max_output_tokens", 1, INT_MAX)) {
      chat_["max_tokens"] = *limit;
      echo_.max_output_tokens = std::to_string(*limit);
    }
    (void)reader_.integer("max_tool_calls", 0, INT_MAX);  // of tools that run at OpenAI
    bool logprobs = false;
    const OrderedJson* include = reader_.find_array("include", 64);
    for (size_t i = 0; include && i < include->size(); ++i) {
      if (!(*include)[i].is_string())
        return reader_.fail("include", "'include' must be a list of strings.", "invalid_type");
      logprobs |= (*include)[i] == "message.output_text.logprobs";
    }
    echo_.top_logprobs = static_cast<int>(reader_.integer("top_logprobs", 0, kMaxTopLogprobs).value_or(0));
    if (echo_.top_logprobs > 0 && !logprobs)
      reader_.fail("top_logprobs", "'top_logprobs' needs \"message.output_text.logprobs\" in 'include'.");
    if (logprobs) {
      chat_["logprobs"] = true;
      chat_["top_logprobs"] = echo_.top_logprobs;
    }
    if (const OrderedJson* reasoning = reader_.find_object("reasoning")) {
      JsonReader inner(*reasoning, "reasoning.");
      if (const auto effort = inner.string("effort", 32)) chat_["reasoning_effort"] = *effort;
      if (inner.failed()) reader_.adopt(inner.error());
      echo_.reasoning = repeated(*reasoning, echo_.reasoning);
    }
    if (const auto truncation = reader_.string("truncation", 32)) {
      if (*truncation != "disabled" && *truncation != "auto")
        reader_.fail("truncation", "'truncation' must be disabled or auto.");
      echo_.truncation = "\"" + *truncation + "\"";
    }
    if (const OrderedJson* metadata = reader_.find_object("metadata")) echo_.metadata = repeated(*metadata, "{}");
    if (const OrderedJson* options = reader_.find_object("stream_options")) {
      JsonReader inner(*options, "stream_options.");
      (void)inner.boolean("include_obfuscation");
      if (inner.failed()) reader_.adopt(inner.error());
    }
    for (const auto& [field, echo] : {std::pair{"temperature", &echo_.temperature}, {"top_p", &echo_.top_p}}) {
      const OrderedJson* value = reader_.find(field);
      if (value && value->is_number()) *echo = compact_json(*value);
    }
  }

  // Names and sampling, as the chat API has them; unknown ones too, for it to say so.
  void pass_on_others() {
    for (auto& [key, value] : body_.items()) {
      if (std::find(std::begin(kRead), std::end(kRead), key) != std::end(kRead)) continue;
      if (key == "messages" || key == "max_tokens" || key == "max_completion_tokens" || key == "response_format") {
        reader_.fail(key, "'" + key + "' is a field of /v1/chat/completions; here it is " +
                              (key == "messages"          ? "'input'."
                               : key == "response_format" ? "'text.format'."
                                                          : "'max_output_tokens'."));
      }
      chat_[key] = std::move(value);
    }
    chat_["messages"] = std::move(messages_);
  }

  std::string repeated(const OrderedJson& value, std::string instead) {
    std::string text = compact_json(value);
    repeated_bytes_ += text.size();
    return repeated_bytes_ > kMaxRepeatedBytes ? std::move(instead) : std::move(text);
  }

  OrderedJson body_;
  JsonReader reader_;
  OrderedJson chat_ = OrderedJson::object();
  OrderedJson messages_ = OrderedJson::array();
  bool turn_open_ = false;  // the last message is the assistant's, and more of it may come
  std::string reasoning_;   // of the turn that comes
  ResponsesEcho echo_;
  size_t repeated_bytes_ = 0;
};

}  // namespace

Parsed<ResponsesRequest> parse_responses_request(std::string_view body) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  return Translator(std::move(*json)).run();
}

}  // namespace loralei
