// SPDX-License-Identifier: Apache-2.0
#include "kv/state_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kFloats = 21;  // two cache lines

TEST(StatePool, SlotsAreGivenOnceAndComeBackWhenTheirLeaseIsDropped) {
  Ledger ledger(1 << 20);
  const auto pool = std::move(StatePool::create(kFloats, 3, ledger)).value();
  EXPECT_EQ(pool->bytes(), 3 * 128);
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kKv), 3 * 128);
  StateLease a = pool->take(), b = pool->take();
  {
    const StateLease c = pool->take();
    EXPECT_TRUE(a && b && c);
    EXPECT_FALSE(pool->take()) << "none is free";
    EXPECT_NE(a.slot(), b.slot());
    EXPECT_NE(b.slot(), c.slot());
    pool->check();
  }
  EXPECT_EQ(pool->free(), 1);
  StateLease moved = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(pool->free(), 1);
  moved = std::move(b);
  EXPECT_EQ(pool->free(), 2) << "what it had before is given back";
  moved.release();
  moved.release();
  EXPECT_EQ(pool->free(), 3);
  pool->check();
}

TEST(StatePool, ATextBeginsWithZerosWhateverWasThere) {
  Ledger ledger(1 << 20);
  const auto pool = std::move(StatePool::create(kFloats, 2, ledger)).value();
  const StateLease a = pool->take(), b = pool->take();
  for (int64_t i = 0; i < kFloats; ++i) pool->view().at(a.slot())[i] = 1.0f + static_cast<float>(i);
  pool->copy(a, b);
  pool->clear(a);
  for (int64_t i = 0; i < kFloats; ++i) {
    EXPECT_EQ(pool->view().at(a.slot())[i], 0.0f);
    EXPECT_EQ(pool->view().at(b.slot())[i], 1.0f + static_cast<float>(i));
  }
}

TEST(StatePool, WhatTheLedgerHasNoRoomForIsRefusedWithTheNumbers) {
  Ledger ledger(1000);
  const auto pool = StatePool::create(kFloats, 8, ledger);
  ASSERT_FALSE(pool.ok());
  EXPECT_NE(pool.error().message.find("8 texts"), std::string::npos) << pool.error().message;
  EXPECT_NE(pool.error().message.find("1000 B"), std::string::npos) << pool.error().message;
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(StatePool, RandomOperationsNeverShareASlot) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Ledger ledger(1 << 20);
    const auto pool = std::move(StatePool::create(kFloats, 5, ledger)).value();
    std::vector<std::pair<StateLease, float>> held;
    for (int step = 0; step < 300; ++step) {
      if (random.below(2) == 0) {
        StateLease lease = pool->take();
        ASSERT_EQ(static_cast<bool>(lease), held.size() < 5);
        if (!lease) continue;
        const float value = static_cast<float>(step + 1);
        pool->clear(lease);
        pool->view().at(lease.slot())[kFloats - 1] = value;
        held.emplace_back(std::move(lease), value);
      } else if (!held.empty()) {
        held.erase(held.begin() + static_cast<int64_t>(random.below(held.size())));
      }
      pool->check();
      for (const auto& [lease, value] : held) ASSERT_EQ(pool->view().at(lease.slot())[kFloats - 1], value);
    }
  }
}

}  // namespace
}  // namespace loralei
