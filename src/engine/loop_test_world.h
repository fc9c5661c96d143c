// SPDX-License-Identifier: Apache-2.0
// A world of the simulator in which what is wrong fails a test.
// One thread; owns what sim::LoopWorld owns.
#pragma once

#include <gtest/gtest.h>

#include "sim/loop_world.h"

namespace loralei::testing_support {

using namespace sim;

class World : public LoopWorld {
 public:
  using LoopWorld::LoopWorld;
  ~World() {
    for (const std::string& sentence : wrong) ADD_FAILURE() << sentence;
  }

  void expect_nothing_held() {
    const EngineStats value = stats();
    EXPECT_EQ(value.running + value.waiting + value.waiting_for_adapter, 0);
    EXPECT_EQ(value.kv_blocks_used, 0);
    EXPECT_EQ(queued.load(), 0);
    EXPECT_TRUE(executor.tier == nullptr || executor.tier->holds() == 0);
    for (const auto& adapter : adapters()) EXPECT_EQ(adapter->users, 0) << adapter->source.label;
  }

  // Compares a finished choice with the oracle.
  void expect_oracle(RequestId id, int32_t choice = 0) {
    const Record& record = this->record(id, choice);
    const Expected expected = oracle(id, choice);
    EXPECT_EQ(record.tokens, expected.tokens) << "request " << id.value << " choice " << choice;
    EXPECT_EQ(record.end, expected.end) << record.last.error.message;
  }
};

}  // namespace loralei::testing_support
