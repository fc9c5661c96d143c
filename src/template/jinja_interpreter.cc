// SPDX-License-Identifier: Apache-2.0
// The interpreter: a render from beginning to end, names, and statements;
// jinja_evaluate.cc has calls and expressions.
#include "template/jinja_interpreter.h"

#include "template/jinja_ops.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;

Interpreter::Interpreter(const Program& program, const JinjaValue& context, const JinjaRenderOptions& options,
                         Work& work)
    : program_(program), run_(options.limits, work), unix_time_s_(options.unix_time_s) {
  context_.resize(program.symbols.size());
  for (size_t i = 0; i < program.symbols.size(); ++i) {
    if (context.is_dict()) context_[i] = context.as_dict().find(std::string_view(program.symbols[i]));
  }
}

// Captured frames hold macros that point back at them: emptied here, so
// that nothing leaks.
Interpreter::~Interpreter() {
  for (auto& frame : captured_) frame->variables.clear();
}

Result<std::string> Interpreter::run() {
  std::string out;
  out_ = &out;
  frame_ = std::make_shared<Frame>();
  execute(program_.body);
  if (run_.failed()) return *run_.error();
  return out;
}

// --- names

void Interpreter::assign(int symbol, JinjaValue value) {
  if (!run_.touch(frame_->variables.size())) return;
  for (auto& [name, old] : frame_->variables) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  frame_->variables.emplace_back(symbol, std::move(value));
}

JinjaValue Interpreter::look_up(int symbol) {
  for (const Frame* frame = frame_.get(); frame != nullptr; frame = frame->parent.get()) {
    if (!run_.touch(1 + frame->variables.size())) return {};
    for (const auto& [name, value] : frame->variables) {
      if (name == symbol) return value;
    }
  }
  if (context_[symbol] != nullptr) return *context_[symbol];
  const std::string& name = program_.symbols[symbol];
  if (is_global_name(name)) {
    auto callable = std::make_shared<JinjaCallable>();
    callable->name = name;
    return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(callable)));
  }
  return JinjaValue::undefined("'" + name + "' is undefined");
}

void Interpreter::assign_target(const Expr& target, JinjaValue value) {
  if (run_.failed()) return;
  run_.line = target.line;
  if (target.kind == ExprKind::kName) {
    assign(target.symbol, std::move(value));
  } else if (target.kind == ExprKind::kAttrTarget) {
    const JinjaValue space = look_up(target.symbol);
    if (space.kind() != Kind::kNamespace) {
      run_.fail("only attributes of a namespace can be assigned, and '" + program_.symbols[target.symbol] +
                "' is none");
      return;
    }
    assign_attribute(*space.as_namespace(), target.text, std::move(value));
  } else {
    const std::vector<JinjaValue> parts = elements(run_, value);
    if (run_.failed()) return;
    if (parts.size() != target.args.size()) {
      run_.fail("cannot unpack " + std::to_string(parts.size()) + " values into " + std::to_string(target.args.size()) +
                " names");
      return;
    }
    for (size_t i = 0; i < parts.size(); ++i) assign_target(*target.args[i], parts[i]);
  }
}

void Interpreter::assign_attribute(JinjaNamespace& space, const std::string& name, JinjaValue value) {
  if (name[0] == '_') {
    run_.fail("a namespace cannot have the attribute '" + name + "': names must not begin with an underscore");
    return;
  }
  if (!run_.touch(space.attributes.size() * name.size()) || !run_.touch_values(space.attributes.size())) return;
  for (auto& [key, old] : space.attributes) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  if (run_.hold(name.size() + 64)) space.attributes.emplace_back(name, std::move(value));
}

// --- statements

void Interpreter::emit(std::string_view text) {
  if (static_cast<int64_t>(out_->size() + text.size()) > run_.limits().max_output_bytes) {
    run_.fail("its output is longer than " + std::to_string(run_.limits().max_output_bytes >> 20) + " MiB");
    return;
  }
  if (run_.touch(text.size()) && run_.hold(text.size())) *out_ += text;
}

JinjaValue Interpreter::capture(const Body& body) {
  return capture([&] { execute(body); });
}

Flow Interpreter::execute(const Body& body) {
  for (const Stmt& stmt : body) {
    const Flow flow = execute(stmt);
    if (flow != Flow::kNormal || run_.failed()) return flow;
  }
  return Flow::kNormal;
}

