// SPDX-License-Identifier: Apache-2.0
// The interpreter: walks the trees of jinja_ast.h.
#include "text/jinja.h"

#include <algorithm>

#include "text/jinja_ast.h"
#include "text/jinja_call.h"
#include "text/jinja_ops.h"
#include "text/jinja_parser.h"
#include "text/jinja_text.h"

namespace loralei {

namespace jinja {

// The variables of one scope. Macros may outlive the scope they were defined in.
struct Frame : std::enable_shared_from_this<Frame> {
  std::shared_ptr<Frame> parent;
  std::vector<std::pair<int, JinjaValue>> variables;
};

namespace {

using Kind = JinjaValue::Kind;
enum class Flow : uint8_t { kNormal, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const Program& program, const JinjaValue& context, const JinjaRenderOptions& options)
      : program_(program), run_(options.limits), unix_time_s_(options.unix_time_s) {
    context_.resize(program.symbols.size());
    for (size_t i = 0; i < program.symbols.size(); ++i) {
      if (context.is_dict()) context_[i] = context.as_dict().find(std::string_view(program.symbols[i]));
    }
  }

  // Captured frames hold macros that point back at them: emptied here, so that nothing leaks.
  ~Interpreter() {
    for (auto& frame : captured_) frame->variables.clear();
  }

  Result<std::string> run() {
    std::string out;
    out_ = &out;
    frame_ = std::make_shared<Frame>();
    execute(program_.body);
    if (run_.failed()) return *run_.error();
    return out;
  }

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

  void assign(int symbol, JinjaValue value) {
    for (auto& [name, old] : frame_->variables) {
      if (name == symbol) {
        old = std::move(value);
        return;
      }
    }
    frame_->variables.emplace_back(symbol, std::move(value));
  }

  JinjaValue look_up(int symbol) {
    for (const Frame* frame = frame_.get(); frame != nullptr; frame = frame->parent.get()) {
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

  void assign_target(const Expr& target, JinjaValue value) {
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
        run_.fail("cannot unpack " + std::to_string(parts.size()) + " values into " +
                  std::to_string(target.args.size()) + " names");
        return;
      }
      for (size_t i = 0; i < parts.size(); ++i) assign_target(*target.args[i], parts[i]);
    }
  }

  void assign_attribute(JinjaNamespace& space, const std::string& name, JinjaValue value) {
    if (name[0] == '_') {
      run_.fail("a namespace cannot have the attribute '" + name + "': names must not begin with an underscore");
      return;
    }
    for (auto& [key, old] : space.attributes) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    space.attributes.emplace_back(name, std::move(value));
  }

  // --- statements

  void emit(std::string_view text) {
    if (static_cast<int64_t>(out_->size() + text.size()) > run_.limits().max_output_bytes) {
      run_.fail("its output is longer than " + std::to_string(run_.limits().max_output_bytes >> 20) + " MiB");
      return;
    }
    if (run_.allocate(text.size())) *out_ += text;
  }

  // Renders a body into a string of its own.
  std::string capture(const Body& body) {
    std::string text;
    std::string* const outer = std::exchange(out_, &text);
    execute(body);
    out_ = outer;
    return text;
  }

  Flow execute(const Body& body) {
    for (const Stmt& stmt : body) {
      const Flow flow = execute(stmt);
      if (flow != Flow::kNormal || run_.failed()) return flow;
    }
    return Flow::kNormal;
  }

