// SPDX-License-Identifier: Apache-2.0
#include "engine/step_outputs.h"

#include <string>
#include <utility>

#include "base/units.h"
#include "sampling/sampler.h"

namespace loralei {
namespace {

// Puts a larger `buffer` in the place of what is there, which is not kept. Pages are used
// when they are first touched, so both together take what is granted for the new one.
Status enlarge(HostBuffer& buffer, Grant& grant, int64_t bytes, const char* what, Ledger& ledger) {
  const int64_t held = grant.bytes();
  if (held == 0) grant = ledger.try_grant(MemoryUse::kScratch, 0).value();
  if (!grant.grow_to(bytes)) {
    const bool lent = bytes - held <= ledger.available_after_loans_bytes(MemoryUse::kScratch);
    return Error{lent ? ErrorCode::kOverloaded : ErrorCode::kTooLarge,
                 std::string(what) + " need " + format_bytes(bytes - held) + (held > 0 ? " more" : "") +
                     " of scratch memory, but only " + format_bytes(ledger.available_bytes(MemoryUse::kScratch)) +
                     " of the memory budget are left" +
                     (lent ? " while the model is laid out for another budget; try again when that is done" : "")};
  }
  auto allocated = HostBuffer::allocate(bytes);
  if (!allocated.ok()) {
    grant.shrink_to(held);
    return allocated.error();
  }
  buffer = std::move(*allocated);
  return {};
}

constexpr int64_t kFloat = sizeof(float);

int64_t hidden_bytes(const ModelLimits& limits, int32_t hidden) { return int64_t{limits.rows_max} * hidden * kFloat; }
int64_t stride_of(int32_t vocab) { return (int64_t{vocab} + 15) / 16 * 16; }
int64_t logits_bytes(const ModelLimits& limits, int64_t stride) { return limits.logits_rows_max * stride * kFloat; }

}  // namespace

int64_t StepOutputs::bytes(const ModelLimits& limits, int32_t hidden, int32_t vocab) {
  return hidden_bytes(limits, hidden) + logits_bytes(limits, stride_of(vocab));
}

Status StepOutputs::reserve_vocab(int32_t vocab) {
  if (states_ == nullptr) {
    TRY(enlarge(states_buffer_, states_grant_, hidden_bytes(limits_, hidden_), "hidden states", ledger_));
    states_ = reinterpret_cast<float*>(states_buffer_.data());
  }
  const int64_t stride = stride_of(vocab);
  if (stride <= stride_) return {};
  TRY(enlarge(logits_buffer_, logits_grant_, logits_bytes(limits_, stride), "logits", ledger_));
  logits_ = reinterpret_cast<float*>(logits_buffer_.data());
  stride_ = stride;
  return {};
}

void StepOutputs::begin(size_t choices, ModelBatch& batch) {
  chosen_.assign(choices, kNoToken);
  batch.logits = logits_;
  batch.logits_stride = stride_;
  batch.chosen = chosen_.data();
  batch.hidden = states_;
}

}  // namespace loralei
