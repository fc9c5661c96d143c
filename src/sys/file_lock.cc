// SPDX-License-Identifier: Apache-2.0
#include "sys/file_lock.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "sys/os_error.h"

namespace loralei {
namespace {

constexpr int kExclusive = 2, kAtOnce = 4;  // LOCK_EX, LOCK_NB: of a header that has the name of one of this room's

}  // namespace

Result<std::optional<FileLock>> FileLock::take(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file.is_open()) return os_error("cannot lock", path, errno);
  if (::syscall(SYS_flock, file.get(), kExclusive | kAtOnce) != 0 && errno == EWOULDBLOCK)
    return std::optional<FileLock>();
  return std::optional<FileLock>(FileLock(std::move(file)));
}

}  // namespace loralei
