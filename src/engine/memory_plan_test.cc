// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace loralei {
namespace {

MemoryRequest request() {
  MemoryRequest r;
  r.left_bytes = 8 * kGiB;
  r.block_bytes = kMiB;
  r.model_len_max = 4096;
  r.max_sequences = 8;
  return r;
}

TEST(MemoryPlan, KvTakesWhatItNeedsAndAdaptersAQuarterOfTheRest) {
  const auto plan = plan_memory(request());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, 8 * 256 * kMiB);
  EXPECT_EQ(plan->adapter_bytes, (8 * kGiB - plan->kv_bytes) / 4);
  EXPECT_EQ(plan->max_model_len, 4096);
}

TEST(MemoryPlan, KvTakesAtMostHalf) {
  MemoryRequest r = request();
  r.max_sequences = 256;
  EXPECT_EQ(plan_memory(r)->kv_bytes, 4 * kGiB);
}

TEST(MemoryPlan, OneSequenceOfAStatedLengthMayTakeMoreThanHalf) {
  MemoryRequest r = request();
  r.left_bytes = 10 * r.block_bytes;
  r.max_model_len = 7 * 16;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->kv_blocks, 7);
  r.adapter_bytes = 4 * r.block_bytes;
  EXPECT_FALSE(plan_memory(r).ok());
  r.adapter_bytes = 3 * r.block_bytes;
  EXPECT_EQ(plan_memory(r)->kv_blocks, 7);
  r.max_model_len = 11 * 16;
  EXPECT_FALSE(plan_memory(r).ok());
}

// Of the KV cache's share states have half at most: all sequences' and twice as many
// copies, or else fewer of both.
TEST(MemoryPlan, StatesHaveASlotForEachSequenceAndCopies) {
  MemoryRequest r = request();
  r.state_bytes = 20 * kMiB;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->state_slots, 3 * 8);
  EXPECT_EQ(plan->max_sequences, 8);
  EXPECT_EQ(plan->state_bytes, 24 * 20 * kMiB);
  EXPECT_EQ(plan->kv_bytes, 8 * 256 * kMiB) << "as without them";
  EXPECT_EQ(plan->adapter_bytes, (8 * kGiB - plan->kv_bytes - plan->state_bytes) / 4);
  EXPECT_TRUE(plan->notes.empty());
  r.keeps_prefixes = false;
  EXPECT_EQ(plan_memory(r)->state_slots, 8);
}

TEST(MemoryPlan, WhereStatesAreLargeFewerSequencesRun) {
  MemoryRequest r = request();
  r.state_bytes = 300 * kMiB;
  r.kv_cache_bytes = 2 * kGiB + 512 * kMiB;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->state_slots, 4) << "of half";
  EXPECT_EQ(plan->max_sequences, 3) << "and a copy";
  EXPECT_EQ(plan->kv_blocks, 2560 - 1200);
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_NE(plan->notes[0].find("At most 3 sequences run at once"), std::string::npos) << plan->notes[0];
  r.keeps_prefixes = false;
  EXPECT_EQ(plan_memory(r)->max_sequences, 4);
}

TEST(MemoryPlan, OneStateThereIsOrARefusalWithTheNumbers) {
  MemoryRequest r = request();
  r.state_bytes = 300 * kMiB;
  r.kv_cache_bytes = 310 * kMiB;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->state_slots, 1);
  EXPECT_EQ(plan->max_sequences, 1);
  EXPECT_EQ(plan->kv_blocks, 10);
  r.kv_cache_bytes = 300 * kMiB;
  const auto none = plan_memory(r);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("301.0 MiB"), std::string::npos) << none.error().message;
  r.kv_cache_bytes = 0;
  r.left_bytes = 320 * kMiB;
  const auto little = plan_memory(r);
  ASSERT_TRUE(little.ok()) << little.error().message;
  EXPECT_EQ(little->kv_blocks, 20) << "beside the one state, whatever half is";
}

// Layers that attend to windows have those; blocks are of a part of the layers then.
TEST(MemoryPlan, OfWindowsKvNeedsTheWindowsAndAStep) {
  MemoryRequest r = request();
  r.block_bytes = kMiB / 4;
  r.tables = {1, 3, 8, 512, 64};  // 33 places of a window, and four of a step
  EXPECT_EQ(plan_memory(r)->kv_blocks, 8 * (256 + 3 * 37));
  r.tables = {0, 4, 8, 512, 64};
  EXPECT_EQ(plan_memory(r)->kv_blocks, 8 * 4 * 37);
  r.left_bytes = 2 * 4 * 37 * r.block_bytes;
  r.max_sequences = 1;
  EXPECT_EQ(plan_memory(r)->max_model_len, 4096) << "a text is as long as it likes";
  r.model_len_max = int64_t{1} << 50;
  EXPECT_EQ(plan_memory(r)->max_model_len, int64_t{1} << 50);
  r.tables = {1, 3, 8, 512, 64};
  r.model_len_max = r.max_model_len = 4096;
  r.left_bytes = (256 + 3 * 37) * r.block_bytes;
  EXPECT_EQ(plan_memory(r)->kv_blocks, 256 + 3 * 37);
  r.left_bytes -= r.block_bytes;
  const auto refused = plan_memory(r);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("lower --max-model-len to 4080"), std::string::npos)
      << refused.error().message;
  r.left_bytes = 3 * r.block_bytes;  // fewer than a token has
  EXPECT_FALSE(plan_memory(r).ok());
}

