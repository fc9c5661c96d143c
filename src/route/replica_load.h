// SPDX-License-Identifier: Apache-2.0
// ReplicaLoad: what a router knows of what a replica has to do: the requests that it sent
// there and that have not ended, as sums from which the next steps follow. A request
// waits until its first token comes, and runs until its end.
//
// Thread: one. Plain values, no clock.
// Invariants: sums are those of the requests that are there; every operation and every
// step asked for costs the same, however many requests there are, but for the logarithm
// of the distinct ranks.
// Failure: none; an id that is not there, or is there already, is a defect (CHECK).
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "base/ids.h"
#include "cost/step_features.h"

namespace loralei {

// A request as far as a router can tell what it will cost.
struct RoutedRequest {
  AdapterSourceId adapter;  // 0: the base alone
  int32_t rank = 0;         // of the adapter
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of these, that need not be computed
  int32_t answer_tokens = 0;  // expected
};

// Of any number of requests.
class LoadSum {
 public:
  void add(const RoutedRequest& request) { count(request, 1); }
  void remove(const RoutedRequest& request) { count(request, -1); }

  int32_t requests() const { return requests_; }
  bool has(AdapterSourceId adapter) const { return adapters_.count(adapter) != 0; }
  int64_t context_tokens() const { return context_tokens_; }  // that they have in the KV cache at their ends
  int64_t tokens_left() const { return prefill_rows_ + answer_tokens_; }
  // A step in which each of them has a row, half of its answer behind it. `more`: and
  // this one (may be null).
  StepFeatures decode_step(const RoutedRequest* more = nullptr) const;
  // A step in which the prompts of all are computed.
  StepFeatures prefill_step(const RoutedRequest* more = nullptr) const;
  StepFeatures adapters_of(const RoutedRequest* more) const;  // what a step has of adapters, whatever its rows
  void check() const;

 private:
  struct AdapterUse {
    int32_t requests = 0, rank = 0;
  };
  void count(const RoutedRequest& request, int32_t sign);

  int32_t requests_ = 0, lora_requests_ = 0;
  int64_t prefill_rows_ = 0, prefill_attended_ = 0, decode_attended_ = 0, answer_tokens_ = 0, context_tokens_ = 0;
  int64_t lora_prefill_rows_ = 0, lora_prefill_row_ranks_ = 0, lora_row_ranks_ = 0, rank_sum_ = 0;
  std::unordered_map<AdapterSourceId, AdapterUse> adapters_;
  std::map<int32_t, int32_t> ranks_;  // of distinct adapters
};

class ReplicaLoad {
 public:
  void sent(RequestId id, const RoutedRequest& request);
  void answers(RequestId id);         // its first token has come; once more says nothing new
  RoutedRequest ended(RequestId id);  // what it was

  const LoadSum& waiting() const { return waiting_; }
  const LoadSum& running() const { return running_; }
  const LoadSum& all() const { return all_; }
  // The prompts of all that wait, and a row of each that runs. `more`: and this one's
  // prompt (may be null).
  StepFeatures next_step(const RoutedRequest* more = nullptr) const;

 private:
  struct Sent {
    RoutedRequest request;
    bool waits = true;
  };
  LoadSum waiting_, running_, all_;
  std::unordered_map<RequestId, Sent> sent_;
};

}  // namespace loralei
