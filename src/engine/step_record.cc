// SPDX-License-Identifier: Apache-2.0
#include "engine/step_record.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {

int32_t AdapterRanks::rank(AdapterVersionId version) const {
  const auto found = ranks_.find(version);
  CHECK(found != ranks_.end());
  return found->second;
}

StepFeatures features_of(const StepBatch& batch, const AdapterRanks& ranks) {
  StepFeatures step;
  for (const BatchGroup& group : batch.groups) {
    const int64_t rows = group.row_count;
    const int64_t attended = rows * group.position + rows * (rows + 1) / 2;
    (rows == 1 ? step.decode_rows : step.prefill_rows) += group.row_count;
    (rows == 1 ? step.decode_attended : step.prefill_attended) += attended;
  }
  step.logits_rows = static_cast<int32_t>(batch.logits_rows.size());
  step.adapters = static_cast<int32_t>(batch.adapters.size());
  for (const AdapterVersionId version : batch.adapters) {
    const int32_t rank = ranks.rank(version);
    step.rank_sum += rank;
    step.rank_max = std::max(step.rank_max, rank);
  }
  for (const LoraSegment& segment : batch.segments) {
    step.lora_rows += segment.row_count;
    step.lora_row_ranks += int64_t{segment.row_count} * ranks.rank(batch.adapters[static_cast<size_t>(segment.slot)]);
  }
  return step;
}

}  // namespace loralei
