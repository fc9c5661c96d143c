// SPDX-License-Identifier: Apache-2.0
#include "sys/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>

#include "sys/pages.h"
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

int64_t resident_bytes() {
  const int handle = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (handle < 0) return 0;
  char text[128];
  const ssize_t got = ::read(handle, text, sizeof text);
  ::close(handle);
  std::string_view rest(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  rest.remove_prefix(std::min(rest.find(' '), rest.size()));  // the size of its addresses
  return leading_number(rest).value_or(0) * page_bytes();
}

void reset_peak_memory() {
  const int handle = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (handle < 0) return;
  if (::write(handle, "5", 1) != 1) {
    // An old kernel: the peak goes on counting from the start.
  }
  ::close(handle);
}

#ifdef __GLIBC__
void keep_little_free_memory() {
  // Stated, they also stop following the largest block ever freed.
  constexpr int kMapFromBytes = 256 * 1024, kTrimFromBytes = 1024 * 1024, kArenas = 4;
  ::mallopt(M_MMAP_THRESHOLD, kMapFromBytes);
  ::mallopt(M_TRIM_THRESHOLD, kTrimFromBytes);
  ::mallopt(M_ARENA_MAX, kArenas);
}
void return_free_memory() { ::malloc_trim(0); }
#else
void keep_little_free_memory() {}
void return_free_memory() {}
#endif

int64_t raise_descriptor_limit(int64_t wanted) {
  const auto number = [](rlim_t limit) {
    return limit == RLIM_INFINITY ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(limit);
  };
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;  // unknown: opening one more will tell
  if (number(limit.rlim_cur) >= wanted) return number(limit.rlim_cur);
  rlimit raised = limit;
  raised.rlim_cur = static_cast<rlim_t>(std::min(wanted, number(limit.rlim_max)));
  return number(::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur);
}

int process_id() { return static_cast<int>(::getpid()); }

double process_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double ended_children_cpu_s() {
  rusage use{};
  getrusage(RUSAGE_CHILDREN, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

double machine_cpu_s() {
  const Result<std::string> stat = read_proc_file("/proc/stat");
  return stat.ok() ? machine_cpu_s_of(*stat) : 0;
}

// "cpu  user nice system idle iowait irq softirq steal guest guest_nice": guest time is
// already in user.
double machine_cpu_s_of(std::string_view proc_stat) {
  constexpr int kFields = 8, kIdle = 3, kIoWait = 4;
  if (!proc_stat.starts_with("cpu ")) return 0;
  std::string_view row = proc_stat.substr(4, proc_stat.find('\n') - 4);
  int64_t ticks = 0;
  for (int field = 0; field < kFields; ++field) {
    row.remove_prefix(std::min(row.find_first_not_of(' '), row.size()));
    int64_t value = 0;
    const auto [end, error] = std::from_chars(row.data(), row.data() + row.size(), value);
    if (error != std::errc{}) break;
    row.remove_prefix(static_cast<size_t>(end - row.data()));
    if (field != kIdle && field != kIoWait) ticks += value;
  }
  return static_cast<double>(ticks) / static_cast<double>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
}

}  // namespace loralei
