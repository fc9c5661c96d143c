// SPDX-License-Identifier: Apache-2.0
// Names and CPU binding of the calling thread. Any thread; failures are harmless and ignored by design: both are hints.
#pragma once

#include <string>
#include <vector>

namespace loralei {

std::vector<int>
allowed_cpus();  // CPU numbers of the process's affinity mask, ascending; empty if the system does not tell
bool pin_this_thread(int cpu);  // false if the system refused
// The calling thread runs as soon as it is woken, before threads that compute: for one that sleeps nearly always. By a
// real-time priority, else a better nice value, else shorter time slices, as far as the system lets it.
void favour_this_thread();
void name_this_thread(const std::string& name);  // cut to 15 bytes, the system's limit

}  // namespace loralei
