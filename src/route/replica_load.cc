// SPDX-License-Identifier: Apache-2.0
#include "route/replica_load.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace loralei {
namespace {

// Of its prompt, that must be computed: the last token at least.
int64_t prefill_rows_of(const RoutedRequest& request) {
  return std::max<int64_t>(1, int64_t{request.prompt_tokens} - request.cached_tokens);
}

int64_t prefill_attended_of(const RoutedRequest& request) {
  const int64_t rows = prefill_rows_of(request), before = request.prompt_tokens - rows;
  return rows * before + rows * (rows + 1) / 2;
}

int64_t decode_attended_of(const RoutedRequest& request) {
  return int64_t{request.prompt_tokens} + request.answer_tokens / 2;
}

bool has_adapter(const RoutedRequest& request) { return request.adapter != AdapterSourceId(); }

int32_t narrow(int64_t count) {
  return static_cast<int32_t>(std::min<int64_t>(count, std::numeric_limits<int32_t>::max()));
}

}  // namespace

void LoadSum::count(const RoutedRequest& request, int32_t sign) {
  requests_ += sign;
  prefill_rows_ += sign * prefill_rows_of(request);
  prefill_attended_ += sign * prefill_attended_of(request);
  decode_attended_ += sign * decode_attended_of(request);
  answer_tokens_ += sign * request.answer_tokens;
  context_tokens_ += sign * (int64_t{request.prompt_tokens} + request.answer_tokens);
  CHECK(requests_ >= 0);
  if (!has_adapter(request)) return;
  lora_requests_ += sign;
  lora_row_ranks_ += sign * int64_t{request.rank};
  lora_prefill_rows_ += sign * prefill_rows_of(request);
  lora_prefill_row_ranks_ += sign * prefill_rows_of(request) * request.rank;
  AdapterUse& use = adapters_[request.adapter];
  if (use.requests == 0) {
    use.rank = request.rank;
    ++ranks_[use.rank];
    rank_sum_ += use.rank;
  }
  use.requests += sign;
  CHECK(use.requests >= 0);
  if (use.requests > 0) return;
  rank_sum_ -= use.rank;
  if (const auto rank = ranks_.find(use.rank); --rank->second == 0) ranks_.erase(rank);
  adapters_.erase(request.adapter);
}

StepFeatures LoadSum::adapters_of(const RoutedRequest* more) const {
  StepFeatures step;
  step.adapters = narrow(std::ssize(adapters_));
  step.rank_sum = narrow(rank_sum_);
  step.rank_max = ranks_.empty() ? 0 : ranks_.rbegin()->first;
  if (more == nullptr || !has_adapter(*more) || adapters_.count(more->adapter) != 0) return step;
  ++step.adapters;
  step.rank_sum = narrow(rank_sum_ + more->rank);
  step.rank_max = std::max(step.rank_max, more->rank);
  return step;
}

StepFeatures LoadSum::decode_step(const RoutedRequest* more) const {
  StepFeatures step = adapters_of(more);
  step.decode_rows = requests_;
  step.decode_attended = decode_attended_;
  step.lora_rows = lora_requests_;
  step.lora_row_ranks = lora_row_ranks_;
  if (more != nullptr) {
    ++step.decode_rows;
    step.decode_attended += decode_attended_of(*more);
    if (has_adapter(*more)) {
      ++step.lora_rows;
      step.lora_row_ranks += more->rank;
    }
  }
  step.logits_rows = step.decode_rows;
  return step;
}

StepFeatures LoadSum::prefill_step(const RoutedRequest* more) const {
  StepFeatures step = adapters_of(more);
  int64_t rows = prefill_rows_, lora_rows = lora_prefill_rows_;
  step.prefill_attended = prefill_attended_;
  step.lora_row_ranks = lora_prefill_row_ranks_;
  step.logits_rows = requests_;
  if (more != nullptr) {
    rows += prefill_rows_of(*more);
    step.prefill_attended += prefill_attended_of(*more);
    ++step.logits_rows;
    if (has_adapter(*more)) {
      lora_rows += prefill_rows_of(*more);
      step.lora_row_ranks += prefill_rows_of(*more) * more->rank;
    }
  }
  step.prefill_rows = narrow(rows);
  step.lora_rows = narrow(lora_rows);
  return step;
}

void LoadSum::check() const {
  int64_t requests = 0, rank_sum = 0, distinct = 0;
  for (const auto& [adapter, use] : adapters_) {
    CHECK(use.requests > 0);
    requests += use.requests;
    rank_sum += use.rank;
  }
  for (const auto& [rank, adapters] : ranks_) distinct += adapters;
  CHECK(requests == lora_requests_ && rank_sum == rank_sum_ && distinct == std::ssize(adapters_));
}

void ReplicaLoad::sent(RequestId id, const RoutedRequest& request) {
  CHECK(sent_.emplace(id, Sent{request}).second);
  waiting_.add(request);
  all_.add(request);
}

StepFeatures ReplicaLoad::next_step(const RoutedRequest* more) const {
  const StepFeatures prompts = waiting_.prefill_step(more), decodes = running_.decode_step();
  StepFeatures step = all_.adapters_of(more);
  step.prefill_rows = prompts.prefill_rows;
  step.prefill_attended = prompts.prefill_attended;
  step.decode_rows = decodes.decode_rows;
  step.decode_attended = decodes.decode_attended;
  step.logits_rows = prompts.logits_rows + decodes.logits_rows;
  step.lora_rows = narrow(int64_t{prompts.lora_rows} + decodes.lora_rows);
  step.lora_row_ranks = prompts.lora_row_ranks + decodes.lora_row_ranks;
  return step;
}

void ReplicaLoad::answers(RequestId id) {
  Sent& sent = sent_.at(id);
  if (!sent.waits) return;
  sent.waits = false;
  waiting_.remove(sent.request);
  running_.add(sent.request);
}

RoutedRequest ReplicaLoad::ended(RequestId id) {
  const auto found = sent_.find(id);
  CHECK(found != sent_.end());
  (found->second.waits ? waiting_ : running_).remove(found->second.request);
  const RoutedRequest request = found->second.request;
  all_.remove(request);
  sent_.erase(found);
  return request;
}

}  // namespace loralei
