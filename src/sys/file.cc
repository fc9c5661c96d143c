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

#include "sys/folder.h"
#include "sys/os_error.h"
#include "sys/posix_file.h"

namespace loralei {
namespace {

class PosixFile final : public File {
 public:
  PosixFile(std::string path, Descriptor handle, FileStamp stamp)
      : path_(std::move(path)), handle_(std::move(handle)), stamp_(stamp) {}

  const std::string& path() const override { return path_; }
  FileStamp stamp() const override { return stamp_; }

  Status read_exact(int64_t offset_bytes, std::span<std::byte> dest) const override {
    size_t done = 0;
    while (done < dest.size()) {
      const ssize_t got =
          ::pread(handle_.get(), dest.data() + done, std::min<size_t>(dest.size() - done, size_t{1} << 30),
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

  void will_read(int64_t offset_bytes, int64_t bytes) const override {
    (void)::posix_fadvise(handle_.get(), offset_bytes, bytes, POSIX_FADV_WILLNEED);
  }

 private:
  const std::string path_;
  const Descriptor handle_;
  const FileStamp stamp_;
};

}  // namespace

PathKind kind_of(const struct stat& info) {
  if (S_ISDIR(info.st_mode)) return PathKind::kDirectory;
  return S_ISREG(info.st_mode) ? PathKind::kFile : PathKind::kOther;
}

Result<std::unique_ptr<File>> open_posix_file(const std::string& path, Descriptor handle) {
  struct stat info {};
  if (::fstat(handle.get(), &info) != 0) return os_error("cannot inspect", path, errno);
  if (!S_ISREG(info.st_mode)) return not_a_regular_file(path, kind_of(info));
  return std::unique_ptr<File>(std::make_unique<PosixFile>(path, std::move(handle), stamp_of(info)));
}

Result<std::vector<std::string>> names_in(Descriptor handle, const std::string& path) {
  DIR* const directory = ::fdopendir(handle.get());
  if (directory == nullptr) return os_error("cannot list folder", path, errno);
  handle.release();  // the directory's now
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  const int reason = errno;
  ::closedir(directory);
  if (reason != 0) return os_error("cannot list folder", path, reason);
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::unique_ptr<File>> PosixFileSystem::open(const std::string& path) const {
  // O_NONBLOCK: opening a pipe without a writer must not hang; it has no effect
  // on regular files.
  Descriptor handle(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!handle.is_open()) return os_error("cannot open", path, errno);
  return open_posix_file(path, std::move(handle));
}

Result<std::unique_ptr<UntrustedFolder>> PosixFileSystem::open_folder(const std::string& path,
                                                                      const std::string& name) const {
  return open_posix_folder(path, name);
}

PathKind PosixFileSystem::kind(const std::string& path) const {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? kind_of(info) : PathKind::kAbsent;
}

Result<std::vector<DirEntry>> PosixFileSystem::list(const std::string& path) const {
  Descriptor handle(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) return os_error("cannot list folder", path, errno);
  TRY_ASSIGN(const std::vector<std::string> names, names_in(std::move(handle), path));
  std::vector<DirEntry> entries;
  for (const std::string& name : names) {
    const PathKind entry_kind = kind(join_path(path, name));
    if (entry_kind == PathKind::kFile || entry_kind == PathKind::kDirectory)
      entries.push_back({name, entry_kind == PathKind::kDirectory});
  }
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
  return loralei::read_all(*file, limit_bytes);
}

Result<std::string> read_all(const File& file, int64_t limit_bytes) {
  const int64_t size_bytes = file.size_bytes();
  if (size_bytes > limit_bytes) {
    return too_large("'" + file.path() + "' has " + std::to_string(size_bytes) + " bytes; at most " +
                     std::to_string(limit_bytes) + " are accepted here");
  }
  std::string contents(static_cast<size_t>(size_bytes), '\0');
  TRY(file.read_exact(0, std::as_writable_bytes(std::span<char>(contents))));
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
