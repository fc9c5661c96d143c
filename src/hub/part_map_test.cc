// SPDX-License-Identifier: Apache-2.0
#include "hub/part_map.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace loralei {
namespace {

namespace fs = std::filesystem;

class PartMapTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(testing::TempDir()) / ("loralei-parts-" + std::to_string(::getpid()));
    fs::remove(path_);
  }
  void TearDown() override { fs::remove(path_); }
  int64_t done(int64_t bytes, int64_t piece_bytes) { return PartMap::open(path_, bytes, piece_bytes)->done_bytes(); }
  fs::path path_;
};

TEST_F(PartMapTest, IsThereAgain) {
  {
    PartMap map = *PartMap::open(path_, 25, 10);
    ASSERT_EQ(map.pieces(), 3u);
    EXPECT_EQ(map.bytes_of(2), 5);
    EXPECT_EQ(map.offset_of(2), 20);
    EXPECT_FALSE(PartMap::open(path_, 25, 10).ok());  // one at a time
    ASSERT_TRUE(map.set(0, 10).ok());
    ASSERT_TRUE(map.set(2, 4).ok());
    EXPECT_EQ(PartMap::look(path_, 25, 10), 14);
    EXPECT_EQ(PartMap::look(path_, 25, 9), 0);
  }
  const PartMap map = *PartMap::open(path_, 25, 10);
  EXPECT_TRUE(map.is_whole(0));
  EXPECT_EQ(map.done_of(1), 0);
  EXPECT_FALSE(map.is_whole(2));
  EXPECT_EQ(map.done_bytes(), 14);
}

TEST_F(PartMapTest, WhatDoesNotFitIsBegunAnew) {
  const auto fill = [&] { ASSERT_TRUE(PartMap::open(path_, 25, 10)->set(0, 10).ok()); };
  fill();
  EXPECT_EQ(done(25, 10), 10);
  EXPECT_EQ(done(26, 10), 0);
  fill();
  EXPECT_EQ(done(25, 5), 0);
  fill();
  fs::resize_file(path_, fs::file_size(path_) - 1);
  EXPECT_EQ(done(25, 10), 0);
  fill();
  fs::resize_file(path_, fs::file_size(path_) + 1);
  EXPECT_EQ(done(25, 10), 0);
  for (const int64_t bad : {int64_t{-1}, int64_t{11}, INT64_MAX, INT64_MIN}) {
    ASSERT_TRUE(PartMap::open(path_, 25, 10)->set(0, bad).ok());
    EXPECT_EQ(done(25, 10), 0) << bad;
  }
  std::ofstream(path_) << std::string(88, 'x');
  EXPECT_EQ(done(25, 10), 0);
  EXPECT_EQ(PartMap::open(path_, 0, 10)->pieces(), 0u);
}

TEST_F(PartMapTest, LookingMakesNothing) {
  EXPECT_EQ(PartMap::look(path_, 25, 10), 0);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(PartMapTest, MayBeInOnePiece) {
  PartMap map = *PartMap::open(path_, 25, 10);
  ASSERT_TRUE(map.set(1, 7).ok());
  ASSERT_TRUE(map.begin_anew(25).ok());
  EXPECT_EQ(map.pieces(), 1u);
  EXPECT_EQ(map.bytes_of(0), 25);
  EXPECT_EQ(map.done_bytes(), 0);
}

}  // namespace
}  // namespace loralei
