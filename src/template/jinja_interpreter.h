// SPDX-License-Identifier: Apache-2.0
// The interpreter of parsed templates, which walks the trees of jinja_ast.h: a private
// header of jinja_interpreter.cc (names and statements) and jinja_evaluate.cc (calls
// and expressions).
//
// Thread: one interpreter, one render.
// Ownership: borrows the program and the context; keeps every frame that a macro
// or a recursive loop points at until it dies.
// Invariant: every statement and expression counts against the limits of
// the run.
// Failure: through the run; what returns after run_.failed() is undefined and only
// returned on, and run() gives the first error.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "template/jinja.h"
#include "template/jinja_ast.h"
#include "template/jinja_call.h"

namespace loralei::jinja {

// The variables of one scope. Macros may outlive the scope they were defined in.
struct Frame : std::enable_shared_from_this<Frame> {
  std::shared_ptr<Frame> parent;
  std::vector<std::pair<int, JinjaValue>> variables;
};

// How a statement ended: the loop around it goes on, ends, or begins its next turn.
enum class Flow : uint8_t { kNormal, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const Program& program, const JinjaValue& context, const JinjaRenderOptions& options, Work& work);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<std::string> run();

 private:
  // One level of evaluation; ok() is false when the render has ended or nests too deep.
  class Level {
   public:
    explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
      if (++interpreter_.depth_ > interpreter_.run_.limits().max_depth) {
        interpreter_.run_.fail("it nests deeper than " + std::to_string(interpreter_.run_.limits().max_depth) +
                               " levels");
      }
    }
    ~Level() { --interpreter_.depth_; }
    bool ok() const { return interpreter_.run_.step(); }

   private:
    Interpreter& interpreter_;
  };

  // A scope for as long as it lives.
  class Scope {
   public:
    Scope(Interpreter& interpreter, std::shared_ptr<Frame> parent)
        : interpreter_(interpreter), saved_(interpreter.frame_) {
      interpreter_.frame_ = std::make_shared<Frame>();
      interpreter_.frame_->parent = std::move(parent);
    }
    explicit Scope(Interpreter& interpreter) : Scope(interpreter, interpreter.frame_) {}
    ~Scope() { interpreter_.frame_ = std::move(saved_); }

   private:
    Interpreter& interpreter_;
    std::shared_ptr<Frame> saved_;
  };

  // --- names

  // In the innermost scope.
  void assign(int symbol, JinjaValue value);
  // The scopes from the innermost outwards, then the context, then the global functions;
  // undefined when none has it.
  JinjaValue look_up(int symbol);
  void assign_target(const Expr& target, JinjaValue value);
  void assign_attribute(JinjaNamespace& space, const std::string& name, JinjaValue value);

  // --- statements

  // Appends to the text that is being written, which is held until it is complete.
  void emit(std::string_view text);
  // What `write` writes, as a string of its own.
  template <typename Write>
  JinjaValue capture(Write&& write) {
    std::string text;
    std::string* const outer = std::exchange(out_, &text);
    write();
    out_ = outer;
    run_.release(text.size());  // the value holds it from now on
    return run_.failed() ? JinjaValue() : run_.make_string(std::move(text));
  }
  JinjaValue capture(const Body& body);
  Flow execute(const Body& body);
  Flow execute(const Stmt& stmt);
  // The text of a block; where break or continue has left it, nothing is done with that.
  Flow capture_block(const Stmt& stmt, JinjaValue& out);
  Flow execute_set_block(const Stmt& stmt);
  Flow execute_with(const Stmt& stmt);
  // Of an item whose turn comes in the loop, or is asked about.
  bool meets_condition(const Stmt& loop, const JinjaValue& item, const std::shared_ptr<Frame>& outer);
  // depth0: how many calls of loop(...) led here.
  // The flow is that of the else branch, which belongs to the loop around.
  Flow run_loop(const Stmt& stmt, const JinjaValue& iterable, int depth0);
  // Keeps a frame until the render ends: something points at it.
  void keep(const std::shared_ptr<Frame>& frame);
  JinjaValue make_macro(const MacroDef& macro);

  // --- calls

  void evaluate_arguments(const CallArgs* call, Arguments& out);
  JinjaValue call(const JinjaValue& callee, const Arguments& arguments);
  JinjaValue call_stepper(const JinjaCallable& callable, const Arguments& arguments);
  // loop(items) inside a recursive loop renders the same loop over other items.
  JinjaValue call_loop(const JinjaValue& value, const Arguments& arguments);
  JinjaValue call_loop_method(JinjaLoop& loop, const std::string& name, const Arguments& arguments);
  JinjaValue call_macro(const JinjaCallable& callable, const Arguments& arguments);
  void bind_parameters(const MacroDef& macro, const std::vector<const JinjaValue*>& given);

  // --- expressions

  JinjaValue evaluate(const Expr& expr);
  JinjaValue evaluate_operator(const Expr& expr);
  JinjaValue evaluate_compare(const Expr& expr);
  bool compare(CompareOp op, const JinjaValue& left, const JinjaValue& right);
  JinjaValue evaluate_slice(const Expr& expr);
  // `body` stands in for the input of the innermost filter of a filter or set block.
  JinjaValue evaluate_filter(const Expr& expr, const JinjaValue* body);

  const Program& program_;
  JinjaRun run_;
  int64_t unix_time_s_;
  int depth_ = 0;
  std::string* out_ = nullptr;                    // the text that is being written
  std::shared_ptr<Frame> frame_;                  // the innermost scope
  std::vector<const JinjaValue*> context_;        // by symbol; null where the context has no such name
  std::vector<std::shared_ptr<Frame>> captured_;  // kept until the render ends
};

}  // namespace loralei::jinja
