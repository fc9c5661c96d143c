// SPDX-License-Identifier: Apache-2.0
#include "sys/kept_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "base/log_test_util.h"
#include "sys/file.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class KeptFileTest : public testing::Test {
 protected:
  KeptFileTest() : folder_(fs::temp_directory_path() / ("kept_file_test_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~KeptFileTest() override { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "kept").string(); }
  std::string content() const { return PosixFileSystem().read_all(path(), 1 << 20).value(); }

  const fs::path folder_;
  CollectingLog log_;
};

TEST_F(KeptFileTest, HoldsTheNewestValueWholeAndNothingElseIsLeft) {
  {
    auto file = KeptFile::start(path(), log_);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_FALSE(fs::exists(path())) << "nothing was put yet";
    for (int i = 0; i <= 100; ++i) (*file)->put([i] { return std::string(static_cast<size_t>(2000 - i), 'a'); });
  }
  EXPECT_EQ(content(), std::string(1900, 'a')) << "shorter ones, too, leave nothing of those before";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_TRUE(log_.lines().empty());
}

TEST_F(KeptFileTest, WhoPutsDoesNotWaitForTheWriting) {
  std::atomic<bool> go{false}, begun{false};
  {
    auto file = KeptFile::start(path(), log_);
    ASSERT_TRUE(file.ok());
    (*file)->put([&] {
      begun = true;
      while (!go) std::this_thread::yield();
      return std::string("first");
    });
    while (!begun) std::this_thread::yield();
    (*file)->put([] { return std::string("never written"); });
    (*file)->put([] { return std::string("last"); });
    go = true;
  }
  EXPECT_EQ(content(), "last");
}

TEST_F(KeptFileTest, WhatCannotBeWrittenIsRefusedAtTheStartAndToldLater) {
  const auto nowhere = KeptFile::start((folder_ / "none" / "kept").string(), log_);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find("cannot write"), std::string::npos) << nowhere.error().message;
  {
    auto file = KeptFile::start(path(), log_);
    ASSERT_TRUE(file.ok());
    (*file)->put([] { return std::string("before"); });
    while (!fs::exists(path())) std::this_thread::yield();
    fs::create_directory(path() + ".part");
    (*file)->put([] { return std::string("behind"); });
  }
  EXPECT_EQ(content(), "before");
  ASSERT_EQ(log_.lines().size(), 1u);
  EXPECT_NE(log_.lines()[0].find("stays as it was"), std::string::npos);
}

}  // namespace
}  // namespace loralei
