// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_slot.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

TEST(BatchSlot, ALargerVocabularyTakesTheDifferenceOnly) {
  const ModelLimits limits{.rows_max = 16, .logits_rows_max = 8};
  constexpr int32_t kHidden = 32, kVocab = 1000;
  const int64_t enough = BatchSlot::bytes(limits, kHidden, kVocab + 8);
  Ledger ledger(enough);
  BatchSlot slot(limits, 1, kHidden, ledger);
  ASSERT_TRUE(slot.reserve_vocab(kVocab).ok());
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kScratch), BatchSlot::bytes(limits, kHidden, kVocab));
  const Status larger = slot.reserve_vocab(kVocab + 8);
  ASSERT_TRUE(larger.ok()) << larger.error().message;
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kScratch), enough);
  const Status refused = slot.reserve_vocab(4 * kVocab);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("logits need 93.5 KiB more"), std::string::npos) << refused.error().message;
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kScratch), enough);
  EXPECT_TRUE(slot.reserve_vocab(kVocab + 8).ok()) << "it is there still";
}

TEST(BatchSlot, WhatIsOnlyLentIsNoReasonToRefuseForGood) {
  const ModelLimits limits{.rows_max = 16, .logits_rows_max = 8};
  constexpr int32_t kHidden = 32, kVocab = 1000;
  Ledger ledger(BatchSlot::bytes(limits, kHidden, 2 * kVocab));
  BatchSlot slot(limits, 1, kHidden, ledger);
  ASSERT_TRUE(slot.reserve_vocab(kVocab).ok());
  Grant loan = *ledger.try_lend(MemoryUse::kOther, 1000);
  const Status now = slot.reserve_vocab(2 * kVocab), never = slot.reserve_vocab(4 * kVocab);
  ASSERT_FALSE(now.ok() || never.ok());
  EXPECT_EQ(now.error().code, ErrorCode::kOverloaded) << now.error().message;
  EXPECT_EQ(never.error().code, ErrorCode::kTooLarge) << never.error().message;
  loan.release();
  EXPECT_TRUE(slot.reserve_vocab(2 * kVocab).ok());
}

}  // namespace
}  // namespace loralei
