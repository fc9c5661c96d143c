// SPDX-License-Identifier: Apache-2.0
#include "sys/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "sys/file.h"
#include "sys/os_error.h"
#include "sys/posix_file.h"

namespace loralei {
namespace {

struct flock whole_file() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

}  // namespace

Result<WriteFile> WriteFile::open(const std::string& path, unsigned mode) {
  const int handle = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, mode);
  if (handle < 0) return os_error("cannot write", path, errno);
  struct stat info {};
  if (::fstat(handle, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(handle);
    return invalid_argument("'" + path + "' is not a regular file.");
  }
  // The lock goes with the handle, however the process ends. A file that was renamed
  // before the lock was ours is another's finished work.
  struct stat named {};
  struct flock whole = whole_file();
  const bool locked = ::fcntl(handle, F_OFD_SETLK, &whole) == 0;
  const bool taken = !locked && (errno == EAGAIN || errno == EACCES);  // a file system without locks is used without
  if (taken || ::stat(path.c_str(), &named) != 0 || named.st_ino != info.st_ino) {
    ::close(handle);
    return Error{ErrorCode::kUnavailable,
                 "Another process is writing '" + path + "'; wait until it is done and start again."};
  }
  return WriteFile(handle, path);
}

WriteFile::WriteFile(WriteFile&& other) noexcept
    : handle_(std::exchange(other.handle_, -1)), path_(std::move(other.path_)) {}

WriteFile& WriteFile::operator=(WriteFile&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(path_, other.path_);
  return *this;
}

WriteFile::~WriteFile() {
  if (handle_ >= 0) ::close(handle_);
}

Result<int64_t> WriteFile::size_bytes() const {
  struct stat info {};
  if (::fstat(handle_, &info) != 0) return os_error("cannot look at", path_, errno);
  return static_cast<int64_t>(info.st_size);
}

Status WriteFile::resize(int64_t bytes) {
  if (::ftruncate(handle_, bytes) != 0) return os_error("cannot resize", path_, errno);
  return {};
}

Status WriteFile::write(int64_t offset_bytes, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote =
        ::pwrite(handle_, bytes.data() + done, bytes.size() - done, offset_bytes + static_cast<int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return os_error("cannot write", path_, wrote < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(wrote);
  }
  return {};
}

Status WriteFile::sync() {
  if (::fdatasync(handle_) != 0) return os_error("cannot sync", path_, errno);
  ::posix_fadvise(handle_, 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Status WriteFile::commit(const std::string& path) {
  if (::fsync(handle_) != 0) return os_error("cannot sync", path_, errno);
  if (std::rename(path_.c_str(), path.c_str()) != 0) return os_error("cannot rename", path_, errno);
  path_ = path;
  // The new name is in the folder, which has contents of its own to sync; some file
  // systems refuse, and lose nothing.
  const std::string parent = parent_path(path);
  const std::string folder = parent.empty() ? std::string(".") : parent;
  if (const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); handle >= 0) {
    ::fsync(handle);
    ::close(handle);
  }
  return {};
}

Status put_file(const std::string& path, std::string_view text) {
  struct stat info {};
  std::string target = path;
  const bool is_there = ::stat(path.c_str(), &info) == 0;
  if (is_there && S_ISDIR(info.st_mode)) return os_error("cannot write", path, EISDIR);
  if (is_there && !S_ISREG(info.st_mode)) {
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return os_error("cannot write", path, errno);
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    return std::fclose(file) == 0 && written ? Status() : os_error("cannot write", path, errno);
  }
  if (is_there) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    if (!error) target = real.string();
  }
  const std::string fresh = target + "." + std::to_string(::getpid()) + ".new";
  TRY_ASSIGN(WriteFile file, WriteFile::open(fresh, is_there ? info.st_mode & 0777u : 0644u));
  Status status = file.resize(0);
  if (status.ok()) status = file.write(0, std::as_bytes(std::span(text)));
  if (status.ok()) status = file.commit(target);
  if (!status.ok()) ::unlink(fresh.c_str());
  return status;
}

Status remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return os_error("cannot remove", path, errno);
  return {};
}

Status make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return os_error("cannot make folder", path, error.value());
  return {};
}

Status put_link(const std::string& target, const std::string& path) {
  const std::string fresh = path + "." + std::to_string(::getpid()) + ".new";
  ::unlink(fresh.c_str());
  if (::symlink(target.c_str(), fresh.c_str()) != 0) return os_error("cannot make link", path, errno);
  if (std::rename(fresh.c_str(), path.c_str()) == 0) return {};
  const int reason = errno;
  ::unlink(fresh.c_str());
  return os_error("cannot make link", path, reason);
}

Status make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  const int reason = errno;
  struct stat info {};
  if (reason == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return {};
  return os_error("cannot make folder", path, reason);
}

bool is_being_written(const std::string& path) {
  const Descriptor handle(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct flock whole = whole_file();
  return handle.is_open() && ::fcntl(handle.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

int64_t free_disk_bytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.empty() ? "." : folder.c_str(), &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace loralei
