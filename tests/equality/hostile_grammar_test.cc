// SPDX-License-Identifier: Apache-2.0
// The real engine: what a stream loses beside many choices whose grammar is hard to
// follow, as a ratio to what it has beside as many that are free.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/prng.h"
#include "sampling/grammar.h"
#include "support/engine_driver.h"

namespace loralei {
namespace {

using test::EngineDriver;

constexpr int kChoices = 32, kTokens = 150;

Submit request(int tokens, int choices) {
  Submit request;
  request.prompt = {5, 6, 7};
  request.max_tokens = tokens;
  request.choices = choices;
  request.ignore_eos = true;
  request.sampling.seed = 3;
  return request;
}

// Any letter may begin one of ten counts of forty, in a vocabulary of words of sixteen
// letters: a mask meets tens of thousands of sets.
void constrain(Submit& request, int32_t vocab) {
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  const GrammarStateId start = builder.start(root);
  builder.add_range(start, 'a', 'z', start);
  builder.end_rule(start);
  for (uint8_t last = 'e'; last <= 'w'; last += 2) {
    GrammarStateId state = builder.range(start, 'a', last);
    for (int i = 1; i < 40; ++i) state = builder.range(state, 'a', 'z');
    builder.add_empty(state, start);
  }
  request.sampling.grammar = std::move(std::move(builder).finish(root)).value();
  Prng letters(7);
  std::vector<GrammarToken> tokens;
  for (int32_t id = 0; id < std::min(vocab, 100); ++id) {
    GrammarToken& token = tokens.emplace_back(GrammarToken{id, ""});
    for (int i = 0; i < 16; ++i) token.bytes += static_cast<char>('a' + letters.below(26));
  }
  request.sampling.vocab_trie = std::move(VocabTrie::build(std::move(tokens), vocab)).value();
}

// Milliseconds of a stream of kTokens that begins behind `beside`.
double stream_ms(EngineDriver& driver, const Submit* beside) {
  uint64_t other = 0;
  if (beside != nullptr) other = driver.submit(*beside);
  const uint64_t id = driver.submit(request(kTokens, 1));
  const auto tokens = [&] { return driver.answers[{id, 0}].tokens.size(); };
  while (tokens() == 0 && driver.take(20'000'000'000)) {
  }
  const auto begin = std::chrono::steady_clock::now();
  while (tokens() < kTokens && driver.take(20'000'000'000)) {
  }
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(tokens(), static_cast<size_t>(kTokens));
  if (other != 0) driver.engine().cancel(RequestId{other});
  driver.collect();
  return ms;
}

TEST(HostileGrammar, SlowsNobodyElse) {
  EngineHostOptions options;
  options.model_path = std::string(LORALEI_SOURCE_DIR) + "/demo/model";
  options.threads = 2;
  options.engine.memory_budget_bytes = int64_t{512} << 20;
  EngineDriver driver(options);
  ASSERT_TRUE(driver.running());
  const Submit free = request(kTokens, kChoices);
  Submit hostile = request(kTokens, kChoices);
  constrain(hostile, driver.host().file().config.vocab);
  stream_ms(driver, nullptr);
  std::vector<double> beside_free, beside_hostile;
  for (int round = 0; round < 3; ++round) {
    beside_free.push_back(stream_ms(driver, &free));
    beside_hostile.push_back(stream_ms(driver, &hostile));
  }
  const double yardstick = *std::max_element(beside_free.begin(), beside_free.end());
  EXPECT_LT(*std::min_element(beside_hostile.begin(), beside_hostile.end()), 2 * yardstick);
}

}  // namespace
}  // namespace loralei
