// SPDX-License-Identifier: Apache-2.0
// MemoryFileSystem: the simulated twin of the disk for tests; files live in memory,
// faults are set per path.
//
// Thread-safe.
// Ownership: owns the contents; open Files share them and keep them alive.
// Invariants: paths are absolute and plain ("/a/b"); folders exist as soon as something
// lies in them. Every put() gives the path a new stamp.
// Failure: as PosixFileSystem, plus the faults set here.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "sys/file.h"

namespace loralei {

struct FileFaults {
  bool fail_open = false;
  // Reads that touch this byte or a later one fail with an input/output error; < 0: none.
  int64_t fail_reads_from_byte = -1;
  int64_t end_at_byte = -1;  // the file ends here although its stamp says more (cut while open); < 0: no fault
};

class MemoryFileSystem final : public FileSystem {
 public:
  void put(const std::string& path, std::string contents);
  void link(const std::string& path, const std::string& target);  // real_path(path) = target
  void remove(const std::string& path);
  void set_faults(const std::string& path, FileFaults faults);  // seen by files opened later

  Result<std::unique_ptr<File>> open(const std::string& path) const override;
  Result<std::unique_ptr<UntrustedFolder>> open_folder(const std::string& path, const std::string& name) const override;
  PathKind kind(const std::string& path) const override;
  Result<std::vector<DirEntry>> list(const std::string& path) const override;
  Result<std::string> real_path(const std::string& path) const override;
  Result<FileStamp> stamp(const std::string& path) const override;

 private:
  struct Node {
    std::shared_ptr<const std::string> contents;
    FileStamp stamp;
    FileFaults faults;
  };
  friend class MemoryFolder;
  std::string follow(const std::string& path) const;  // caller holds mutex_
  // As follow(), but of all links on the way, none of which may lead out of `root`,
  // called `name`.
  Result<std::string> follow_below(const std::string& root, const std::string& name, const std::string& path) const;
  PathKind kind_of(const std::string& path) const;  // caller holds mutex_

  mutable std::mutex mutex_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, std::string> links_;
  uint64_t changes_ = 0;
};

}  // namespace loralei
