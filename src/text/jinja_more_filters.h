// SPDX-License-Identifier: Apache-2.0
// What the two files of filters share: the rarer filters, and looking up attributes and sorting by keys.
//
// Thread: one render. Errors go through the run.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_call.h"

namespace loralei::jinja {

using Filter = JinjaValue (*)(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
struct NamedFilter {
  std::string_view name;
  Filter filter;
};

JinjaValue filter_escape(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
JinjaValue filter_filesizeformat(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
JinjaValue filter_groupby(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
JinjaValue filter_pprint(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
JinjaValue filter_slice(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
JinjaValue filter_striptags(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);
JinjaValue filter_wordwrap(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);

JinjaValue ignore_case(const JinjaValue& value);
// "a.b.0": attributes and numbers, as jinja2's make_attrgetter takes them. `fallback` replaces what is undefined; may
// be null.
JinjaValue walk_attribute(JinjaRun& run, JinjaValue value, const JinjaValue& path, const JinjaValue* fallback);
// Sorts (key, item) pairs by key, keeping the order of equals. False when a comparison ended the render.
bool sort_by(JinjaRun& run, std::vector<std::pair<JinjaValue, JinjaValue>>& keyed, bool reverse);

}  // namespace loralei::jinja
