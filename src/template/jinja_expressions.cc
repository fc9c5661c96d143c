// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "template/jinja_builtin_names.h"
#include "template/jinja_parser_impl.h"

namespace loralei::jinja {

Result<ExprPtr> Parser::parse_target(bool with_attribute, std::string_view end_name) {
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

Result<ExprPtr> Parser::parse_target_name(bool with_attribute) {
  ExprPtr node = make(ExprKind::kName, current().line);
  TRY_ASSIGN(std::string name, expect_any_name());
  static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None", "not",
                                                   "and",  "or",    "in",   "is",   "if",    "else"};
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

bool Parser::at_tuple_end(std::string_view end_name) const {
  return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || is_op(")") ||
         (!end_name.empty() && is_name(end_name));
}

Result<ExprPtr> Parser::parse_tuple(bool with_condition, std::string_view end_name, bool in_parentheses) {
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

Result<ExprPtr> Parser::parse_condition(bool with_condition) {
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
Result<ExprPtr> Parser::parse_chain(ExprKind kind, std::string_view word, Operand operand) {
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

Result<ExprPtr> Parser::parse_or() {
  return parse_chain(ExprKind::kOr, "or", [this] { return parse_and(); });
}

Result<ExprPtr> Parser::parse_and() {
  return parse_chain(ExprKind::kAnd, "and", [this] { return parse_not(); });
}

Result<ExprPtr> Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  Level level(depth_);
  TRY(check_depth());
  ExprPtr node = make(ExprKind::kNot, current().line);
  next();
  TRY_ASSIGN(ExprPtr operand, parse_not());
  node->args.push_back(std::move(operand));
  return finish(std::move(node));
}

bool Parser::skip_compare_op(CompareOp& op) {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                                    {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                                                    {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
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

Result<ExprPtr> Parser::parse_compare() {
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

bool Parser::at_binary(std::string_view level, char& op) const {
  if (current().kind != TokenKind::kOperator) return false;
  const std::string& text = current().text;
  op = text == "//" ? 'f' : text == "**" ? 'p' : text.size() == 1 ? text[0] : 0;
  return op != 0 && level.find(op) != std::string_view::npos;
}

Result<ExprPtr> Parser::parse_binary(std::string_view level) {
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

Result<ExprPtr> Parser::parse_concat() {
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

Result<ExprPtr> Parser::parse_unary(bool with_filter) {
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

Result<ExprPtr> Parser::parse_primary() {
  const Token token = current();
  switch (token.kind) {
    case TokenKind::kName:
      next();
      return parse_name(token);
    case TokenKind::kString: {
      ExprPtr node = make(ExprKind::kConst, token.line);
      std::string text;
      for (; current().kind == TokenKind::kString; next()) text += current().text;
      node->constant = JinjaValue(std::move(text));
      return node;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      next();
      return parse_number(token);
    case TokenKind::kOperator:
      break;
    default:
      return error("unexpected " + describe());
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

Result<ExprPtr> Parser::parse_name(const Token& token) {
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

Result<ExprPtr> Parser::parse_number(const Token& token) {
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

Result<ExprPtr> Parser::parse_container(const Token& token) {
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

Result<ExprPtr> Parser::parse_postfix(ExprPtr node) {
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

Result<ExprPtr> Parser::parse_attribute(ExprPtr object) {
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

Result<ExprPtr> Parser::parse_subscript(ExprPtr object) {
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

Result<std::unique_ptr<CallArgs>> Parser::parse_call_args() {
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

Result<ExprPtr> Parser::parse_call(ExprPtr callee) {
  ExprPtr node = make(ExprKind::kCall, current().line);
  node->args.push_back(std::move(callee));
  TRY_ASSIGN(node->call, parse_call_args());
  return finish(std::move(node));
}

Result<ExprPtr> Parser::parse_filters(ExprPtr input, bool start_inline) {
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

Result<ExprPtr> Parser::parse_test(ExprPtr input) {
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

bool Parser::at_test_operand() const {
  switch (current().kind) {
    case TokenKind::kName:
      return !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is") && !is_name("if") &&
             !is_name("in") && !is_name("not");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return is_op("[") || is_op("{");
  }
}

}  // namespace loralei::jinja
