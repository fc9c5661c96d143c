// SPDX-License-Identifier: Apache-2.0
#include "sys/threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <system_error>
#include <utility>

namespace loralei {
namespace {

struct CpuSetDeleter {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, CpuSetDeleter>;
constexpr int kCpusMax = 8192;
constexpr int kFavouredNice = -10;
constexpr uint64_t kFavouredSliceNs = 100'000;  // the least the scheduler takes

// The kernel's struct sched_attr in its first version: the C library here declares
// neither it nor its call.
struct SchedAttributes {
  uint32_t size = 0;
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};

}  // namespace

Result<std::thread> start_thread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return Error{ErrorCode::kOverloaded, "The system gives this process no further thread (" + error.code().message() +
                                             "); raise the container's or the user's limit of processes."};
  }
}

std::vector<int> allowed_cpus() {
  const CpuSet set(CPU_ALLOC(kCpusMax));
  const size_t bytes = CPU_ALLOC_SIZE(kCpusMax);
  std::vector<int> cpus;
  if (set == nullptr || sched_getaffinity(0, bytes, set.get()) != 0) return cpus;
  for (int cpu = 0; cpu < kCpusMax; ++cpu) {
    if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

bool pin_this_thread(int cpu) {
  const CpuSet set(CPU_ALLOC(kCpusMax));
  if (set == nullptr || cpu < 0 || cpu >= kCpusMax) return false;
  const size_t bytes = CPU_ALLOC_SIZE(kCpusMax);
  CPU_ZERO_S(bytes, set.get());
  CPU_SET_S(static_cast<size_t>(cpu), bytes, set.get());
  return sched_setaffinity(0, bytes, set.get()) == 0;
}

void favour_this_thread() {
  sched_param realtime{};
  realtime.sched_priority = sched_get_priority_min(SCHED_FIFO);
  if (sched_setscheduler(0, SCHED_FIFO, &realtime) == 0) return;
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kFavouredNice) == 0) return;
  SchedAttributes attributes;
  attributes.size = sizeof attributes;
  attributes.runtime_ns = kFavouredSliceNs;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void name_this_thread(const std::string& name) { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); }

}  // namespace loralei