  Flow execute(const Stmt& stmt) {
    const Level level(*this);
    if (!level.ok()) return Flow::kNormal;
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
        run_loop(stmt, evaluate(*stmt.expr), 0);
        break;
      case StmtKind::kSet:
        assign_target(*stmt.target, evaluate(*stmt.expr));
        break;
      case StmtKind::kSetBlock:
        execute_set_block(stmt);
        break;
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
        {
          const Scope scope(*this);
          body = run_.make_string(capture(stmt.branches[0].body));
        }
        if (run_.failed()) break;
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

  void execute_set_block(const Stmt& stmt) {
    JinjaValue value;
    {
      const Scope scope(*this);
      value = run_.make_string(capture(stmt.branches[0].body));
    }
    if (run_.failed()) return;
    if (stmt.expr) value = evaluate_filter(*stmt.expr, &value);
    assign_target(*stmt.target, std::move(value));
  }

  Flow execute_with(const Stmt& stmt) {
    std::vector<JinjaValue> values;
    for (const auto& [target, value] : stmt.withs) values.push_back(evaluate(*value));
    const Scope scope(*this);
    for (size_t i = 0; i < values.size(); ++i) assign_target(*stmt.withs[i].first, values[i]);
    return run_.failed() ? Flow::kNormal : execute(stmt.branches[0].body);
  }

  void run_loop(const Stmt& stmt, const JinjaValue& iterable, int depth0) {
    if (run_.failed()) return;
    const std::shared_ptr<Frame> outer = frame_;
    auto loop = std::make_shared<JinjaLoop>();
    loop->depth0 = depth0;
    if (stmt.recursive) {
      loop->recursive = &stmt;
      loop->frame = outer.get();
      keep(outer);
    }
    for (JinjaValue& item : elements(run_, iterable)) {
      if (stmt.condition) {
        const Scope scope(*this, outer);
        assign_target(*stmt.target, item);
        const bool keep_item = !run_.failed() && truthy(evaluate(*stmt.condition));
        if (run_.failed()) return;
        if (!keep_item) continue;
      }
      loop->items.push_back(std::move(item));
    }
    if (run_.failed() || !run_.allocate(loop->items.size() * sizeof(JinjaValue))) return;
    for (size_t i = 0; i < loop->items.size(); ++i) {
      if (!run_.step(4)) return;  // a turn costs a scope, however little it does
      const Scope scope(*this, outer);
      loop->index0 = static_cast<int64_t>(i);
      assign(program_.loop_symbol, JinjaValue(loop));
      assign_target(*stmt.target, loop->items[i]);
      if (run_.failed()) return;
      const Flow flow = execute(stmt.branches[0].body);
      if (flow == Flow::kBreak || run_.failed()) return;
    }
    if (loop->items.empty()) {
      const Scope scope(*this, outer);
      execute(stmt.branches[1].body);
    }
  }

  // Keeps a frame until the render ends: something points at it.
  void keep(const std::shared_ptr<Frame>& frame) {
    if (captured_.empty() || captured_.back() != frame) captured_.push_back(frame);
    run_.allocate(64 + frame->variables.size() * 48);
  }

  JinjaValue make_macro(const MacroDef& macro) {
    keep(frame_);
    auto callable = std::make_shared<JinjaCallable>();
    callable->type = JinjaCallable::Type::kMacro;
    callable->name = macro.name;
    callable->macro = &macro;
    callable->frame = frame_.get();
    return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(callable)));
  }

  // --- calls

  void evaluate_arguments(const CallArgs* call, Arguments& out) {
    if (call == nullptr) return;
    for (const ExprPtr& argument : call->positional) out.positional.push_back(evaluate(*argument));
    for (const auto& [name, argument] : call->named) out.named.emplace_back(name, evaluate(*argument));
    if (call->star) {
      for (JinjaValue& item : elements(run_, evaluate(*call->star))) out.positional.push_back(std::move(item));
    }
    if (!call->double_star || run_.failed()) return;
    const JinjaValue named = evaluate(*call->double_star);
    if (!named.is_dict()) {
      run_.fail("'**' needs a dict");
      return;
    }
    for (const auto& [key, value] : named.as_dict().items) {
      if (!key.is_string())
        run_.fail("keyword arguments need names");
      else
        out.named.emplace_back(key.as_string(), value);
    }
  }

  JinjaValue call(const JinjaValue& callee, const Arguments& arguments) {
    const Level level(*this);
    if (!level.ok()) return {};
    if (callee.is_undefined()) return run_.fail(callee.undefined_hint());
    if (callee.kind() == Kind::kLoop) return call_loop(callee, arguments);
    if (callee.kind() != Kind::kCallable)
      return run_.fail("a value of type '" + type_name(callee) + "' cannot be called");
    const JinjaCallable& callable = callee.as_callable();
    switch (callable.type) {
      case JinjaCallable::Type::kGlobal:
        return call_global(run_, callable.name, arguments, unix_time_s_);
      case JinjaCallable::Type::kMacro:
        return call_macro(callable, arguments);
      case JinjaCallable::Type::kStepper:
        return call_stepper(callable, arguments);
      case JinjaCallable::Type::kMethod:
        break;
    }
    if (callable.receiver.kind() == Kind::kLoop)
      return call_loop_method(*callable.receiver.as_loop(), callable.name, arguments);
    return call_method(run_, callable.receiver, callable.name, arguments);
  }

