// SPDX-License-Identifier: Apache-2.0
#include "sys/file_cache.h"

#include <gtest/gtest.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "sys/pages.h"

namespace loralei {
namespace {

constexpr long kTmpfs = 0x01021994;

class FileCache : public testing::Test {
 protected:
  FileCache() : path_(testing::TempDir() + "loralei-file-cache-" + std::to_string(::getpid())) {}
  ~FileCache() override { std::remove(path_.c_str()); }
  void write(size_t bytes) { std::ofstream(path_) << std::string(bytes, 'x'); }
  bool has_disk() const {
    struct statfs info {};
    return ::statfs(path_.c_str(), &info) == 0 && info.f_type != kTmpfs;
  }
  const std::string path_;
};

TEST_F(FileCache, TellsWhatIsThereAndLetsItGo) {
  const auto bytes = static_cast<size_t>(64 * page_bytes() + 7);
  write(bytes);
  Result<int64_t> cached = cached_file_bytes(path_);
  ASSERT_TRUE(cached.ok()) << cached.error().message;
  EXPECT_EQ(*cached, static_cast<int64_t>(bytes));
  const Status dropped = drop_cached_file(path_);
  ASSERT_TRUE(dropped.ok()) << dropped.error().message;
  cached = cached_file_bytes(path_);
  ASSERT_TRUE(cached.ok());
  EXPECT_EQ(*cached, has_disk() ? 0 : static_cast<int64_t>(bytes));
  std::string read(bytes, ' ');
  std::ifstream(path_).read(read.data(), static_cast<std::streamsize>(bytes));
  EXPECT_EQ(read, std::string(bytes, 'x'));
  EXPECT_EQ(*cached_file_bytes(path_), static_cast<int64_t>(bytes));
}

TEST_F(FileCache, SaysWhatItCannotOpen) {
  EXPECT_NE(cached_file_bytes(path_).error().message.find(path_), std::string::npos);
  EXPECT_NE(drop_cached_file(path_).error().message.find(path_), std::string::npos);
  EXPECT_NE(cached_file_bytes("/").error().message.find("is no file"), std::string::npos);
  write(0);
  EXPECT_EQ(*cached_file_bytes(path_), 0);
}

}  // namespace
}  // namespace loralei
