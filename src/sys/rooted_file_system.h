// SPDX-License-Identifier: Apache-2.0
// RootedFileSystem: of another file system what lies below some roots, for files that
// others than the operator may write (adapters): every file is opened through the
// UntrustedFolder of its root.
//
// What the root of a path is: the operator names roots (each --adapter-dir, each adapter
// of the command line). The most exact one that the path lies below says where it lies;
// the widest --adapter-dir around that place is its root, else it is that one itself.
// For one in a Hugging Face cache (.../models--ORG--NAME/snapshots/...), whose files are
// links to ../../blobs, it is models--ORG--NAME; for a file, its folder.
// Thread: add_root() before others use it; then any.
// Ownership: borrows the other file system.
// Invariants: roots are names, opened anew each time, so that a folder put in the
// place of another one is found; the names themselves are the operator's and their
// links are followed.
// Failure: as UntrustedFolder; kForbidden below no root.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/file.h"
#include "sys/folder.h"

namespace loralei {

class RootedFileSystem final : public FileSystem {
 public:
  // `wide`: folders of adapters, in which links may lead from one to another.
  explicit RootedFileSystem(const FileSystem& files, std::vector<std::string> wide = {})
      : files_(files), wide_(std::move(wide)) {}

  void add_wide_root(std::string path) { wide_.push_back(std::move(path)); }
  // One adapter: a folder, or a file.
  void add_root(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    named_.insert(std::move(path));
  }

  Result<std::unique_ptr<File>> open(const std::string& path) const override;
  Result<std::unique_ptr<UntrustedFolder>> open_folder(const std::string& path, const std::string& name) const override;
  PathKind kind(const std::string& path) const override;
  Result<std::vector<DirEntry>> list(const std::string& path) const override;
  Result<std::string> real_path(const std::string& path) const override { return files_.real_path(path); }
  Result<FileStamp> stamp(const std::string& path) const override;

 private:
  struct Root {
    std::string named;
    std::string real;
    std::string folder;  // what may be reached; real, too
  };
  struct Place {
    std::unique_ptr<UntrustedFolder> root;
    std::string path;  // below it
  };
  Result<Root> resolve(const std::string& named) const;
  Result<Place> place_of(const std::string& path) const;
  Result<UntrustedFolder::Seen> look(const std::string& path) const;

  const FileSystem& files_;
  std::vector<std::string> wide_;
  std::set<std::string> named_;
};

}  // namespace loralei
