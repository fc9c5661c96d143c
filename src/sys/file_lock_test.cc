// SPDX-License-Identifier: Apache-2.0
#include "sys/file_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "sys/write_file.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class FileLockTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("loralei-lock-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(FileLockTest, OneHoldsItUntilItIsGone) {
  const std::string path = folder_ / "one.lock";
  {
    const auto first = FileLock::take(path);
    ASSERT_TRUE(first.ok() && *first);
    EXPECT_FALSE(*FileLock::take(path));
    EXPECT_TRUE(*FileLock::take(folder_ / "other.lock"));
    const pid_t child = ::fork();  // inherits the handle; what counts is whether it can take it anew
    if (child == 0) ::_exit(*FileLock::take(path) ? 1 : 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(*FileLock::take(path));
  EXPECT_FALSE(FileLock::take(folder_ / "absent/one.lock").ok());
}

TEST_F(FileLockTest, ALinkIsPutInOneStep) {
  const std::string path = folder_ / "link";
  ASSERT_TRUE(put_link("blobs/one", path).ok());
  EXPECT_EQ(fs::read_symlink(path), "blobs/one");
  ASSERT_TRUE(put_link("blobs/two", path).ok());
  EXPECT_EQ(fs::read_symlink(path), "blobs/two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  EXPECT_FALSE(put_link("x", folder_ / "absent/link").ok());
}

}  // namespace
}  // namespace loralei
