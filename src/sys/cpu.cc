// SPDX-License-Identifier: Apache-2.0
#include "sys/cpu.h"

#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "sys/file.h"
#include "sys/proc_file.h"
#include "sys/threads.h"

namespace loralei {
namespace {

std::optional<int64_t> number_in(const TextReader& read, const std::string& path) {
  const std::optional<std::string> text = read(path);
  return text ? leading_number(*text) : std::nullopt;
}

// Folders to ask for limits of `controller`, from the process's own group up to the
// root of the mount.
// Version 2 has one line "0::/path"; version 1 one line a controller, "4:memory:/path".
struct CgroupFolders {
  std::vector<std::string> v1, v2;
};

void add_with_parents(const std::string& root, std::string path, std::vector<std::string>& folders) {
  while (!path.empty() && path != "/") {
    folders.push_back(root + path);
    path = parent_path(path);
  }
  folders.push_back(root);
}

bool has_item(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == item) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

CgroupFolders cgroup_folders(const TextReader& read, const std::string& controller) {
  CgroupFolders folders;
  const std::string text = read("/proc/self/cgroup").value_or("");
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    const std::string row = text.substr(line, end - line);
    line = end + 1;
    const size_t first = row.find(':');
    const size_t second = first == std::string::npos ? first : row.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = row.substr(first + 1, second - first - 1);
    const std::string path = row.substr(second + 1);
    if (controllers.empty()) {
      add_with_parents("/sys/fs/cgroup", path, folders.v2);
      add_with_parents("/sys/fs/cgroup/unified", path, folders.v2);
    } else if (has_item(controllers, controller)) {
      add_with_parents("/sys/fs/cgroup/" + controller, path, folders.v1);
      if (controllers != controller) add_with_parents("/sys/fs/cgroup/" + controllers, path, folders.v1);
    }
  }
  return folders;
}

// The value behind "name " in files of the form "name 123".
std::optional<int64_t> stat_value(const std::string& text, const std::string& name) {
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    const std::string_view row(text.data() + line, end - line);
    if (row.starts_with(name + " ")) return leading_number(row.substr(name.size() + 1));
    line = end + 1;
  }
  return std::nullopt;
}

struct MemoryGroup {
  int64_t limit_bytes = INT64_MAX;
  int64_t free_bytes = INT64_MAX;
};

// Page cache that the kernel gives back under pressure does not count as used.
MemoryGroup memory_group(const TextReader& read, const std::string& folder, bool v2) {
  MemoryGroup group;
  // Version 2 writes "max" for no limit, which is no number; version 1 a huge
  // page-rounded one.
  const auto take = [&](const char* file) {
    const int64_t limit = number_in(read, folder + file).value_or(INT64_MAX);
    if (limit >= 0 && limit < INT64_MAX / 2) group.limit_bytes = std::min(group.limit_bytes, limit);
  };
  take(v2 ? "/memory.max" : "/memory.limit_in_bytes");
  if (v2) take("/memory.high");  // beyond it nothing is killed, but everything waits
  if (group.limit_bytes == INT64_MAX) return group;
  const int64_t used = number_in(read, folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const std::string stat = read(folder + "/memory.stat").value_or("");
  const int64_t cache = stat_value(stat, v2 ? "inactive_file" : "total_inactive_file").value_or(0);
  group.free_bytes = std::max<int64_t>(0, group.limit_bytes - std::max<int64_t>(0, used - cache));
  return group;
}

MemoryGroup tightest_memory_group(const TextReader& read) {
  const CgroupFolders folders = cgroup_folders(read, "memory");
  MemoryGroup tightest;
  const auto take = [&](const MemoryGroup& group) {
    tightest.limit_bytes = std::min(tightest.limit_bytes, group.limit_bytes);
    tightest.free_bytes = std::min(tightest.free_bytes, group.free_bytes);
  };
  for (const std::string& folder : folders.v2) take(memory_group(read, folder, true));
  for (const std::string& folder : folders.v1) take(memory_group(read, folder, false));
  return tightest;
}

#if defined(__x86_64__)
// Linux: Documentation/arch/x86/xstate.rst. Feature 18 is the tiles' data.
constexpr int kArchGetXcompSupp = 0x1021, kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;

bool system_has_tiles() {
  uint64_t features = 0;
  return ::syscall(SYS_arch_prctl, kArchGetXcompSupp, &features) == 0 && (features >> kXfeatureTileData & 1) != 0;
}
#endif

}  // namespace

bool request_amx() {
#if defined(__x86_64__)
  return detect_isa().amx_int8 && ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
#else
  return false;
#endif
}

CpuIsa detect_isa() {
  CpuIsa isa;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // clang 14 does not know the name f16c: bit 29 of leaf 1. The builtins also ask whether
  // the system saves the wide registers.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
  isa.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  isa.avx512 = isa.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  isa.avx512_vnni = isa.avx512 && __builtin_cpu_supports("avx512vnni");
  // Names that older compilers do not know: leaf 7.
  const bool leaf71 = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0;
  isa.avx_vnni = isa.avx2 && leaf71 && (eax >> 4 & 1) != 0;
  isa.avx512_bf16 = isa.avx512 && leaf71 && (eax >> 5 & 1) != 0;
  const bool tiles = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 24 & 1) != 0;
  isa.amx_int8 = tiles && (edx >> 25 & 1) != 0 && system_has_tiles();
  isa.amx_bf16 = isa.amx_int8 && (edx >> 22 & 1) != 0 && isa.avx512_bf16;
