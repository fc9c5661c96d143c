// SPDX-License-Identifier: Apache-2.0
// sampler_bench: microseconds that choosing a token takes on one core, for the
// vocabularies of Llama 2 and Llama 3.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "sampling/sampler.h"

namespace loralei {
namespace {

// A bell of logits with a few dozen likely tokens above it, as a language
// model gives them.
std::vector<float> model_like(size_t vocab) {
  Prng random(1);
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    double sum = -6;  // of twelve: nearly normal
    for (int i = 0; i < 12; ++i) sum += random.uniform();
    logit = static_cast<float>(2.0 * sum);
  }
  for (int i = 0; i < 40; ++i) logits[random.below(vocab)] = static_cast<float>(18 - 0.25 * i);
  return logits;
}

double best_us(const std::function<void(uint64_t)>& body) {
  const SteadyClock clock;
  double best_s = 1e9;
  for (uint64_t round = 0; round < 200; ++round) {
    const double begin_s = clock.now_s();
    body(round);
    best_s = std::min(best_s, clock.now_s() - begin_s);
  }
  return best_s * 1e6;
}

void measure(size_t vocab) {
  const std::vector<float> logits = model_like(vocab);
  const std::vector<TokenId> text(500, 7);
  Sampler sampler;
  sampler.reserve(vocab);
  struct Case {
    const char* name;
    SamplingParams params;
  };
  std::printf("%zu tokens\n", vocab);
  for (const Case& way :
       {Case{"greedy", {.temperature = 0}}, Case{"temperature 1", {}},
        Case{"temperature 0.7, top-p 0.9", {.temperature = 0.7f, .top_p = 0.9f}},
        Case{"top-k 40, top-p 0.95", {.top_k = 40, .top_p = 0.95f}}, Case{"min-p 0.05", {.min_p = 0.05f}},
        Case{"greedy, repetition penalty", {.temperature = 0, .repetition_penalty = 1.1f}},
        Case{"temperature 5, top-p 0.9 (a flat row)", {.temperature = 5.0f, .top_p = 0.9f}}}) {
    int64_t sum = 0;
    const double us = best_us([&](uint64_t position) {
      sum += sampler.sample({.logits = logits, .params = &way.params, .position = position, .prompt = text});
    });
    std::printf("  %-38s %8.1f us%s\n", way.name, us, sum < 0 ? " (nothing possible)" : "");
  }
  std::vector<TokenLogprob> top(20);
  std::printf("  %-38s %8.1f us\n", "20 log-probabilities",
              best_us([&](uint64_t) { token_logprob({.logits = logits, .token = 3}, top); }));
}

}  // namespace
}  // namespace loralei

int main() {
  loralei::measure(32000);
  loralei::measure(128256);
}
