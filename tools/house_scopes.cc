// SPDX-License-Identifier: Apache-2.0
#include "house_scopes.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <utility>

namespace {

enum class ScopeKind { kNamespace, kClass, kFunction, kOther };

struct Scope {
  ScopeKind kind = ScopeKind::kOther;
  std::string name;
  int line = 0;  // on which its statement begins
};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// A macro that stands alone on its line, or an access specifier: it ends
// what came before.
bool stands_alone(const std::string& statement) {
  static const std::regex kAlone(R"((public|private|protected)\s*:|[A-Z][A-Z0-9_]+\n)");
  return std::regex_match(statement, kAlone);
}

// `template <...>` at the front is left out.
std::string without_template(const std::string& statement) {
  std::string rest = statement;
  while (rest.rfind("template", 0) == 0) {
    size_t at = rest.find('<');
    if (at == std::string::npos) return rest;
    int depth = 0;
    for (; at < rest.size(); ++at) {
      if (rest[at] == '<') ++depth;
      if (rest[at] == '>' && --depth == 0) break;
    }
    rest = trimmed(rest.substr(std::min(at + 1, rest.size())));
  }
  return rest;
}

// KERNEL BLOCK_LIMIT(256) void f(...): a macro with arguments is not the name.
bool is_macro(const std::string& name) {
  return std::none_of(name.begin(), name.end(), [](char c) { return std::islower(static_cast<unsigned char>(c)); });
}

// The name in front of the parenthesis of the parameters; of TEST(A, B) it is A.B.
std::string function_name(const std::string& statement) {
  static const std::vector<std::string> kNoNames = {"__attribute__", "alignas", "decltype", "requires", "noexcept"};
  int depth = 0;
  for (size_t at = 0; at < statement.size(); ++at) {
    if (statement[at] == ')') --depth;
    if (statement[at] != '(' || depth++ > 0) continue;
    size_t end = at;
    while (end > 0 && statement[end - 1] == ' ') --end;
    const size_t word = statement.rfind("operator", end);
    if (word != std::string::npos && statement.find_first_of("();{", word) >= at) {
      std::string name = statement.substr(word, (statement.compare(at, 3, "()(") == 0 ? at + 2 : end) - word);
      name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
      return name;
    }
    size_t begin = end;
    while (begin > 0 && (is_word(statement[begin - 1]) || statement[begin - 1] == ':' || statement[begin - 1] == '~')) {
      --begin;
    }
    const std::string name = statement.substr(begin, end - begin);
    if (name.empty() || std::find(kNoNames.begin(), kNoNames.end(), name) != kNoNames.end()) continue;
    static const std::regex kTest(R"(TEST(_F|_P)?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)[^]*)");
    std::smatch test;
    const std::string rest = statement.substr(begin);
    if (std::regex_match(rest, test, kTest)) return test[2].str() + "." + test[3].str();
    if (!is_macro(name)) return name;
  }
  return "";
}

class Walker {
 public:
  HouseScopes walk(const HouseSource& source) {
    for (line_ = 1; line_ <= static_cast<int>(source.lines.size()); ++line_) {
      const std::string& code = source.lines[static_cast<size_t>(line_ - 1)].code;
      for (size_t at = 0; at < code.size(); ++at) take(code, at, source);
      if (at_outer()) end_line();
    }
    result_.balanced = result_.balanced && scopes_.empty();
    return std::move(result_);
  }

 private:
  bool at_outer() const {
    return scopes_.empty() || scopes_.back().kind == ScopeKind::kNamespace || scopes_.back().kind == ScopeKind::kClass;
  }

  void take(const std::string& code, size_t at, const HouseSource& source) {
    const char c = code[at];
    if (c == '{') return open();
    if (c == '}') return close(code, at, source);
    if (!at_outer()) return;
    if (c == '(') ++parentheses_;
    if (c == ')') --parentheses_;
    if (c == ';' && parentheses_ == 0) {
      note_alias();
      return reset();
    }
    if (c == ' ' && (statement_.empty() || statement_.back() == ' ' || statement_.back() == '\n')) return;
    if (statement_.empty()) begins_ = line_;
    statement_ += c;
  }

