// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/prng.h"
#include "parallel/thread_group.h"

namespace loralei {
namespace {

// A step whose arrays have random bytes, of any length.
struct RandomStep {
  StepBatch batch;
  std::vector<std::vector<std::byte>> memory;

  RandomStep(Prng& random, size_t most) {
    batch.step = random();
    batch.arrivals_wait_ns = static_cast<int64_t>(random.below(1000));
    fill(random, most, batch.tokens);
    fill(random, most, batch.positions);
    fill(random, most, batch.blocks);
    fill(random, most, batch.groups);
    fill(random, most, batch.segments);
    fill(random, most, batch.adapters);
    fill(random, most, batch.first_layers);
    fill(random, most, batch.replaced);
    fill(random, most, batch.logits_rows);
    fill(random, most, batch.hidden_rows);
  }
  template <typename Array>
  void fill(Prng& random, size_t most, Array& array) {
    using Element = typename Array::element_type;
    const size_t count = random.below(most + 1);
    std::vector<std::byte>& bytes = memory.emplace_back(count * sizeof(Element));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    array = {reinterpret_cast<const Element*>(bytes.data()), count};
  }
};

template <typename Array>
bool same(const Array& a, const Array& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
bool same_steps(const StepBatch& a, const StepBatch& b) {
  return a.step == b.step && a.arrivals_wait_ns == b.arrivals_wait_ns && same(a.tokens, b.tokens) &&
         same(a.positions, b.positions) && same(a.blocks, b.blocks) && same(a.groups, b.groups) &&
         same(a.segments, b.segments) && same(a.adapters, b.adapters) && same(a.first_layers, b.first_layers) &&
         same(a.replaced, b.replaced) && same(a.logits_rows, b.logits_rows) && same(a.hidden_rows, b.hidden_rows);
}

constexpr uint64_t kSeed = 17;
constexpr int kSteps = 100;

// Some fit a frame, some do not.
RandomStep step_number(int number) {
  Prng random(derived_seed(kSeed, static_cast<uint32_t>(number)));
  return {random, number % 3 == 0 ? size_t{400} : size_t{6}};
}

TEST(RankLink, StepsAndCommandsArriveAsTheyWereSent) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  ThreadGroup group(2);
  std::thread other([&] {
    RankLink link(group.rank(1));
    for (int number = 0; number < kSteps; ++number) {
      const auto received = link.receive();
      ASSERT_TRUE(received.ok());
      ASSERT_EQ(received->command, RankCommand::kStep);
      const auto batch = RankLink::step_of(received->payload);
      ASSERT_TRUE(batch.ok());
      EXPECT_TRUE(same_steps(*batch, step_number(number).batch)) << number;
    }
    const auto received = link.receive();
    ASSERT_TRUE(received.ok());
    EXPECT_EQ(received->command, RankCommand::kWithdraw);
    uint64_t value = 0;
    ASSERT_EQ(received->payload.size(), sizeof value);
    std::memcpy(&value, received->payload.data(), sizeof value);
    EXPECT_EQ(value, 4711u);
    EXPECT_EQ(link.receive()->command, RankCommand::kStop);
  });
  RankLink link(group.rank(0));
  for (int number = 0; number < kSteps; ++number) EXPECT_TRUE(link.send_step(step_number(number).batch).ok());
  const uint64_t value = 4711;
  EXPECT_TRUE(link.send(RankCommand::kWithdraw, std::as_bytes(std::span(&value, 1))).ok());
  EXPECT_TRUE(link.send(RankCommand::kStop).ok());
  other.join();
}

// What another program's rank sends is an error, wherever it is cut or changed.
TEST(RankLink, WhatIsNoStepIsAnError) {
  ThreadGroup group(2);
  const RandomStep step = step_number(3);
  std::vector<uint64_t> words;
  std::thread other([&] {
    RankLink link(group.rank(1));
    const auto received = link.receive();
    ASSERT_TRUE(received.ok());
    words.resize((received->payload.size() + 7) / 8);
    std::memcpy(words.data(), received->payload.data(), received->payload.size());
  });
  RankLink link(group.rank(0));
  ASSERT_TRUE(link.send_step(step.batch).ok());
  other.join();
  const std::span<const std::byte> whole = std::as_bytes(std::span(words));
  EXPECT_TRUE(RankLink::step_of(whole).ok());
  for (size_t size = 0; size < whole.size(); size += 8) EXPECT_FALSE(RankLink::step_of(whole.first(size)).ok()) << size;
  for (size_t count = 2; count < 12; ++count) {
    std::vector<uint64_t> changed = words;
    changed[count] = UINT64_MAX / 8;
    EXPECT_FALSE(RankLink::step_of(std::as_bytes(std::span(changed))).ok()) << count;
  }
}

}  // namespace
}  // namespace loralei
