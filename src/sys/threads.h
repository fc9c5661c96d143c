// SPDX-License-Identifier: Apache-2.0
// Starting threads; names and CPU binding of the calling one. Any thread.
// Failure: start_thread answers a sentence; the rest are hints, whose failures are
// harmless and ignored by design.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace loralei {

// A thread that runs `work`; kOverloaded where the system gives none (the number of
// processes of a container or a user is limited), which would otherwise end the process.
Result<std::thread> start_thread(std::function<void()> work);
std::vector<int>
allowed_cpus();  // CPU numbers of the process's affinity mask, ascending; empty if the system does not tell
bool pin_this_thread(int cpu);  // false if the system refused
// The calling thread runs as soon as it is woken, before threads that compute: for one
// that sleeps nearly always. By a real-time priority, else a better nice value, else
// shorter time slices, as far as the system lets it.
void favour_this_thread();
void name_this_thread(const std::string& name);  // cut to 15 bytes, the system's limit

}  // namespace loralei