  void end_line() {
    if (statement_.empty() || statement_.back() == '\n') return;
    statement_ += '\n';
    if (stands_alone(statement_) || stands_alone(trimmed(statement_))) reset();
  }

  void reset() {
    statement_.clear();
    parentheses_ = 0;
  }

  void open() {
    Scope scope{ScopeKind::kOther, "", begins_};
    if (at_outer() && parentheses_ == 0) scope = read_statement();
    // What is no scope of its own (an initialiser) is a part of the statement.
    if (scope.kind != ScopeKind::kOther) reset();
    scopes_.push_back(std::move(scope));
  }

  void close(const std::string& code, size_t at, const HouseSource& source) {
    if (scopes_.empty()) {
      result_.balanced = false;
      return;
    }
    const Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    if (!at_outer()) return;
    if (scope.kind == ScopeKind::kFunction) {
      if (goes_on(code, at, source)) {  // a_{1} in a constructor's list
        statement_ = scope.name + "()";
        begins_ = scope.line;
        return;
      }
      result_.functions.push_back({qualified(scope.name), scope.line, line_ - scope.line + 1});
    }
    if (scope.kind != ScopeKind::kOther) reset();
  }

  // Whether what follows a brace belongs to the same statement.
  bool goes_on(const std::string& code, size_t at, const HouseSource& source) const {
    std::string rest = trimmed(code.substr(at + 1));
    for (size_t next = static_cast<size_t>(line_); rest.empty() && next < source.lines.size(); ++next) {
      rest = trimmed(source.lines[next].code);
    }
    return !rest.empty() && (rest[0] == ',' || rest[0] == '{');
  }

  // What the brace behind statement_ opens.
  Scope read_statement() {
    static const std::regex kNamespace(R"((inline )?namespace\s*([\w:]*))");
    static const std::regex kType(
        R"((?:struct|class|union|enum class|enum struct|enum)\s+(?:alignas\s*\([^)]*\)\s*|\[\[\w+\]\]\s*|__\w+\s*\([^{]*\)\s*)*([\w:]+)\s*(<[^]*>)?\s*(?:final)?\s*(?::[^:][^]*)?)");
    const std::string statement = without_template(trimmed(statement_));
    std::smatch match;
    if (std::regex_match(statement, match, kNamespace)) return {ScopeKind::kNamespace, match[2].str(), begins_};
    if (statement.rfind("extern \"", 0) == 0 && statement.find('(') == std::string::npos) {
      return {ScopeKind::kNamespace, "extern", begins_};
    }
    if (std::regex_match(statement, match, kType)) {
      if (!match[2].matched) note_type(match[1].str());
      // The body of an enum has commas, not statements.
      const bool is_enum = statement.rfind("enum", 0) == 0;
      return {is_enum ? ScopeKind::kOther : ScopeKind::kClass, match[1].str(), begins_};
    }
    if (statement.find('(') == std::string::npos || statement.back() == '=') return {ScopeKind::kOther, "", begins_};
    return {ScopeKind::kFunction, function_name(statement), begins_};
  }

  void note_alias() {
    static const std::regex kAlias(R"(using\s+(\w+)\s*=[^]*)");
    const std::string statement = without_template(trimmed(statement_));
    std::smatch match;
    if (std::regex_match(statement, match, kAlias)) note_type(match[1].str());
  }

  void note_type(const std::string& name) {
    std::string full;
    for (const Scope& scope : scopes_) {
      if (scope.kind != ScopeKind::kNamespace || scope.name.empty()) return;
      if (scope.name != "extern") full += scope.name + "::";
    }
    result_.types.push_back({full + name, begins_});
  }

  std::string qualified(const std::string& name) const {
    std::string full;
    for (const Scope& scope : scopes_) {
      if (scope.kind == ScopeKind::kClass) full += scope.name + "::";
    }
    return full + name;
  }

  HouseScopes result_;
  std::vector<Scope> scopes_;
  std::string statement_;  // at namespace or class scope, up to here
  int begins_ = 0;         // its line
  int parentheses_ = 0;    // open ones in it
  int line_ = 0;
};

}  // namespace

HouseScopes scopes_of(const HouseSource& source) { return Walker().walk(source); }
