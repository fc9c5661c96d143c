// SPDX-License-Identifier: Apache-2.0
// A system call that the kernel refuses now and then: this file's syscall() stands in for the C library's in the whole
// test program and passes everything on, but for one io_uring_enter.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "sys/block_reader.h"

namespace {

bool refuse_next_submit = false;

}  // namespace

extern "C" long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == __NR_io_uring_enter && arguments[1] == 1 && refuse_next_submit) {
    refuse_next_submit = false;
    errno = EAGAIN;
    return -1;
  }
  static const auto next = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

namespace loralei {
namespace {

// The refused read fails; the ones after it must not get its place.
TEST(BlockReader, ARefusedSubmitHarmsNoLaterRead) {
  constexpr int64_t kBlock = 4096;
  constexpr int kBlocks = 9;
  const std::string path = testing::TempDir() + "/loralei-refused-" + std::to_string(::getpid());
  {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < kBlocks; ++i) file << std::string(kBlock, static_cast<char>('A' + i));
  }
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kBlock, 4 * kBlock), &std::free);
  auto* const bytes = static_cast<std::byte*>(memory.get());
  BlockReaderOptions options;
  options.memory = {bytes, 4 * kBlock};
  options.depth = 4;
  auto reader = open_block_reader(path, options).value();
  const bool ring = reader->how().starts_with("io_uring");
  for (int i = 0; ring && i < kBlocks; ++i) {
    const std::span<std::byte> dest = options.memory.subspan(static_cast<size_t>(i % 4) * kBlock, kBlock);
    std::memset(dest.data(), '.', dest.size());
    refuse_next_submit = i == 3;
    reader->submit(static_cast<uint64_t>(i), i * kBlock, dest);
    std::vector<BlockDone> done;
    reader->wait(done);
    ASSERT_EQ(done.size(), 1u);
    ASSERT_EQ(done[0].tag, static_cast<uint64_t>(i));
    ASSERT_EQ(done[0].status.ok(), i != 3);
    if (i == 3) continue;
    ASSERT_EQ(static_cast<char>(dest.back()), 'A' + i);
  }
  std::filesystem::remove(path);
  if (!ring) GTEST_SKIP() << "no io_uring here: " << reader->how();
}

}  // namespace
}  // namespace loralei
