// SPDX-License-Identifier: Apache-2.0
// The interpreter: calls and expressions; jinja_interpreter.cc has statements.
#include <algorithm>

#include "template/jinja_interpreter.h"
#include "template/jinja_ops.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;

// --- calls

void Interpreter::evaluate_arguments(const CallArgs* call, Arguments& out) {
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
    else if (run_.allocate(key.as_string().size() + sizeof(out.named[0])) && run_.step())
      out.named.emplace_back(key.as_string(), value);
    if (run_.failed()) return;
  }
}

JinjaValue Interpreter::call(const JinjaValue& callee, const Arguments& arguments) {
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

JinjaValue Interpreter::call_stepper(const JinjaCallable& callable, const Arguments& arguments) {
  std::vector<JinjaValue> none;
  if (!bind(run_, callable.name, arguments, {}, 0, none)) return {};
  JinjaStepper& state = *callable.state;
  const JinjaValue now = state.items[state.next];
  state.next = callable.name == "joiner" ? 1 : (state.next + 1) % state.items.size();
  return now;
}

JinjaValue Interpreter::call_loop(const JinjaValue& value, const Arguments& arguments) {
  const std::shared_ptr<JinjaLoop> loop = value.as_loop();
  if (loop->recursive == nullptr) return run_.fail("only a loop marked 'recursive' can be called");
  std::vector<JinjaValue> a;
  if (!bind(run_, "loop", arguments, {"iterable"}, 1, a)) return {};
  return capture([&] {
    const std::shared_ptr<Frame> outer = std::exchange(frame_, loop->frame->shared_from_this());
    run_loop(*loop->recursive, a[0], loop->depth0 + 1);
    frame_ = outer;
  });
}

JinjaValue Interpreter::call_loop_method(JinjaLoop& loop, const std::string& name, const Arguments& arguments) {
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

JinjaValue Interpreter::call_macro(const JinjaCallable& callable, const Arguments& arguments) {
  const MacroDef& macro = *callable.macro;
  const Scope scope(*this, callable.frame->shared_from_this());
  const size_t count = macro.parameters.size();
  std::vector<const JinjaValue*> given(count, nullptr);
  for (size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) given[i] = &arguments.positional[i];
  // Each name is looked for among the parameters.
  if (!run_.touch_values(arguments.positional.size() + arguments.named.size() * (1 + count))) return {};
  for (const auto& [name, value] : arguments.named) {
    if (!run_.touch(name.size() * (1 + count))) return {};
  }
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
      extra.emplace_back(run_.make_string(name), value);
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
  return capture(macro.body);
}

void Interpreter::bind_parameters(const MacroDef& macro, const std::vector<const JinjaValue*>& given) {
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

JinjaValue Interpreter::evaluate(const Expr& expr) {
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

JinjaValue Interpreter::evaluate_operator(const Expr& expr) {
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
      const JinjaRun::Operation operation(run_);
      std::string text;
      for (const ExprPtr& part : expr.args) {
        const JinjaValue value = evaluate(*part);
        const std::string converted = value.is_string() ? std::string() : to_str(run_, value);
        const std::string& piece = value.is_string() ? value.as_string() : converted;
        if (!run_.allocate(piece.size())) return {};
        text += piece;
      }
      return run_.make_string(std::move(text));
    }
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    default:
      return run_.fail("this expression cannot be evaluated");
  }
}

JinjaValue Interpreter::evaluate_compare(const Expr& expr) {
  JinjaValue left = evaluate(*expr.args[0]);
  for (size_t i = 0; i < expr.ops.size() && !run_.failed(); ++i) {
    JinjaValue right = evaluate(*expr.args[i + 1]);
    if (run_.failed()) return {};
    if (!compare(expr.ops[i], left, right)) return JinjaValue(false);
    left = std::move(right);
  }
  return JinjaValue(true);
}

bool Interpreter::compare(CompareOp op, const JinjaValue& left, const JinjaValue& right) {
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

JinjaValue Interpreter::evaluate_slice(const Expr& expr) {
  const JinjaValue object = evaluate(*expr.args[0]);
  JinjaValue bounds[3];
  for (int i = 0; i < 3; ++i) bounds[i] = expr.args[i + 1] ? evaluate(*expr.args[i + 1]) : JinjaValue::none();
  return run_.failed() ? JinjaValue() : slice(run_, object, bounds[0], bounds[1], bounds[2]);
}

JinjaValue Interpreter::evaluate_filter(const Expr& expr, const JinjaValue* body) {
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

}  // namespace loralei::jinja
