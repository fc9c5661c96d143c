// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "wire/generation_fields.h"
#include "wire/messages_api.h"

namespace loralei {
namespace {

// Fields of the API that this reads itself; all others are the chat API's.
constexpr std::string_view kRead[] = {
    "messages",      "system",        "stop_sequences", "max_tokens",    "tools",
    "tool_choice",   "thinking",      "output_config",  "output_format", "metadata",
    "cache_control", "service_tier",  "mcp_servers",    "container",     "context_management",
    "stream",        "inference_geo", "betas",          "speed"};

class Translator {
 public:
  Translator(OrderedJson body, bool counts_only) : body_(std::move(body)), reader_(body_), counts_only_(counts_only) {}

  Parsed<ChatRequest> run() {
    read_system();
    read_messages();
    read_tools();
    read_tool_choice();
    read_output();
    read_rest();
    if (reader_.failed()) return reader_.error();
    pass_on_others();
    auto chat = read_chat_request(chat_);
    if (chat.ok() && chat->common.n != 1) return invalid_field("n", "A message is one answer; leave 'n' out.");
    return chat;
  }

 private:
  static bool is_text(const OrderedJson& block) { return block.value("type", OrderedJson()) == "text"; }

  // A string or text blocks, as the chat API has them.
  OrderedJson text_of(JsonReader& reader, const char* field) {
    const OrderedJson* content = reader.find(field);
    if (!content) return "";
    if (content->is_string()) return *content;
    OrderedJson parts = OrderedJson::array();
    const OrderedJson* list = reader.find_array(field, kMaxMessages);
    for (size_t i = 0; list && i < list->size(); ++i) {
      const std::string at = std::string(field) + "[" + std::to_string(i) + "]";
      if (!(*list)[i].is_object() || !is_text((*list)[i])) {
        refuse_block(reader, at, (*list)[i]);
        return "";
      }
      add_text(reader, at, (*list)[i], parts);
    }
    return joined(std::move(parts));
  }
  static OrderedJson joined(OrderedJson parts) {
    if (parts.empty()) return "";
    if (parts.size() == 1) return parts[0]["text"];
    return parts;
  }
  static void add_text(JsonReader& reader, const std::string& at, const OrderedJson& block, OrderedJson& parts) {
    if (!block.contains("text") || !block["text"].is_string())
      return reader.fail(at + ".text", "'" + reader.path_of(at) + ".text' must be a string.", "invalid_type");
    parts.push_back({{"type", "text"}, {"text", block["text"]}});
  }
  static void refuse_block(JsonReader& reader, const std::string& at, const OrderedJson& block) {
    const OrderedJson type = block.is_object() ? block.value("type", OrderedJson()) : OrderedJson();
    const std::string name = type.is_string() ? type.get<std::string>().substr(0, 64) : "?";
    reader.fail(at,
                "'" + reader.path_of(at) + "' is a block of the type '" + name +
                    "', which is not supported there: this server reads text, and calls of tools that clients run.",
                "unsupported_content_type");
  }

  void read_system() {
    if (!reader_.find("system")) return;
    messages_.push_back({{"role", "system"}, {"content", text_of(reader_, "system")}});
  }

  void read_messages() {
    const OrderedJson* list = reader_.find_array("messages", kMaxMessages);
    if (!list || list->empty())
      return reader_.fail("messages", "'messages' is missing or empty.", "missing_required_parameter");
    for (size_t i = 0; i < list->size() && !reader_.failed(); ++i) {
      const std::string at = "messages[" + std::to_string(i) + "]";
      if (!(*list)[i].is_object())
        return reader_.fail(at, "'" + at + "' must be an object with role and content.", "invalid_type");
      JsonReader message((*list)[i], at + ".");
      const std::string role = message.required_string("role", 64);
      if (!message.failed() && role != "user" && role != "assistant") {
        message.fail("role", "'" + at + ".role' must be user or assistant; system has a field of its own.");
      } else if (!message.find("content")) {
        message.fail("content", "'" + at + ".content' is missing.", "missing_required_parameter");
      } else if (role == "user") {
        read_user(message);
      } else {
        read_assistant(message);
      }
      if (message.failed()) reader_.adopt(message.error());
    }
    if (reader_.failed() || messages_.back()["role"] != "assistant" || messages_.back().contains("tool_calls")) return;
    chat_["continue_final_message"] = true;
  }

  // The blocks of a message, a string as one.
  static OrderedJson blocks_of(JsonReader& message) {
    const OrderedJson* content = message.find("content");
    if (content && content->is_string()) return OrderedJson::array({{{"type", "text"}, {"text", *content}}});
    const OrderedJson* list = message.find_array("content", kMaxMessages);
    return list ? *list : OrderedJson::array();
  }

