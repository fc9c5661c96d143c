// SPDX-License-Identifier: Apache-2.0
#include "router/answer_reader.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace loralei {
namespace {

constexpr size_t kTailBytes = 4096;  // in which an answer's usage stands

// Behind the last event's blank line.
size_t end_of_events(std::string_view text) {
  size_t end = 0;
  for (const std::string_view blank : {std::string_view("\n\n"), std::string_view("\r\n\r\n")}) {
    if (const size_t at = text.rfind(blank); at != std::string_view::npos) end = std::max(end, at + blank.size());
  }
  return end;
}

// The number behind the last `"name":`. No text of a model holds that: there the quote
// has a backslash before it.
int64_t number_behind(std::string_view text, std::string_view name) {
  const std::string key = "\"" + std::string(name) + "\":";
  size_t at = text.rfind(key);
  if (at == std::string_view::npos) return 0;
  at += key.size();
  while (at < text.size() && text[at] == ' ') ++at;
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  return problem == std::errc() && number > 0 ? number : 0;
}

int64_t first_of(std::string_view text, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (const int64_t number = number_behind(text, name); number > 0) return number;
  }
  return 0;
}

}  // namespace

std::string_view AnswerReader::take(std::string_view piece) {
  if (!events_) {
    has_content_ |= !piece.empty();
    note(piece);
    return piece;
  }
  if (kept_.empty()) {
    size_t end = end_of_events(piece);
    if (piece.size() - end > kEventBytesMost) end = piece.size();
    kept_.assign(piece.substr(end));
    note(piece.substr(0, end));
    return piece.substr(0, end);
  }
  // A blank line may lie across the border.
  const size_t from = kept_.size() - std::min<size_t>(kept_.size(), 3);
  kept_ += piece;
  size_t end = end_of_events(std::string_view(kept_).substr(from));
  end = end > 0 ? from + end : 0;
  if (kept_.size() - end > kEventBytesMost) end = kept_.size();
  passed_.assign(kept_, 0, end);
  kept_.erase(0, end);
  note(passed_);
  return passed_;
}

std::string_view AnswerReader::rest() {
  passed_.swap(kept_);
  kept_.clear();
  note(passed_);
  return passed_;
}

void AnswerReader::note(std::string_view passed) {
  if (events_) {
    for (size_t at = 0; at < passed.size();) {
      const size_t end = std::min(passed.find('\n', at), passed.size());
      const std::string_view line = passed.substr(at, end - at);
      if (line_begins_ && line.starts_with("data:")) ++data_lines_;
      has_content_ |= !line_begins_ || (!line.empty() && line != "\r" && !line.starts_with(':'));
      line_begins_ = end < passed.size();
      at = end + 1;
    }
  }
  if (passed.size() >= kTailBytes) {
    tail_.assign(passed.substr(passed.size() - kTailBytes));
    return;
  }
  tail_ += passed;
  if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
}

AnswerCounts AnswerReader::counts() const {
  AnswerCounts counts;
  counts.prompt_tokens = first_of(tail_, {"prompt_tokens", "input_tokens"});
  counts.output_tokens = first_of(tail_, {"completion_tokens", "output_tokens"});
  if (counts.output_tokens == 0) counts.output_tokens = data_lines_;
  return counts;
}

}  // namespace loralei
