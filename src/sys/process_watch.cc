// SPDX-License-Identifier: Apache-2.0
#include "sys/process_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>

#include "base/check.h"
#include "sys/os_error.h"
#include "sys/threads.h"

namespace loralei {

Result<std::unique_ptr<ProcessWatch>> ProcessWatch::create(OnExit on_exit) {
  Descriptor wakes(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakes.is_open()) return os_error("cannot make", "an event to watch processes with", errno);
  std::unique_ptr<ProcessWatch> watch(new ProcessWatch(std::move(on_exit), std::move(wakes)));
  TRY_ASSIGN(watch->thread_, start_thread([raw = watch.get()] { raw->run(); }));
  return watch;
}

ProcessWatch::~ProcessWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

Status ProcessWatch::watch(const std::string& name, int pid) {
  if (pid < 1) return invalid_argument("a process has a number above 0, not " + std::to_string(pid));
  Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.is_open()) {
    const int error = errno;
    if (error == ESRCH) return not_found("there is no process " + std::to_string(pid) + " on this machine");
    if (error == ENOSYS) return unsupported("this system's kernel is too old to watch processes (Linux 5.3 has it)");
    return os_error("cannot watch", "process " + std::to_string(pid), error);
  }
  {
    const std::lock_guard lock(mutex_);
    if (watched_.size() == kMost && watched_.count(name) == 0) {
      return Error{ErrorCode::kOverloaded,
                   std::to_string(kMost) + " processes are watched; say of some applications that they are killed."};
    }
    watched_[name] = std::make_shared<const Watched>(Watched{pid, std::move(pidfd)});
  }
  wake();
  return {};
}

void ProcessWatch::forget(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (watched_.erase(name) == 0) return;
  }
  wake();
}

std::map<std::string, int> ProcessWatch::watched() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, int> pids;
  for (const auto& [name, watched] : watched_) pids.emplace(name, watched->pid);
  return pids;
}

void ProcessWatch::wake() const {
  const uint64_t one = 1;
  // Fails only where it is to wake already.
  [[maybe_unused]] const ssize_t written = ::write(wakes_.get(), &one, sizeof one);
}

std::vector<ProcessWatch::Named> ProcessWatch::wait(std::vector<Named> watched) const {
  std::vector<pollfd> polled{{.fd = wakes_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& [name, one] : watched) polled.push_back({.fd = one->pidfd.get(), .events = POLLIN, .revents = 0});
  std::vector<Named> ended;
  if (::poll(polled.data(), polled.size(), -1) < 0) {
    CHECK(errno == EINTR || errno == ENOMEM || errno == EAGAIN);
    return ended;
  }
  uint64_t calls = 0;
  [[maybe_unused]] const ssize_t read = ::read(wakes_.get(), &calls, sizeof calls);
  for (size_t i = 0; i < watched.size(); ++i)
    if (polled[i + 1].revents != 0) ended.push_back(std::move(watched[i]));
  return ended;
}

void ProcessWatch::run() {
  name_this_thread("process-watch");
  for (;;) {
    std::vector<Named> watched;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      watched.assign(watched_.begin(), watched_.end());
    }
    for (const auto& [name, one] : wait(std::move(watched))) {
      {
        const std::lock_guard lock(mutex_);
        const auto now = watched_.find(name);
        if (stopping_ || now == watched_.end() || now->second != one) continue;
        watched_.erase(now);
      }
      on_exit_(name, one->pid);
    }
  }
}

}  // namespace loralei
