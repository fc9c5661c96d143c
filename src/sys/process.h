// SPDX-License-Identifier: Apache-2.0
// Figures of this process. Any thread; each call asks the system.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace loralei {

struct ProcessMemory {
  int64_t rss_bytes = 0;       // resident now
  int64_t rss_peak_bytes = 0;  // the most since start
};
Result<ProcessMemory> process_memory();
int64_t resident_bytes();  // resident now, to a few hundred KiB, without allocating; 0 where the system does not tell
void reset_peak_memory();  // the peak counts from now on, where the system can
// The heap returns large blocks to the system when they are freed, and keeps little of
// small ones: from now on.
void keep_little_free_memory();
// What the heap still keeps of freed memory goes back to the system. Takes milliseconds,
// and allocations meanwhile wait.
void return_free_memory();
int process_id();               // its number
double process_cpu_s();         // user and system time of all threads since start
double ended_children_cpu_s();  // of child processes that have ended and were waited for

// Files and connections that this process may have open, after raising that to `wanted`
// as far as the system lets it.
int64_t raise_descriptor_limit(int64_t wanted);

// CPU time of everything on the machine since it started: all processes, interrupts,
// and what a hypervisor kept from us. Counted in ticks of 10 ms a core. 0 where the
// system does not tell.
double machine_cpu_s();
double machine_cpu_s_of(std::string_view proc_stat);  // the parsing behind it: the text of /proc/stat

}  // namespace loralei
