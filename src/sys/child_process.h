// SPDX-License-Identifier: Apache-2.0
// ChildProcess: a program that this process started and that ends with it.
//
// Thread: start() on a thread that lives as long as the child may: the system ends the
// child when that thread ends, however it ends (PR_SET_PDEATHSIG is bound to a thread).
// The object belongs to one thread at a time; kill() may come from any while it lives.
// Ownership: the child; the destructor kills it and waits until it is gone.
// Invariants: reaped exactly once, by this object: other children of the process and its
// signal handlers are not touched. Of the parent's descriptors the child has the standard
// three and those it was given.
// Failure: start() says why the program did not start.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/posix_file.h"

namespace loralei {

class ChildProcess {
 public:
  static constexpr int kFirstDescriptor = 3, kDescriptorsMost = 16;
  struct Start {
    std::string program;            // its path
    std::vector<std::string> args;  // behind its name
    std::vector<int> descriptors;   // the child finds them at kFirstDescriptor and on
    int output = -1;                // what it prints goes there; -1: where this process's goes
    bool own_group = false;         // keys of the terminal (Ctrl-C) are not for it, and it reads nothing from there
  };
  static Result<ChildProcess> start(const Start& start);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  int pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable when the child has ended
  void kill() const;                          // with SIGKILL
  void signal(int number) const;
  // How it ended, as a sentence's end ("exit status 2", "signal 9"); nullopt: it has not.
  std::optional<std::string> reap();

 private:
  ChildProcess(int pid, Descriptor pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  std::optional<std::string> wait(int options);

  int pid_ = -1;  // -1: moved from
  Descriptor pidfd_;
  bool reaped_ = false;
};

}  // namespace loralei
