// SPDX-License-Identifier: Apache-2.0
#include "apps/conversation.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "formats/json_util.h"

namespace loralei {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

struct Setting {
  const char* name;
  double least, most;
  bool whole;
};
constexpr std::array<Setting, 4> kSettings = {{{"temperature", 0, 100, false},
                                               {"top_p", 0, 1, false},
                                               {"max_tokens", 1, 1 << 24, true},
                                               {"seed", 0, 9007199254740991.0, true}}};

}  // namespace

ChatOrder read_chat_order(std::string_view line) {
  using Kind = ChatOrder::Kind;
  const std::string_view text = trimmed(line);
  if (text.empty() || text.front() != '/') return {Kind::kSay, std::string(line)};
  if (text.starts_with("//")) return {Kind::kSay, std::string(text.substr(1))};
  const size_t end = std::min(text.find(' '), text.size());
  const std::string_view name = text.substr(1, end - 1);
  const std::string rest(trimmed(text.substr(end)));
  static constexpr std::pair<const char*, Kind> kOrders[] = {
      {"adapter", Kind::kAdapter}, {"model", Kind::kAdapter}, {"system", Kind::kSystem}, {"clear", Kind::kClear},
      {"undo", Kind::kUndo},       {"retry", Kind::kRetry},   {"set", Kind::kSet},       {"save", Kind::kSave},
      {"help", Kind::kHelp},       {"?", Kind::kHelp},        {"quit", Kind::kQuit},     {"exit", Kind::kQuit},
      {"bye", Kind::kQuit}};
  for (const auto& [word, kind] : kOrders)
    if (name == word) return {kind, rest};
  return {Kind::kUnknown, std::string(name)};
}

const char* chat_help() {
  return "/adapter NAME       who answers from now on; alone: the names there are; none: the base\n"
         "/system TEXT        the system message; alone: none\n"
         "/set NAME VALUE     temperature, top_p, max_tokens or seed; without a value: the server's own\n"
         "/retry, /undo       the last question once more; the last question and its answer forgotten\n"
         "/clear              everything forgotten\n"
         "/save FILE          what was said, as JSON\n"
         "/quit               as Ctrl-D\n"
         "Ctrl-C ends an answer. A line that begins with // is said with one / before it.\n";
}

Status Conversation::set(std::string_view name_and_value) {
  const size_t end = std::min(name_and_value.find(' '), name_and_value.size());
  const std::string name(name_and_value.substr(0, end));
  const std::string_view value = trimmed(name_and_value.substr(end));
  const auto* const setting =
      std::find_if(kSettings.begin(), kSettings.end(), [&name](const Setting& one) { return name == one.name; });
  if (setting == kSettings.end())
    return invalid_argument("there is no setting '" + name + "'; temperature, top_p, max_tokens and seed can be set");
  const auto forget = [&] { std::erase_if(settings_, [&name](const auto& one) { return one.first == name; }); };
  if (value.empty()) {
    forget();
    return {};
  }
  double number = 0;
  const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || stop != value.data() + value.size() || !(number >= setting->least) ||
      !(number <= setting->most) || (setting->whole && number != std::floor(number))) {
    char range[64];
    std::snprintf(range, sizeof range, "%.16g to %.16g", setting->least, setting->most);
    return invalid_argument(name + " is a " + (setting->whole ? "whole " : "") + "number from " + range);
  }
  forget();
  settings_.emplace_back(name, setting->whole ? Json(static_cast<int64_t>(number)).dump() : Json(number).dump());
  return {};
}

void Conversation::take_back_question() {
  if (!turns_.empty() && turns_.back().role == "user") turns_.pop_back();
}

bool Conversation::undo() { return again().has_value(); }

std::optional<std::string> Conversation::again() {
  if (!turns_.empty() && turns_.back().role == "assistant") turns_.pop_back();
  if (turns_.empty()) return std::nullopt;
  std::string question = std::move(turns_.back().content);
  turns_.pop_back();
  return question;
}

std::string Conversation::messages(int indent) const {
  Json all = Json::array();
  if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
  for (const Turn& turn : turns_) all.push_back({{"role", turn.role}, {"content", turn.content}});
  return all.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string Conversation::request() const {
  std::string body = "{\"model\": " + Json(model_).dump(-1, ' ', false, Json::error_handler_t::replace) +
                     ", \"stream\": true, \"stream_options\": {\"include_usage\": true}, \"messages\": " + messages(-1);
  for (const auto& [name, value] : settings_) body += ", \"" + name + "\": " + value;
  return body + "}";
}

std::string Conversation::saved() const { return messages(1) + "\n"; }

}  // namespace loralei
