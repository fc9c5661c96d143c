// SPDX-License-Identifier: Apache-2.0
#include "engine/row_sampler.h"

namespace loralei {

void RowSampler::run(std::span<RowSample> rows) {
  if (pool_ == nullptr || rows.size() < 2) {
    for (RowSample& row : rows) run_one(row, workers_[0]);
    return;
  }
  pool_->parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t index = begin; index < end; ++index)
      run_one(rows[static_cast<size_t>(index)], workers_[static_cast<size_t>(worker)]);
  });
}

void RowSampler::sample(RowSample& row, Worker& worker) {
  const Sequence& sequence = *row.sequence;
  const Request& request = *sequence.request;
  const std::span<const TokenId> tokens = sequence.tokens;
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
  worker.mask.resize(request.submit.sampling.vocab_trie->mask_words());
  if (!grammar->fill_mask(worker.mask)) return;
  input.allowed = worker.mask;
  row.token = worker.sampler.sample(input);
  if (row.token == kNoToken && !input.forbidden.empty()) {  // the form ends here: it outranks the minimum length
    input.forbidden = {};
    row.token = worker.sampler.sample(input);
  }
  if (row.token == kNoToken) return;
  if (!grammar->advance(row.token)) row.token = kNoToken;
  row.grammar_ends = grammar->ended() || grammar->complete();
}

void RowSampler::run_one(RowSample& row, Worker& worker) {
  const Sequence& sequence = *row.sequence;
  const Request& request = *sequence.request;
  const SamplingParams& params = request.submit.sampling;
  if (row.of_prompt) {
    row.token = sequence.tokens[static_cast<size_t>(row.position)];
  } else {
    sample(row, worker);
  }
  if (params.logprobs < 0 && !row.of_prompt) return;
  row.top_count =
      static_cast<int32_t>(std::min<size_t>(static_cast<size_t>(std::max(0, params.logprobs)), row.logits.size()));
  row.logprob = token_logprob({.logits = row.logits, .token = row.token},
                              std::span(row.top).first(static_cast<size_t>(row.top_count)));
}

}  // namespace loralei
