// SPDX-License-Identifier: Apache-2.0
#include "schema/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/fast_hash.h"
#include "schema/tool_call_marks.h"

namespace loralei {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxToolNameBytes = 128;

Status check_tool(const Tool& tool) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  };
  if (tool.name.empty() || tool.name.size() > kMaxToolNameBytes ||
      !std::all_of(tool.name.begin(), tool.name.end(), allowed)) {
    return invalid_argument("a tool's name must have 1 to " + std::to_string(kMaxToolNameBytes) +
                            " letters, digits or _-.:/ characters; '" + tool.name.substr(0, 64) + "' does not");
  }
  if (tool.parameters.empty()) return {};
  TRY(check_json_shape(tool.parameters));
  const Json schema = Json::parse(tool.parameters, nullptr, false);
  if (!schema.is_object())
    return invalid_argument("the parameters of the tool '" + tool.name + "' are no JSON schema object");
  if (schema.contains("type") && schema["type"] != "object") {
    return invalid_argument("the parameters of the tool '" + tool.name + "' must have the type object");
  }
  return {};
}

std::string arguments_key(ToolCallForm form) { return form == ToolCallForm::kLlama3 ? "parameters" : "arguments"; }

GrammarForm arguments_of(const Tool& tool) {
  const std::string schema = tool.parameters.empty()   ? R"({"type": "object", "properties": {}})"
                             : tool.parameters == "{}" ? R"({"type": "object"})"
                                                       : tool.parameters;
  return GrammarForm::schema(schema, "the parameters of the tool '" + tool.name + "'",
                             tool.strict ? SchemaReading::kStrict : SchemaReading::kOpen);
}

// {"name": "f", "arguments": {...}} for one of the tools, spelt like this.
GrammarForm fixed_call(ToolCallForm form, const std::vector<const Tool*>& tools) {
  std::vector<GrammarForm> choices;
  for (const Tool* tool : tools) {
    choices.push_back(GrammarForm::sequence({GrammarForm::literal(tool->name + "\", \"" + arguments_key(form) + "\": "),
                                             arguments_of(*tool), GrammarForm::literal("}")}));
  }
  return GrammarForm::sequence({GrammarForm::literal("{\"name\": \""), GrammarForm::choice(std::move(choices))});
}

// With white space between all of them.
GrammarForm spaced(std::vector<GrammarForm> parts) {
  std::vector<GrammarForm> all;
  for (GrammarForm& part : parts) {
    if (!all.empty()) all.push_back(GrammarForm::space());
    all.push_back(std::move(part));
  }
  return GrammarForm::sequence(std::move(all));
}

// The same in either order and with any white space. Behind the arguments only a name may
// come whose schema they meet.
GrammarForm free_call(ToolCallForm form, const std::vector<const Tool*>& tools) {
  const auto literal = [](std::string text) { return GrammarForm::literal(std::move(text)); };
  const std::string key = "\"" + arguments_key(form) + "\"", name = "\"name\"";
  std::vector<GrammarForm> behind_name, behind_key;
  for (const Tool* tool : tools) {
    behind_name.push_back(
        spaced({literal(tool->name + "\""), literal(","), literal(key), literal(":"), arguments_of(*tool)}));
    behind_key.push_back(
        spaced({arguments_of(*tool), literal(","), literal(name), literal(":"), literal("\"" + tool->name + "\"")}));
  }
  GrammarForm named = GrammarForm::sequence(
      {spaced({literal(name), literal(":"), literal("\"")}), GrammarForm::choice(std::move(behind_name))});
  GrammarForm members = GrammarForm::choice(
      {std::move(named), spaced({literal(key), literal(":"), GrammarForm::choice(std::move(behind_key))})});
  return spaced({literal("{"), std::move(members), literal("}")});
}

GrammarForm call_form(ToolCallForm form, const std::vector<const Tool*>& tools, const ToolChoice& choice) {
  return choice.mode == ToolChoiceMode::kAuto ? free_call(form, tools) : fixed_call(form, tools);
}

