// SPDX-License-Identifier: Apache-2.0
// StepOutputs: where an executor puts the logits, tokens and hidden states of a step.
//
// Thread: the engine's.
// Ownership: owns the buffers and their scratch grants; the ledger outlives it.
// Invariant: reused from step to step; begin() allocates only where a step has more rows
// of choices than all before.
// Failure: only growing for a larger vocabulary can fail; what was there stays.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/host/arena.h"
#include "engine/step_batch.h"
#include "memory/ledger.h"
#include "model/model.h"

namespace loralei {

class StepOutputs {
 public:
  StepOutputs(const ModelLimits& limits, int32_t hidden, Ledger& ledger)
      : limits_(limits), hidden_(hidden), ledger_(ledger) {}

  // What reserve_vocab(vocab) takes of fresh outputs.
  static int64_t bytes(const ModelLimits& limits, int32_t hidden, int32_t vocab);
  // Sees to it that rows of `vocab` logits fit; those of the last step are gone when it
  // answers. What it takes is bytes() for the largest so far.
  Status reserve_vocab(int32_t vocab);
  // For a step with so many choices: none is made yet. Where `batch` is to put what it
  // computes.
  void begin(size_t choices, ModelBatch& batch);
  StepResult result() const {
    return {.logits = logits_, .logits_stride = stride_, .chosen = chosen_, .hidden = states_, .hidden_size = hidden_};
  }

 private:
  const ModelLimits limits_;
  const int32_t hidden_;
  Ledger& ledger_;
  float* logits_ = nullptr;
  float* states_ = nullptr;
  int64_t stride_ = 0;
  std::vector<TokenId> chosen_;
  HostBuffer logits_buffer_, states_buffer_;
  Grant logits_grant_, states_grant_;
};

}  // namespace loralei
