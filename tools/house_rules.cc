// SPDX-License-Identifier: Apache-2.0
#include "house_rules.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "house_scopes.h"

namespace fs = std::filesystem;

namespace {

constexpr int kCommentColumns = 90;
constexpr int kColumns = 120;
constexpr int kFunctionLines = 70;
constexpr const char* kWideComments = "tools/wide_comments.txt";
constexpr const char* kLongFunctions = "tools/long_functions.txt";

// The lines of a list without its comments.
std::vector<std::string> read_list(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

CommentRule::CommentRule(const fs::path& root, ReportBreach report) : report_(std::move(report)) {
  for (const std::string& prefix : read_list(root / kWideComments)) prefixes_[prefix] = false;
}

bool CommentRule::may_be_wide(const std::string& file) {
  bool found = false;
  for (auto& [prefix, needed] : prefixes_) {
    if (file.rfind(prefix, 0) == 0) found = needed = true;
  }
  return found;
}

void CommentRule::look_at(const HouseSource& source) {
  for (size_t i = 0; i < source.lines.size(); ++i) {
    const HouseLine& line = source.lines[i];
    const int columns = columns_of(line.text);
    const int number = static_cast<int>(i + 1);
    if (line.comment_only && columns > kCommentColumns && !may_be_wide(source.name)) {
      report_(source.name, number,
              "comment of " + std::to_string(columns) + " columns: lay it anew in " + std::to_string(kCommentColumns));
    }
    if (line.comment_behind && columns > kColumns) {
      report_(source.name, number, "comment behind code beyond column " + std::to_string(kColumns) + ": lay it above");
    }
  }
}

void CommentRule::finish() {
  for (const auto& [prefix, needed] : prefixes_) {
    if (!needed) report_(kWideComments, 1, "no wide comment in '" + prefix + "' any more: remove the line");
  }
}

FunctionRule::FunctionRule(const fs::path& root, ReportBreach report) : report_(std::move(report)) {
  for (const std::string& line : read_list(root / kLongFunctions)) {
    std::istringstream words(line);
    std::string path, function;
    int lines = 0;
    if (words >> path >> function >> lines && lines > kFunctionLines) {
      listed_[path + " " + function].push_back(lines);
    } else {
      report_(kLongFunctions, 1, "'" + line + "' is no path, function and lines beyond the limit: remove the line");
    }
  }
  for (auto& entry : listed_) std::sort(entry.second.rbegin(), entry.second.rend());
}

void FunctionRule::look_at(const HouseSource& source) {
  HouseScopes scopes = scopes_of(source);
  if (!scopes.balanced) report_(source.name, 1, "its braces do not match, so that functions and types are not found");
  std::stable_sort(scopes.functions.begin(), scopes.functions.end(),
                   [](const HouseFunction& a, const HouseFunction& b) { return a.lines > b.lines; });
  std::map<std::string, size_t> met;
  for (const HouseFunction& function : scopes.functions) {
    if (function.lines <= kFunctionLines) break;
    const std::string key = source.name + " " + function.name;
    const std::vector<int>& listed = listed_[key];
    const size_t place = met[key]++;
    const int allowed = place < listed.size() ? listed[place] : kFunctionLines;
    const std::string says = function.name + " has " + std::to_string(function.lines) + " lines";
    if (function.lines > allowed) {
      report_(source.name, function.line, says + ", " + std::to_string(allowed) + " at most: which two things is it?");
    } else if (function.lines < allowed) {
      report_(source.name, function.line,
              says + " now, not " + std::to_string(allowed) + ": lower the number in " + kLongFunctions);
    }
  }
  for (auto& [key, listed] : listed_) {
    if (key.rfind(source.name + " ", 0) != 0) continue;
    for (size_t place = met[key]; place < listed.size(); ++place) {
      report_(kLongFunctions, 1, key + " is not that long any more: remove the line");
    }
    seen_.insert(key);
  }
}

void FunctionRule::finish() {
  for (const auto& [key, listed] : listed_) {
    if (!listed.empty() && !seen_.count(key)) report_(kLongFunctions, 1, key + ": no such file: remove the line");
  }
}

void TypeRule::look_at(const HouseSource& source) {
  if (!ends_with(source.name, ".h") && !ends_with(source.name, ".cuh")) return;
  if (ends_with(source.name, ".inl.h")) return;
  for (const HouseType& type : scopes_of(source).types) {
    const auto [first, is_new] = headers_.emplace(type.name, source.name);
    if (is_new || first->second == source.name) continue;
    report_(source.name, type.line, type.name + " is defined in " + first->second + " too: name one of them otherwise");
  }
}
