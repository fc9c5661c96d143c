// SPDX-License-Identifier: Apache-2.0
#include "sys/process.h"

#include <ctime>
#include <string>

#include "sys/proc_file.h"

namespace loralei {

Result<ProcessMemory> process_memory() {
  TRY_ASSIGN(const std::string status, read_proc_file("/proc/self/status"));
  ProcessMemory memory;
  const std::optional<int64_t> rss = field_kib(status, "VmRSS:");
  if (!rss) return io_error("/proc/self/status has no VmRSS line; the resident memory of this process is unknown");
  memory.rss_bytes = *rss;
  memory.rss_peak_bytes = field_kib(status, "VmHWM:").value_or(*rss);
  return memory;
}

double process_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace loralei