  JinjaValue call_stepper(const JinjaCallable& callable, const Arguments& arguments) {
    std::vector<JinjaValue> none;
    if (!bind(run_, callable.name, arguments, {}, 0, none)) return {};
    JinjaStepper& state = *callable.state;
    const JinjaValue now = state.items[state.next];
    state.next = callable.name == "joiner" ? 1 : (state.next + 1) % state.items.size();
    return now;
  }

  // loop(items) inside a recursive loop renders the same loop over other items.
  JinjaValue call_loop(const JinjaValue& value, const Arguments& arguments) {
    const std::shared_ptr<JinjaLoop> loop = value.as_loop();
    if (loop->recursive == nullptr) return run_.fail("only a loop marked 'recursive' can be called");
    std::vector<JinjaValue> a;
    if (!bind(run_, "loop", arguments, {"iterable"}, 1, a)) return {};
    std::string text;
    std::string* const outer_out = std::exchange(out_, &text);
    const std::shared_ptr<Frame> outer_frame = std::exchange(frame_, loop->frame->shared_from_this());
    run_loop(*loop->recursive, a[0], loop->depth0 + 1);
    frame_ = outer_frame;
    out_ = outer_out;
    return run_.make_string(std::move(text));
  }

  JinjaValue call_loop_method(JinjaLoop& loop, const std::string& name, const Arguments& arguments) {
    if (!arguments.named.empty()) return run_.fail("loop." + name + " takes no named arguments");
    if (name == "cycle") {
      if (arguments.positional.empty()) return run_.fail("loop.cycle needs values to cycle through");
      return arguments.positional[loop.index0 % static_cast<int64_t>(arguments.positional.size())];
    }
    const JinjaValue now = run_.make_list(arguments.positional, JinjaList::Shape::kTuple);
    if (run_.failed()) return {};
    const bool changed = !loop.changed_once || !equals(run_, loop.last_changed, now);
    loop.changed_once = true;
    loop.last_changed = now;
    return JinjaValue(changed);
  }

  JinjaValue call_macro(const JinjaCallable& callable, const Arguments& arguments) {
    const MacroDef& macro = *callable.macro;
    const Scope scope(*this, callable.frame->shared_from_this());
    const size_t count = macro.parameters.size();
    std::vector<const JinjaValue*> given(count, nullptr);
    for (size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) given[i] = &arguments.positional[i];
    std::vector<JinjaDict::Item> extra;
    JinjaValue caller = JinjaValue::undefined("no caller is defined");
    for (const auto& [name, value] : arguments.named) {
      const auto found = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                      [&, &key = name](const Parameter& parameter) { return parameter.name == key; });
      if (found != macro.parameters.end()) {
        const size_t i = found - macro.parameters.begin();
        if (given[i] != nullptr) return run_.fail("the macro '" + macro.name + "' got two values for '" + name + "'");
        given[i] = &value;
      } else if (name == "caller" && macro.uses_caller) {
        caller = value;
      } else if (macro.uses_kwargs) {
        extra.emplace_back(JinjaValue(name), value);
      } else {
        return run_.fail("the macro '" + macro.name + "' takes no keyword argument '" + name + "'");
      }
    }
    if (arguments.positional.size() > count && !macro.uses_varargs) {
      return run_.fail("the macro '" + macro.name + "' takes not more than " + std::to_string(count) + " arguments");
    }
    bind_parameters(macro, given);
    if (macro.uses_caller) assign(program_.caller_symbol, caller);
    if (macro.uses_kwargs) assign(program_.kwargs_symbol, run_.make_dict(std::move(extra)));
    if (macro.uses_varargs) {
      std::vector<JinjaValue> rest;
      for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
      assign(program_.varargs_symbol, run_.make_list(std::move(rest), JinjaList::Shape::kTuple));
    }
    if (run_.failed()) return {};
    return run_.make_string(capture(macro.body));
  }

