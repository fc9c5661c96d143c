// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "text/jinja_builtin_names.h"
#include "text/jinja_lexer.h"

namespace loralei::jinja {

namespace {

ExprPtr make(ExprKind kind, int line) {
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
  static Error error_at(int line, const std::string& what) {
    return invalid_argument("the chat template is not valid at line " + std::to_string(line) + ": " + what);
  }

  std::string describe() const {
    switch (current().kind) {
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kVariableEnd: return "'}}'";
      case TokenKind::kBlockEnd: return "'%}'";
      default: return "'" + current().text + "'";
    }
  }

  Status expect_op(std::string_view op) {
    if (skip_op(op)) return {};
    return error("expected '" + std::string(op) + "', found " + describe());
  }
  Status expect_kind(TokenKind kind, const char* what) {
    if (current().kind != kind) return error(std::string("expected ") + what + ", found " + describe());
    next();
    return {};
  }
  Result<std::string> expect_any_name() {
    if (current().kind != TokenKind::kName) return error("expected a name, found " + describe());
    std::string name = current().text;
    next();
    return name;
  }

  int symbol(const std::string& name) {
    const auto [place, fresh] = symbol_numbers_.emplace(name, static_cast<int>(program_.symbols.size()));
    if (fresh) program_.symbols.push_back(name);
    return place->second;
  }

  Status check_depth() const {
    if (depth_ > kMaxTreeDepth) return error("it nests deeper than " + std::to_string(kMaxTreeDepth) + " levels");
    return {};
  }

  // Sets the node's depth from its children; loops that build chains (a + b + c ...) come here for each link.
  Result<ExprPtr> finish(ExprPtr node) const {
    int deepest = 0;
    const auto see = [&](const ExprPtr& child) { deepest = std::max(deepest, child ? child->depth : 0); };
    for (const ExprPtr& child : node->args) see(child);
    if (node->call) {
      for (const ExprPtr& child : node->call->positional) see(child);
      for (const auto& [name, child] : node->call->named) see(child);
      see(node->call->star);
      see(node->call->double_star);
    }
    node->depth = deepest + 1;
    if (node->depth > kMaxTreeDepth) {
      return error_at(node->line, "an expression nests deeper than " + std::to_string(kMaxTreeDepth) + " levels");
    }
    return node;
  }

  // --- statements

  bool at_end_tag(const std::vector<std::string_view>& ends) const {
    if (current().kind != TokenKind::kBlockBegin || look().kind != TokenKind::kName) return false;
    return std::find(ends.begin(), ends.end(), look().text) != ends.end();
  }

  // Until "{% end" where end is one of `ends`; stops on that name. With no ends: until the template ends.
  Result<Body> parse_body(const std::vector<std::string_view>& ends) {
    Level level(depth_);
    TRY(check_depth());
    Body body;
    while (current().kind != TokenKind::kEnd) {
      if (at_end_tag(ends)) {
        next();
        return body;
      }
      Stmt stmt;
      stmt.line = current().line;
      switch (current().kind) {
        case TokenKind::kData:
          stmt.text = current().text;
          next();
          break;
        case TokenKind::kVariableBegin: {
          next();
          stmt.kind = StmtKind::kOutput;
          TRY_ASSIGN(stmt.expr, parse_tuple(true, {}));
          TRY(expect_kind(TokenKind::kVariableEnd, "'}}'"));
          break;
        }
        case TokenKind::kBlockBegin:
          next();
          TRY(parse_statement(stmt));
          break;
        default: return error("unexpected " + describe());
      }
      body.push_back(std::move(stmt));
    }
    if (!ends.empty()) return error("the template ends before '" + std::string(ends.back()) + "'");
    return body;
  }

  // "%}" and a body up to one of `ends`.
  Result<Body> parse_block(const std::vector<std::string_view>& ends) {
    skip_op(":");
    TRY(expect_kind(TokenKind::kBlockEnd, "'%}'"));
    return parse_body(ends);
  }

  Status parse_statement(Stmt& stmt) {
    if (current().kind != TokenKind::kName) return error("expected a tag name, found " + describe());
    const std::string tag = current().text;
    stmt.line = current().line;
    next();
    if (tag == "if") TRY(parse_if(stmt));
    else if (tag == "for") TRY(parse_for(stmt));
    else if (tag == "set") TRY(parse_set(stmt));
    else if (tag == "macro") TRY(parse_macro(stmt));
    else if (tag == "call") TRY(parse_call_block(stmt));
    else if (tag == "filter") TRY(parse_filter_block(stmt));
    else if (tag == "with") TRY(parse_with(stmt));
    else if (tag == "print") TRY(parse_print(stmt));
    else if (tag == "generation") TRY(parse_one_block(stmt, StmtKind::kScope, "endgeneration"));
    else if (tag == "block") TRY(parse_named_block(stmt));
    else if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) return error_at(stmt.line, "'" + tag + "' stands outside a loop");
      stmt.kind = tag == "break" ? StmtKind::kBreak : StmtKind::kContinue;
    } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends" || tag == "autoescape") {
      return error_at(stmt.line, "the tag '" + tag + "' is not supported: a chat template is one self-contained file");
    } else {
      return error_at(stmt.line, "unknown tag '" + tag + "'");
    }
    return expect_kind(TokenKind::kBlockEnd, "'%}'");
  }

  Status parse_one_block(Stmt& stmt, StmtKind kind, std::string_view end) {
    stmt.kind = kind;
    stmt.branches.emplace_back();
    TRY_ASSIGN(stmt.branches.back().body, parse_block({end}));
    next();
    return {};
  }

  // Nothing can extend a chat template, so a block is rendered where it stands, in a scope of its own.
  Status parse_named_block(Stmt& stmt) {
    TRY_ASSIGN(const std::string name, expect_any_name());
    skip_name("scoped");
    TRY(parse_one_block(stmt, StmtKind::kScope, "endblock"));
    skip_name(name);
    return {};
  }

  Status parse_if(Stmt& stmt) {
    stmt.kind = StmtKind::kIf;
    while (true) {
      Branch branch;
      TRY_ASSIGN(branch.condition, parse_tuple(false, {}));
      TRY_ASSIGN(branch.body, parse_block({"elif", "else", "endif"}));
      stmt.branches.push_back(std::move(branch));
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        stmt.branches.emplace_back();
        TRY_ASSIGN(stmt.branches.back().body, parse_block({"endif"}));
      }
      next();
      return {};
    }
  }

  Status parse_for(Stmt& stmt) {
    stmt.kind = StmtKind::kFor;
    TRY_ASSIGN(stmt.target, parse_target(false, "in"));
    if (!skip_name("in")) return error("expected 'in', found " + describe());
    TRY_ASSIGN(stmt.expr, parse_tuple(false, "recursive"));
    if (skip_name("if")) {
      TRY_ASSIGN(stmt.condition, parse_condition(true));
    }
    stmt.recursive = skip_name("recursive");
    stmt.branches.resize(2);
    ++loop_depth_;
    TRY_ASSIGN(stmt.branches[0].body, parse_block({"endfor", "else"}));
    --loop_depth_;
    if (skip_name("else")) {
      TRY_ASSIGN(stmt.branches[1].body, parse_block({"endfor"}));
    }
    next();
    return {};
  }

  Status parse_set(Stmt& stmt) {
    TRY_ASSIGN(stmt.target, parse_target(true, {}));
    if (skip_op("=")) {
      stmt.kind = StmtKind::kSet;
      TRY_ASSIGN(stmt.expr, parse_tuple(true, {}));
      return {};
    }
    if (is_op("|")) {
      TRY_ASSIGN(stmt.expr, parse_filters(nullptr, false));
    }
    return parse_one_block(stmt, StmtKind::kSetBlock, "endset");
  }

  Status parse_signature(MacroDef& macro) {
    TRY(expect_op("("));
    while (!is_op(")")) {
      if (!macro.parameters.empty()) TRY(expect_op(","));
      Parameter parameter;
      TRY_ASSIGN(parameter.name, expect_any_name());
      parameter.symbol = symbol(parameter.name);
      if (skip_op("=")) {
        TRY_ASSIGN(parameter.fallback, parse_condition(true));
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
        return error("a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
    }
    next();
    return {};
  }

  Status parse_macro_body(MacroDef& macro, std::string_view end) {
    const int outer_loops = std::exchange(loop_depth_, 0);
    MacroDef* const outer = std::exchange(macro_, &macro);
    auto body = parse_block({end});
    macro_ = outer;
    loop_depth_ = outer_loops;
    TRY_ASSIGN(macro.body, std::move(body));
    next();
    return {};
  }

  Status parse_macro(Stmt& stmt) {
    stmt.kind = StmtKind::kMacro;
    stmt.macro = std::make_unique<MacroDef>();
    stmt.macro->line = stmt.line;
    TRY_ASSIGN(stmt.macro->name, expect_any_name());
    stmt.symbol = symbol(stmt.macro->name);
    TRY(parse_signature(*stmt.macro));
    return parse_macro_body(*stmt.macro, "endmacro");
  }

  Status parse_call_block(Stmt& stmt) {
    stmt.kind = StmtKind::kCallBlock;
    stmt.macro = std::make_unique<MacroDef>();
    stmt.macro->name = "caller";
    stmt.macro->line = stmt.line;
    if (is_op("(")) TRY(parse_signature(*stmt.macro));
    TRY_ASSIGN(stmt.expr, parse_condition(true));
    if (stmt.expr->kind != ExprKind::kCall) return error_at(stmt.line, "expected a call");
    return parse_macro_body(*stmt.macro, "endcall");
  }

  Status parse_filter_block(Stmt& stmt) {
    TRY_ASSIGN(stmt.expr, parse_filters(nullptr, true));
    return parse_one_block(stmt, StmtKind::kFilterBlock, "endfilter");
  }

  Status parse_with(Stmt& stmt) {
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt.withs.empty()) TRY(expect_op(","));
      TRY_ASSIGN(ExprPtr target, parse_target(false, {}));
      TRY(expect_op("="));
      TRY_ASSIGN(ExprPtr value, parse_condition(true));
      stmt.withs.emplace_back(std::move(target), std::move(value));
    }
    return parse_one_block(stmt, StmtKind::kWith, "endwith");
  }

  Status parse_print(Stmt& stmt) {
    stmt.kind = StmtKind::kOutput;
    stmt.expr = make(ExprKind::kConcat, stmt.line);  // printing several values is printing their joined text
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt.expr->args.empty()) TRY(expect_op(","));
      TRY_ASSIGN(ExprPtr value, parse_condition(true));
      stmt.expr->args.push_back(std::move(value));
    }
    TRY_ASSIGN(stmt.expr, finish(std::move(stmt.expr)));
    return {};
  }

  // A name, name.attribute (of a namespace) or a tuple of those.
  Result<ExprPtr> parse_target(bool with_attribute, std::string_view end_name) {
    Level level(depth_);
    TRY(check_depth());
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool is_tuple = false;
    while (true) {
      if (!parts.empty() && (is_op(")") || is_op("=") || (!end_name.empty() && is_name(end_name)))) break;
      if (skip_op("(")) {
        TRY_ASSIGN(ExprPtr inner, parse_target(with_attribute, {}));
        TRY(expect_op(")"));
        parts.push_back(std::move(inner));
      } else {
        TRY_ASSIGN(ExprPtr name, parse_target_name(with_attribute));
        parts.push_back(std::move(name));
      }
      if (!skip_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(parts[0]);
    ExprPtr tuple = make(ExprKind::kTuple, line);
    tuple->args = std::move(parts);
    return finish(std::move(tuple));
  }

  Result<ExprPtr> parse_target_name(bool with_attribute) {
    ExprPtr node = make(ExprKind::kName, current().line);
    TRY_ASSIGN(std::string name, expect_any_name());
    static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None", "not", "and", "or", "in", "is", "if", "else"};
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      return error_at(node->line, "cannot assign to '" + name + "'");
    }
    node->symbol = symbol(name);
    if (with_attribute && skip_op(".")) {
      node->kind = ExprKind::kAttrTarget;
      TRY_ASSIGN(node->text, expect_any_name());
    }
    return node;
  }

  // --- expressions, lowest precedence first

  bool at_tuple_end(std::string_view end_name) const {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || is_op(")") ||
           (!end_name.empty() && is_name(end_name));
  }

  Result<ExprPtr> parse_tuple(bool with_condition, std::string_view end_name, bool in_parentheses = false) {
    const int line = current().line;
    std::vector<ExprPtr> parts;
    bool is_tuple = false;
    while (!at_tuple_end(end_name)) {
      TRY_ASSIGN(ExprPtr part, parse_condition(with_condition));
      parts.push_back(std::move(part));
      if (!skip_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!parts.empty()) return std::move(parts[0]);
      if (!in_parentheses) return error("expected an expression, found " + describe());
    }
    ExprPtr tuple = make(ExprKind::kTuple, line);
    tuple->args = std::move(parts);
    return finish(std::move(tuple));
  }

  Result<ExprPtr> parse_condition(bool with_condition) {
    Level level(depth_);
    TRY(check_depth());
    TRY_ASSIGN(ExprPtr left, parse_or());
    while (with_condition && is_name("if")) {
      ExprPtr node = make(ExprKind::kCond, current().line);
      next();
      node->args.push_back(std::move(left));
      TRY_ASSIGN(ExprPtr test, parse_or());
      node->args.push_back(std::move(test));
      node->args.emplace_back();
      if (skip_name("else")) {
        TRY_ASSIGN(node->args.back(), parse_condition(true));
      }
      TRY_ASSIGN(left, finish(std::move(node)));
    }
    return left;
  }

  template <typename Operand>
  Result<ExprPtr> parse_chain(ExprKind kind, std::string_view word, Operand operand) {
    TRY_ASSIGN(ExprPtr left, operand());
    while (is_name(word)) {
      ExprPtr node = make(kind, current().line);
      next();
      node->args.push_back(std::move(left));
      TRY_ASSIGN(ExprPtr right, operand());
      node->args.push_back(std::move(right));
      TRY_ASSIGN(left, finish(std::move(node)));
    }
    return left;
  }
  Result<ExprPtr> parse_or() {
    return parse_chain(ExprKind::kOr, "or", [this] { return parse_and(); });
  }
  Result<ExprPtr> parse_and() {
    return parse_chain(ExprKind::kAnd, "and", [this] { return parse_not(); });
  }

  Result<ExprPtr> parse_not() {
    if (!is_name("not")) return parse_compare();
    Level level(depth_);
    TRY(check_depth());
    ExprPtr node = make(ExprKind::kNot, current().line);
    next();
    TRY_ASSIGN(ExprPtr operand, parse_not());
    node->args.push_back(std::move(operand));
    return finish(std::move(node));
  }

  bool skip_compare_op(CompareOp& op) {
    static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
        {"<=", CompareOp::kLe}, {">", CompareOp::kGt}, {">=", CompareOp::kGe}};
    for (const auto& [text, value] : kOps) {
      if (skip_op(text)) {
        op = value;
        return true;
      }
    }
    if (skip_name("in")) {
      op = CompareOp::kIn;
      return true;
    }
    if (is_name("not") && look().kind == TokenKind::kName && look().text == "in") {
      next();
      next();
      op = CompareOp::kNotIn;
      return true;
    }
    return false;
  }

  Result<ExprPtr> parse_compare() {
    const int line = current().line;
    TRY_ASSIGN(ExprPtr left, parse_binary("+-"));
    CompareOp op = CompareOp::kEq;
    if (!skip_compare_op(op)) return left;
    ExprPtr node = make(ExprKind::kCompare, line);
    node->args.push_back(std::move(left));
    do {
      node->ops.push_back(op);
      TRY_ASSIGN(ExprPtr right, parse_binary("+-"));
      node->args.push_back(std::move(right));
    } while (skip_compare_op(op));
    return finish(std::move(node));
  }

  // Levels "+-", then ~, then "*/f%", then p (**): all associate to the left in jinja2.
  bool at_binary(std::string_view level, char& op) const {
    if (current().kind != TokenKind::kOperator) return false;
    const std::string& text = current().text;
    op = text == "//" ? 'f' : text == "**" ? 'p' : text.size() == 1 ? text[0] : 0;
    return op != 0 && level.find(op) != std::string_view::npos;
  }

  Result<ExprPtr> parse_binary(std::string_view level) {
    const auto operand = [&]() -> Result<ExprPtr> {
      if (level == "+-") return parse_concat();
      if (level == "*/f%") return parse_binary("p");
      return parse_unary(true);
    };
    TRY_ASSIGN(ExprPtr left, operand());
    char op = 0;
    while (at_binary(level, op)) {
      ExprPtr node = make(ExprKind::kBinary, current().line);
      node->op = op;
      next();
      node->args.push_back(std::move(left));
      TRY_ASSIGN(ExprPtr right, operand());
      node->args.push_back(std::move(right));
      TRY_ASSIGN(left, finish(std::move(node)));
    }
    return left;
  }

  Result<ExprPtr> parse_concat() {
    TRY_ASSIGN(ExprPtr first, parse_binary("*/f%"));
    if (!is_op("~")) return first;
    ExprPtr node = make(ExprKind::kConcat, current().line);
    node->args.push_back(std::move(first));
    while (skip_op("~")) {
      TRY_ASSIGN(ExprPtr part, parse_binary("*/f%"));
      node->args.push_back(std::move(part));
    }
    return finish(std::move(node));
  }

  Result<ExprPtr> parse_unary(bool with_filter) {
    Level level(depth_);
    TRY(check_depth());
    ExprPtr node;
    if (is_op("-") || is_op("+")) {
      node = make(is_op("-") ? ExprKind::kNegate : ExprKind::kPlus, current().line);
      next();
      TRY_ASSIGN(ExprPtr operand, parse_unary(false));
      node->args.push_back(std::move(operand));
      TRY_ASSIGN(node, finish(std::move(node)));
    } else {
      TRY_ASSIGN(node, parse_primary());
    }
    TRY_ASSIGN(node, parse_postfix(std::move(node)));
    if (!with_filter) return node;
    while (true) {
      if (is_op("|")) {
        TRY_ASSIGN(node, parse_filters(std::move(node), false));
      } else if (is_name("is")) {
        TRY_ASSIGN(node, parse_test(std::move(node)));
      } else if (is_op("(")) {
        TRY_ASSIGN(node, parse_call(std::move(node)));
      } else {
        return node;
      }
    }
  }

  Result<ExprPtr> parse_primary() {
    const Token token = current();
    switch (token.kind) {
      case TokenKind::kName: next(); return parse_name(token);
      case TokenKind::kString: {
        ExprPtr node = make(ExprKind::kConst, token.line);
        std::string text;
        for (; current().kind == TokenKind::kString; next()) text += current().text;
        node->constant = JinjaValue(std::move(text));
        return node;
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat: next(); return parse_number(token);
      case TokenKind::kOperator: break;
      default: return error("unexpected " + describe());
    }
    if (token.text == "(") {
      next();
      TRY_ASSIGN(ExprPtr node, parse_tuple(true, {}, true));
      TRY(expect_op(")"));
      return node;
    }
    if (token.text == "[" || token.text == "{") return parse_container(token);
    return error("unexpected " + describe());
  }

  Result<ExprPtr> parse_name(const Token& token) {
    ExprPtr node = make(ExprKind::kConst, token.line);
    if (token.text == "true" || token.text == "True") {
      node->constant = JinjaValue(true);
    } else if (token.text == "false" || token.text == "False") {
      node->constant = JinjaValue(false);
    } else if (token.text == "none" || token.text == "None") {
      node->constant = JinjaValue::none();
    } else {
      node->kind = ExprKind::kName;
      node->symbol = symbol(token.text);
      if (macro_ != nullptr) {
        macro_->uses_caller |= token.text == "caller";
        macro_->uses_varargs |= token.text == "varargs";
        macro_->uses_kwargs |= token.text == "kwargs";
      }
    }
    return node;
  }

  Result<ExprPtr> parse_number(const Token& token) {
    ExprPtr node = make(ExprKind::kConst, token.line);
    std::string_view digits = token.text;
    if (token.kind == TokenKind::kFloat) {
      double value = 0;
      const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (done.ec != std::errc() || done.ptr != digits.data() + digits.size()) {
        return error_at(token.line, "the number " + token.text + " is out of range");
      }
      node->constant = JinjaValue(value);
      return node;
    }
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0') {
      const char mark = static_cast<char>(digits[1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) digits.remove_prefix(2);
    }
    int64_t value = 0;
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (done.ec != std::errc() || done.ptr != digits.data() + digits.size()) {
      return error_at(token.line, "the number " + token.text + " is out of range");
    }
    node->constant = JinjaValue(value);
    return node;
  }

  Result<ExprPtr> parse_container(const Token& token) {
    const bool is_dict = token.text == "{";
    const std::string_view close = is_dict ? "}" : "]";
    ExprPtr node = make(is_dict ? ExprKind::kDict : ExprKind::kList, token.line);
    next();
    while (!is_op(close)) {
      if (!node->args.empty()) TRY(expect_op(","));
      if (is_op(close)) break;
      TRY_ASSIGN(ExprPtr item, parse_condition(true));
      node->args.push_back(std::move(item));
      if (!is_dict) continue;
      TRY(expect_op(":"));
      TRY_ASSIGN(ExprPtr value, parse_condition(true));
      node->args.push_back(std::move(value));
    }
    next();
    return finish(std::move(node));
  }

  Result<ExprPtr> parse_postfix(ExprPtr node) {
    while (true) {
      if (is_op(".")) {
        TRY_ASSIGN(node, parse_attribute(std::move(node)));
      } else if (is_op("[")) {
        TRY_ASSIGN(node, parse_subscript(std::move(node)));
      } else if (is_op("(")) {
        TRY_ASSIGN(node, parse_call(std::move(node)));
      } else {
        return node;
      }
    }
  }

  Result<ExprPtr> parse_attribute(ExprPtr object) {
    ExprPtr node = make(ExprKind::kGetattr, current().line);
    next();
    const Token token = current();
    if (token.kind == TokenKind::kName) {
      node->text = token.text;
      node->args.push_back(std::move(object));
    } else if (token.kind == TokenKind::kInteger) {
      node->kind = ExprKind::kGetitem;
      node->args.push_back(std::move(object));
      TRY_ASSIGN(ExprPtr number, parse_number(token));
      node->args.push_back(std::move(number));
    } else {
      return error("expected a name or a number after '.', found " + describe());
    }
    next();
    return finish(std::move(node));
  }

  Result<ExprPtr> parse_subscript(ExprPtr object) {
    ExprPtr node = make(ExprKind::kGetitem, current().line);
    next();
    node->args.push_back(std::move(object));
    if (is_op("]")) return error("expected a subscript, found ']'");
    ExprPtr parts[3];
    int colons = 0;
    while (!is_op("]")) {
      if (is_op(":") && colons < 2) {
        ++colons;
        next();
        continue;
      }
      if (parts[colons]) return error("expected ']', found " + describe());
      TRY_ASSIGN(parts[colons], parse_condition(true));
      if (!is_op("]") && !is_op(":")) return error("expected ']', found " + describe());
    }
    next();
    if (colons == 0) {
      node->args.push_back(std::move(parts[0]));
    } else {
      node->kind = ExprKind::kSlice;
      for (ExprPtr& part : parts) node->args.push_back(std::move(part));
    }
    return finish(std::move(node));
  }

  Result<std::unique_ptr<CallArgs>> parse_call_args() {
    auto call = std::make_unique<CallArgs>();
    TRY(expect_op("("));
    bool need_comma = false;
    while (!is_op(")")) {
      if (need_comma) {
        TRY(expect_op(","));
        if (is_op(")")) break;
      }
      need_comma = true;
      if (!call->double_star && !call->star && skip_op("*")) {
        TRY_ASSIGN(call->star, parse_condition(true));
      } else if (!call->double_star && skip_op("**")) {
        TRY_ASSIGN(call->double_star, parse_condition(true));
      } else if (!call->double_star && current().kind == TokenKind::kName && look().kind == TokenKind::kOperator &&
                 look().text == "=") {
        std::string name = current().text;
        next();
        next();
        TRY_ASSIGN(ExprPtr value, parse_condition(true));
        call->named.emplace_back(std::move(name), std::move(value));
      } else if (!call->star && !call->double_star && call->named.empty()) {
        TRY_ASSIGN(ExprPtr value, parse_condition(true));
        call->positional.push_back(std::move(value));
      } else {
        return error("these call arguments are in the wrong order");
      }
    }
    next();
    return call;
  }

  Result<ExprPtr> parse_call(ExprPtr callee) {
    ExprPtr node = make(ExprKind::kCall, current().line);
    node->args.push_back(std::move(callee));
    TRY_ASSIGN(node->call, parse_call_args());
    return finish(std::move(node));
  }

  // "|name(args)|name ..."; with start_inline the first "|" is absent (filter blocks).
  Result<ExprPtr> parse_filters(ExprPtr input, bool start_inline) {
    while (start_inline || is_op("|")) {
      if (!start_inline) next();
      start_inline = false;
      ExprPtr node = make(ExprKind::kFilter, current().line);
      TRY_ASSIGN(node->text, expect_any_name());
      if (!is_filter_name(node->text)) return error_at(node->line, "no filter named '" + node->text + "' is supported");
      node->args.push_back(std::move(input));
      if (is_op("(")) {
        TRY_ASSIGN(node->call, parse_call_args());
      }
      TRY_ASSIGN(input, finish(std::move(node)));
    }
    return input;
  }

  Result<ExprPtr> parse_test(ExprPtr input) {
    ExprPtr node = make(ExprKind::kTest, current().line);
    next();
    const bool negated = skip_name("not");
    TRY_ASSIGN(node->text, expect_any_name());
    if (!is_test_name(node->text)) return error_at(node->line, "no test named '" + node->text + "' is supported");
    node->args.push_back(std::move(input));
    if (is_op("(")) {
      TRY_ASSIGN(node->call, parse_call_args());
    } else if (at_test_operand()) {
      node->call = std::make_unique<CallArgs>();
      TRY_ASSIGN(ExprPtr operand, parse_primary());
      TRY_ASSIGN(operand, parse_postfix(std::move(operand)));
      node->call->positional.push_back(std::move(operand));
    }
    TRY_ASSIGN(node, finish(std::move(node)));
    if (!negated) return node;
    ExprPtr inverse = make(ExprKind::kNot, node->line);
    inverse->args.push_back(std::move(node));
    return finish(std::move(inverse));
  }

  bool at_test_operand() const {
    switch (current().kind) {
      case TokenKind::kName: return !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is") && !is_name("if") && !is_name("in") && !is_name("not");
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      default: return is_op("[") || is_op("{");
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  MacroDef* macro_ = nullptr;
  Program program_;
  std::unordered_map<std::string, int> symbol_numbers_;
};

}  // namespace

Result<Program> parse_program(std::string_view source) {
  TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace loralei::jinja
