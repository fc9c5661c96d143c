// SPDX-License-Identifier: Apache-2.0
#include "engine/step_outputs.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

TEST(StepOutputs, ALargerVocabularyTakesTheDifferenceOnly) {
  const ModelLimits limits{.rows_max = 16, .logits_rows_max = 8};
  constexpr int32_t kHidden = 32, kVocab = 1000;
  const int64_t enough = StepOutputs::bytes(limits, kHidden, kVocab + 8);
  Ledger ledger(enough);
  StepOutputs outputs(limits, kHidden, ledger);
  ASSERT_TRUE(outputs.reserve_vocab(kVocab).ok());
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kScratch), StepOutputs::bytes(limits, kHidden, kVocab));
  const Status larger = outputs.reserve_vocab(kVocab + 8);
  ASSERT_TRUE(larger.ok()) << larger.error().message;
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kScratch), enough);
  const Status refused = outputs.reserve_vocab(4 * kVocab);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("logits need 93.5 KiB more"), std::string::npos) << refused.error().message;
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kScratch), enough);
  EXPECT_TRUE(outputs.reserve_vocab(kVocab + 8).ok()) << "it is there still";
}

TEST(StepOutputs, WhatIsOnlyLentIsNoReasonToRefuseForGood) {
  const ModelLimits limits{.rows_max = 16, .logits_rows_max = 8};
  constexpr int32_t kHidden = 32, kVocab = 1000;
  Ledger ledger(StepOutputs::bytes(limits, kHidden, 2 * kVocab));
  StepOutputs outputs(limits, kHidden, ledger);
  ASSERT_TRUE(outputs.reserve_vocab(kVocab).ok());
  Grant loan = *ledger.try_lend(MemoryUse::kOther, 1000);
  const Status now = outputs.reserve_vocab(2 * kVocab), never = outputs.reserve_vocab(4 * kVocab);
  ASSERT_FALSE(now.ok() || never.ok());
  EXPECT_EQ(now.error().code, ErrorCode::kOverloaded) << now.error().message;
  EXPECT_EQ(never.error().code, ErrorCode::kTooLarge) << never.error().message;
  loan.release();
  EXPECT_TRUE(outputs.reserve_vocab(2 * kVocab).ok());
}

}  // namespace
}  // namespace loralei
