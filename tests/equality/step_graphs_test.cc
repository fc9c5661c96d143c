// SPDX-License-Identifier: Apache-2.0
// StepGraphs and StepShape without a model: what is recorded, launched, given up and
// refused; part of cuda_graphs_test.
#include "model/cuda/step_graphs.h"

#include <gtest/gtest.h>

#include "base/log_test_util.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"

namespace loralei {
namespace {

class StepGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    stream_ = CudaStream::create().value();
    memory_ = DeviceBuffer::allocate(16).value();
  }
  static StepShape shape(int32_t rows) {
    StepShape made;
    made.rows = rows;
    made.ranks = {-1, 4};
    return made;
  }
  Status run(StepGraphs& graphs, int32_t rows) {
    const Status put = graphs.run(shape(rows), stream_, [&]() -> Status {
      ++calls_;
      return fill_on_device(memory_.data(), rows, 16, stream_);
    });
    TRY(put);
    return stream_.synchronize();
  }
  CudaStream stream_;
  DeviceBuffer memory_;
  int calls_ = 0;
};

TEST_F(StepGraphsTest, TheFirstRunIsPlainTheSecondRecordsAndTheOldestGoes) {
  StepGraphs graphs(2);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(run(graphs, 1).ok());
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(graphs.recorded(), 1);
  EXPECT_EQ(graphs.launched(), 3);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(run(graphs, 2).ok());
  ASSERT_TRUE(run(graphs, 1).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(run(graphs, 3).ok());  // 2 goes
  EXPECT_EQ(graphs.held(), 2);
  EXPECT_EQ(graphs.recorded(), 3);
  calls_ = 0;
  ASSERT_TRUE(run(graphs, 1).ok());
  ASSERT_TRUE(run(graphs, 3).ok());
  EXPECT_EQ(calls_, 0);
  ASSERT_TRUE(run(graphs, 2).ok());
  ASSERT_TRUE(run(graphs, 2).ok());
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(graphs.held(), 2);
  for (int rows = 10; rows < 50; ++rows) ASSERT_TRUE(run(graphs, rows).ok());  // never twice
  EXPECT_EQ(graphs.recorded(), 4);
}

TEST_F(StepGraphsTest, WhatCannotBeRecordedRunsPlainly) {
  CollectingLog log;
  StepGraphs graphs(2, &log);
  // A wait is what a driver refuses while it records; the stream goes on afterwards.
  int calls = 0;
  const auto waits = [&]() -> Status {
    ++calls;
    return stream_.synchronize();
  };
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(graphs.run(shape(1), stream_, waits).ok());
  EXPECT_EQ(calls, 5) << "once more in the recording that failed";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(run(graphs, 2).ok());
  EXPECT_EQ(graphs.recorded(), 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graphs.run(shape(3), stream_, waits).ok());
  EXPECT_EQ(log.lines().size(), 1u);
  // Refused as often as graphs may be kept: nothing more is tried, what is there runs.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(run(graphs, 4).ok());
  EXPECT_EQ(graphs.recorded(), 1);
  calls_ = 0;
  ASSERT_TRUE(run(graphs, 2).ok());
  EXPECT_EQ(calls_, 0);
  // An error of the launches themselves is the step's.
  StepGraphs others(2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(others.run(shape(1), stream_, []() -> Status { return internal_error("No such kernel."); }).ok());
  }
  EXPECT_TRUE(stream_.synchronize().ok());
}

TEST(StepShapeTest, EveryNumberIsPartOfIt) {
  const StepShape plain = [] {
    StepShape made;
    made.ranks = {-1, 4};
    return made;
  }();
  std::vector<StepShape> others(13, plain);
  int32_t LoraSizes::*const sizes[] = {&LoraSizes::segments, &LoraSizes::parts, &LoraSizes::runs, &LoraSizes::entries};
  others[0].rows = 1;
  others[1].logits_rows = 1;
  others[2].hidden_rows = 1;
  others[3].positions_max = 1;
  others[4].slots = 1;
  for (size_t i = 0; i < 4; ++i) others[5 + i].lora.*sizes[i] = 1;
  others[9].head_lora.entries = 1;
  others[10].ranks[0] = 4;
  others[11].ranks[1] = 8;
  others[12].kv.layer_stride_bytes = 16;
  for (const StepShape& other : others) EXPECT_FALSE(other == plain);
  EXPECT_TRUE(StepShape(others[11]) == others[11]);
  EXPECT_EQ(StepShape(others[11]).hash(), others[11].hash());
  EXPECT_NE(others[11].hash(), plain.hash());
}

TEST(StepShapeTest, RoundingKeepsTheClassAndTheLimits) {
  int32_t kinds = 0, last = 0;
  for (int32_t rows = 1; rows <= 300; ++rows) {
    const int32_t rounded = rounded_rows(rows, 300);
    ASSERT_GE(rounded, rows);
    ASSERT_LE(rounded, 300);
    for (const int32_t end : {8, 32, 16, 64, 128, 256}) ASSERT_EQ(rows <= end, rounded <= end) << rows;
    ASSERT_EQ(rounded_rows(rounded, 300), rounded) << "a bucket is its own";
    kinds += rounded != last ? 1 : 0;
    last = rounded;
  }
  EXPECT_EQ(kinds, 4 + 7 + 8);
  EXPECT_EQ(rounded_rows(0, 8), 0);
  EXPECT_EQ(rounded_rows(9, 10), 10);
  EXPECT_EQ(rounded_count(0, 8), 0);
  EXPECT_EQ(rounded_count(5, 40), 8);
  EXPECT_EQ(rounded_count(33, 40), 40);
  EXPECT_EQ(rounded_positions(1, 4096), 256);
  EXPECT_EQ(rounded_positions(256, 4096), 256);
  EXPECT_EQ(rounded_positions(257, 4096), 512);
  EXPECT_EQ(rounded_positions(1025, 4096), 2048);
  EXPECT_EQ(rounded_positions(1025, 1500), 1500);
  EXPECT_EQ(rounded_positions(100, 128), 128);
  EXPECT_EQ(rounded_lora({3, 5, 2, 6}, {1000, 1000, 4, 1000}), (LoraSizes{8, 8, 4, 8}));
  EXPECT_EQ(rounded_lora({3, 0, 0, 0}, {1000, 1000, 4, 1000}), LoraSizes{});
}

}  // namespace
}  // namespace loralei
