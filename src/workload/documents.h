// SPDX-License-Identifier: Apache-2.0
// documents:N:TOKENS:ALPHA: each request reads one of N documents of TOKENS tokens, the
// i-th most popular in proportion to i^-ALPHA, and then says something of its own: the
// document comes in front of the prompt's length and is its shared prefix.
//
// Thread: immutable; draws take the caller's generator.
// Failure: a sentence about the word.
#pragma once

#include <cstdint>
#include <string>

#include "base/prng.h"
#include "base/result.h"
#include "workload/draws.h"
#include "workload/workload.h"

namespace loralei {

class SharedDocuments {
 public:
  // `prompt_max`: no prompt is longer with its document; own words are cut, to one
  // token at least.
  static Result<SharedDocuments> open(const std::string& spec, int64_t prompt_max);
  void add(Prng& random, WorkloadRequest& request) const;

 private:
  SharedDocuments(WeightedDraw draw, int32_t tokens, int64_t prompt_max)
      : draw_(std::move(draw)), tokens_(tokens), prompt_max_(prompt_max) {}
  WeightedDraw draw_;
  int32_t tokens_;
  int64_t prompt_max_;
};

}  // namespace loralei
