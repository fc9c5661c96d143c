// SPDX-License-Identifier: Apache-2.0
#include "sys/file_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "sys/os_error.h"
#include "sys/pages.h"
#include "sys/posix_file.h"

namespace loralei {

Result<int64_t> cached_file_bytes(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.is_open() || ::fstat(file.get(), &info) != 0) return os_error("cannot open", path, errno);
  if (!S_ISREG(info.st_mode)) return invalid_argument("'" + path + "' is no file.");
  if (info.st_size == 0) return 0;
  const auto bytes = static_cast<size_t>(info.st_size), page = static_cast<size_t>(page_bytes());
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return os_error("cannot map", path, errno);
  std::vector<unsigned char> there((bytes + page - 1) / page);
  const int told = ::mincore(mapped, bytes, there.data());
  const int error = errno;
  ::munmap(mapped, bytes);
  if (told != 0) return os_error("cannot tell what is in memory of", path, error);
  const auto pages = std::count_if(there.begin(), there.end(), [](unsigned char one) { return (one & 1) != 0; });
  return std::min<int64_t>(info.st_size, pages * static_cast<int64_t>(page));
}

Status drop_cached_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return os_error("cannot open", path, errno);
  if (::fsync(file.get()) != 0) return os_error("cannot sync", path, errno);
  if (const int error = ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
    return os_error("cannot let go of what is in memory of", path, error);
  return {};
}

}  // namespace loralei
