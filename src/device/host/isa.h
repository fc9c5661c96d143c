// SPDX-License-Identifier: Apache-2.0
// The host's processor, for the rooms that choose kernels. Any thread; asks
// the processor anew.
#pragma once

#include "sys/cpu.h"

namespace loralei {

inline CpuIsa host_isa() { return detect_isa(); }
inline CpuVendor host_vendor() { return cpu_vendor(); }
inline int host_family() { return cpu_family(); }

}  // namespace loralei
