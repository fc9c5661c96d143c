// SPDX-License-Identifier: Apache-2.0
#include "text/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/fast_hash.h"

namespace loralei {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpenMarker = "<tool_call>";
constexpr std::string_view kCloseMarker = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralMarker = "[TOOL_CALLS]";
constexpr size_t kMaxToolNameBytes = 128;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

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

// {"name": "f", "arguments": {...}} for one of the tools.
GrammarForm call_form(ToolCallForm form, const std::vector<const Tool*>& tools) {
  const std::string key = form == ToolCallForm::kLlama3 ? "parameters" : "arguments";
  std::vector<GrammarForm> choices;
  for (const Tool* tool : tools) {
    const std::string schema = tool->parameters.empty()   ? R"({"type": "object", "properties": {}})"
                               : tool->parameters == "{}" ? R"({"type": "object"})"
                                                          : tool->parameters;
    choices.push_back(
        GrammarForm::sequence({GrammarForm::literal(tool->name + "\", \"" + key + "\": "),
                               GrammarForm::schema(schema, "the parameters of the tool '" + tool->name + "'",
                                                   tool->strict ? SchemaReading::kStrict : SchemaReading::kOpen),
                               GrammarForm::literal("}")}));
  }
  return GrammarForm::sequence({GrammarForm::literal("{\"name\": \""), GrammarForm::choice(std::move(choices))});
}

GrammarForm hermes_form(GrammarForm call, const ToolChoice& choice) {
  GrammarForm rest = GrammarForm::sequence({GrammarForm::literal("\n"), std::move(call), GrammarForm::literal("\n"),
                                            GrammarForm::marker(std::string(kCloseMarker))});
  if (choice.mode == ToolChoiceMode::kAuto)
    return GrammarForm::triggered(std::string(kOpenMarker), std::move(rest), !choice.parallel);
  GrammarForm whole = GrammarForm::sequence({GrammarForm::marker(std::string(kOpenMarker)), std::move(rest)});
  return GrammarForm::repeat(std::move(whole), GrammarForm::literal("\n"), 1, choice.parallel ? -1 : 1);
}

GrammarForm llama3_form(GrammarForm call, const ToolChoice& choice) {
  GrammarForm calls = GrammarForm::repeat(std::move(call), GrammarForm::literal("; "), 1, choice.parallel ? -1 : 1);
  GrammarForm tagged = GrammarForm::sequence(
      {GrammarForm::choice({GrammarForm::marker(std::string(kPythonTag)), GrammarForm::literal("")}),
       std::move(calls)});
  if (choice.mode != ToolChoiceMode::kAuto) return tagged;
  // Free text is what cannot be taken for a call: it begins with neither a brace nor a special token's "<|".
  return GrammarForm::choice(
      {std::move(tagged), GrammarForm::literal(""),
       GrammarForm::sequence({GrammarForm::regex(R"(\s{0,8}([^\s{<]|<[^|]))"), GrammarForm::any_text()})});
}

// One list has all calls, and the answer ends with it. Some vocabularies write a blank behind the marker.
GrammarForm mistral_form(GrammarForm call, const ToolChoice& choice) {
  GrammarForm list = GrammarForm::sequence(
      {GrammarForm::choice({GrammarForm::literal("["), GrammarForm::literal(" [")}),
       GrammarForm::repeat(std::move(call), GrammarForm::literal(", "), 1, choice.parallel ? -1 : 1),
       GrammarForm::literal("]")});
  if (choice.mode == ToolChoiceMode::kAuto)
    return GrammarForm::triggered(std::string(kMistralMarker), std::move(list), true);
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
  if (has(kOpenMarker)) return ToolCallForm::kHermes;
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

Result<GrammarPtr> compile_tool_grammar(ToolCallForm form, const std::vector<Tool>& tools, const ToolChoice& choice,
                                        const TakeMemory& take, LeftOpen* left_open) {
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
  return compile_form(whole_form(form, call_form(form, chosen), choice), take, left_open);
}

// --- the parser

namespace {

enum class Match : unsigned char { kYes, kMore, kNo };

// Reads the beginning of a call, piece by piece; each piece may still be incomplete.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  // in_list: behind the bracket or comma of a list.
  Match run(bool in_list, std::string& name, size_t& arguments_at) {
    Match match = in_list ? either("[", ",") : Match::kYes;
    if (match == Match::kYes) match = word("{");
    if (match == Match::kYes) match = word("\"name\"");
    if (match == Match::kYes) match = word(":");
    if (match == Match::kYes) match = string(name);
    if (match == Match::kYes) match = word(",");
    if (match == Match::kYes) match = either("\"arguments\"", "\"parameters\"");
    if (match == Match::kYes) match = word(":");
    if (match == Match::kYes) match = word("{");
    if (match == Match::kYes) arguments_at = at_ - 1;
    return match;
  }

 private:
  Match word(std::string_view wanted) {
    at_ = skip_space(text_, at_);
    const std::string_view found = text_.substr(at_, wanted.size());
    if (found == wanted) {
      at_ += wanted.size();
      return Match::kYes;
    }
    return wanted.substr(0, found.size()) == found ? Match::kMore : Match::kNo;
  }

  Match either(std::string_view one, std::string_view other) {
    const Match match = word(one);
    return match == Match::kNo ? word(other) : match;
  }

  Match string(std::string& out) {
    at_ = skip_space(text_, at_);
    if (at_ >= text_.size()) return Match::kMore;
    if (text_[at_] != '"') return Match::kNo;
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return text_.size() - at_ > 8 * kMaxToolNameBytes ? Match::kNo : Match::kMore;
    const Json value = Json::parse(text_.substr(at_, end + 1 - at_), nullptr, false);
    if (!value.is_string()) return Match::kNo;
    out = value.get<std::string>();
    at_ = end + 1;
    return Match::kYes;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// How much of the end of `text` could be the beginning of the marker.
size_t marker_tail(std::string_view text, std::string_view marker) {
  for (size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == marker.substr(0, size)) return size;
  }
  return 0;
}

std::string without_outer_space(std::string_view text) {
  size_t begin = skip_space(text, 0);
  size_t end = text.size();
  while (end > begin && is_space(text[end - 1])) --end;
  return std::string(text.substr(begin, end - begin));
}

std::string without_markers(std::string text) {
  for (const std::string_view marker : {kOpenMarker, kCloseMarker}) {
    for (size_t at = text.find(marker); at != std::string::npos; at = text.find(marker)) text.erase(at, marker.size());
  }
  return text;
}

}  // namespace

std::vector<ToolCallEvent> ToolCallParser::push(std::string_view text) {
  pending_ += text;
  Events out;
  run(out, false);
  return out;
}

std::vector<ToolCallEvent> ToolCallParser::finish() {
  Events out;
  run(out, true);
  return out;
}

void ToolCallParser::run(Events& out, bool at_end) {
  bool more = true;
  while (more) {
    switch (state_) {
      case State::kContent:
        more = form_ == ToolCallForm::kLlama3 ? run_beginning(out, at_end) : run_content(out, at_end);
        break;
      case State::kHeader:
        more = run_header(out, at_end);
        break;
      case State::kArguments:
        more = run_arguments(out);
        break;
      case State::kTail:
        more = run_tail(at_end);
        break;
      case State::kBroken:
        more = run_broken(out, at_end);
        break;
      case State::kPlain:
        emit_content(out, std::exchange(pending_, {}));
        more = false;
        break;
    }
  }
  if (at_end && state_ == State::kArguments) {  // cut off in the middle, by a length limit
    out.push_back({ToolCallEvent::Kind::kCallEnd, calls_ - 1, {}});
    state_ = State::kTail;
  }
}

void ToolCallParser::emit_content(Events& out, std::string text) {
  if (!text.empty()) out.push_back({ToolCallEvent::Kind::kContent, 0, std::move(text)});
}

void ToolCallParser::begin_call(Events& out, std::string name) {
  out.push_back({ToolCallEvent::Kind::kCallBegin, calls_++, std::move(name)});
  depth_ = 0;
  in_string_ = escaped_ = false;
}

// hermes, mistral: text up to a marker. White space and what may be the marker's beginning wait.
bool ToolCallParser::run_content(Events& out, bool at_end) {
  const std::string_view marker = form_ == ToolCallForm::kHermes ? kOpenMarker : kMistralMarker;
  const size_t found = pending_.find(marker);
  size_t keep = found;
  if (found == std::string::npos) {
    if (at_end && (calls_ == 0 || skip_space(pending_, 0) < pending_.size())) {
      // The last of the text: nothing follows that white space could belong to.
      emit_content(out, std::exchange(pending_, {}));
      return false;
    }
    keep = pending_.size() - marker_tail(pending_, marker);
  }
  while (keep > 0 && is_space(pending_[keep - 1])) --keep;
  emit_content(out, pending_.substr(0, keep));
  if (found == std::string::npos) {
    pending_.erase(0, keep);
    return false;
  }
  pending_.erase(0, found + marker.size());
  state_ = State::kHeader;
  return true;
}

// llama3: a call begins the text, or follows another.
bool ToolCallParser::run_beginning(Events& out, bool at_end) {
  size_t at = skip_space(pending_, 0);
  if (calls_ > 0 && at < pending_.size() && pending_[at] == ';') at = skip_space(pending_, at + 1);
  if (at < pending_.size() && pending_[at] == '{') {
    pending_.erase(0, at);
    state_ = State::kHeader;
    return true;
  }
  const std::string_view rest = std::string_view(pending_).substr(at);
  if (calls_ == 0 && rest.substr(0, kPythonTag.size()) == kPythonTag) {
    pending_.erase(0, at + kPythonTag.size());
    return true;
  }
  const bool may_come = rest.empty() || (calls_ == 0 && kPythonTag.substr(0, rest.size()) == rest);
  if (may_come && !at_end) return false;
  if (at_end && rest.empty() && calls_ > 0) {
    pending_.clear();
    return false;
  }
  state_ = State::kPlain;
  return true;
}

bool ToolCallParser::run_header(Events& out, bool at_end) {
  std::string name;
  size_t arguments_at = 0;
  const Match match = HeaderReader(pending_).run(form_ == ToolCallForm::kMistral, name, arguments_at);
  if (match == Match::kYes) {
    pending_.erase(0, arguments_at);
    begin_call(out, std::move(name));
    state_ = State::kArguments;
    return true;
  }
  if (match == Match::kMore && !at_end) return false;
  state_ = form_ == ToolCallForm::kHermes ? State::kBroken : State::kPlain;
  return true;
}

bool ToolCallParser::run_arguments(Events& out) {
  size_t at = 0;
  bool closed = false;
  for (; at < pending_.size() && !closed; ++at) {
    const char c = pending_[at];
    if (in_string_) {
      if (escaped_)
        escaped_ = false;
      else if (c == '\\')
        escaped_ = true;
      else if (c == '"')
        in_string_ = false;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      closed = --depth_ == 0;
    }
  }
  if (at > 0) out.push_back({ToolCallEvent::Kind::kArguments, calls_ - 1, pending_.substr(0, at)});
  pending_.erase(0, at);
  if (!closed) return false;
  out.push_back({ToolCallEvent::Kind::kCallEnd, calls_ - 1, {}});
  state_ = State::kTail;
  return true;
}

// The call's own closing brace and marker. A call that lacks them has ended all the same.
bool ToolCallParser::run_tail(bool at_end) {
  size_t at = skip_space(pending_, 0);
  if (at == pending_.size()) {
    if (at_end) pending_.clear();
    return false;
  }
  if (pending_[at] == '}') ++at;
  if (form_ == ToolCallForm::kHermes) {
    at = skip_space(pending_, at);
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (rest.substr(0, kCloseMarker.size()) == kCloseMarker) {
      at += kCloseMarker.size();
    } else if (kCloseMarker.substr(0, rest.size()) == rest) {
      if (at_end) pending_.clear();
      return false;
    }
  }
  if (form_ == ToolCallForm::kMistral) {
    at = skip_space(pending_, at);
    if (at == pending_.size()) {
      if (at_end) pending_.clear();
      return false;
    }
    if (pending_[at] == ',') {  // of the next call
      pending_.erase(0, at);
      state_ = State::kHeader;
      return true;
    }
    if (pending_[at] == ']') ++at;
  }
  pending_.erase(0, at);
  state_ = State::kContent;
  return true;
}

// A call in another order of fields is read as a whole; what is no call becomes content.
bool ToolCallParser::run_broken(Events& out, bool at_end) {
  const size_t found = pending_.find(kCloseMarker);
  if (found == std::string::npos && !at_end) return false;
  std::string body = pending_.substr(0, found);
  if (found == std::string::npos) body.resize(body.size() - marker_tail(body, kCloseMarker));
  pending_.erase(0, found == std::string::npos ? found : found + kCloseMarker.size());
  state_ = State::kContent;
  const Json call = check_json_shape(body).ok() ? Json::parse(body, nullptr, false) : Json();
  const bool is_call = call.is_object() && call.contains("name") && call["name"].is_string();
  if (!is_call) {
    emit_content(out, without_outer_space(without_markers(std::move(body))));
    return true;
  }
  const char* key = call.contains("arguments") ? "arguments" : "parameters";
  begin_call(out, call["name"].get<std::string>());
  out.push_back({ToolCallEvent::Kind::kArguments, calls_ - 1, call.contains(key) ? call[key].dump() : "{}"});
  out.push_back({ToolCallEvent::Kind::kCallEnd, calls_ - 1, {}});
  return true;
}

}  // namespace loralei
