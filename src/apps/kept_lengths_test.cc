// SPDX-License-Identifier: Apache-2.0
#include "apps/kept_lengths.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/log_test_util.h"
#include "sched/length_predictor.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class KeptLengthsTest : public testing::Test {
 protected:
  KeptLengthsTest() : folder_(fs::temp_directory_path() / ("kept_lengths_test_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
  }
  ~KeptLengthsTest() override { fs::remove_all(folder_); }

  // A server's life: what it was given at the start; at the end it keeps `state`.
  std::shared_ptr<const LengthsState> live(const std::string& base, const LengthsState& state) {
    EngineHostOptions options;
    options.engine.scheduling.policy = SchedulePolicy::kSjf;
    const auto kept = KeptLengths::open(folder_, log_, options);
    EXPECT_TRUE(kept.ok()) << kept.error().message;
    auto recalled = options.recall_lengths(base);
    options.keep_lengths(LengthsState(state));
    return recalled;
  }

  const std::string folder_;
  CollectingLog log_;
};

TEST_F(KeptLengthsTest, EachBaseModelFindsItsOwnAgain) {
  LengthPredictor predictor(LengthPrediction::kLearned);
  LengthAsked asked;
  predictor.ended(asked, {}, 50, false);
  const LengthsState first = predictor.state();
  predictor.ended(asked, {}, 50, false);
  const LengthsState second = predictor.state();
  EXPECT_EQ(live("one", first), nullptr);
  EXPECT_EQ(live("two", second), nullptr);
  const auto of_one = live("one", first), of_two = live("two", second);
  ASSERT_TRUE(of_one != nullptr && of_two != nullptr);
  EXPECT_EQ(of_one->common.all.weight, first.common.all.weight);
  EXPECT_EQ(of_two->common.all.weight, second.common.all.weight);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2) << "and nothing else";
}

TEST_F(KeptLengthsTest, ADamagedFileIsOneLineAndWrittenAnew) {
  (void)live("base", {});
  const std::string path = KeptLengths::path_in(folder_, "base");
  for (const std::string& content : {std::string("not this"), std::string(), std::string(5 << 20, 'x')}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    log_.clear();
    EXPECT_EQ(live("base", {}), nullptr);
    ASSERT_EQ(log_.lines().size(), 1u);
    EXPECT_NE(log_.lines()[0].find(path), std::string::npos);
    EXPECT_NE(log_.lines()[0].find("is not used"), std::string::npos) << log_.lines()[0];
    log_.clear();
    EXPECT_NE(live("base", {}), nullptr) << "what was written behind it is sound";
  }
}

TEST_F(KeptLengthsTest, AFolderThatCannotBeMadeIsRefused) {
  fs::create_directories(fs::path(folder_).parent_path());
  std::ofstream(folder_) << "a file";
  EngineHostOptions options;
  options.engine.scheduling.policy = SchedulePolicy::kSjf;
  const auto kept = KeptLengths::open(folder_ + "/below", log_, options);
  ASSERT_FALSE(kept.ok());
  EXPECT_NE(kept.error().message.find("--state-dir"), std::string::npos);
  const auto none = KeptLengths::open("", log_, options);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
  options.engine.scheduling.policy = SchedulePolicy::kFifo;
  const auto nothing = KeptLengths::open(folder_, log_, options);
  ASSERT_TRUE(nothing.ok());
  EXPECT_EQ(*nothing, nullptr);
  ASSERT_EQ(log_.lines().size(), 1u) << "and it is told so";
  EXPECT_FALSE(options.recall_lengths);
}

}  // namespace
}  // namespace loralei
