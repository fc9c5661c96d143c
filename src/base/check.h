// SPDX-License-Identifier: Apache-2.0
// CHECK: programmer errors only. Never reachable from a file, a request, a peer or load.
// CHECK is always on; DCHECK only in debug builds, for per-element loops.
#pragma once

namespace loralei {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}

#define CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::loralei::check_failed(#condition, __FILE__, __LINE__))
#ifdef NDEBUG
#define DCHECK(condition) void(0)
#else
#define DCHECK(condition) CHECK(condition)
#endif