Flow Interpreter::execute(const Stmt& stmt) {
  const Level level(*this);
  if (!level.ok()) return Flow::kNormal;
  const JinjaRun::Operation operation(run_);
  run_.line = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kData:
      emit(stmt.text);
      break;
    case StmtKind::kOutput: {
      const JinjaValue value = evaluate(*stmt.expr);
      if (value.is_string())
        emit(value.as_string());
      else if (!run_.failed())
        emit(to_str(run_, value));
      break;
    }
    case StmtKind::kIf:
      for (const Branch& branch : stmt.branches) {
        if (!branch.condition || truthy(evaluate(*branch.condition)))
          return run_.failed() ? Flow::kNormal : execute(branch.body);
        if (run_.failed()) break;
      }
      break;
    case StmtKind::kFor:
      return run_loop(stmt, evaluate(*stmt.expr), 0);
    case StmtKind::kSet:
      assign_target(*stmt.target, evaluate(*stmt.expr));
      break;
    case StmtKind::kSetBlock:
      return execute_set_block(stmt);
    case StmtKind::kMacro:
      assign(stmt.symbol, make_macro(*stmt.macro));
      break;
    case StmtKind::kCallBlock: {
      Arguments arguments;
      const JinjaValue callee = evaluate(*stmt.expr->args[0]);
      evaluate_arguments(stmt.expr->call.get(), arguments);
      arguments.named.emplace_back("caller", make_macro(*stmt.macro));
      if (run_.failed()) break;
      const JinjaValue value = call(callee, arguments);
      if (!run_.failed()) emit(to_str(run_, value));
      break;
    }
    case StmtKind::kFilterBlock: {
      JinjaValue body;
      const Flow flow = capture_block(stmt, body);
      if (flow != Flow::kNormal || run_.failed()) return flow;
      const JinjaValue value = evaluate_filter(*stmt.expr, &body);
      if (!run_.failed()) emit(to_str(run_, value));
      break;
    }
    case StmtKind::kWith:
      return execute_with(stmt);
    case StmtKind::kScope: {
      const Scope scope(*this);
      return execute(stmt.branches[0].body);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Flow Interpreter::capture_block(const Stmt& stmt, JinjaValue& out) {
  Flow flow = Flow::kNormal;
  const Scope scope(*this);
  out = capture([&] { flow = execute(stmt.branches[0].body); });
  return flow;
}

Flow Interpreter::execute_set_block(const Stmt& stmt) {
  JinjaValue value;
  const Flow flow = capture_block(stmt, value);
  if (flow != Flow::kNormal || run_.failed()) return flow;
  if (stmt.expr) value = evaluate_filter(*stmt.expr, &value);
  assign_target(*stmt.target, std::move(value));
  return Flow::kNormal;
}

Flow Interpreter::execute_with(const Stmt& stmt) {
  std::vector<JinjaValue> values;
  for (const auto& [target, value] : stmt.withs) values.push_back(evaluate(*value));
  const Scope scope(*this);
  for (size_t i = 0; i < values.size(); ++i) assign_target(*stmt.withs[i].first, values[i]);
  return run_.failed() ? Flow::kNormal : execute(stmt.branches[0].body);
}

bool Interpreter::meets_condition(const Stmt& loop, const JinjaValue& item, const std::shared_ptr<Frame>& outer) {
  const Scope scope(*this, outer);
  assign_target(*loop.target, item);
  return !run_.failed() && truthy(evaluate(*loop.condition)) && !run_.failed();
}

Flow Interpreter::run_loop(const Stmt& stmt, const JinjaValue& iterable, int depth0) {
  if (run_.failed()) return Flow::kNormal;
  const std::shared_ptr<Frame> outer = frame_;
  auto loop = std::make_shared<JinjaLoop>();
  // What changed() has seen may hold the loop itself.
  struct Ended {
    JinjaLoop& loop;
    ~Ended() {
      loop.last_changed = {};
      loop.find = {};
    }
  } ended{*loop};
  loop->depth0 = depth0;
  if (stmt.recursive) {
    loop->recursive = &stmt;
    loop->frame = outer.get();
    keep(outer);
  }
  std::vector<JinjaValue> source = elements(run_, iterable);
  if (stmt.condition) {
    loop->items.reserve(source.size());
    loop->find = [&, read = size_t{0}, busy = false](size_t wanted) mutable {
      if (std::exchange(busy, true)) run_.fail("the condition of a loop asks about the loop itself");
      while (loop->items.size() < wanted && read < source.size() && !run_.failed()) {
        JinjaValue item = std::move(source[read++]);
        if (meets_condition(stmt, item, outer)) loop->items.push_back(std::move(item));
      }
      busy = false;
    };
  } else {
    loop->items = std::move(source);
  }
  loop->held = JinjaHeld(run_, loop->items.capacity() * sizeof(JinjaValue) + sizeof(JinjaLoop));
  if (run_.failed()) return Flow::kNormal;
  bool through = false;  // jinja2 runs the else branch also where every turn was left by break or continue
  for (size_t i = 0; i < loop->count(i + 1) && !run_.failed(); ++i) {
    if (!run_.touch_values(16)) break;  // a turn costs a scope, however little it does
    const Scope scope(*this, outer);
    loop->index0 = static_cast<int64_t>(i);
    assign(program_.loop_symbol, JinjaValue(loop));
    assign_target(*stmt.target, loop->items[i]);
    if (run_.failed()) break;
    const Flow flow = execute(stmt.branches[0].body);
    through = through || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  if (through || run_.failed()) return Flow::kNormal;
  const Scope scope(*this, outer);
  return execute(stmt.branches[1].body);
}

void Interpreter::keep(const std::shared_ptr<Frame>& frame) {
  if (captured_.empty() || captured_.back() != frame) captured_.push_back(frame);
  run_.hold(64 + frame->variables.size() * 48);
}

JinjaValue Interpreter::make_macro(const MacroDef& macro) {
  keep(frame_);
  auto callable = std::make_shared<JinjaCallable>();
  callable->type = JinjaCallable::Type::kMacro;
  callable->name = macro.name;
  callable->macro = &macro;
  callable->frame = frame_.get();
  return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(callable)));
}

}  // namespace loralei::jinja
