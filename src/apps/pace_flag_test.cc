// SPDX-License-Identifier: Apache-2.0
#include "apps/pace_flag.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "cost/profile.h"
#include "sys/file.h"

namespace loralei {
namespace {

struct Set {
  explicit Set(const std::string& name, const std::string& cost = "") {
    serve.cost = cost;
    status = set_pace(name, options, serve, log);
  }
  EngineHostOptions options;
  ServeOptions serve;
  NullLogSink log;
  Status status;
};

TEST(PaceFlag, RoutersAreToldWhatStepsAndAdaptersTakeHere) {
  const Set set("a10-llama2-7b-bgmv");
  ASSERT_TRUE(set.status.ok());
  ASSERT_NE(set.options.pace, nullptr);
  const Profile known = *device_profile("a10-llama2-7b-bgmv");
  EXPECT_EQ(*set.options.pace, known);
  const auto told = parse_profile(set.serve.cost, "told");
  ASSERT_TRUE(told.ok()) << told.error().message;
  EXPECT_EQ(told->step, known.step);
  EXPECT_FALSE(told->link.has_value());  // what is in memory is where steps use it
  EXPECT_NEAR(told->disk->predict_s(1'000'000'000),
              known.disk->predict_s(1'000'000'000) + known.link->predict_s(1'000'000'000), 1e-6);
  EXPECT_EQ(set.serve.told_rank_bytes, known.model.adapter_bytes_per_rank);
}

TEST(PaceFlag, WhatIsStatedOfCostsStays) {
  const Set set("a10-llama2-7b", "stated");
  ASSERT_TRUE(set.status.ok());
  EXPECT_EQ(set.serve.cost, "stated");
}

TEST(PaceFlag, NothingIsPacedThatIsNotAskedFor) {
  const Set set("");
  ASSERT_TRUE(set.status.ok());
  EXPECT_EQ(set.options.pace, nullptr);
  EXPECT_TRUE(set.serve.cost.empty());
  EXPECT_EQ(set.serve.told_rank_bytes, 0);
}

TEST(PaceFlag, AnUnknownNameIsToldWhichThereAre) {
  const Set set("b200-llama2-7b");
  ASSERT_FALSE(set.status.ok());
  const std::string& sentence = set.status.error().message;
  EXPECT_NE(sentence.find("--pace"), std::string::npos) << sentence;
  for (const std::string& name : device_names()) EXPECT_NE(sentence.find(name), std::string::npos) << sentence;
}

}  // namespace
}  // namespace loralei
