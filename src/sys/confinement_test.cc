// SPDX-License-Identifier: Apache-2.0
#include "sys/confinement.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace loralei {
namespace {

// Runs in a child; which of its steps is not as it should be.
int confined() {
  for (const int number : {3, 4}) {
    if (::dup2(STDERR_FILENO, number) != number) return 1;
  }
  if (::fcntl(STDERR_FILENO, F_DUPFD, 100) < 100) return 2;
  ignore_group_signals();
  confine_this_process(3, 4);
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 3;
  if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) return 4;
  for (int number = 0; number < 200; ++number) {
    if (is_open_descriptor(number) != (number == 3 || number == 4)) return 5;
  }
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::raise(number);
  return 0;
}

TEST(Confinement, LeavesTwoDescriptorsAndNoRights) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(confined());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace loralei