TEST(MemoryPlan, AnUnstatedLengthShrinksAndSaysSo) {
  MemoryRequest r = request();
  r.model_len_max = int64_t{1} << 50;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->max_model_len, 4096 * 16);
  EXPECT_EQ(plan->notes.size(), 1u);
}

// Sequences of them can use 2 GiB.
TEST(MemoryPlan, WhatIsStatedForKvIsUsedWholeWherePrefixesAreKept) {
  for (const bool on_device : {false, true}) {
    MemoryRequest r = request();
    r.on_device = on_device;
    r.kv_cache_bytes = 5 * kGiB;
    const auto plan = plan_memory(r);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_EQ(plan->kv_bytes, 5 * kGiB);
    EXPECT_EQ(plan->max_model_len, 4096);
    EXPECT_TRUE(plan->notes.empty());
    r.kv_cache_bytes = 9 * kGiB;
    EXPECT_NE(plan_memory(r).error().message.find("would need 9.00 GiB but 8.00 GiB are left"), std::string::npos);
  }
}

TEST(MemoryPlan, WhatOfStatedKvIsOfNoUseIsTold) {
  MemoryRequest r = request();
  r.keeps_prefixes = false;
  r.kv_cache_bytes = 5 * kGiB + 1;
  auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, 2 * kGiB);
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_EQ(plan->notes[0],
            "The KV cache takes 2.00 GiB of the 5.00 GiB it was given: --max-num-seqs 8 sequences of 4096 tokens need "
            "no more, and no prefix is kept behind them.");
  r.kv_cache_bytes = 2 * kGiB + kMiB - 1;  // less than a block more
  EXPECT_TRUE(plan_memory(r)->notes.empty());
  r = request();
  r.left_bytes = int64_t{1} << 50;
  r.kv_cache_bytes = int64_t{1} << 49;
  plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_blocks, INT32_MAX / 16);
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_NE(plan->notes[0].find("it can have 134217727 blocks"), std::string::npos) << plan->notes[0];
}

TEST(MemoryPlan, OnADeviceKvTakesWhatAdaptersLeave) {
  MemoryRequest r = request();
  r.on_device = true;
  r.max_sequences = 256;
  auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, 7 * kGiB);
  EXPECT_EQ(plan->adapter_bytes, kGiB);
  r.adapter_bytes = 2 * kGiB;
  plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, 6 * kGiB);
  EXPECT_EQ(plan->adapter_bytes, 2 * kGiB);
  r.kv_cache_bytes = kGiB;
  plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, kGiB);
  EXPECT_EQ(plan->adapter_bytes, 2 * kGiB);
  // What no sequence could use is the adapters'.
  r = request();
  r.on_device = true;
  plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kv_bytes, 2 * kGiB);
  EXPECT_EQ(plan->adapter_bytes, 6 * kGiB);
}

TEST(MemoryPlan, OnADeviceRefusalsNameItsFlag) {
  const auto refusal = [](auto&& change) {
    MemoryRequest r = request();
    r.on_device = true;
    change(r);
    const auto plan = plan_memory(r);
    EXPECT_FALSE(plan.ok());
    return plan.ok() ? "" : plan.error().message;
  };
  for (const std::string& sentence : {
           refusal([](MemoryRequest& r) { r.adapter_bytes = 8 * kGiB; }),
           refusal([](MemoryRequest& r) { r.left_bytes = -kGiB, r.adapter_bytes = kMiB; }),
           refusal([](MemoryRequest& r) { r.kv_cache_bytes = 9 * kGiB, r.max_sequences = 256; }),
           refusal([](MemoryRequest& r) { r.kv_cache_bytes = kGiB, r.adapter_bytes = 8 * kGiB; }),
           refusal([](MemoryRequest& r) { r.left_bytes = 64 * kMiB, r.max_model_len = 4096; }),
       }) {
    EXPECT_NE(sentence.find("raise --gpu-memory-utilization"), std::string::npos) << sentence;
    EXPECT_EQ(sentence.find("--memory-budget"), std::string::npos) << sentence;
  }
}

TEST(MemoryPlan, WhatCannotFitIsRefusedWithNumbers) {
  MemoryRequest r = request();
  r.kv_cache_bytes = 16 * kMiB;
  r.max_model_len = 4096;
  EXPECT_NE(plan_memory(r).error().message.find("lower --max-model-len to 256"), std::string::npos);
  r = request();
  r.left_bytes = 1;
  EXPECT_EQ(plan_memory(r).error().code, ErrorCode::kTooLarge);
  r = request();
  r.max_model_len = 5000;
  EXPECT_EQ(plan_memory(r).error().code, ErrorCode::kInvalidArgument);
  r = request();
  r.adapter_bytes = 7 * kGiB;
  EXPECT_EQ(plan_memory(r)->kv_bytes, kGiB) << "stated adapters come before half for KV";
  r.adapter_bytes = 8 * kGiB;
  EXPECT_NE(plan_memory(r).error().message.find("--adapter-memory"), std::string::npos);
}

}  // namespace
}  // namespace loralei
