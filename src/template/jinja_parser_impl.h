// SPDX-License-Identifier: Apache-2.0
// The recursive-descent parser of templates: a private header of jinja_parser.cc
// (statements) and jinja_expressions.cc.
//
// Thread: one parser, one thread, one template.
// Ownership: owns its tokens and the program until run() hands it out.
// Invariant: every step down counts against kMaxTreeDepth.
// Failure: invalid_argument with the template's line.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "template/jinja_lexer.h"
#include "template/jinja_parser.h"

namespace loralei::jinja {

inline ExprPtr make(ExprKind kind, int line) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    program_.loop_symbol = symbol("loop");
    program_.caller_symbol = symbol("caller");
    program_.varargs_symbol = symbol("varargs");
    program_.kwargs_symbol = symbol("kwargs");
  }

  Result<Program> run() {
    TRY_ASSIGN(program_.body, parse_body({}));
    return std::move(program_);
  }

 private:
  // One level of recursion of the parser, and of the tree it makes.
  struct Level {
    explicit Level(int& depth) : depth_(depth) { ++depth_; }
    ~Level() { --depth_; }
    int& depth_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool is_op(std::string_view op) const { return current().kind == TokenKind::kOperator && current().text == op; }
  bool is_name(std::string_view name) const { return current().kind == TokenKind::kName && current().text == name; }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }

  Error error(const std::string& what) const { return error_at(current().line, what); }
  static Error error_at(int line, const std::string& what);

  std::string describe() const;
  Status expect_op(std::string_view op);
  Status expect_kind(TokenKind kind, const char* what);
  Result<std::string> expect_any_name();
  int symbol(const std::string& name);
  Status check_depth() const;

  // Sets the node's depth from its children; loops that build chains (a + b + c ...) come
  // here for each link.
  Result<ExprPtr> finish(ExprPtr node) const;

  // --- statements

  bool at_end_tag(const std::vector<std::string_view>& ends) const;

  // Until "{% end" where end is one of `ends`; stops on that name. With no ends: until
  // the template ends.
  Result<Body> parse_body(const std::vector<std::string_view>& ends);

  // "%}" and a body up to one of `ends`.
  Result<Body> parse_block(const std::vector<std::string_view>& ends);
  Status parse_statement(Stmt& stmt);
  Status parse_one_block(Stmt& stmt, StmtKind kind, std::string_view end);

  // Nothing can extend a chat template, so a block is rendered where it stands, in
  // a scope of its own.
  Status parse_named_block(Stmt& stmt);
  Status parse_if(Stmt& stmt);
  Status parse_for(Stmt& stmt);
  Status parse_set(Stmt& stmt);
  Status parse_signature(MacroDef& macro);
  Status parse_macro_body(MacroDef& macro, std::string_view end);
  Status parse_macro(Stmt& stmt);
  Status parse_call_block(Stmt& stmt);
  Status parse_filter_block(Stmt& stmt);
  Status parse_with(Stmt& stmt);
  Status parse_print(Stmt& stmt);

  // A name, name.attribute (of a namespace) or a tuple of those.
  Result<ExprPtr> parse_target(bool with_attribute, std::string_view end_name);
  Result<ExprPtr> parse_target_name(bool with_attribute);

  // --- expressions, lowest precedence first

  bool at_tuple_end(std::string_view end_name) const;
  Result<ExprPtr> parse_tuple(bool with_condition, std::string_view end_name, bool in_parentheses = false);
  Result<ExprPtr> parse_condition(bool with_condition);

  template <typename Operand>
  Result<ExprPtr> parse_chain(ExprKind kind, std::string_view word, Operand operand);
  Result<ExprPtr> parse_or();
  Result<ExprPtr> parse_and();
  Result<ExprPtr> parse_not();
  bool skip_compare_op(CompareOp& op);
  Result<ExprPtr> parse_compare();

  // Levels "+-", then ~, then "*/f%", then p (**): all associate to the left in jinja2.
  bool at_binary(std::string_view level, char& op) const;
  Result<ExprPtr> parse_binary(std::string_view level);
  Result<ExprPtr> parse_concat();
  Result<ExprPtr> parse_unary(bool with_filter);
  Result<ExprPtr> parse_primary();
  Result<ExprPtr> parse_name(const Token& token);
  Result<ExprPtr> parse_number(const Token& token);
  Result<ExprPtr> parse_container(const Token& token);
  Result<ExprPtr> parse_postfix(ExprPtr node);
  Result<ExprPtr> parse_attribute(ExprPtr object);
  Result<ExprPtr> parse_subscript(ExprPtr object);
  Result<std::unique_ptr<CallArgs>> parse_call_args();
  Result<ExprPtr> parse_call(ExprPtr callee);

  // "|name(args)|name ..."; with start_inline the first "|" is absent (filter blocks).
  Result<ExprPtr> parse_filters(ExprPtr input, bool start_inline);
  Result<ExprPtr> parse_test(ExprPtr input);
  bool at_test_operand() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  MacroDef* macro_ = nullptr;
  Program program_;
  std::unordered_map<std::string, int> symbol_numbers_;
};

}  // namespace loralei::jinja
