// SPDX-License-Identifier: Apache-2.0
// ProcessGroup: a Collective whose ranks are processes that mpirun started, on one
// machine or on several (Open MPI). Built where MPI is found (LORALEI_MPI).
//
//   mpirun -n 2 loralei serve MODEL --tensor-parallel 2
//
// Thread: join() and the destructor by one thread; the Collective by one at a time.
// Ownership: owns the ranks' communicator; there is one group in a process.
// Invariants: Collective's. A wait yields its core: ranks may share cores. Who waits for
// an idle rank 0 sleeps.
// Failure: Collective's. A rank on this machine whose process has ended is found out at
// once, others when they are late. What a failed call was given may be written until the
// process ends, so whoever has a group that failed ends by end_process().
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/collective.h"

namespace loralei {

struct ProcessGroupOptions {
  int64_t late_ns = int64_t{60} * 1'000'000'000;
};

// How many processes mpirun started this one among; 1: it was not started so.
int started_processes();
bool has_process_groups();  // built in

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  // Of all processes that mpirun started.
  static Result<std::unique_ptr<ProcessGroup>> join(const ProcessGroupOptions& options = {});
  virtual Collective& collective() = 0;
  virtual int ranks_here() const = 0;  // on this machine, itself among them
  // Ends this process, and so all of the group, without another word.
  [[noreturn]] virtual void end_process(int exit_code) = 0;
};

}  // namespace loralei
