// SPDX-License-Identifier: Apache-2.0
// Which filters and tests exist: the parser refuses any other by name, as jinja2 does when it compiles a template.
#pragma once

#include <string_view>

namespace loralei::jinja {

bool is_filter_name(std::string_view name);
bool is_test_name(std::string_view name);

}  // namespace loralei::jinja
