// SPDX-License-Identifier: Apache-2.0
// The methods of strings, as Python's str has them; jinja_methods.cc looks them
// up and calls them.
//
// Thread: one render. Failure: through the run (arguments that do not fit, a substring
// that index does not find, text beyond what the render may allocate).
#pragma once

#include <string>
#include <string_view>

#include "template/jinja_call.h"

namespace loralei::jinja {

bool is_string_method(std::string_view name);
// `name` is one of those.
JinjaValue call_string_method(JinjaRun& run, const std::string& text, const std::string& name,
                              const Arguments& arguments);

}  // namespace loralei::jinja
