// SPDX-License-Identifier: Apache-2.0
#include "engine/row_sampler.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {

RowChoice choice_of(const Sequence& sequence, int32_t position) {
  const Request& request = *sequence.request;
  const SamplingParams& params = request.submit.sampling;
  const int32_t outputs = position - request.prompt_size();
  const bool logits_change =
      params.change_logits() || sequence.grammar != nullptr || outputs < request.submit.min_tokens;
  if (outputs < 0 || params.logprobs >= 0 || logits_change) return {};
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .seed = params.seed,
          .position = static_cast<uint64_t>(position),
          .choice = static_cast<uint32_t>(sequence.choice),
          .vocab = request.vocab};
}

int64_t RowSampler::run(std::span<RowSample> rows, int64_t mask_work) {
  mask_work_ = mask_work;
  for (Worker& worker : workers_) worker.mask_work = 0;
  const auto run_range = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t index = begin; index < end; ++index) {
      const auto row = static_cast<size_t>(index);
      if (!rows[row].of_draft) run_chain(rows.subspan(row), workers_[static_cast<size_t>(worker)]);
    }
  };
  const auto count = static_cast<int64_t>(rows.size());
  const auto to_sample = std::count_if(rows.begin(), rows.end(), [](const RowSample& row) { return !row.chosen; });
  if (pool_ == nullptr || count < 2 || to_sample == 0) {
    run_range(0, count, 0);
  } else {
    pool_->parallel_for(count, 1, run_range);
  }
  int64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.mask_work;
  return sum;
}

bool RowSampler::has_mask(const RowSample& row, Worker& worker) const {
  GrammarState* const grammar = row.sequence->grammar.get();
  if (grammar == nullptr || grammar->ready()) return true;
  worker.mask_work += grammar->prepare(mask_work_);
  return grammar->ready();
}

// The first row and the draft rows that follow it.
void RowSampler::run_chain(std::span<RowSample> rows, Worker& worker) {
  CHECK(!rows[0].of_draft);
  run_one(rows[0], worker);
  for (size_t index = 1; index < rows.size() && rows[index].of_draft; ++index) {
    const RowSample& before = rows[index - 1];
    RowSample& row = rows[index];
    const TokenId guess = row.sequence->tokens[static_cast<size_t>(row.position) - 1];
    row.rejected = before.rejected || before.grammar_ends || before.token != guess || !has_mask(row, worker);
    if (!row.rejected) run_one(row, worker);
  }
}

void RowSampler::sample(RowSample& row, Worker& worker) {
  const Sequence& sequence = *row.sequence;
  const Request& request = *sequence.request;
  CHECK(row.position >= request.prompt_size() && row.position <= static_cast<int32_t>(sequence.tokens.size()));
  const auto tokens = std::span<const TokenId>(sequence.tokens).first(static_cast<size_t>(row.position));
  const auto prompt = static_cast<size_t>(request.prompt_size());
  SampleInput input{
      .logits = row.logits, .params = &request.submit.sampling, .choice = static_cast<uint32_t>(sequence.choice)};
  input.position = static_cast<uint64_t>(row.position);
  input.prompt = tokens.first(prompt);
  input.output = tokens.subspan(prompt);
  if (input.output.size() < static_cast<size_t>(request.submit.min_tokens)) input.forbidden = request.forbidden;
  GrammarState* grammar = sequence.grammar.get();
  if (grammar == nullptr) {
    row.token = worker.sampler.sample(input);
    return;
  }
  CHECK(grammar->ready());
  if (!grammar->any_may_come()) return;
  input.allowed = grammar->mask();
  row.token = worker.sampler.sample(input);
  if (row.token == kNoToken && !input.forbidden.empty()) {  // the form ends here: it outranks the minimum length
    input.forbidden = {};
    row.token = worker.sampler.sample(input);
  }
  if (row.token == kNoToken) return;
  const int64_t before = grammar->work();
  if (!grammar->advance(row.token)) row.token = kNoToken;
  worker.mask_work += grammar->work() - before;
  row.is_end_token = grammar->ended();
  row.grammar_ends = row.is_end_token || grammar->complete();
}

void RowSampler::run_one(RowSample& row, Worker& worker) {
  const Sequence& sequence = *row.sequence;
  const Request& request = *sequence.request;
  const SamplingParams& params = request.submit.sampling;
  if (row.of_prompt) {
    CHECK(row.position >= 0 && row.position < static_cast<int32_t>(sequence.tokens.size()));
    row.token = sequence.tokens[static_cast<size_t>(row.position)];
  } else if (!row.chosen) {
    sample(row, worker);
  }
  if (params.logprobs < 0 && !row.of_prompt) return;
  row.top_count =
      static_cast<int32_t>(std::min<size_t>(static_cast<size_t>(std::max(0, params.logprobs)), row.logits.size()));
  row.logprob = token_logprob({.logits = row.logits, .token = row.token},
                              std::span(row.top).first(static_cast<size_t>(row.top_count)));
}

}  // namespace loralei
