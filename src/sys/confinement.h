// SPDX-License-Identifier: Apache-2.0
// How a process that needs next to nothing gives up what it has: for helper processes.
// The calling process, before it has threads. Failure: hints; a kernel that does not know
// one of them leaves the process as it was.
#pragma once

namespace loralei {

bool is_open_descriptor(int number);
// What a terminal or a service manager sends to a whole group of processes is left to the
// parent, which ends this one.
void ignore_group_signals();
// Keeps the descriptors [first, last] alone, gets no rights by starting programs, and
// cannot be looked into by others of the same user.
void confine_this_process(int first, int last);

}  // namespace loralei
