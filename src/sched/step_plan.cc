// SPDX-License-Identifier: Apache-2.0
#include "sched/step_plan.h"

namespace loralei {

void StepPlan::clear() {
  tokens.clear();
  groups.clear();
  segments.clear();
  logits_rows.clear();
}

std::string check_step_plan(const StepPlan& plan) {
  const auto rows = static_cast<int32_t>(plan.tokens.size());
  const auto logits = static_cast<int32_t>(plan.logits_rows.size());
  const auto group_name = [](size_t index) { return "group " + std::to_string(index); };
  int32_t row = 0, logit = 0;
  for (size_t index = 0; index < plan.groups.size(); ++index) {
    const PlanGroup& group = plan.groups[index];
    if (group.row_count < 1) return group_name(index) + " is empty";
    if (group.row_begin != row) return group_name(index) + " does not start where the one before ends";
    if (group.begin_layer < (index == 0 ? 0 : plan.groups[index - 1].begin_layer))
      return group_name(index) + " begins at a lower layer than the one before";
    if (group.position < 0) return group_name(index) + " starts at a negative position";
    if (group.logits_begin != logit || group.logits_count < 0)
      return group_name(index) + " has logits rows out of order";
    if (group.provisional && group.logits_count != group.row_count)
      return group_name(index) + " is provisional and does not want logits at every row";
    row += group.row_count;
    logit += group.logits_count;
    if (row > rows || logit > logits) return group_name(index) + " reaches beyond the plan";
    int32_t last = group.row_begin - 1;
    for (int32_t i = group.logits_begin; i < logit; ++i) {
      const int32_t wanted = plan.logits_rows[static_cast<size_t>(i)];
      if (wanted <= last || wanted >= row) return group_name(index) + " wants logits at row " + std::to_string(wanted);
      last = wanted;
    }
    for (size_t other = 0; other < index; ++other) {
      if (plan.groups[other].seq == group.seq) return group_name(index) + " names a sequence twice";
    }
  }
  if (row != rows) return "the groups cover " + std::to_string(row) + " of " + std::to_string(rows) + " rows";
  if (logit != logits) return "some logits rows belong to no group";
  int32_t last_begin = 0;
  size_t group = 0;
  for (const PlanSegment& segment : plan.segments) {
    if (segment.row_count < 1 || segment.row_begin < last_begin) return "the segments are not sorted by row";
    if (segment.adapter.value == 0) return "a segment names no adapter";
    last_begin = segment.row_begin;
    while (group < plan.groups.size() &&
           plan.groups[group].row_begin + plan.groups[group].row_count <= segment.row_begin)
      ++group;
    if (group == plan.groups.size() ||
        segment.row_begin + segment.row_count > plan.groups[group].row_begin + plan.groups[group].row_count) {
      return "a segment crosses the end of its group";
    }
  }
  return {};
}

}  // namespace loralei