// What stands between calls and their marks: as written, or, where the model chooses to
// call, with any white space.
GrammarForm between(std::string_view text, const ToolChoice& choice) {
  if (choice.mode != ToolChoiceMode::kAuto) return GrammarForm::literal(std::string(text));
  const size_t begin = text.find_first_not_of(" \n"), end = text.find_last_not_of(" \n");
  if (begin == std::string_view::npos) return GrammarForm::space();
  GrammarForm mark = GrammarForm::literal(std::string(text.substr(begin, end + 1 - begin)));
  return GrammarForm::sequence({GrammarForm::space(), std::move(mark), GrammarForm::space()});
}

GrammarForm hermes_form(GrammarForm call, const ToolChoice& choice) {
  GrammarForm rest = GrammarForm::sequence(
      {between("\n", choice), std::move(call), between("\n", choice), GrammarForm::marker(std::string(kHermesClose))});
  if (choice.mode == ToolChoiceMode::kAuto)
    return GrammarForm::triggered(std::string(kHermesOpen), std::move(rest), !choice.parallel);
  GrammarForm whole = GrammarForm::sequence({GrammarForm::marker(std::string(kHermesOpen)), std::move(rest)});
  return GrammarForm::repeat(std::move(whole), GrammarForm::literal("\n"), 1, choice.parallel ? -1 : 1);
}

GrammarForm llama3_form(GrammarForm call, const ToolChoice& choice) {
  GrammarForm calls = GrammarForm::repeat(std::move(call), between("; ", choice), 1, choice.parallel ? -1 : 1);
  const GrammarForm tag = GrammarForm::marker(std::string(kPythonTag)), nothing = GrammarForm::literal("");
  if (choice.mode != ToolChoiceMode::kAuto)
    return GrammarForm::sequence({GrammarForm::choice({tag, nothing}), std::move(calls)});
  std::vector<GrammarForm> parts = {GrammarForm::space(),
                                    GrammarForm::choice({GrammarForm::sequence({tag, GrammarForm::space()}), nothing}),
                                    std::move(calls)};
  if (choice.parallel) parts.push_back(GrammarForm::space());  // no promise of another call
  GrammarForm tagged = GrammarForm::sequence(std::move(parts));
  // Free text is what cannot be taken for a call: it begins with neither a brace nor a
  // special token's "<|".
  return GrammarForm::choice(
      {std::move(tagged), nothing,
       GrammarForm::sequence({GrammarForm::regex(R"(\s{0,8}([^\s{<]|<[^|]))"), GrammarForm::any_text()})});
}

// One list has all calls, and the answer ends with it. Some vocabularies write a blank
// behind the marker.
GrammarForm mistral_form(GrammarForm call, const ToolChoice& choice) {
  const bool free = choice.mode == ToolChoiceMode::kAuto;
  GrammarForm open =
      free ? between("[", choice) : GrammarForm::choice({GrammarForm::literal("["), GrammarForm::literal(" [")});
  GrammarForm close =
      free ? GrammarForm::sequence({GrammarForm::space(), GrammarForm::literal("]")}) : GrammarForm::literal("]");
  GrammarForm list = GrammarForm::sequence(
      {std::move(open), GrammarForm::repeat(std::move(call), between(", ", choice), 1, choice.parallel ? -1 : 1),
       std::move(close)});
  if (free) return GrammarForm::triggered(std::string(kMistralMarker), std::move(list), true);
  return GrammarForm::sequence({GrammarForm::marker(std::string(kMistralMarker)), std::move(list)});
}

GrammarForm whole_form(ToolCallForm form, GrammarForm call, const ToolChoice& choice) {
  switch (form) {
    case ToolCallForm::kHermes:
      return hermes_form(std::move(call), choice);
    case ToolCallForm::kLlama3:
      return llama3_form(std::move(call), choice);
    case ToolCallForm::kMistral:
      break;
  }
  return mistral_form(std::move(call), choice);
}

}  // namespace