  void bind_parameters(const MacroDef& macro, const std::vector<const JinjaValue*>& given) {
    for (size_t i = 0; i < given.size(); ++i) {
      const Parameter& parameter = macro.parameters[i];
      if (given[i] != nullptr)
        assign(parameter.symbol, *given[i]);
      else if (parameter.fallback)
        assign(parameter.symbol, evaluate(*parameter.fallback));
      else
        assign(parameter.symbol, JinjaValue::undefined("parameter '" + parameter.name + "' was not provided"));
      if (run_.failed()) return;
    }
  }

  // --- expressions

  JinjaValue evaluate(const Expr& expr) {
    const Level level(*this);
    if (!level.ok()) return {};
    run_.line = expr.line;
    switch (expr.kind) {
      case ExprKind::kConst:
        return expr.constant;
      case ExprKind::kName:
        return look_up(expr.symbol);
      case ExprKind::kList:
      case ExprKind::kTuple: {
        std::vector<JinjaValue> items;
        for (const ExprPtr& item : expr.args) items.push_back(evaluate(*item));
        const bool tuple = expr.kind == ExprKind::kTuple;
        return run_.failed()
                   ? JinjaValue()
                   : run_.make_list(std::move(items), tuple ? JinjaList::Shape::kTuple : JinjaList::Shape::kList);
      }
      case ExprKind::kDict: {
        std::vector<JinjaDict::Item> items;
        for (size_t i = 0; i < expr.args.size(); i += 2) {
          JinjaValue key = evaluate(*expr.args[i]);
          items.emplace_back(std::move(key), evaluate(*expr.args[i + 1]));
        }
        return run_.failed() ? JinjaValue() : run_.make_dict(std::move(items));
      }
      case ExprKind::kGetattr: {
        const JinjaValue object = evaluate(*expr.args[0]);
        return get_attribute(run_, object, expr.text);
      }
      case ExprKind::kGetitem: {
        const JinjaValue object = evaluate(*expr.args[0]);
        return get_subscript(run_, object, evaluate(*expr.args[1]));
      }
      case ExprKind::kSlice:
        return evaluate_slice(expr);
      case ExprKind::kCall: {
        const JinjaValue callee = evaluate(*expr.args[0]);
        Arguments arguments;
        evaluate_arguments(expr.call.get(), arguments);
        run_.line = expr.line;
        return run_.failed() ? JinjaValue() : call(callee, arguments);
      }
      case ExprKind::kFilter:
        return evaluate_filter(expr, nullptr);
      case ExprKind::kTest: {
        const JinjaValue value = evaluate(*expr.args[0]);
        Arguments arguments;
        evaluate_arguments(expr.call.get(), arguments);
        return run_.failed() ? JinjaValue() : JinjaValue(apply_test(run_, expr.text, value, arguments));
      }
      case ExprKind::kCond:
        if (truthy(evaluate(*expr.args[1]))) return evaluate(*expr.args[0]);
        if (expr.args[2]) return evaluate(*expr.args[2]);
        return JinjaValue::undefined("the inline if-expression evaluated to false and no else section was defined");
      default:
        return evaluate_operator(expr);
    }
  }

