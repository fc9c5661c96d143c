// SPDX-License-Identifier: Apache-2.0
// The parsed form of a template: expressions and statements as two tagged node types,
// names as symbol numbers.
//
// Thread: built by the parser, then immutable.
// Ownership: a template owns its trees.
// Invariant: no tree is deeper than kMaxTreeDepth (the parser counts), so evaluating and
// destroying it may recurse.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "template/jinja_value.h"

namespace loralei::jinja {

inline constexpr int kMaxTreeDepth = 160;

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<Stmt>;

enum class ExprKind : uint8_t {
  kConst,    // constant
  kName,     // symbol
  kList,     // args
  kTuple,    // args
  kDict,     // args: key, value, key, value ...
  kGetattr,  // args[0].text
  kGetitem,  // args[0][args[1]]
  kSlice,    // args[0][args[1]:args[2]:args[3]]; the last three may be null
  kCall,     // args[0](call)
  kFilter,   // args[0]|text(call); a null args[0] is the body of a filter or set block
  kTest,     // args[0] is text(call)
  kCond,     // args[0] if args[1] else args[2]; args[2] may be null
  kAnd,
  kOr,
  kNot,
  kNegate,
  kPlus,
  kBinary,     // args[0] op args[1], op of + - * / % and 'f' for //, 'p' for **
  kConcat,     // args joined by ~
  kCompare,    // args[0] ops[0] args[1] ops[1] args[2] ...
  kAttrTarget  // target of set only: symbol.text
};

enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *args
  ExprPtr double_star;  // **kwargs
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  char op = 0;
  int line = 1;
  int depth = 1;
  int symbol = -1;
  std::string text;
  JinjaValue constant;
  std::vector<ExprPtr> args;
  std::vector<CompareOp> ops;
  std::unique_ptr<CallArgs> call;
};

struct Parameter {
  int symbol = -1;
  std::string name;
  ExprPtr fallback;  // null: required (undefined when absent)
};

// A macro, or the body of a call block.
struct MacroDef {
  std::string name;
  int line = 1;
  std::vector<Parameter> parameters;
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StmtKind : uint8_t {
  kData,         // text
  kOutput,       // expr
  kIf,           // branches, last condition null for else
  kFor,          // targets in expr (if condition): branches[0].body, else branches[1].body
  kSet,          // targets = expr
  kSetBlock,     // targets = rendered branches[0].body through filter expr (may be null)
  kMacro,        // symbol = macro
  kCallBlock,    // expr is the call, macro the body
  kFilterBlock,  // expr is the filter, branches[0].body
  kWith,         // withs, branches[0].body
  kScope,        // generation: branches[0].body in its own scope
  kBreak,
  kContinue
};

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int line = 1;
  int symbol = -1;
  bool recursive = false;
  std::string text;
  ExprPtr target;
  ExprPtr expr;
  ExprPtr condition;
  std::vector<Branch> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> withs;
  std::unique_ptr<MacroDef> macro;
};

struct Program {
  Body body;
  std::vector<std::string> symbols;
  int loop_symbol = -1;
  int caller_symbol = -1;
  int varargs_symbol = -1;
  int kwargs_symbol = -1;
};

}  // namespace loralei::jinja
