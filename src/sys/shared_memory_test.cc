// SPDX-License-Identifier: Apache-2.0
#include "sys/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace loralei {
namespace {

SharedMemory made(int64_t bytes) { return std::move(SharedMemory::create("test", bytes)).value(); }
Descriptor copy_of(const SharedMemory& memory) { return Descriptor(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0)); }

TEST(SharedMemory, IsZeroedAndSeenByEveryProcessThatHasItsDescriptor) {
  SharedMemory memory = made(70'001);
  ASSERT_EQ(memory.size_bytes(), 70'001);
  EXPECT_TRUE(std::all_of(memory.bytes().begin(), memory.bytes().end(), [](std::byte b) { return b == std::byte{}; }));
  const pid_t child = ::fork();
  if (child == 0) {
    auto opened = SharedMemory::open(copy_of(memory), 70'001, SharedMemory::Access::kReadWrite);
    if (!opened.ok() || opened->data() == memory.data()) ::_exit(1);
    opened->data()[70'000] = std::byte{42};
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory.data()[70'000], std::byte{42});
  SharedMemory moved = std::move(memory);
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(moved.data()[70'000], std::byte{42});
}

TEST(SharedMemory, NobodyCanMakeItShorterOrLongerOrUnsealIt) {
  const SharedMemory memory = made(8192);
  const Descriptor other = copy_of(memory);
  for (const off_t bytes : {0, 4096, 1 << 20}) {
    EXPECT_EQ(::ftruncate(other.get(), bytes), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(::fcntl(other.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(SharedMemory, HasNoNameInAnyFileSystem) {
  const SharedMemory memory = made(10);
  char target[256] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(memory.descriptor());
  ASSERT_GT(::readlink(link.c_str(), target, sizeof target - 1), 0);
  EXPECT_STREQ(target, "/memfd:test (deleted)");
  struct stat info {};
  ASSERT_EQ(::fstat(memory.descriptor(), &info), 0);
  EXPECT_EQ(info.st_nlink, 0u);
}

TEST(SharedMemory, AReadOnlyDescriptorDoesNotWrite) {
  SharedMemory memory = made(5000);
  auto read_only = memory.read_only_descriptor();
  ASSERT_TRUE(read_only.ok());
  EXPECT_EQ(::mmap(nullptr, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, read_only->get(), 0), MAP_FAILED);
  EXPECT_EQ(::write(read_only->get(), "x", 1), -1);
  const int number = read_only->get();
  EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
  auto refused = SharedMemory::open(Descriptor(::dup(number)), 5000, SharedMemory::Access::kReadWrite);
  EXPECT_FALSE(refused.ok());
  auto opened = SharedMemory::open(*std::move(read_only), 5000, SharedMemory::Access::kRead);
  ASSERT_TRUE(opened.ok());
  memory.data()[4999] = std::byte{7};
  EXPECT_EQ(opened->data()[4999], std::byte{7});
}

TEST(SharedMemory, RefusesWhatIsNoSealedMemoryOrTooSmall) {
  const auto refused = [](int descriptor, int64_t bytes) {
    auto opened = SharedMemory::open(Descriptor(descriptor), bytes, SharedMemory::Access::kRead);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? std::string() : opened.error().message;
  };
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, 4096), 0);
  EXPECT_NE(refused(unsealed, 1).find("could be cut short"), std::string::npos);
  const int half = ::memfd_create("half", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(half, 4096), 0);
  ASSERT_EQ(::fcntl(half, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_NE(refused(half, 1).find("could be cut short"), std::string::npos);
  EXPECT_NE(refused(::open("/dev/null", O_RDONLY | O_CLOEXEC), 1).find("is not"), std::string::npos);
  EXPECT_NE(refused(-1, 1).find("is not"), std::string::npos);
  const SharedMemory memory = made(100);
  EXPECT_EQ(refused(copy_of(memory).release(), 101), "shared memory has 100 bytes, but 101 are expected");
}

TEST(SharedMemory, WantOfMemoryIsASentence) {
  EXPECT_FALSE(SharedMemory::create("none", 0).ok());
  auto too_large = SharedMemory::create("everything", int64_t{1} << 60);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(too_large.error().message.find("everything"), std::string::npos);
  // The limit of a file's size holds here too, and is told by a signal besides.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  auto refused = SharedMemory::create("a mebibyte", 1 << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(refused.error().message.find("(a mebibyte): File too large"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace loralei
