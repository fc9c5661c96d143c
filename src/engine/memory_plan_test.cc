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

TEST(MemoryPlan, AnUnstatedLengthShrinksAndSaysSo) {
  MemoryRequest r = request();
  r.model_len_max = int64_t{1} << 50;
  const auto plan = plan_memory(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->max_model_len, 4096 * 16);
  EXPECT_EQ(plan->notes.size(), 1u);
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
  EXPECT_EQ(plan_memory(r).error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace loralei
