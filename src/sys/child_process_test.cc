// SPDX-License-Identifier: Apache-2.0
#include "sys/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <thread>

namespace loralei {
namespace {

ChildProcess::Start shell(std::string script, std::vector<int> descriptors = {}) {
  return {"/bin/sh", {"-c", std::move(script)}, std::move(descriptors)};
}
ChildProcess started(const ChildProcess::Start& start) { return std::move(ChildProcess::start(start)).value(); }

std::string end_of(ChildProcess& child) {
  pollfd polled{.fd = child.pidfd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&polled, 1, 20'000), 1);
  return child.reap().value_or("has not ended");
}

struct Pipe {
  Pipe() {
    int ends[2] = {};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    from = Descriptor(ends[0]);
    to = Descriptor(ends[1]);
  }
  std::string read_all() {
    to = Descriptor(-1);
    std::string text;
    char part[512];
    for (ssize_t got = 0; (got = ::read(from.get(), part, sizeof part)) > 0;)
      text.append(part, static_cast<size_t>(got));
    return text;
  }
  Descriptor from{-1}, to{-1};
};

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

TEST(ChildProcess, IsReapedOnceAndSaysHowItEnded) {
  ChildProcess seven = started(shell("exit 7"));
  EXPECT_EQ(end_of(seven), "exit status 7");
  ChildProcess killed = started(shell("kill -9 $$"));
  EXPECT_EQ(end_of(killed), "signal 9");
  ChildProcess sleeper = started({"/bin/sleep", {"1000"}, {}});
  EXPECT_EQ(sleeper.reap(), std::nullopt);
  sleeper.kill();
  EXPECT_EQ(end_of(sleeper), "signal 9");
  sleeper.kill();  // nobody
  EXPECT_FALSE(has_children());
}

TEST(ChildProcess, ThatIsForgottenIsKilledAndReaped) {
  {
    ChildProcess child = started({"/bin/sleep", {"1000"}, {}});
    const ChildProcess moved = std::move(child);
    EXPECT_TRUE(has_children());
  }
  EXPECT_FALSE(has_children());
}

TEST(ChildProcess, HasItsDescriptorsInOrderAndNoOthers) {
  Pipe pipe, other, third;
  // Sources that stand where another one belongs, and one that no flag keeps back.
  const Descriptor careless(::fcntl(other.from.get(), F_DUPFD, 50));
  std::vector<int> given = {pipe.to.get(), other.from.get(), third.from.get(), pipe.to.get()};
  ChildProcess child = started(shell("exec ls /proc/self/fd >&3", given));
  EXPECT_EQ(end_of(child), "exit status 0");
  EXPECT_EQ(pipe.read_all(), "0\n1\n2\n3\n4\n5\n6\n7\n");  // the last is the folder that it reads
}

TEST(ChildProcess, FindsEachDescriptorAtItsNumber) {
  Pipe first, second;
  std::vector<int> given = {second.to.get(), first.to.get()};
  ChildProcess child = started(shell("echo three >&3; echo four >&4", given));
  EXPECT_EQ(end_of(child), "exit status 0");
  EXPECT_EQ(first.read_all(), "four\n");
  EXPECT_EQ(second.read_all(), "three\n");
}

TEST(ChildProcess, ThatDoesNotStartSaysWhy) {
  auto missing = ChildProcess::start({"/nowhere/program", {}, {}});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().message, "cannot start '/nowhere/program': No such file or directory");
  EXPECT_EQ(ChildProcess::start(shell("true", {12345})).error().message, "cannot start '/bin/sh': Bad file descriptor");
  EXPECT_FALSE(has_children());
}

TEST(ChildProcess, LeavesOtherChildrenAlone) {
  const pid_t mine = ::fork();
  if (mine == 0) ::_exit(3);
  ChildProcess child = started(shell("exit 0"));
  EXPECT_EQ(end_of(child), "exit status 0");
  int status = 0;
  ASSERT_EQ(::waitpid(mine, &status, 0), mine);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(ChildProcess, StartsWithNoSignalBlockedOrIgnored) {
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto handler = ::signal(SIGTERM, SIG_IGN);
  ChildProcess child = started(shell("kill -15 $$; exit 0"));
  ::signal(SIGTERM, handler);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(end_of(child), "signal 15");
}

TEST(ChildProcess, EndsWithTheThreadThatStartedIt) {
  std::optional<ChildProcess> child;
  std::thread([&] { child.emplace(started({"/bin/sleep", {"1000"}, {}})); }).join();
  EXPECT_EQ(end_of(*child), "signal 9");
}

// Grandchildren come to us when their parent is killed.
TEST(ChildProcess, EndsWithItsParentHoweverThatEnds) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Pipe pipe;
  const pid_t parent = ::fork();
  if (parent == 0) {
    ChildProcess child = started({"/bin/sleep", {"1000"}, {}});
    const int pid = child.pid();
    if (::write(pipe.to.get(), &pid, sizeof pid) != sizeof pid) ::_exit(1);
    ::pause();
  }
  int grandchild = 0;
  ASSERT_EQ(::read(pipe.from.get(), &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  ::kill(parent, SIGKILL);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  int status = 0;
  ASSERT_EQ(::waitpid(grandchild, &status, 0), grandchild);  // not before it has ended
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace loralei
