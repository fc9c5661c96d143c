// SPDX-License-Identifier: Apache-2.0
// JinjaTemplate: a program from the parser, handed to an interpreter for each render.
#include "template/jinja.h"

#include <algorithm>

#include "base/utf8.h"
#include "template/jinja_ast.h"
#include "template/jinja_interpreter.h"
#include "template/jinja_parser.h"
#include "template/jinja_text.h"

namespace loralei {

JinjaTemplate::JinjaTemplate(std::unique_ptr<const jinja::Program> program) : program_(std::move(program)) {}
JinjaTemplate::~JinjaTemplate() = default;

Result<std::shared_ptr<const JinjaTemplate>> JinjaTemplate::parse(std::string_view source) {
  if (static_cast<int64_t>(source.size()) > kMaxTemplateBytes) {
    return too_large("the chat template has " + std::to_string(source.size()) + " bytes; at most " +
                     std::to_string(kMaxTemplateBytes) + " are accepted");
  }
  if (!is_valid_utf8(source)) return invalid_argument("the chat template is not valid UTF-8");
  TRY_ASSIGN(jinja::Program program, jinja::parse_program(source));
  return std::shared_ptr<const JinjaTemplate>(
      new JinjaTemplate(std::make_unique<const jinja::Program>(std::move(program))));
}

Result<std::string> JinjaTemplate::render(const JinjaValue& context, const JinjaRenderOptions& options) const {
  Work own;
  return jinja::Interpreter(*program_, context, options, options.work != nullptr ? *options.work : own).run();
}

bool JinjaTemplate::mentions(std::string_view variable) const {
  const auto& symbols = program_->symbols;
  return std::find(symbols.begin(), symbols.end(), variable) != symbols.end();
}

}  // namespace loralei