  // Messages of one role that follow each other are one, as there.
  OrderedJson& message_of(const char* role) {
    if (messages_.empty() || messages_.back()["role"] != role)
      messages_.push_back(OrderedJson::object({{"role", role}}));
    return messages_.back();
  }
  static void add_content(OrderedJson& message, OrderedJson parts) {
    if (parts.empty()) return;
    OrderedJson all = OrderedJson::array();
    if (message.contains("content")) {
      OrderedJson& before = message["content"];
      if (before.is_array())
        all = std::move(before);
      else
        all.push_back({{"type", "text"}, {"text", before}});
    }
    for (OrderedJson& part : parts) all.push_back(std::move(part));
    message["content"] = joined(std::move(all));
  }

  // Results of calls come first, each as a message of its own.
  void read_user(JsonReader& message) {
    const OrderedJson blocks = blocks_of(message);
    OrderedJson parts = OrderedJson::array();
    for (size_t i = 0; i < blocks.size() && !message.failed(); ++i) {
      const std::string at = "content[" + std::to_string(i) + "]";
      const OrderedJson& block = blocks[i];
      if (block.is_object() && is_text(block)) {
        add_text(message, at, block, parts);
      } else if (block.is_object() && block.value("type", OrderedJson()) == "tool_result") {
        JsonReader result(block, message.path_of(at) + ".");
        OrderedJson tool = {{"role", "tool"},
                            {"tool_call_id", result.required_string("tool_use_id", 256)},
                            {"content", text_of(result, "content")}};
        if (result.boolean("is_error").value_or(false)) tool["is_error"] = true;  // for templates that show it
        if (result.failed()) return message.adopt(result.error());
        messages_.push_back(std::move(tool));
      } else {
        refuse_block(message, at, block);
      }
    }
    if (message.failed()) return;
    if (parts.empty() && !blocks.empty()) return;  // results alone
    OrderedJson& user = message_of("user");
    add_content(user, std::move(parts));
    if (!user.contains("content")) user["content"] = "";
  }

  void read_assistant(JsonReader& message) {
    const OrderedJson blocks = blocks_of(message);
    OrderedJson& out = message_of("assistant");
    OrderedJson parts = OrderedJson::array();
    for (size_t i = 0; i < blocks.size() && !message.failed(); ++i) {
      const std::string at = "content[" + std::to_string(i) + "]";
      const OrderedJson& block = blocks[i];
      const OrderedJson type = block.is_object() ? block.value("type", OrderedJson()) : OrderedJson();
      JsonReader inner(block, message.path_of(at) + ".");
      if (type == "text") {
        add_text(message, at, block, parts);
      } else if (type == "tool_use") {
        OrderedJson call = {{"id", inner.required_string("id", 256)}, {"type", "function"}};
        const OrderedJson* input = inner.find_object("input");
        call["function"] = {{"name", inner.required_string("name", 256)},
                            {"arguments", input ? *input : OrderedJson::object()}};
        if (!out.contains("tool_calls")) out["tool_calls"] = OrderedJson::array();
        out["tool_calls"].push_back(std::move(call));
      } else if (type == "thinking") {
        const std::string before =
            out.contains("reasoning_content") ? out["reasoning_content"].get<std::string>() + "\n" : "";
        out["reasoning_content"] = before + inner.required_string("thinking");
      } else if (type != "redacted_thinking") {  // which nobody but Anthropic reads
        refuse_block(message, at, block);
      }
      if (inner.failed()) message.adopt(inner.error());
    }
    if (message.failed()) return;
    add_content(out, std::move(parts));
    if (!out.contains("content") && !out.contains("tool_calls")) out["content"] = "";
  }

