// SPDX-License-Identifier: Apache-2.0
#include "sys/confinement.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

namespace loralei {

bool is_open_descriptor(int number) { return ::fcntl(number, F_GETFD) >= 0; }

void ignore_group_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(number, SIG_IGN);
}

void confine_this_process(int first, int last) {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (first > 0) ::syscall(SYS_close_range, 0, first - 1, 0);
  ::syscall(SYS_close_range, last + 1, ~0u, 0);
}

}  // namespace loralei