std::optional<ToolCallForm> detect_tool_call_form(std::string_view source) {
  const auto has = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  if (has(kHermesOpen)) return ToolCallForm::kHermes;
  if (!has("tools")) return std::nullopt;
  if (has(kMistralMarker) && !has("[ARGS]")) return ToolCallForm::kMistral;
  if (has(kPythonTag) || (has("\"parameters\": dictionary") && has("\"name\": function name")))
    return ToolCallForm::kLlama3;
  return std::nullopt;
}

bool takes_single_calls_only(std::string_view source) {
  return source.find("only supports single tool-calls") != std::string_view::npos;
}

std::string tool_call_id(ToolCallForm form, std::string_view unique) {
  if (form != ToolCallForm::kMistral) return "call_" + std::string(unique);
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const auto bytes = std::as_bytes(std::span(unique));
  uint64_t rest = fast_hash(bytes.data(), bytes.size(), 0);
  std::string id(9, '0');
  for (char& c : id) {
    c = kDigits[rest % kDigits.size()];
    rest /= kDigits.size();
  }
  return id;
}

Result<std::vector<Tool>> read_tools(std::string_view text) {
  TRY(check_json_shape(text));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_array()) return invalid_argument("'tools' must be a JSON array");
  if (json.size() > static_cast<size_t>(kMaxTools))
    return invalid_argument("'tools' has more than " + std::to_string(kMaxTools) + " entries");
  std::vector<Tool> tools;
  for (const Json& entry : json) {
    const std::string place = "tools[" + std::to_string(tools.size()) + "]";
    if (!entry.is_object() || !entry.contains("function") || !entry["function"].is_object()) {
      return invalid_argument(place + " must be {\"type\": \"function\", \"function\": {...}}");
    }
    if (entry.contains("type") && entry["type"] != "function")
      return invalid_argument(place + " has a type other than 'function', which is not supported");
    const Json& function = entry["function"];
    if (!function.contains("name") || !function["name"].is_string())
      return invalid_argument(place + ".function needs a 'name'");
    Tool tool;
    tool.name = function["name"].get<std::string>();
    if (function.contains("parameters") && !function["parameters"].is_null())
      tool.parameters = function["parameters"].dump();
    tool.strict = function.contains("strict") && function["strict"] == true;
    TRY(check_tool(tool));
    const bool doubled =
        std::any_of(tools.begin(), tools.end(), [&](const Tool& other) { return other.name == tool.name; });
    if (doubled) return invalid_argument("two tools have the name '" + tool.name + "'");
    tools.push_back(std::move(tool));
  }
  return tools;
}

Result<GrammarForm> tool_grammar_form(ToolCallForm form, const std::vector<Tool>& tools, const ToolChoice& choice) {
  if (choice.mode == ToolChoiceMode::kNone)
    return invalid_argument("tool_choice is none: there is no call to hold to a form");
  if (tools.empty()) return invalid_argument("tool_choice needs tools, but the request has none");
  std::vector<const Tool*> chosen;
  for (const Tool& tool : tools) {
    TRY(check_tool(tool));
    if (choice.mode != ToolChoiceMode::kNamed || tool.name == choice.name) chosen.push_back(&tool);
  }
  if (chosen.empty())
    return invalid_argument("tool_choice names the function '" + choice.name + "', which is none of the tools");
  return whole_form(form, call_form(form, chosen, choice), choice);
}

Result<GrammarPtr> compile_tool_grammar(ToolCallForm form, const std::vector<Tool>& tools, const ToolChoice& choice,
                                        const TakeMemory& take, LeftOpen* left_open) {
  TRY_ASSIGN(const GrammarForm whole, tool_grammar_form(form, tools, choice));
  return compile_form(whole, take, left_open);
}

}  // namespace loralei
