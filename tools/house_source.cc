// SPDX-License-Identifier: Apache-2.0
#include "house_source.h"

#include <algorithm>
#include <cctype>
#include <fstream>

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Blanks one line after another; what is open at a line's end goes on in the next one.
class Blanker {
 public:
  HouseLine take(const std::string& text) {
    HouseLine line{text, std::string(text.size(), ' ')};
    const size_t first = text.find_first_not_of(" \t");
    const bool open = block_comment_ || !raw_end_.empty();
    line.comment_only = !open && first != std::string::npos && text.compare(first, 2, "//") == 0;
    if (!open && (directive_ || (first != std::string::npos && text[first] == '#'))) {
      directive_ = !text.empty() && text.back() == '\\';
      return line;
    }
    for (size_t at = 0; at < text.size();) at = step(line, at);
    return line;
  }

 private:
  // Deals with what begins at `at`; answers where that ends.
  size_t step(HouseLine& line, size_t at) {
    const std::string& text = line.text;
    if (!raw_end_.empty()) return skip_to(text, at, raw_end_, [this] { raw_end_.clear(); });
    if (block_comment_) return skip_to(text, at, "*/", [this] { block_comment_ = false; });
    if (text.compare(at, 2, "//") == 0) {
      line.comment_behind = !line.comment_only;
      return text.size();
    }
    if (text.compare(at, 2, "/*") == 0) {
      block_comment_ = true;
      return at + 2;
    }
    if (text[at] == '"') return literal(line, at);
    if (text[at] == '\'' && !is_separator(text, at)) return literal(line, at);
    line.code[at] = text[at];
    return at + 1;
  }

  template <typename Close>
  static size_t skip_to(const std::string& text, size_t at, const std::string& end, Close close) {
    const size_t found = text.find(end, at);
    if (found == std::string::npos) return text.size();
    const size_t behind = found + end.size();
    close();
    return behind;
  }

  // The quotes stay, so that a literal is still something.
  size_t literal(HouseLine& line, size_t at) {
    const std::string& text = line.text;
    const char quote = text[at];
    line.code[at] = quote;
    if (quote == '"' && at > 0 && text[at - 1] == 'R' && (at < 2 || !is_word(text[at - 2]) || text[at - 2] == '8')) {
      const size_t open = text.find('(', at);
      if (open == std::string::npos) return text.size();
      raw_end_ = ")" + text.substr(at + 1, open - at - 1) + "\"";
      return open + 1;
    }
    for (++at; at < text.size() && text[at] != quote; ++at) at += text[at] == '\\' ? 1 : 0;
    if (at < text.size()) line.code[at] = quote;
    return std::min(at + 1, text.size());
  }

  // 1'000'000: the mark stands inside a number.
  static bool is_separator(const std::string& text, size_t at) {
    size_t begin = at;
    while (begin > 0 && (is_word(text[begin - 1]) || text[begin - 1] == '\'')) --begin;
    return begin < at && std::isdigit(static_cast<unsigned char>(text[begin]));
  }

  bool block_comment_ = false, directive_ = false;
  std::string raw_end_;  // of the raw string that is open
};

}  // namespace

HouseSource read_house_source(const std::filesystem::path& path, const std::string& name) {
  HouseSource source{name, {}};
  std::ifstream file(path);
  Blanker blanker;
  for (std::string line; std::getline(file, line);) source.lines.push_back(blanker.take(line));
  return source;
}

int columns_of(const std::string& line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}
