// SPDX-License-Identifier: Apache-2.0
#include "sys/write_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "sys/file.h"

namespace loralei {
namespace {

std::string made_folder(const char* name) {
  const std::string folder = testing::TempDir() + "put_file_" + name + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string read(const std::string& path) { return PosixFileSystem().read_all(path, 1 << 20).value(); }

TEST(PutFile, ReplacesTheWholeFileAndLeavesNothingElse) {
  const std::string folder = made_folder("whole"), path = folder + "/a";
  ASSERT_TRUE(put_file(path, "a long text").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  ASSERT_TRUE(put_file(path, "short").ok());
  EXPECT_EQ(read(path), "short");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u) << "the mode it had";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(PutFile, FollowsALink) {
  const std::string folder = made_folder("link");
  ASSERT_TRUE(put_file(folder + "/real", "old").ok());
  std::filesystem::create_symlink("real", folder + "/link");
  ASSERT_TRUE(put_file(folder + "/link", "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "/link"));
  EXPECT_EQ(read(folder + "/real"), "new");
}

TEST(PutFile, APipeGetsTheTextAndStays) {
  const std::string folder = made_folder("pipe"), path = folder + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string got(9, ' ');
  std::thread reader([&] {
    const int handle = ::open(path.c_str(), O_RDONLY);
    got.resize(static_cast<size_t>(::read(handle, got.data(), got.size())));
    ::close(handle);
  });
  EXPECT_TRUE(put_file(path, "text").ok());
  reader.join();
  EXPECT_EQ(got, "text");
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

TEST(PutFile, SaysWhatIsWrong) {
  const std::string folder = made_folder("wrong");
  EXPECT_NE(put_file(folder, "x").error().message.find(folder), std::string::npos);
  EXPECT_NE(put_file(folder + "/none/x", "x").error().message.find("none"), std::string::npos);
}

}  // namespace
}  // namespace loralei
