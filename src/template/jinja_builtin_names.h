// SPDX-License-Identifier: Apache-2.0
// Which filters and tests exist: the parser refuses any other by name, as jinja2 does
// when it compiles a template.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace loralei::jinja {

bool is_filter_name(std::string_view name);
bool is_test_name(std::string_view name);

// All of them, for the test that knows the work of each.
std::vector<std::string_view> filter_names();
std::vector<std::string_view> test_names();
std::span<const std::string_view> string_method_names();
std::span<const std::string_view> dict_method_names();
std::span<const std::string_view> list_method_names();
std::span<const std::string_view> global_names();

}  // namespace loralei::jinja
