// SPDX-License-Identifier: Apache-2.0
#include "sim/kernel.h"

#include <gtest/gtest.h>

#include <string>

namespace loralei::sim {
namespace {

TEST(Kernel, EventsComeByTimeThenOrderThenSequence) {
  Kernel kernel;
  std::string order;
  const auto event = [&](char name) { return [&order, name] { order += name; }; };
  kernel.at(20, EventOrder::kEnded, event('f'));
  kernel.at(10, EventOrder::kDecision, event('d'));
  kernel.at(10, EventOrder::kArrival, event('b'));
  kernel.at(10, EventOrder::kArrival, event('c'));
  kernel.at(10, EventOrder::kEnded, event('a'));
  kernel.at(10, EventOrder::kDecision, [&] {
    order += 'e';
    kernel.after(0, EventOrder::kEnded, event('!'));  // still before what comes later
  });
  kernel.run();
  EXPECT_EQ(order, "abcde!f");
  EXPECT_EQ(kernel.now_ns(), 20);
  EXPECT_EQ(kernel.events(), 7u);
  EXPECT_FALSE(kernel.step());
}

TEST(KernelDeathTest, NothingIsPlannedForThePast) {
  Kernel kernel;
  kernel.at(10, EventOrder::kEnded, [] {});
  kernel.run();
  EXPECT_DEATH(kernel.at(9, EventOrder::kEnded, [] {}), "CHECK");
}

}  // namespace
}  // namespace loralei::sim
