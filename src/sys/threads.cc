// SPDX-License-Identifier: Apache-2.0
#include "sys/threads.h"

#include <pthread.h>
#include <sched.h>

#include <memory>

namespace loralei {
namespace {

struct CpuSetDeleter {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, CpuSetDeleter>;
constexpr int kCpusMax = 8192;

}  // namespace

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

void name_this_thread(const std::string& name) { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); }

}  // namespace loralei
