// SPDX-License-Identifier: Apache-2.0
#include "sys/child_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "sys/os_error.h"

namespace loralei {
namespace {

constexpr int kDidNotStart = 127;
constexpr int kStartMs = 5000;

// All that the child needs between vfork and exec, made before.
struct Launch {
  const char* program = nullptr;
  char* const* args = nullptr;
  const int* descriptors = nullptr;
  int descriptor_count = 0;
  int output = -1, input = -1;
  bool own_group = false;
  pid_t parent = 0;
  int report = -1;  // a pipe that ends when the program runs; else the child's error comes through it
};

bool place_descriptors(const Launch& launch, int& report) {
  const int end = ChildProcess::kFirstDescriptor + launch.descriptor_count;
  report = ::fcntl(launch.report, F_DUPFD_CLOEXEC, end);
  // Out of the way first: a source may stand where another one belongs.
  int moved[ChildProcess::kDescriptorsMost];
  for (int i = 0; i < launch.descriptor_count; ++i) {
    moved[i] = ::fcntl(launch.descriptors[i], F_DUPFD_CLOEXEC, end);
    if (moved[i] < 0) return false;
  }
  if (launch.input >= 0 && ::dup2(launch.input, STDIN_FILENO) < 0) return false;
  if (launch.output >= 0 && (::dup2(launch.output, STDOUT_FILENO) < 0 || ::dup2(launch.output, STDERR_FILENO) < 0))
    return false;
  for (int i = 0; i < launch.descriptor_count; ++i) {
    if (::dup2(moved[i], ChildProcess::kFirstDescriptor + i) < 0) return false;
  }
  // Those that somebody opened without care. A kernel before 5.11 cannot.
  ::syscall(SYS_close_range, end, ~0u, CLOSE_RANGE_CLOEXEC);
  return true;
}

// Only system calls and locals: the parent's other threads may hold any lock, and its
// memory is this one's too.
[[noreturn]] void run_child(const Launch& launch) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  const bool bound = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  if (::getppid() != launch.parent) ::_exit(kDidNotStart);  // it ended before it could be bound to
  int report = launch.report;
  if (launch.own_group) ::setpgid(0, 0);
  if (bound && place_descriptors(launch, report) && ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0)
    ::execve(launch.program, launch.args, environ);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(kDidNotStart);
}

// In a function of its own: nothing of the caller's lies in registers across it.
__attribute__((noinline)) pid_t launch_child(const Launch& launch) {
  const pid_t pid = ::vfork();
  if (pid == 0) run_child(launch);
  return pid;
}

// Until the program runs or cannot; 0: it does. After vfork that is at once, but a
// sanitizer makes a fork of it. Bounded: another thread's fork may keep the pipe open.
int start_error(int report) {
  pollfd polled{.fd = report, .events = POLLIN, .revents = 0};
  int error = 0;
  if (::poll(&polled, 1, kStartMs) != 1 || ::read(report, &error, sizeof error) != sizeof error) return 0;
  return error;
}

std::string how_it_ended(const siginfo_t& info) {
  return (info.si_code == CLD_EXITED ? "exit status " : "signal ") + std::to_string(info.si_status);
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const Start& start) {
  CHECK(start.descriptors.size() <= kDescriptorsMost);
  std::vector<char*> args{const_cast<char*>(start.program.c_str())};
  for (const std::string& arg : start.args) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error("cannot start", start.program, errno);
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  Descriptor nothing(start.own_group ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : -1);
  const Launch launch{.program = start.program.c_str(),
                      .args = args.data(),
                      .descriptors = start.descriptors.data(),
                      .descriptor_count = static_cast<int>(start.descriptors.size()),
                      .output = start.output,
                      .input = nothing.get(),
                      .own_group = start.own_group,
                      .parent = ::getpid(),
                      .report = to.get()};
  // No handler may run in the child while it has our memory.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = launch_child(launch);
  const int fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return os_error("cannot start", start.program, fork_error);
  ChildProcess child(pid, Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))));
  if (!child.pidfd_.is_open()) {
    const int error = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    child.reaped_ = true;
    return os_error("cannot watch", start.program, error);
  }
  to = Descriptor(-1);
  if (const int error = start_error(from.get()); error != 0) return os_error("cannot start", start.program, error);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), reaped_(other.reaped_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || reaped_) return;
  kill();
  wait(WEXITED);
}

void ChildProcess::kill() const { signal(SIGKILL); }

void ChildProcess::signal(int number) const { ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0); }

std::optional<std::string> ChildProcess::reap() { return wait(WEXITED | WNOHANG); }

std::optional<std::string> ChildProcess::wait(int options) {
  siginfo_t info{};
  int result = 0;
  do result = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd_.get()), &info, options);
  while (result != 0 && errno == EINTR);
  if (result == 0 && info.si_pid == 0) return std::nullopt;
  reaped_ = true;
  if (result != 0) return "nobody knows how";  // this process has its children reaped by the system
  return how_it_ended(info);
}

}  // namespace loralei
