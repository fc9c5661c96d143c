// SPDX-License-Identifier: Apache-2.0
// File and FileSystem: the seam to the disk, with the real one and a twin in memory that
// injects faults. What untrusted folders hold is opened through folder.h.
//
// Thread: every method may be called from any thread at once (reads carry
// their own offset).
// Ownership: a File owns its open handle; it may outlive the FileSystem.
// Invariant: a File's size and stamp are those at open; nothing is ever
// written.
// Failure: every method answers a sentence with the path, the reason of the system and,
// for reads, the offsets. A read that meets the end of the file early is an error
// (kCorrupt), never a short success.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace loralei {

// Identifies one state of a file: a changed stamp means changed contents.
struct FileStamp {
  uint64_t inode = 0;
  int64_t size_bytes = 0;
  int64_t mtime_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual FileStamp stamp() const = 0;
  int64_t size_bytes() const { return stamp().size_bytes; }
  // Fills all of `dest` from `offset_bytes` on, or fails.
  virtual Status read_exact(int64_t offset_bytes, std::span<std::byte> dest) const = 0;
  // These bytes will be read soon: whoever can brings them nearer, and nobody waits.
  virtual void will_read([[maybe_unused]] int64_t offset_bytes, [[maybe_unused]] int64_t bytes) const {}
};

struct DirEntry {
  std::string name;  // without the folder
  bool is_directory = false;
};

enum class PathKind : unsigned char { kAbsent, kFile, kDirectory, kOther };  // kOther: a pipe, a device, a socket

class UntrustedFolder;

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Opens a regular file for reading; directories, devices and pipes are refused.
  virtual Result<std::unique_ptr<File>> open(const std::string& path) const = 0;
  // The folder at `path`, named as real_path() gives it; `name` stands for it in
  // messages. For what is not trusted: see UntrustedFolder.
  virtual Result<std::unique_ptr<UntrustedFolder>> open_folder(const std::string& path,
                                                               const std::string& name) const = 0;
  // kAbsent also when a parent is missing or may not be searched.
  virtual PathKind kind(const std::string& path) const = 0;
  // Files and folders directly in `path`, sorted by name; other kinds are left out,
  // links are followed.
  virtual Result<std::vector<DirEntry>> list(const std::string& path) const = 0;
  // Absolute, without links, "." and "..": what access checks compare.
  virtual Result<std::string> real_path(const std::string& path) const = 0;
  virtual Result<FileStamp> stamp(const std::string& path) const = 0;

  bool exists(const std::string& path) const { return kind(path) != PathKind::kAbsent; }
  // An error where the system does not tell whether the path is there, which kind() calls
  // absent: a folder that may not be searched, a loop of links.
  Status check_visible(const std::string& path) const;
  // The whole file; one larger than `limit_bytes` is refused (too_large, with both
  // numbers) before anything is allocated.
  Result<std::string> read_all(const std::string& path, int64_t limit_bytes) const;
};

// The machine's file system. Stateless: any number of them are one.
class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path) const override;
  Result<std::unique_ptr<UntrustedFolder>> open_folder(const std::string& path, const std::string& name) const override;
  PathKind kind(const std::string& path) const override;
  Result<std::vector<DirEntry>> list(const std::string& path) const override;
  Result<std::string> real_path(const std::string& path) const override;
  Result<FileStamp> stamp(const std::string& path) const override;
};

// All of it, as FileSystem::read_all does.
Result<std::string> read_all(const File& file, int64_t limit_bytes);

// "folder/name"; `name` alone when it is absolute or `folder` is empty.
std::string join_path(const std::string& folder, const std::string& name);
std::string parent_path(const std::string& path);  // "" when there is none
std::string base_name(const std::string& path);
FileStamp stamp_of(const struct stat& info);

// True when real path `path` is `root` or lies under it (both as real_path() gives them).
bool is_under(const std::string& root, const std::string& path);

}  // namespace loralei
