// SPDX-License-Identifier: Apache-2.0
// The parser: streamed text to content and calls.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "schema/tool_call_marks.h"
#include "schema/tool_calls.h"

namespace loralei {

namespace {

constexpr size_t kNowhere = std::string_view::npos;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

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
  for (const std::string_view marker : {kHermesOpen, kHermesClose}) {
    for (size_t at = text.find(marker); at != kNowhere; at = text.find(marker)) text.erase(at, marker.size());
  }
  return text;
}

}  // namespace

// --- the object

ToolCallObject::Found ToolCallObject::read(std::string_view text) {
  while (place_ != Place::kClosed && at_ < text.size()) {
    if (!step(text)) return Found::kMalformed;
    ++at_;
  }
  return place_ == Place::kClosed ? Found::kClosed : Found::kMore;
}

bool ToolCallObject::step(std::string_view text) {
  const char c = text[at_];
  if (place_ == Place::kInValue) return step_value(text);
  if (place_ != Place::kInKey && is_space(c)) return true;
  const auto take = [&](bool expected, Place next) {
    if (expected) place_ = next;
    return expected;
  };
  switch (place_) {
    case Place::kSeparator:
      return take(c == '[' || c == ',', Place::kOpen);
    case Place::kOpen:
      return take(c == '{', Place::kFirstKey);
    case Place::kFirstKey:
      if (c == '}') return take(true, Place::kClosed);
      [[fallthrough]];
    case Place::kKey:
      begin_ = at_ + 1;
      return take(c == '"', Place::kInKey);
    case Place::kInKey:
      if (!string_ends(c)) return true;
      member_ = member_of(text.substr(begin_, at_ - begin_));
      return take(true, Place::kColon);
    case Place::kColon:
      return take(c == ':', Place::kValue);
    case Place::kValue:
      begin_ = at_;
      return begin_value(c) && take(true, Place::kInValue);
    case Place::kBehindValue:
      return take(c == ',', Place::kKey) || take(c == '}', Place::kClosed);
    case Place::kInValue:
    case Place::kClosed:
      break;
  }
  return false;
}

bool ToolCallObject::string_ends(char c) {
  if (escaped_) {
    escaped_ = false;
    return false;
  }
  escaped_ = c == '\\';
  return c == '"';
}

// The first of equal members counts.
ToolCallObject::Member ToolCallObject::member_of(std::string_view key) const {
  if (key == "name" && !name_) return Member::kName;
  if ((key == "arguments" || key == "parameters") && !has_arguments()) return Member::kArguments;
  return Member::kOther;
}

bool ToolCallObject::begin_value(char c) {
  const bool nests = c == '{' || c == '[';
  if (member_ == Member::kName && c != '"') return false;
  if (member_ == Member::kArguments && c != '{') return false;
  if (member_ == Member::kArguments) arguments_begin_ = at_;
  in_string_ = c == '"';
  depth_ = nests ? 1 : 0;
  return nests || in_string_ || c == '-' || (c >= '0' && c <= '9') || c == 't' || c == 'f' || c == 'n';
}

bool ToolCallObject::step_value(std::string_view text) {
  const char c = text[at_];
  if (in_string_) {
    in_string_ = !string_ends(c);
    return in_string_ || depth_ > 0 || end_value(text, at_ + 1);
  }
  if (depth_ == 0) {  // a number, or a word
    if (!is_space(c) && c != ',' && c != '}') return c != '"' && c != '{' && c != '[' && c != ']' && c != ':';
    return end_value(text, at_) && step(text);
  }
  in_string_ = c == '"';
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
  return depth_ > 0 || end_value(text, at_ + 1);
}

bool ToolCallObject::end_value(std::string_view text, size_t end) {
  place_ = Place::kBehindValue;
  if (member_ == Member::kArguments) arguments_end_ = end;
  if (member_ != Member::kName) return true;
  const auto name = nlohmann::json::parse(text.substr(begin_, end - begin_), nullptr, false);
  if (name.is_string()) name_ = name.get<std::string>();
  return name.is_string();
}

// --- the text

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
      case State::kCall:
        more = run_call(out, at_end);
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
}

void ToolCallParser::emit_content(Events& out, std::string text) {
  if (!text.empty()) out.push_back({ToolCallEvent::Kind::kContent, 0, std::move(text)});
}

// pending_ begins with a call's object, or with what stands before it in a list.
void ToolCallParser::expect_call() {
  call_ = ToolCallObject(in_list());
  begun_ = open_ = false;
  state_ = State::kCall;
}

void ToolCallParser::begin_call(Events& out, std::string name) {
  out.push_back({ToolCallEvent::Kind::kCallBegin, calls_++, std::move(name)});
  begun_ = open_ = true;
  passed_ = call_.arguments_begin();
}

