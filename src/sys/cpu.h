// SPDX-License-Identifier: Apache-2.0
// What this process may use of the machine: instruction sets, CPUs, caches, memory.
//
// Any thread; every call asks the system anew (call at start). Failure: none; what the
// system does not tell is 0 or the wider bound.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace loralei {

struct CpuIsa {
  bool avx2 = false;      // with FMA and F16C
  bool avx512 = false;    // F, BW, VL, DQ
  bool avx_vnni = false;  // int8 dot products of 256 bits, in the VEX encoding
  bool avx512_vnni = false;
  bool avx512_bf16 = false;  // dot products of bf16 pairs and conversions to bf16
  bool amx_int8 = false;     // tiles of int8; usable only after request_amx()
  bool amx_bf16 = false;     // tiles of bf16, where there is avx512_bf16 as well; likewise
  bool dotprod = false;      // arm64: int8 dot products (NEON itself is part of the architecture)
  bool i8mm = false;         // arm64: int8 matrix products
};
CpuIsa detect_isa();
// Asks Linux for the tile registers (arch_prctl ARCH_REQ_XCOMP_PERM), for all threads of
// this process and for ever; false where processor or system refuse. Signal stacks must
// hold 8 KiB more afterwards.
bool request_amx();
std::string isa_text(const CpuIsa& isa);  // "avx2 avx512 avx512_vnni", "neon dotprod", or "none"
enum class CpuVendor { kIntel, kAmd, kOther };
CpuVendor cpu_vendor();        // Hygon's processors are AMD's design and count as such
int cpu_family();              // as the maker counts them (AMD: 25 Zen 3 and 4, 26 Zen 5); 0 where that is not told
std::string cpu_model_name();  // as /proc/cpuinfo tells; "unknown" otherwise

// CPUs this process may keep busy: the affinity mask, cut by the cgroup quota (rounded
// up, at least 1).
int usable_cpus();

// Bytes that can still be allocated without swapping: MemAvailable of the system, cut by
// what the cgroup limits leave.
int64_t available_memory_bytes();
int64_t total_memory_bytes();  // of the machine, cut by the cgroup limit

// --- the parsing behind it ---
// Both walk from the process's group (/proc/self/cgroup, versions 1 and 2) to the root
// of the mount and take the tightest limit; in a container, where the group's path is not
// visible, the mount's root holds the limits.
using TextReader = std::function<std::optional<std::string>(const std::string& path)>;  // nullopt: no such file
double cgroup_cpu_quota(const TextReader& read);                                        // CPUs; negative: no limit
int64_t cgroup_memory_limit_bytes(const TextReader& read);                              // INT64_MAX: no limit
// Limit minus use, reclaimable file cache not counted; INT64_MAX: no limit.
int64_t cgroup_memory_free_bytes(const TextReader& read);
std::optional<std::string> read_system_text(const std::string& path);  // the production TextReader

}  // namespace loralei
