// SPDX-License-Identifier: Apache-2.0
#include "cost/step_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace loralei {

const char* cost_term_name(CostTerm term) {
  switch (term) {
    case CostTerm::kPrefillAttended:
      return "prefill_attended";
    case CostTerm::kDecodeAttended:
      return "decode_attended";
    case CostTerm::kLogitsRow:
      return "logits_row";
    case CostTerm::kAnyAdapter:
      return "any_adapter";
    case CostTerm::kAdapter:
      return "adapter";
    case CostTerm::kRankSum:
      return "rank_sum";
    case CostTerm::kRankMaxRow:
      return "rank_max_row";
    case CostTerm::kLoraRow:
      return "lora_row";
    case CostTerm::kLoraRowRank:
      return "lora_row_rank";
  }
  return "";
}

TermValues terms_of(const StepFeatures& features) {
  return {static_cast<double>(features.prefill_attended),
          static_cast<double>(features.decode_attended),
          static_cast<double>(features.logits_rows),
          features.adapters > 0 ? 1.0 : 0.0,
          static_cast<double>(features.adapters),
          static_cast<double>(features.rank_sum),
          static_cast<double>(features.rank_max) * features.lora_rows,
          static_cast<double>(features.lora_rows),
          static_cast<double>(features.lora_row_ranks)};
}

double StepModel::linear_s(int32_t rows) const {
  CHECK(!linear.empty());
  if (rows <= linear.front().rows) return linear.front().seconds;
  const auto fewer = [](const LinearPoint& point, int64_t wanted) { return point.rows < wanted; };
  auto end = std::lower_bound(linear.begin(), linear.end(), int64_t{rows}, fewer);
  auto begin = end - 1;
  if (end == linear.end()) {
    --end;
    begin = std::lower_bound(linear.begin(), end, int64_t{end->rows} / 2 + 1, fewer);
    if (begin != linear.begin()) --begin;
  }
  if (begin == end) return end->seconds;  // the only point
  const double slope = (end->seconds - begin->seconds) / (end->rows - begin->rows);
  return std::max(0.0, end->seconds + slope * (rows - end->rows));
}

double StepModel::predict_s(const StepFeatures& features) const {
  double sum = linear_s(features.rows());
  const TermValues values = terms_of(features);
  for (size_t term = 0; term < kCostTerms; ++term) sum += seconds[term] * values[term];
  return sum;
}

double StepModel::prefill_s(int32_t tokens, int32_t cached, int32_t step_rows) const {
  CHECK(tokens > 0 && cached >= 0 && step_rows > 0);
  double sum = 0;
  for (int32_t at = std::min(cached, tokens - 1); at < tokens;) {
    const int32_t rows = std::min(step_rows, tokens - at);
    StepFeatures step;
    step.prefill_rows = rows;
    step.prefill_attended = int64_t{rows} * at + int64_t{rows} * (rows + 1) / 2;
    at += rows;
    step.logits_rows = at == tokens ? 1 : 0;
    sum += predict_s(step);
  }
  return sum;
}

std::string check_step_model(const StepModel& model) {
  if (model.linear.empty()) return "\"linear\" needs at least one point [rows, seconds]";
  const LinearPoint* before = nullptr;
  for (const LinearPoint& point : model.linear) {
    if (point.rows < 1 || !std::isfinite(point.seconds) || point.seconds < 0)
      return "a point of \"linear\" is [rows, seconds], with rows of at least 1 and seconds not below 0";
    if (before != nullptr && point.rows <= before->rows) return "the points of \"linear\" must ascend in rows";
    before = &point;
  }
  for (size_t term = 0; term < kCostTerms; ++term) {
    if (!std::isfinite(model.seconds[term]) || model.seconds[term] < 0)
      return std::string("\"") + cost_term_name(static_cast<CostTerm>(term)) +
             "\" must be a number of seconds, 0 or more";
  }
  return {};
}

}  // namespace loralei
