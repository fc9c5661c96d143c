// SPDX-License-Identifier: Apache-2.0
#include "sys/direct_read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "sys/os_error.h"

namespace loralei {

Result<DirectFile> DirectFile::open(const std::string& path) {
  const int handle = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT | O_NONBLOCK);
  if (handle < 0) return os_error("cannot open for direct reading", path, errno);
  struct stat info {};
  if (::fstat(handle, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(handle);
    return invalid_argument("'" + path + "' is not a regular file.");
  }
  return DirectFile(handle, info.st_size, path);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : handle_(std::exchange(other.handle_, -1)), size_bytes_(other.size_bytes_), path_(std::move(other.path_)) {}

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(path_, other.path_);
  return *this;
}

DirectFile::~DirectFile() {
  if (handle_ >= 0) ::close(handle_);
}

Status DirectFile::read(int64_t offset_bytes, std::span<std::byte> dest) const {
  CHECK(offset_bytes % kDirectAlign == 0 && static_cast<int64_t>(dest.size()) % kDirectAlign == 0);
  size_t done = 0;
  while (done < dest.size()) {
    const ssize_t got =
        ::pread(handle_, dest.data() + done, dest.size() - done, offset_bytes + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("cannot read", path_, errno);
    if (got == 0) return end_of_file(path_, offset_bytes, dest.size(), done);
    done += static_cast<size_t>(got);
  }
  return {};
}

}  // namespace loralei
