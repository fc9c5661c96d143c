// SPDX-License-Identifier: Apache-2.0
// What is different in a model that several GPUs compute: sums over their inputs, and the
// head, of which each has some rows of the vocabulary. The twin of model_ranks.cc.
#include <algorithm>

#include "model/cuda/cuda_program.h"
#include "model/head_parts.h"

namespace loralei {

// What several ranks have to add is summed beside the stream, so that this is the same
// bits in all of them. An adapter's part is in the rank's sum before that is passed on.
Status CudaProgram::project_to_stream(const Group& output, const CudaInput& input, const StepView& view) {
  TRY(project(output, input, view, view.lora, ranks == nullptr));
  if (ranks == nullptr) return {};
  TRY(ranks->all_reduce_sum(stream, sums(), int64_t{input.rows} * config.hidden));
  return cuda::add(stream, {.x = sums(),
                            .x_stride = config.hidden,
                            .y = at.x,
                            .y_stride = config.hidden,
                            .rows = input.rows,
                            .dim = config.hidden});
}

// The base's, of all rows, whatever heads adapters have: what is passed on follows from
// the number of rows alone.
Status CudaProgram::gather_head(const StepView& view, const CudaInput& input) {
  const Shard of = shard();
  const bool first = of.rank == 0;
  const int64_t stride = part_stride_of(of, config.vocab);
  const CudaProduct product{&weights.head, nullptr, first ? at.logits : at.part_logits,
                            first ? view.logits_stride : stride};
  TRY(products.run(stream, input, {&product, 1}, false));
  for (int32_t row = 0; row < input.rows; row += part_rows) {
    const int32_t count = std::min(part_rows, input.rows - row);
    const float* const part = first ? at.part_logits : at.part_logits + row * stride;
    TRY(ranks->gather(stream, part, count * stride, first ? at.part_logits : nullptr));
    for (int rank = 1; rank < of.size && first; ++rank) {
      const ShardPart rows = tiled_part({rank, of.size}, config.vocab, kRowTile);
      TRY(cuda::gather_rows(stream, {.x = at.part_logits + int64_t{rank} * count * stride,
                                     .x_stride = stride,
                                     .y = at.logits + row * view.logits_stride + rows.begin,
                                     .y_stride = view.logits_stride,
                                     .rows = count,
                                     .dim = static_cast<int32_t>(rows.count)}));
    }
  }
  return {};
}

}  // namespace loralei