  JinjaValue evaluate_operator(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::kAnd:
      case ExprKind::kOr: {
        JinjaValue left = evaluate(*expr.args[0]);
        return truthy(left) == (expr.kind == ExprKind::kOr) ? left : evaluate(*expr.args[1]);
      }
      case ExprKind::kNot:
        return JinjaValue(!truthy(evaluate(*expr.args[0])));
      case ExprKind::kNegate:
        return negate(run_, evaluate(*expr.args[0]));
      case ExprKind::kPlus: {
        const JinjaValue value = evaluate(*expr.args[0]);
        if (!value.is_number()) return run_.fail("unary '+' needs a number");
        return value.is_int() ? JinjaValue(value.as_int()) : value;
      }
      case ExprKind::kBinary: {
        const JinjaValue left = evaluate(*expr.args[0]);
        const JinjaValue right = evaluate(*expr.args[1]);
        run_.line = expr.line;
        return run_.failed() ? JinjaValue() : binary(run_, expr.op, left, right);
      }
      case ExprKind::kConcat: {
        std::string text;
        for (const ExprPtr& part : expr.args) {
          text += to_str(run_, evaluate(*part));
          if (run_.failed()) return {};
        }
        return run_.make_string(std::move(text));
      }
      case ExprKind::kCompare:
        return evaluate_compare(expr);
      default:
        return run_.fail("this expression cannot be evaluated");
    }
  }

  JinjaValue evaluate_compare(const Expr& expr) {
    JinjaValue left = evaluate(*expr.args[0]);
    for (size_t i = 0; i < expr.ops.size() && !run_.failed(); ++i) {
      JinjaValue right = evaluate(*expr.args[i + 1]);
      if (run_.failed()) return {};
      if (!compare(expr.ops[i], left, right)) return JinjaValue(false);
      left = std::move(right);
    }
    return JinjaValue(true);
  }

  bool compare(CompareOp op, const JinjaValue& left, const JinjaValue& right) {
    switch (op) {
      case CompareOp::kEq:
        return equals(run_, left, right);
      case CompareOp::kNe:
        return !equals(run_, left, right);
      case CompareOp::kLt:
        return less(run_, left, right);
      case CompareOp::kGt:
        return less(run_, right, left, ">");
      case CompareOp::kLe:
        return less(run_, left, right, "<=") || (!run_.failed() && equals(run_, left, right));
      case CompareOp::kGe:
        return less(run_, right, left, ">=") || (!run_.failed() && equals(run_, left, right));
      case CompareOp::kIn:
        return contains(run_, right, left);
      case CompareOp::kNotIn:
        return !contains(run_, right, left);
    }
    return false;
  }

  JinjaValue evaluate_slice(const Expr& expr) {
    const JinjaValue object = evaluate(*expr.args[0]);
    JinjaValue bounds[3];
    for (int i = 0; i < 3; ++i) bounds[i] = expr.args[i + 1] ? evaluate(*expr.args[i + 1]) : JinjaValue::none();
    return run_.failed() ? JinjaValue() : slice(run_, object, bounds[0], bounds[1], bounds[2]);
  }

  // `body` stands in for the input of the innermost filter of a filter or set block.
  JinjaValue evaluate_filter(const Expr& expr, const JinjaValue* body) {
    const Level level(*this);
    if (!level.ok()) return {};
    JinjaValue value;
    if (!expr.args[0])
      value = *body;
    else if (body != nullptr && expr.args[0]->kind == ExprKind::kFilter)
      value = evaluate_filter(*expr.args[0], body);
    else
      value = evaluate(*expr.args[0]);
    Arguments arguments;
    if (!run_.failed()) evaluate_arguments(expr.call.get(), arguments);
    run_.line = expr.line;
    return run_.failed() ? JinjaValue() : apply_filter(run_, expr.text, value, arguments);
  }

  const Program& program_;
  JinjaRun run_;
  int64_t unix_time_s_;
  int depth_ = 0;
  std::string* out_ = nullptr;
  std::shared_ptr<Frame> frame_;
  std::vector<const JinjaValue*> context_;
  std::vector<std::shared_ptr<Frame>> captured_;
};

}  // namespace
}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::unique_ptr<const jinja::Program> program) : program_(std::move(program)) {}
JinjaTemplate::~JinjaTemplate() = default;

Result<std::shared_ptr<const JinjaTemplate>> JinjaTemplate::parse(std::string_view source) {
  if (static_cast<int64_t>(source.size()) > kMaxTemplateBytes) {
    return too_large("the chat template has " + std::to_string(source.size()) + " bytes; at most " +
                     std::to_string(kMaxTemplateBytes) + " are accepted");
  }
  if (!jinja::is_valid_utf8(source)) return invalid_argument("the chat template is not valid UTF-8");
  TRY_ASSIGN(jinja::Program program, jinja::parse_program(source));
  return std::shared_ptr<const JinjaTemplate>(
      new JinjaTemplate(std::make_unique<const jinja::Program>(std::move(program))));
}

Result<std::string> JinjaTemplate::render(const JinjaValue& context, const JinjaRenderOptions& options) const {
  return jinja::Interpreter(*program_, context, options).run();
}

bool JinjaTemplate::mentions(std::string_view variable) const {
  const auto& symbols = program_->symbols;
  return std::find(symbols.begin(), symbols.end(), variable) != symbols.end();
}

}  // namespace loralei
