// SPDX-License-Identifier: Apache-2.0
// Tokens to trees: the grammar of jinja2's parser.py (3.1) with the tags if, for, set,
// macro, call, filter, with, break, continue, raw, block and generation.
//
// Thread: a pure function. Fails with invalid_argument and the line: syntax errors,
// tags that need other templates (include, import, extends), unknown filters and tests,
// trees deeper than kMaxTreeDepth.
#pragma once

#include <string_view>

#include "base/result.h"
#include "template/jinja_ast.h"

namespace loralei::jinja {

Result<Program> parse_program(std::string_view source);

}  // namespace loralei::jinja