void ToolCallParser::pass_on_arguments(Events& out) {
  const size_t end = call_.arguments_end();
  if (end > passed_)
    out.push_back({ToolCallEvent::Kind::kArguments, calls_ - 1, pending_.substr(passed_, end - passed_)});
  passed_ = end;
  if (call_.arguments_closed()) end_call(out);
}

void ToolCallParser::end_call(Events& out) {
  out.push_back({ToolCallEvent::Kind::kCallEnd, calls_ - 1, {}});
  open_ = false;
}

// hermes, mistral: text up to a marker. White space and what may be the marker's
// beginning wait.
bool ToolCallParser::run_content(Events& out, bool at_end) {
  const std::string_view marker = form_ == ToolCallForm::kHermes ? kHermesOpen : kMistralMarker;
  const size_t found = pending_.find(marker);
  size_t keep = found;
  if (found == kNowhere) {
    if (at_end && (calls_ == 0 || skip_space(pending_, 0) < pending_.size())) {
      // The last of the text: nothing follows that white space could belong to.
      emit_content(out, std::exchange(pending_, {}));
      return false;
    }
    keep = pending_.size() - marker_tail(pending_, marker);
  }
  while (keep > 0 && is_space(pending_[keep - 1])) --keep;
  emit_content(out, pending_.substr(0, keep));
  if (found == kNowhere) {
    pending_.erase(0, keep);
    return false;
  }
  pending_.erase(0, found + marker.size());
  expect_call();
  return true;
}

// llama3: a call begins the text, or follows another.
bool ToolCallParser::run_beginning(Events& out, bool at_end) {
  size_t at = skip_space(pending_, 0);
  if (calls_ > 0 && at < pending_.size() && pending_[at] == ';') at = skip_space(pending_, at + 1);
  if (at < pending_.size() && pending_[at] == '{') {
    pending_.erase(0, at);
    expect_call();
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

bool ToolCallParser::run_call(Events& out, bool at_end) {
  using Found = ToolCallObject::Found;
  const Found found = call_.read(pending_);
  if (!begun_ && call_.name() && call_.has_arguments()) begin_call(out, *call_.name());
  if (open_) pass_on_arguments(out);
  // A tool that takes nothing may have been called with nothing. Without a marker that is
  // an answer in JSON.
  if (!begun_ && found == Found::kClosed && call_.name() && form_ != ToolCallForm::kLlama3) {
    begin_call(out, *call_.name());
    out.push_back({ToolCallEvent::Kind::kArguments, calls_ - 1, "{}"});
    end_call(out);
  }
  if (found == Found::kMore && !at_end) return false;
  if (found == Found::kMore && (open_ || !begun_)) cut_off_ = true;
  if (open_) end_call(out);
  if (!begun_) {
    searched_ = 0;
    state_ = form_ == ToolCallForm::kHermes ? State::kBroken : State::kPlain;
    return true;
  }
  pending_.erase(0, call_.end());
  state_ = State::kTail;
  return true;
}

// The call's own marker, or what ends a member of a list. A call that lacks them has
// ended all the same.
bool ToolCallParser::run_tail(bool at_end) {
  size_t at = skip_space(pending_, 0);
  const std::string_view rest = std::string_view(pending_).substr(at);
  if (form_ == ToolCallForm::kHermes) {
    if (rest.substr(0, kHermesClose.size()) == kHermesClose) {
      at += kHermesClose.size();
    } else if (kHermesClose.substr(0, rest.size()) == rest) {
      if (at_end) pending_.clear();
      return false;
    }
  }
  if (form_ == ToolCallForm::kMistral) {
    if (rest.empty()) {
      if (at_end) pending_.clear();
      return false;
    }
    if (rest.front() == ',') {  // of the next call
      pending_.erase(0, at);
      expect_call();
      return true;
    }
    if (rest.front() == ']') ++at;
  }
  if (form_ != ToolCallForm::kLlama3) pending_.erase(0, at);
  state_ = State::kContent;
  return true;
}

// What is no call becomes content.
bool ToolCallParser::run_broken(Events& out, bool at_end) {
  const size_t found = pending_.find(kHermesClose, searched_);
  if (found == kNowhere && !at_end) {
    searched_ = pending_.size() - std::min(pending_.size(), kHermesClose.size() - 1);
    return false;
  }
  std::string body = pending_.substr(0, found);
  if (found == kNowhere) body.resize(body.size() - marker_tail(body, kHermesClose));
  pending_.erase(0, found == kNowhere ? found : found + kHermesClose.size());
  state_ = State::kContent;
  emit_content(out, without_outer_space(without_markers(std::move(body))));
  return true;
}

}  // namespace loralei
