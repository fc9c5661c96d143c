// SPDX-License-Identifier: Apache-2.0
#include "sys/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "sys/os_error.h"

namespace loralei {
namespace {

class PosixFile final : public File {
 public:
  PosixFile(std::string path, int fd, FileStamp stamp) : path_(std::move(path)), fd_(fd), stamp_(stamp) {}
  ~PosixFile() override { ::close(fd_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  const std::string& path() const override { return path_; }
  FileStamp stamp() const override { return stamp_; }

  Status read_exact(int64_t offset_bytes, std::span<std::byte> dest) const override {
    size_t done = 0;
    while (done < dest.size()) {
      const ssize_t got = ::pread(fd_, dest.data() + done, std::min<size_t>(dest.size() - done, size_t{1} << 30),
                                  offset_bytes + static_cast<int64_t>(done));
      if (got < 0) {
        if (errno == EINTR) continue;
        return os_error("cannot read bytes " + std::to_string(offset_bytes) + " to " +
                            std::to_string(offset_bytes + static_cast<int64_t>(dest.size())) + " of",
                        path_, errno);
      }
      if (got == 0) return end_of_file(path_, offset_bytes, dest.size(), done);
      done += static_cast<size_t>(got);
    }
    return {};
  }

 private:
  const std::string path_;
  const int fd_;
  const FileStamp stamp_;
};

}  // namespace

Result<std::unique_ptr<File>> PosixFileSystem::open(const std::string& path) const {
  // O_NONBLOCK: opening a pipe without a writer must not hang; it has no effect on regular files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return os_error("cannot open", path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int reason = errno;
    ::close(fd);
    return os_error("cannot inspect", path, reason);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument("'" + path + "' is not a regular file" + (S_ISDIR(info.st_mode) ? " but a folder" : "") +
                            "; name a file");
  }
  return std::unique_ptr<File>(std::make_unique<PosixFile>(path, fd, stamp_of(info)));
}

PathKind PosixFileSystem::kind(const std::string& path) const {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return PathKind::kAbsent;
  if (S_ISDIR(info.st_mode)) return PathKind::kDirectory;
  return S_ISREG(info.st_mode) ? PathKind::kFile : PathKind::kAbsent;
}

Result<std::vector<DirEntry>> PosixFileSystem::list(const std::string& path) const {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return os_error("cannot list folder", path, errno);
  std::vector<DirEntry> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      const PathKind entry_kind = kind(join_path(path, name));
      if (entry_kind != PathKind::kAbsent) entries.push_back({name, entry_kind == PathKind::kDirectory});
    }
    errno = 0;  // kind() may have set it; readdir reports its own errors through it
  }
  const int reason = errno;
  ::closedir(directory);
  if (reason != 0) return os_error("cannot list folder", path, reason);
  std::sort(entries.begin(), entries.end(), [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
  return entries;
}

Result<std::string> PosixFileSystem::real_path(const std::string& path) const {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return os_error("cannot resolve path", path, errno);
  std::string result(resolved);
  std::free(resolved);
  return result;
}

Result<FileStamp> PosixFileSystem::stamp(const std::string& path) const {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return os_error("cannot inspect", path, errno);
  return stamp_of(info);
}

Status FileSystem::check_visible(const std::string& path) const {
  auto found = stamp(path);
  if (found.ok() || found.error().code == ErrorCode::kNotFound) return {};
  return std::move(found).error();
}

Result<std::string> FileSystem::read_all(const std::string& path, int64_t limit_bytes) const {
  TRY_ASSIGN(const std::unique_ptr<File> file, open(path));
  const int64_t size_bytes = file->size_bytes();
  if (size_bytes > limit_bytes) {
    return too_large("'" + path + "' has " + std::to_string(size_bytes) + " bytes; at most " +
                     std::to_string(limit_bytes) + " are accepted here");
  }
  std::string contents(static_cast<size_t>(size_bytes), '\0');
  TRY(file->read_exact(0, std::as_writable_bytes(std::span<char>(contents))));
  return contents;
}

std::string join_path(const std::string& folder, const std::string& name) {
  if (folder.empty() || (!name.empty() && name.front() == '/')) return name;
  return folder.back() == '/' ? folder + name : folder + "/" + name;
}

std::string parent_path(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_name(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

FileStamp stamp_of(const struct stat& info) {
  return {static_cast<uint64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
}

bool is_under(const std::string& root, const std::string& path) {
  if (root == "/") return !path.empty() && path.front() == '/';
  return path == root ||
         (path.size() > root.size() && path.compare(0, root.size(), root) == 0 && path[root.size()] == '/');
}

}  // namespace loralei
