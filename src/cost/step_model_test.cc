// SPDX-License-Identifier: Apache-2.0
#include "cost/step_model.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

StepModel straight() {
  StepModel model;
  model.linear = {{1, 1.0}, {10, 10.0}};
  return model;
}

TEST(StepModel, LinesGoOnBeyondTheLastPoint) {
  StepModel model = straight();
  EXPECT_DOUBLE_EQ(model.linear_s(1), 1);
  EXPECT_DOUBLE_EQ(model.linear_s(5), 5);
  EXPECT_DOUBLE_EQ(model.linear_s(10), 10);
  EXPECT_DOUBLE_EQ(model.linear_s(20), 20);
  model.linear = {{4, 2.0}};
  for (const int rows : {1, 4, 100}) EXPECT_DOUBLE_EQ(model.linear_s(rows), 2);
  model.linear = {{1, 2.0}, {2, 1.0}};
  EXPECT_DOUBLE_EQ(model.linear_s(100), 0) << "never below nothing";
}

TEST(StepModel, EveryTermCountsWhatItSays) {
  const StepFeatures step{.prefill_rows = 3,
                          .decode_rows = 2,
                          .prefill_attended = 100,
                          .decode_attended = 200,
                          .logits_rows = 7,
                          .adapters = 2,
                          .rank_sum = 24,
                          .rank_max = 16,
                          .lora_rows = 4,
                          .lora_row_ranks = 40};
  const double expected[kCostTerms] = {100, 200, 7, 1, 2, 24, 64, 4, 40};
  for (size_t term = 0; term < kCostTerms; ++term) {
    StepModel model = straight();
    model.seconds[term] = 0.5;
    EXPECT_DOUBLE_EQ(model.predict_s(step), 5 + 0.5 * expected[term]) << cost_term_name(static_cast<CostTerm>(term));
    model.seconds[term] = -1;
    EXPECT_NE(check_step_model(model), "");
  }
}

TEST(StepModel, APromptIsTheSumOfItsSteps) {
  StepModel model = straight();
  model.seconds[static_cast<size_t>(CostTerm::kPrefillAttended)] = 1e-3;
  model.seconds[static_cast<size_t>(CostTerm::kLogitsRow)] = 0.25;
  EXPECT_DOUBLE_EQ(model.prefill_s(10, 0, 4), 4 + 4 + 2 + 0.25 + 1e-3 * 55);
  EXPECT_DOUBLE_EQ(model.prefill_s(10, 8, 4), 2 + 0.25 + 1e-3 * 19);
  EXPECT_DOUBLE_EQ(model.prefill_s(10, 10, 4), 1 + 0.25 + 1e-3 * 10) << "the last token is always computed";
}

}  // namespace
}  // namespace loralei
