// SPDX-License-Identifier: Apache-2.0
#include "codec/path.h"

#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace loralei {
namespace {

std::vector<KvCodecPath> paths_here() {
  std::vector<KvCodecPath> paths = {kv_codec_path_plain()};
#if defined(__x86_64__)
  // clang 14 does not know the name f16c: bit 29 of leaf 1.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
  if (avx2) paths.push_back(kv_codec_path_avx2());
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    paths.push_back(kv_codec_path_avx512());
#endif
  return paths;
}

}  // namespace

std::span<const KvCodecPath> kv_codec_paths() {
  static const std::vector<KvCodecPath> paths = paths_here();
  return paths;
}

const KvCodecPath& kv_codec_path() {
  static const KvCodecPath& best = kv_codec_paths().back();
  return best;
}

}  // namespace loralei
