// SPDX-License-Identifier: Apache-2.0
// System calls that the kernel refuses: this file's syscall() stands in for the C
// library's in the whole test program and passes everything on, but for the io_uring
// calls that a test wants refused.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
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

enum class Refuse { kNothing, kNextSubmit, kSubmits, kReads };
Refuse refuse = Refuse::kNothing;

using Call = long (*)(long, ...);
Call real_call() {
  static const auto call = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "syscall"));
  return call;
}

// A ring whose reads all end with EACCES: no operation but "nothing" is allowed in it.
long set_up_without_reads(long entries, io_uring_params* params) {
  params->flags |= IORING_SETUP_R_DISABLED;
  const long ring = real_call()(__NR_io_uring_setup, entries, params);
  if (ring < 0) return ring;
  io_uring_restriction allowed[3] = {};
  allowed[0].opcode = IORING_RESTRICTION_SQE_OP;
  allowed[0].sqe_op = IORING_OP_NOP;
  allowed[1].opcode = IORING_RESTRICTION_REGISTER_OP;
  allowed[1].register_op = IORING_REGISTER_ENABLE_RINGS;
  allowed[2].opcode = IORING_RESTRICTION_REGISTER_OP;
  allowed[2].register_op = IORING_REGISTER_BUFFERS;
  const long restricted = real_call()(__NR_io_uring_register, ring, IORING_REGISTER_RESTRICTIONS, allowed, 3);
  const long enabled = real_call()(__NR_io_uring_register, ring, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  EXPECT_TRUE(restricted == 0 && enabled == 0);
  return ring;
}

}  // namespace

// Of the six arguments most calls pass fewer; the others are read and say nothing.
extern "C" __attribute__((no_sanitize("address"))) long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == __NR_io_uring_setup && refuse == Refuse::kReads)
    return set_up_without_reads(arguments[0], reinterpret_cast<io_uring_params*>(arguments[1]));
  const bool submits = number == __NR_io_uring_enter && arguments[1] == 1;
  if (submits && refuse == Refuse::kSubmits) {
    errno = EPERM;
    return -1;
  }
  if (submits && refuse == Refuse::kNextSubmit) {
    refuse = Refuse::kNothing;
    errno = EAGAIN;
    return -1;
  }
  return real_call()(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

namespace loralei {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int kBlocks = 9, kDepth = 4;

class RefusedRing : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(path_, std::ios::binary);
    for (int i = 0; i < kBlocks; ++i) file << std::string(kBlock, static_cast<char>('A' + i));
  }
  void TearDown() override {
    refuse = Refuse::kNothing;
    std::filesystem::remove(path_);
  }
  std::unique_ptr<BlockReader> open(bool registered = true) {
    BlockReaderOptions options;
    if (registered) options.memory = memory();
    options.depth = kDepth;
    return open_block_reader(path_, options).value();
  }
  std::span<std::byte> memory() { return {static_cast<std::byte*>(memory_.get()), kDepth * kBlock}; }
  // Every block arrives; before block `refused` is read, its submit is set to be refused.
  void expect_all(BlockReader& reader, int refused = -1) {
    for (int i = 0; i < kBlocks; ++i) {
      const std::span<std::byte> dest = memory().subspan(static_cast<size_t>(i % kDepth) * kBlock, kBlock);
      std::memset(dest.data(), '.', dest.size());
      if (i == refused) refuse = Refuse::kNextSubmit;
      reader.submit(static_cast<uint64_t>(i), i * kBlock, dest);
      std::vector<BlockDone> done;
      reader.wait(done);
      ASSERT_EQ(done.size(), 1u);
      ASSERT_EQ(done[0].tag, static_cast<uint64_t>(i));
      ASSERT_TRUE(done[0].status.ok()) << done[0].status.error().message;
      ASSERT_EQ(static_cast<char>(dest.front()), 'A' + i);
      ASSERT_EQ(static_cast<char>(dest.back()), 'A' + i);
    }
    EXPECT_EQ(refuse == Refuse::kNextSubmit, false) << "nothing was submitted through the ring";
  }

 private:
  const std::string path_ = testing::TempDir() + "/loralei-refused-" + std::to_string(::getpid());
  const std::unique_ptr<void, void (*)(void*)> memory_{std::aligned_alloc(kBlock, kDepth* kBlock), &std::free};
};

// The refused read is done without the ring; the ones after it must not get its place.
TEST_F(RefusedRing, ARefusedSubmitHarmsNoRead) {
  auto reader = open();
  if (!reader->how().starts_with("io_uring")) GTEST_SKIP() << "no io_uring here: " << reader->how();
  expect_all(*reader, 3);
}

// Rings that can be set up, as under some container rules and old kernels,
// but read nothing.
TEST_F(RefusedRing, ARingThatReadsNothingIsNotUsed) {
  if (const auto reader = open(); !reader->how().starts_with("io_uring"))
    GTEST_SKIP() << "no io_uring here: " << reader->how();
  for (const Refuse what : {Refuse::kSubmits, Refuse::kReads}) {
    for (const bool registered : {true, false}) {
      refuse = what;
      auto reader = open(registered);
      EXPECT_TRUE(reader->how().starts_with("4 threads (io_uring is refused: ")) << reader->how();
      expect_all(*reader);
    }
  }
}

}  // namespace
}  // namespace loralei
