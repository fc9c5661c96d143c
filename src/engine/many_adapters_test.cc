// SPDX-License-Identifier: Apache-2.0
// Ten thousand registered adapters: what a step and a request cost is what they cost
// beside ten, counted in allocations and not in time, and each takes little memory.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/allocation_counter.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int kFew = 10, kMany = 10'000;

// Of one length, so that they take the same memory.
std::string name_of(int number) {
  char text[32];
  std::snprintf(text, sizeof text, "an-adapter-with-a-name-%05d", number);
  return text;
}

class Registered {
 public:
  explicit Registered(int count) : world_({.step_tokens = 32}) {
    for (int i = 0; i < count; ++i) world_.files.put("/adapters/" + name_of(i), static_cast<uint64_t>(i) + 1);
    start_counting_allocations();
    for (int i = 0; i < count; ++i) {
      world_.command(AdapterAction::kAdd, name_of(i), "/adapters/" + name_of(i));
      turn();
    }
    world_.replies = {};
    registering_ = stop_counting_allocations();
  }
  Allocated registering() const { return registering_; }
  // From its arrival to its end, the load of its adapter and all that is told included.
  Allocated request(int adapter) {
    start_counting_allocations();
    const RequestId id = world_.submit(simple(20, 5, adapter, {{source_of(name_of(adapter)), 1.0f}}));
    for (int turns = 0; turns < 100 && world_.record(id).end == EndReason::kNone; ++turns) {
      turn();
      world_.finish_load();
    }
    const Allocated allocated = stop_counting_allocations();
    world_.expect_oracle(id);
    return allocated;
  }
  // Of steps in which nothing comes or goes.
  Allocated steps(int count) {
    const RequestId id = world_.submit(simple(20, count + 50, 3));
    for (int i = 0; i < 20; ++i) turn();
    EngineOutput output;
    output.tokens.reserve(static_cast<size_t>(count) + 10);
    start_counting_allocations();
    for (int i = 0; i < count; ++i) world_.turn(output);
    const Allocated allocated = stop_counting_allocations();
    EXPECT_EQ(output.tokens.size(), static_cast<size_t>(count));
    world_.take(output);
    world_.cancel(id);
    turn();
    return allocated;
  }

 private:
  // Without check(), which goes through everything.
  void turn() {
    world_.clock.advance_ns(1000);
    EngineOutput output;
    world_.turn(output);
    world_.take(output);
  }
  World world_;
  Allocated registering_;
};

TEST(ManyAdapters, AStepAndARequestCostWhatTheyCostBesideTen) {
  Registered few(kFew), many(kMany);
  EXPECT_EQ(few.steps(40).count, 0);
  EXPECT_EQ(many.steps(40).count, 0);
  (void)few.request(1);  // what is kept grows to its size
  (void)many.request(1);
  const Allocated beside_ten = few.request(5), beside_all = many.request(kMany / 2);
  EXPECT_EQ(beside_all.count, beside_ten.count);
  EXPECT_EQ(beside_all.bytes, beside_ten.bytes);
}

TEST(ManyAdapters, OneThatNobodyUsesTakesAKilobyteOrTwo) {
  const Registered many(kMany);
  EXPECT_LT(many.registering().live_bytes / kMany, 2048) << "in the registry and on the board";
  const Registered few(kFew);
  EXPECT_LT(many.registering().count / kMany, few.registering().count / kFew + 2) << "each is registered alike";
}

}  // namespace
}  // namespace loralei