  void read_tools() {
    const OrderedJson* list = reader_.find_array("tools", kMaxRequestTools);
    OrderedJson tools = OrderedJson::array();
    for (size_t i = 0; list && i < list->size(); ++i) {
      const std::string at = "tools[" + std::to_string(i) + "]";
      if (!(*list)[i].is_object()) return reader_.fail(at, "'" + at + "' must be an object.", "invalid_type");
      JsonReader tool((*list)[i], at + ".");
      const std::string type = tool.string("type", 128).value_or("custom");
      if (type != "custom") {
        tool.fail("type",
                  "Tools of the type '" + type +
                      "' are Anthropic's own; here a model calls tools that the client "
                      "describes by input_schema. Leave it out.",
                  "unsupported_parameter");
      }
      OrderedJson function = {{"name", tool.required_string("name")}};
      if (const auto description = tool.string("description")) function["description"] = *description;
      if (const OrderedJson* schema = tool.find_object("input_schema")) function["parameters"] = *schema;
      if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
      if (tool.failed()) return reader_.adopt(tool.error());
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    if (list) chat_["tools"] = std::move(tools);
  }

  void read_tool_choice() {
    const OrderedJson* choice = reader_.find_object("tool_choice");
    if (!choice) return;
    JsonReader inner(*choice, "tool_choice.");
    const std::string type = inner.required_string("type", 64);
    if (type == "auto" || type == "none") {
      chat_["tool_choice"] = type;
    } else if (type == "any") {
      chat_["tool_choice"] = "required";
    } else if (type == "tool") {
      chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", inner.required_string("name")}}}};
    } else if (!inner.failed()) {
      inner.fail("type", "'tool_choice.type' must be auto, any, tool or none.");
    }
    if (inner.boolean("disable_parallel_tool_use").value_or(false)) chat_["parallel_tool_calls"] = false;
    if (inner.failed()) reader_.adopt(inner.error());
  }

  // The form of the answer, which has had two names.
  void read_output() {
    const OrderedJson* config = reader_.find_object("output_config");
    const OrderedJson* format = reader_.find_object("output_format");
    if (config) {
      JsonReader inner(*config, "output_config.");
      if (const auto effort = inner.string("effort", 32)) chat_["reasoning_effort"] = *effort;
      if (const OrderedJson* own = inner.find_object("format")) format = own;
      if (inner.failed()) reader_.adopt(inner.error());
    }
    if (!format) return;
    JsonReader inner(*format, "output_format.");
    const std::string type = inner.required_string("type", 64);
    const OrderedJson* schema = inner.find_object("schema");
    if (!inner.failed() && (type != "json_schema" || !schema))
      inner.fail("type", "'output_format' must be of the type json_schema, with a schema.");
    if (inner.failed()) return reader_.adopt(inner.error());
    chat_["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
  }

  void read_rest() {
    if (const auto limit = reader_.integer("max_tokens", 1, INT_MAX))
      chat_["max_tokens"] = *limit;
    else if (!counts_only_)
      reader_.fail("max_tokens", "'max_tokens' is missing: say how many tokens the answer may have.",
                   "missing_required_parameter");
    if (const OrderedJson* stops = reader_.find_array("stop_sequences", kMaxStopStrings)) chat_["stop"] = *stops;
    chat_["stream"] = reader_.boolean("stream").value_or(false);
    if (const OrderedJson* thinking = reader_.find_object("thinking")) {
      JsonReader inner(*thinking, "thinking.");
      const std::string type = inner.required_string("type", 64);
      if (!inner.failed() && type != "enabled" && type != "disabled" && type != "adaptive")
        inner.fail("type", "'thinking.type' must be enabled, adaptive or disabled.");
      (void)inner.integer("budget_tokens", 0, INT_MAX);  // models here end their thinking themselves
      if (inner.failed()) reader_.adopt(inner.error());
      chat_["enable_thinking"] = type != "disabled";
    }
    for (const char* field : {"logprobs", "top_logprobs", "n_probs"}) {
      if (reader_.find(field))
        reader_.fail(field, "Messages have no log-probabilities; ask /v1/chat/completions for them.",
                     "unsupported_parameter");
    }
    for (const char* field : {"mcp_servers", "container"}) {
      const OrderedJson* value = reader_.find(field);
      if (value && !(value->is_array() && value->empty()))
        reader_.fail(field, "'" + std::string(field) + "' runs at Anthropic and is not supported here; leave it out.",
                     "unsupported_parameter");
    }
  }

  // Names of adapters and sampling, as the chat API has them; unknown ones too,
  // for it to say so.
  void pass_on_others() {
    for (auto& [key, value] : body_.items()) {
      if (std::find(std::begin(kRead), std::end(kRead), key) == std::end(kRead)) chat_[key] = std::move(value);
    }
    chat_["messages"] = std::move(messages_);
  }

  OrderedJson body_;
  JsonReader reader_;
  const bool counts_only_;
  OrderedJson chat_ = OrderedJson::object();
  OrderedJson messages_ = OrderedJson::array();
};

Parsed<ChatRequest> parse(std::string_view body, bool counts_only) {
  auto json = parse_json_object(body);
  if (!json.ok()) return json.error();
  return Translator(std::move(*json), counts_only).run();
}

}  // namespace

Parsed<ChatRequest> parse_messages_request(std::string_view body) { return parse(body, false); }
Parsed<ChatRequest> parse_count_tokens_request(std::string_view body) { return parse(body, true); }

}  // namespace loralei