#elif defined(__aarch64__)
  isa.dotprod = (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  isa.i8mm = (::getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
  return isa;
}

std::string isa_text(const CpuIsa& isa) {
  std::string text;
  const auto add = [&](bool has, const char* name) {
    if (has) text += (text.empty() ? "" : " ") + std::string(name);
  };
#if defined(__aarch64__)
  add(true, "neon");
#endif
  add(isa.avx2, "avx2");
  add(isa.avx512, "avx512");
  add(isa.avx_vnni, "avx_vnni");
  add(isa.avx512_vnni, "avx512_vnni");
  add(isa.avx512_bf16, "avx512_bf16");
  add(isa.amx_int8, "amx_int8");
  add(isa.amx_bf16, "amx_bf16");
  add(isa.dotprod, "dotprod");
  add(isa.i8mm, "i8mm");
  return text.empty() ? "none" : text;
}

CpuVendor cpu_vendor() {
#if defined(__x86_64__)
  unsigned last_leaf = 0, words[3] = {};
  if (__get_cpuid(0, &last_leaf, &words[0], &words[2], &words[1]) == 0) return CpuVendor::kOther;
  char name[sizeof(words)];
  std::memcpy(name, words, sizeof(words));
  const std::string_view vendor(name, sizeof(name));
  if (vendor == "GenuineIntel") return CpuVendor::kIntel;
  if (vendor == "AuthenticAMD" || vendor == "HygonGenuine") return CpuVendor::kAmd;
#endif
  return CpuVendor::kOther;
}

int cpu_family() {
#if defined(__x86_64__)
  unsigned signature = 0, rest[3] = {};
  if (__get_cpuid(1, &signature, &rest[0], &rest[1], &rest[2]) == 0) return 0;
  constexpr unsigned kExtended = 15;  // the base field is full: the extended one is added
  const unsigned base = signature >> 8 & 15, extended = signature >> 20 & 255;
  return static_cast<int>(base == kExtended ? base + extended : base);
#else
  return 0;
#endif
}

std::string cpu_model_name() {
  const Result<std::string> info = read_proc_file("/proc/cpuinfo");
  if (!info.ok()) return "unknown";
  const size_t key = info->find("model name");
  const size_t colon = key == std::string::npos ? key : info->find(':', key);
  if (colon == std::string::npos) return "unknown";
  const size_t start = info->find_first_not_of(" \t", colon + 1);
  const size_t end = info->find('\n', colon);
  if (start == std::string::npos || start >= end) return "unknown";
  return info->substr(start, end - start);
}

int usable_cpus() {
  int cpus = static_cast<int>(allowed_cpus().size());
  if (cpus == 0) cpus = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const double quota = cgroup_cpu_quota(read_system_text);
  if (quota > 0) cpus = std::min(cpus, static_cast<int>(std::ceil(std::min(quota, 1e6))));
  return std::max(1, cpus);
}

int64_t available_memory_bytes() {
  const Result<std::string> info = read_proc_file("/proc/meminfo");
  const int64_t system = info.ok() ? field_kib(*info, "MemAvailable:").value_or(0) : 0;
  return std::min(system, cgroup_memory_free_bytes(read_system_text));
}

int64_t total_memory_bytes() {
  const Result<std::string> info = read_proc_file("/proc/meminfo");
  const int64_t system = info.ok() ? field_kib(*info, "MemTotal:").value_or(0) : 0;
  return std::min(system, cgroup_memory_limit_bytes(read_system_text));
}

std::optional<std::string> read_system_text(const std::string& path) {
  Result<std::string> text = read_proc_file(path);
  if (!text.ok()) return std::nullopt;
  return std::move(text).value();
}

double cgroup_cpu_quota(const TextReader& read) {
  const CgroupFolders folders = cgroup_folders(read, "cpu");
  double quota = -1;
  const auto take = [&](std::optional<int64_t> quota_us, std::optional<int64_t> period_us) {
    if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return;  // "max" and -1: no limit
    const double cpus = static_cast<double>(*quota_us) / static_cast<double>(*period_us);
    quota = quota < 0 ? cpus : std::min(quota, cpus);
  };
  for (const std::string& folder : folders.v2) {
    const std::optional<std::string> text = read(folder + "/cpu.max");  // "200000 100000" or "max 100000"
    if (!text || text->find(' ') == std::string::npos) continue;
    take(leading_number(*text), leading_number(std::string_view(*text).substr(text->find(' '))));
  }
  for (const std::string& folder : folders.v1) {
    take(number_in(read, folder + "/cpu.cfs_quota_us"), number_in(read, folder + "/cpu.cfs_period_us"));
  }
  return quota;
}

int64_t cgroup_memory_limit_bytes(const TextReader& read) { return tightest_memory_group(read).limit_bytes; }
int64_t cgroup_memory_free_bytes(const TextReader& read) { return tightest_memory_group(read).free_bytes; }

}  // namespace loralei
