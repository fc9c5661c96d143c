// SPDX-License-Identifier: Apache-2.0
#include "sys/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

namespace loralei {
namespace {

constexpr int64_t kPatienceMs = 60'000;

std::string told(uint64_t count) { return std::to_string(count) + " dropped"; }

class LineWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    ASSERT_EQ(::pipe(pipe_), 0);
  }
  void TearDown() override { close_reader(); }  // a writer that was left behind still has the other end
  void close_reader() {
    if (pipe_[0] >= 0) ::close(pipe_[0]);
    pipe_[0] = -1;
  }
  // So much that the pipe takes no more; answers what a reader will have to skip.
  size_t fill() {
    const int flags = ::fcntl(pipe_[1], F_GETFL);
    ::fcntl(pipe_[1], F_SETFL, flags | O_NONBLOCK);
    size_t bytes = 0;
    const std::string page(4096, '.');
    for (ssize_t n = 0; (n = ::write(pipe_[1], page.data(), page.size())) > 0;) bytes += static_cast<size_t>(n);
    ::fcntl(pipe_[1], F_SETFL, flags);
    return bytes;
  }
  // Until `end` has come.
  std::string read_until(const std::string& end) {
    std::string text;
    char chunk[4096];
    while (!text.ends_with(end)) {
      const ssize_t n = ::read(pipe_[0], chunk, sizeof chunk);
      if (n <= 0) break;
      text.append(chunk, static_cast<size_t>(n));
    }
    return text;
  }
  int writer() const { return pipe_[1]; }

 private:
  int pipe_[2] = {-1, -1};
};

TEST_F(LineWriterTest, WritesLinesInOrder) {
  LineWriter lines(writer(), told, {});
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    lines.push(std::to_string(i));
    expected += std::to_string(i) + "\n";
  }
  EXPECT_TRUE(lines.flush(kPatienceMs));
  EXPECT_EQ(read_until("999\n"), expected);
  EXPECT_EQ(lines.dropped_lines(), 0u);
  EXPECT_EQ(lines.stuck_ms(), 0);
}

TEST_F(LineWriterTest, APipeThatNobodyReadsHoldsNobodyUp) {
  const size_t filling = fill();
  LineWriter lines(writer(), told, {.lines = 10, .bytes = 1000});
  for (int i = 0; i < 100; ++i) lines.push(std::to_string(i));
  EXPECT_EQ(lines.dropped_lines(), 90u);
  EXPECT_FALSE(lines.flush(1));
  while (lines.stuck_ms() == 0) std::this_thread::yield();
  const std::string text = read_until("dropped\n").substr(filling);
  EXPECT_EQ(text, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n90 dropped\n");
  EXPECT_TRUE(lines.flush(kPatienceMs));
  EXPECT_EQ(lines.stuck_ms(), 0);
  lines.push("there is room");  // and nothing is told twice
  EXPECT_EQ(read_until("room\n"), "there is room\n");
}

TEST_F(LineWriterTest, BytesAreBoundedToo) {
  fill();
  LineWriter lines(writer(), told, {.lines = 1000, .bytes = 1000});
  lines.push(std::string(2000, 'x'));
  EXPECT_EQ(lines.dropped_lines(), 1u);
  for (int i = 0; i < 10; ++i) lines.push(std::string(199, 'x'));
  EXPECT_EQ(lines.dropped_lines(), 6u);
}

TEST_F(LineWriterTest, TheEndWaitsForWhatCanBeWrittenOnly) {
  {
    LineWriter lines(writer(), told, {});
    lines.push("last words");
  }
  EXPECT_EQ(read_until("\n"), "last words\n");
  const size_t filling = fill();
  {
    LineWriter lines(writer(), told, {});
    lines.push("left behind");
  }
  // What hung in the system is written by the thread that was left behind.
  EXPECT_EQ(read_until("behind\n").substr(filling), "left behind\n");
}

TEST_F(LineWriterTest, ADescriptorThatTakesNothingDropsAndCounts) {
  close_reader();
  LineWriter lines(writer(), told, {});
  for (int i = 0; i < 10; ++i) lines.push("x");
  EXPECT_TRUE(lines.flush(kPatienceMs));
  EXPECT_EQ(lines.dropped_lines(), 10u);
}

// Which would end a process that waits for it by sigwait().
TEST_F(LineWriterTest, ItsThreadTakesNoSignals) {
  sigset_t one, before, pending;
  sigemptyset(&one);
  sigaddset(&one, SIGTERM);
  const LineWriter lines(writer(), told, {});
  pthread_sigmask(SIG_BLOCK, &one, &before);
  ::kill(::getpid(), SIGTERM);
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGTERM), 1);
  int taken = 0;
  sigwait(&one, &taken);
  EXPECT_EQ(taken, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(LineWriterTest, ManyMayPush) {
  LineWriter lines(writer(), told, {.lines = 100, .bytes = 10'000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&lines] {
      for (int i = 0; i < 1000; ++i) lines.push("x");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(lines.flush(kPatienceMs));
  lines.push("end");
  size_t written = 0;
  for (const char c : read_until("end\n")) written += c == 'x';
  EXPECT_EQ(written + lines.dropped_lines(), 4000u);
}

}  // namespace
}  // namespace loralei
