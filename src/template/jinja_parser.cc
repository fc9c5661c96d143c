// SPDX-License-Identifier: Apache-2.0
// Statements; expressions are in jinja_expressions.cc.
#include "template/jinja_parser_impl.h"

namespace loralei::jinja {

Error Parser::error_at(int line, const std::string& what) {
  return invalid_argument("the chat template is not valid at line " + std::to_string(line) + ": " + what);
}

std::string Parser::describe() const {
  switch (current().kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    default:
      return "'" + current().text + "'";
  }
}

Status Parser::expect_op(std::string_view op) {
  if (skip_op(op)) return {};
  return error("expected '" + std::string(op) + "', found " + describe());
}

Status Parser::expect_kind(TokenKind kind, const char* what) {
  if (current().kind != kind) return error(std::string("expected ") + what + ", found " + describe());
  next();
  return {};
}

Result<std::string> Parser::expect_any_name() {
  if (current().kind != TokenKind::kName) return error("expected a name, found " + describe());
  std::string name = current().text;
  next();
  return name;
}

int Parser::symbol(const std::string& name) {
  const auto [place, fresh] = symbol_numbers_.emplace(name, static_cast<int>(program_.symbols.size()));
  if (fresh) program_.symbols.push_back(name);
  return place->second;
}

Status Parser::check_depth() const {
  if (depth_ > kMaxTreeDepth) return error("it nests deeper than " + std::to_string(kMaxTreeDepth) + " levels");
  return {};
}

Result<ExprPtr> Parser::finish(ExprPtr node) const {
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

bool Parser::at_end_tag(const std::vector<std::string_view>& ends) const {
  if (current().kind != TokenKind::kBlockBegin || look().kind != TokenKind::kName) return false;
  return std::find(ends.begin(), ends.end(), look().text) != ends.end();
}

Result<Body> Parser::parse_body(const std::vector<std::string_view>& ends) {
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
      default:
        return error("unexpected " + describe());
    }
    body.push_back(std::move(stmt));
  }
  if (!ends.empty()) return error("the template ends before '" + std::string(ends.back()) + "'");
  return body;
}

Result<Body> Parser::parse_block(const std::vector<std::string_view>& ends) {
  skip_op(":");
  TRY(expect_kind(TokenKind::kBlockEnd, "'%}'"));
  return parse_body(ends);
}

Status Parser::parse_statement(Stmt& stmt) {
  if (current().kind != TokenKind::kName) return error("expected a tag name, found " + describe());
  const std::string tag = current().text;
  stmt.line = current().line;
  next();
  if (tag == "if")
    TRY(parse_if(stmt));
  else if (tag == "for")
    TRY(parse_for(stmt));
  else if (tag == "set")
    TRY(parse_set(stmt));
  else if (tag == "macro")
    TRY(parse_macro(stmt));
  else if (tag == "call")
    TRY(parse_call_block(stmt));
  else if (tag == "filter")
    TRY(parse_filter_block(stmt));
  else if (tag == "with")
    TRY(parse_with(stmt));
  else if (tag == "print")
    TRY(parse_print(stmt));
  else if (tag == "generation")
    TRY(parse_one_block(stmt, StmtKind::kScope, "endgeneration"));
  else if (tag == "block")
    TRY(parse_named_block(stmt));
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

Status Parser::parse_one_block(Stmt& stmt, StmtKind kind, std::string_view end) {
  stmt.kind = kind;
  stmt.branches.emplace_back();
  TRY_ASSIGN(stmt.branches.back().body, parse_block({end}));
  next();
  return {};
}

Status Parser::parse_named_block(Stmt& stmt) {
  TRY_ASSIGN(const std::string name, expect_any_name());
  skip_name("scoped");
  TRY(parse_one_block(stmt, StmtKind::kScope, "endblock"));
  skip_name(name);
  return {};
}

Status Parser::parse_if(Stmt& stmt) {
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

Status Parser::parse_for(Stmt& stmt) {
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

Status Parser::parse_set(Stmt& stmt) {
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

Status Parser::parse_signature(MacroDef& macro) {
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

Status Parser::parse_macro_body(MacroDef& macro, std::string_view end) {
  const int outer_loops = std::exchange(loop_depth_, 0);
  MacroDef* const outer = std::exchange(macro_, &macro);
  auto body = parse_block({end});
  macro_ = outer;
  loop_depth_ = outer_loops;
  TRY_ASSIGN(macro.body, std::move(body));
  next();
  return {};
}

Status Parser::parse_macro(Stmt& stmt) {
  stmt.kind = StmtKind::kMacro;
  stmt.macro = std::make_unique<MacroDef>();
  stmt.macro->line = stmt.line;
  TRY_ASSIGN(stmt.macro->name, expect_any_name());
  stmt.symbol = symbol(stmt.macro->name);
  TRY(parse_signature(*stmt.macro));
  return parse_macro_body(*stmt.macro, "endmacro");
}

Status Parser::parse_call_block(Stmt& stmt) {
  stmt.kind = StmtKind::kCallBlock;
  stmt.macro = std::make_unique<MacroDef>();
  stmt.macro->name = "caller";
  stmt.macro->line = stmt.line;
  if (is_op("(")) TRY(parse_signature(*stmt.macro));
  TRY_ASSIGN(stmt.expr, parse_condition(true));
  if (stmt.expr->kind != ExprKind::kCall) return error_at(stmt.line, "expected a call");
  return parse_macro_body(*stmt.macro, "endcall");
}

Status Parser::parse_filter_block(Stmt& stmt) {
  TRY_ASSIGN(stmt.expr, parse_filters(nullptr, true));
  return parse_one_block(stmt, StmtKind::kFilterBlock, "endfilter");
}

Status Parser::parse_with(Stmt& stmt) {
  while (current().kind != TokenKind::kBlockEnd) {
    if (!stmt.withs.empty()) TRY(expect_op(","));
    TRY_ASSIGN(ExprPtr target, parse_target(false, {}));
    TRY(expect_op("="));
    TRY_ASSIGN(ExprPtr value, parse_condition(true));
    stmt.withs.emplace_back(std::move(target), std::move(value));
  }
  return parse_one_block(stmt, StmtKind::kWith, "endwith");
}

Status Parser::parse_print(Stmt& stmt) {
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

Result<Program> parse_program(std::string_view source) {
  TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace loralei::jinja
