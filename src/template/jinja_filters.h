// SPDX-License-Identifier: Apache-2.0
// The filters of jinja2 that chat templates use, with transformers' tojson. Here
// are those that stand in files of their own; jinja_filters.cc has the table that
// apply_filter looks them up in.
//
// Thread: one render.
// Failure: through the run. A filter binds its own arguments; for one
// that takes none, apply_filter has refused any.
#pragma once

#include "template/jinja_call.h"

namespace loralei::jinja {

// `value` stands before the bar, the arguments in the parentheses behind the name.
using Filter = JinjaValue(JinjaRun& run, const JinjaValue& value, const Arguments& arguments);

// jinja_text_filters.cc
Filter filter_capitalize, filter_center, filter_escape, filter_format, filter_indent, filter_lower, filter_pprint,
    filter_replace, filter_safe, filter_string, filter_striptags, filter_title, filter_tojson, filter_trim,
    filter_truncate, filter_upper, filter_urlencode, filter_wordcount, filter_wordwrap;

// jinja_number_filters.cc
Filter filter_abs, filter_filesizeformat, filter_float, filter_int, filter_round;

// jinja_sequence_filters.cc
Filter filter_batch, filter_dictsort, filter_first, filter_groupby, filter_items, filter_join, filter_last,
    filter_length, filter_list, filter_map, filter_max, filter_min, filter_reject, filter_rejectattr, filter_reverse,
    filter_select, filter_selectattr, filter_slice, filter_sort, filter_sum, filter_unique;

}  // namespace loralei::jinja
