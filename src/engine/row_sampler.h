// SPDX-License-Identifier: Apache-2.0
// RowSampler: what becomes of the logits rows of a step: a sampled token, or the
// log-probability of the prompt's next token. Rows are done side by side on the pool;
// a row's result depends on that row and the text before it alone.
//
// Rows of a draft follow the row before them: its token is compared with the one that
// the draft row read, and once they differ the rest of the draft is rejected. What is not
// rejected is what sampling one step after the other gives.
//
// A grammar's mask is there before its row (engine/mask_work.h), and it is told the token
// here. Behind a chain it stands after the chain's last row: what it said of a row is in
// that row's result. The rows of a draft need masks that are made here: where one takes
// more than it may, the rest of the draft is rejected, as a guess may be.
//
// Thread: run() by the engine thread between steps.
// Ownership: one Sampler per worker. No allocation in steady state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/limits.h"
#include "device/host/thread_pool.h"
#include "engine/request.h"
#include "model/model.h"
#include "sampling/sampler.h"

namespace loralei {

struct RowSample {
  Sequence* sequence = nullptr;
  std::span<const float> logits;  // [vocab]
  int32_t position = 0;           // of the token that these logits predict
  bool of_prompt = false;         // that token is in the prompt: only its log-probability is wanted
  bool chosen = false;            // the token was chosen where the logits are, and they are not here
  bool of_draft = false;          // the row read a guess, which tokens[position - 1] holds; beside the row before it
  // Results:
  TokenId token = kNoToken;
  bool rejected = false;      // of a draft that went another way: nothing was sampled
  bool grammar_ends = false;  // the form is complete with this token
  bool is_end_token = false;  // which is none of the text: it said that the form ends
  float logprob = 0;
  int32_t top_count = 0;
  std::array<TokenLogprob, kMaxTopLogprobs> top;
};

// What whoever has the logits needs to choose the token at `position`; vocab 0 where
// that takes more than logits: tokens of the prompt, log-probabilities, penalties, bias,
// a grammar, a minimum length not yet reached. Follows from the request and the position
// alone, so that a text is chosen the same way whatever else runs.
RowChoice choice_of(const Sequence& sequence, int32_t position);

class RowSampler {
 public:
  RowSampler(ThreadPool* pool, int32_t vocab)
      : pool_(pool), workers_(static_cast<size_t>(pool == nullptr ? 1 : pool->threads())) {
    // Which worker meets which row is chance: each has room for any from the start.
    for (Worker& worker : workers_) worker.sampler.reserve(static_cast<size_t>(vocab));
  }
  // A mask may take mask_work where it is not there yet. Answers what grammars
  // took in all.
  int64_t run(std::span<RowSample> rows, int64_t mask_work);

 private:
  struct Worker {
    Sampler sampler;
    int64_t mask_work = 0;  // done in this run
  };
  bool has_mask(const RowSample& row, Worker& worker) const;  // now
  void run_chain(std::span<RowSample> rows, Worker& worker);
  void run_one(RowSample& row, Worker& worker);
  void sample(RowSample& row, Worker& worker);

  ThreadPool* pool_;
  std::vector<Worker> workers_;
  int64_t mask_work_ = 0;  // that a mask may take
};

}  // namespace loralei
