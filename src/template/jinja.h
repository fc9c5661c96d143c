// SPDX-License-Identifier: Apache-2.0
// JinjaTemplate: a chat template parsed once and rendered per request, as Python's jinja2
// would in the environment that transformers sets up (immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, the generation tag, tojson without HTML escaping,
// raise_exception, strftime_now).
//
// Thread: a template is immutable; render may run on any number of threads at once.
// Ownership: shared by pointer.
// Invariants: a render ends within its limits whatever the template says, and changes
// nothing outside itself.
// Failure: parse and render return invalid_argument with the template's line; the text
// of raise_exception is in the message; render returns cancelled where the watch of the
// work has stopped it. Not supported (refused by name when parsing): templates in several
// files (include, import, extends), autoescape, the filters random, urlize and xmlattr.
// Integers have 64 bits: beyond them is an error.
// Source: jinja2 3.1 and transformers' chat_template_utils.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "template/jinja_value.h"

namespace loralei {

namespace jinja {
struct Program;
}

inline constexpr int64_t kMaxTemplateBytes = 1 << 20;  // the longest published templates have some 30 KB

struct JinjaRenderOptions {
  int64_t unix_time_s = 0;  // what strftime_now shows, in UTC
  JinjaRenderLimits limits;
  Work* work = nullptr;  // what the request spends on its text, watched by who may stop it
};

class JinjaTemplate {
 public:
  static Result<std::shared_ptr<const JinjaTemplate>> parse(std::string_view source);
  ~JinjaTemplate();
  JinjaTemplate(const JinjaTemplate&) = delete;
  JinjaTemplate& operator=(const JinjaTemplate&) = delete;

  // `context` is a dict: the variables the template sees.
  Result<std::string> render(const JinjaValue& context, const JinjaRenderOptions& options) const;
  // Whether this name occurs as a variable anywhere in the template.
  bool mentions(std::string_view variable) const;

 private:
  explicit JinjaTemplate(std::unique_ptr<const jinja::Program> program);
  std::unique_ptr<const jinja::Program> program_;
};

}  // namespace loralei
