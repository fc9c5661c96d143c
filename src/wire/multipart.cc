// SPDX-License-Identifier: Apache-2.0
#include "wire/multipart.h"

#include <optional>
#include <utility>

namespace loralei {
namespace {

constexpr size_t kBoundaryBytes = 70;  // RFC 2046, 5.1.1
constexpr size_t kPaddingBytes = 128;  // white space behind a delimiter

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equals_lower(std::string_view text, std::string_view lower_text) {
  if (text.size() != lower_text.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (lower(text[i]) != lower_text[i]) return false;
  }
  return true;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The next "; name=value" of a header field, whose quotes are resolved; none: it ends, or
// is not of that form. Browsers write '"' in a name as %22, others as \".
struct Parameter {
  std::string_view name;
  std::string value;
};
std::optional<Parameter> next_parameter(std::string_view& rest) {
  rest = trimmed(rest);
  if (!rest.starts_with(';')) return std::nullopt;
  rest.remove_prefix(1);
  const size_t equals = rest.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  Parameter parameter;
  parameter.name = trimmed(rest.substr(0, equals));
  rest = trimmed(rest.substr(equals + 1));
  if (!rest.starts_with('"')) {
    const size_t end = std::min(rest.find(';'), rest.size());
    parameter.value = trimmed(rest.substr(0, end));
    rest.remove_prefix(end);
    return parameter;
  }
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      rest.remove_prefix(i + 1);
      return parameter;
    }
    if (rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\')) ++i;
    parameter.value += rest[i];
  }
  return std::nullopt;  // its quotes are not closed
}

// What Content-Disposition says; an error where the part has no name.
Result<MultipartPart> part_of(std::string_view header) {
  MultipartPart part;
  bool named = false;
  while (!header.empty()) {
    const size_t end = std::min(header.find("\r\n"), header.size());
    const std::string_view line = header.substr(0, end);
    header.remove_prefix(std::min(end + 2, header.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return invalid_argument("a part's header has a line without a colon");
    if (equals_lower(trimmed(line.substr(0, colon)), "content-transfer-encoding") &&
        !equals_lower(trimmed(line.substr(colon + 1)), "binary") &&
        !equals_lower(trimmed(line.substr(colon + 1)), "8bit") &&
        !equals_lower(trimmed(line.substr(colon + 1)), "7bit"))
      return invalid_argument("a part has a Content-Transfer-Encoding; send its bytes as they are");
    if (!equals_lower(trimmed(line.substr(0, colon)), "content-disposition")) continue;
    std::string_view rest = trimmed(line.substr(colon + 1));
    const size_t kind = std::min(rest.find(';'), rest.size());
    if (!equals_lower(trimmed(rest.substr(0, kind)), "form-data")) continue;
    rest.remove_prefix(kind);
    while (auto parameter = next_parameter(rest)) {
      if (equals_lower(parameter->name, "name")) {
        part.name = std::move(parameter->value);
        named = true;
      } else if (equals_lower(parameter->name, "filename")) {
        part.filename = std::move(parameter->value);
        part.is_file = true;
      }
    }
  }
  if (!named) return invalid_argument("a part has no 'Content-Disposition: form-data; name=...'");
  return part;
}

}  // namespace

Result<std::string> MultipartParser::boundary_of(std::string_view content_type) {
  const auto wrong = [](const char* what) {
    return Error{ErrorCode::kInvalidArgument, std::string(what) +
                                                  ": send the files as a form, as 'curl -F' or any HTTP library does "
                                                  "(Content-Type: multipart/form-data; boundary=...)."};
  };
  const size_t kind = std::min(content_type.find(';'), content_type.size());
  if (!equals_lower(trimmed(content_type.substr(0, kind)), "multipart/form-data"))
    return wrong("The body is not multipart/form-data");
  std::string_view rest = content_type.substr(kind);
  while (auto parameter = next_parameter(rest)) {
    if (!equals_lower(parameter->name, "boundary")) continue;
    std::string& boundary = parameter->value;
    bool visible = !boundary.empty() && boundary.size() <= kBoundaryBytes && boundary.back() != ' ';
    for (const char c : boundary) visible = visible && c >= ' ' && c <= '~';
    if (!visible) return wrong("The boundary is empty, longer than 70 characters or has others than ASCII's");
    return std::move(boundary);
  }
  return wrong("The Content-Type names no boundary");
}

// The first delimiter has its line end before it, too, or begins the body: as if one
// stood there.
MultipartParser::MultipartParser(const std::string& boundary, MultipartListener& listener)
    : listener_(listener), delimiter_("\r\n--" + boundary), held_("\r\n") {}

Status MultipartParser::fail(std::string sentence) {
  failed_ = invalid_argument("The multipart body is wrong: " + std::move(sentence) + ".");
  return failed_;
}

Status MultipartParser::feed(std::string_view bytes) {
  if (!failed_.ok()) return failed_;
  if (state_ == State::kEpilogue) return {};  // whatever stands behind the end is nobody's (RFC 2046)
  held_ += bytes;
  for (;;) {
    const Result<bool> more = step();
    if (!more.ok()) {
      if (failed_.ok()) failed_ = more.error();
      return failed_;
    }
    if (!*more) return {};
  }
}

Status MultipartParser::finish() {
  if (!failed_.ok()) return failed_;
  if (state_ == State::kEpilogue) return {};
  return fail("it ends before its last boundary");
}

Result<bool> MultipartParser::step() {
  switch (state_) {
    case State::kPreamble:
    case State::kData:
      return take_data();
    case State::kBehindDelimiter:
      return take_delimiter_end();
    case State::kHeader:
      return take_header();
    case State::kEpilogue:
      held_.clear();
      return false;
  }
  return false;
}

// Up to the delimiter, or to what may be the beginning of one.
Result<bool> MultipartParser::take_data() {
  if (behind_header_) {  // and at the line end that ends it, or begins a delimiter
    if (held_.size() < delimiter_.size() && delimiter_.starts_with(held_)) return false;
    if (!held_.starts_with(delimiter_)) held_.erase(0, 2);
    behind_header_ = false;
  }
  const size_t at = held_.find(delimiter_);
  const bool found = at != std::string::npos;
  const size_t sure = found ? at : held_.size() - std::min(held_.size(), delimiter_.size() - 1);
  if (state_ == State::kData && sure > 0) TRY(listener_.on_data(std::string_view(held_).substr(0, sure)));
  held_.erase(0, found ? at + delimiter_.size() : sure);
  if (!found) return false;
  if (state_ == State::kData) TRY(listener_.on_part_end());
  state_ = State::kBehindDelimiter;
  return true;
}

Result<bool> MultipartParser::take_delimiter_end() {
  if (held_.size() < 2) return false;
  if (held_.starts_with("--")) {
    state_ = State::kEpilogue;
    return true;
  }
  const size_t text = held_.find_first_not_of(" \t");
  if (text == std::string::npos || text + 1 >= held_.size()) {
    if (held_.size() > kPaddingBytes) return fail("a boundary has no line end behind it").error();
    return false;
  }
  if (held_.compare(text, 2, "\r\n") != 0) return fail("a boundary has other text behind it").error();
  if (++parts_ > kPartsMost) return fail("it has more than " + std::to_string(kPartsMost) + " parts").error();
  held_.erase(0, text);  // the line end stays: with it an empty header has the end of others
  state_ = State::kHeader;
  return true;
}

Result<bool> MultipartParser::take_header() {
  const size_t end = held_.find("\r\n\r\n");
  if (end == std::string::npos || end > kPartHeaderBytes) {
    if (held_.size() > kPartHeaderBytes)
      return fail("a part's header is longer than " + std::to_string(kPartHeaderBytes) + " bytes").error();
    return false;
  }
  const std::string_view header = std::string_view(held_).substr(0, end);
  const Result<MultipartPart> part = part_of(header.substr(std::min<size_t>(2, header.size())));
  if (!part.ok()) return fail(part.error().message).error();
  held_.erase(0, end + 2);
  TRY(listener_.on_part(*part));
  state_ = State::kData;
  behind_header_ = true;
  return true;
}

}  // namespace loralei
