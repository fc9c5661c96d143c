// SPDX-License-Identifier: Apache-2.0
#include "cost/step_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/prng.h"

namespace loralei {
namespace {

std::vector<StepRecord> some_records(uint64_t seed, int count) {
  Prng random(seed);
  std::vector<StepRecord> records;
  for (int i = 0; i < count; ++i) {
    StepRecord record;
    record.step = (records.empty() ? 0 : records.back().step) + 1 + random.below(3);
    record.begin_ns = static_cast<int64_t>(random.below(uint64_t{1} << 60));
    record.ns = static_cast<int64_t>(random.below(1u << 30));
    record.waited_ns = static_cast<int64_t>(random.below(1u << 30));
    StepFeatures& step = record.features;
    for (int32_t* number : {&step.prefill_rows, &step.decode_rows, &step.logits_rows, &step.adapters, &step.rank_sum,
                            &step.rank_max, &step.lora_rows, &record.waiting})
      *number = static_cast<int32_t>(random.below(INT32_MAX));
    for (int64_t* number : {&step.prefill_attended, &step.decode_attended, &step.lora_row_ranks})
      *number = static_cast<int64_t>(random.below(INT64_MAX));
    for (uint64_t ids = random.below(4); ids > 0; --ids) record.admitted.push_back(RequestId{random.below(1000)});
    records.push_back(std::move(record));
  }
  return records;
}

TEST(StepLog, IsReadAgainAsItWasWritten) {
  const std::vector<StepRecord> records = some_records(1, 500);
  std::string text = step_log_head() + "\n# a remark\n\n";
  for (const StepRecord& record : records) text += step_log_line(record) + "\n";
  const auto read = parse_step_log(text, "log");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, records);
}

TEST(StepLog, IsAFileOfLines) {
  const std::string path = testing::TempDir() + "/steps.csv";
  const std::vector<StepRecord> records = some_records(2, 100);
  {
    auto log = StepLog::create(path);
    ASSERT_TRUE(log.ok()) << log.error().message;
    for (const StepRecord& record : records) (*log)->add(record);
    ASSERT_TRUE((*log)->flush(30'000));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  const auto read = parse_step_log(text.str(), path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, records);
  std::filesystem::remove(path);
  const auto nowhere = StepLog::create("/nowhere/steps.csv");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find("/nowhere/steps.csv"), std::string::npos);
}

TEST(StepLog, WhatIsWrongIsSaidWithFileAndLine) {
  const std::string head = step_log_head() + "\n", good = step_log_line(some_records(3, 1)[0]) + "\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "log:1: it is empty"},
      {"step,ns\n", "log:1: a step log begins with"},
      {head + "1,2,3\n", "log:2: a step is 15 whole numbers"},
      {head + good + good, "log:3: steps must ascend"},
      {head + "1,2,3,4,5,6,7,8,9,10,11,12,13,14,-15,\n", "log:2: a step is"},
      {head + "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,a\n", "log:2: a step is"},
      {head + "1,2,3,4,99999999999,6,7,8,9,10,11,12,13,14,15,\n", "log:2: a step is"}};
  for (const auto& [text, sentence] : cases) {
    const auto read = parse_step_log(text, "log");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().message.find(sentence), 0u) << read.error().message;
  }
}

}  // namespace
}  // namespace loralei
