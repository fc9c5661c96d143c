// SPDX-License-Identifier: Apache-2.0
#include "bench/lengths.h"

#include <gtest/gtest.h>

#include <map>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(BenchLengths, ClassesArePartsOfTheTrueLengths) {
  const std::vector<int32_t> edges = class_edges({8, 1, 2, 3, 4, 5, 6, 7}, 4);
  EXPECT_EQ(edges, (std::vector<int32_t>{3, 5, 7}));
  EXPECT_EQ(length_class(1, edges), 0);
  EXPECT_EQ(length_class(2.9, edges), 0);
  EXPECT_EQ(length_class(3, edges), 1);
  EXPECT_EQ(length_class(6.5, edges), 2);
  EXPECT_EQ(length_class(1e9, edges), 3);
}

// Three kinds of answers by a word that only `learned` reads, and one by its adapter.
TEST(BenchLengths, TellsWhatEachPredictorCanKnow) {
  Prng random(20261128);
  std::vector<AnsweredPrompt> answers;
  for (int i = 0; i < 600; ++i) {
    const auto kind = static_cast<int32_t>(random.below(4));
    AnsweredPrompt one{.adapter = kind == 3 ? "brief" : ""};
    for (int token = 0; token < 20; ++token) one.prompt.push_back(static_cast<TokenId>(100 + random.below(1000)));
    one.prompt[random.below(20)] = kind == 3 ? 50 : 1 + kind;
    const int32_t lengths[] = {20, 100, 700, 4};
    one.answer_tokens = lengths[kind] + static_cast<int32_t>(random.below(3));
    answers.push_back(std::move(one));
  }
  BenchReport report;
  ASSERT_TRUE(bench_lengths(answers, report).ok());
  std::map<std::string, double> rows;
  for (const BenchRow& row : report.rows) rows[row.name] = row.value;
  EXPECT_GT(rows.at("lengths.learned.late.within_factor_two"), 0.85);
  EXPECT_LT(rows.at("lengths.history.late.within_factor_two"), 0.7);
  EXPECT_GT(rows.at("lengths.history.late.within_factor_two"), 0.2) << "the adapter's own";
  EXPECT_LT(rows.at("lengths.learned.late.error_mean"), rows.at("lengths.history.late.error_mean") / 2);
  EXPECT_GE(rows.at("lengths.learned.right_of_2"), rows.at("lengths.learned.right_of_4"));
  ASSERT_EQ(report.targets.size(), 1u);
  EXPECT_EQ(report.targets[0].measured, rows.at("lengths.learned.right_of_4"));
  answers.resize(kAnswersLeast - 1);
  EXPECT_FALSE(bench_lengths(answers, report).ok());
}

}  // namespace
}  // namespace loralei
