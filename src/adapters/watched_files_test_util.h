// SPDX-License-Identifier: Apache-2.0
// For tests of loading: a file system whose reads are told before they are done, on the
// thread that reads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "sys/file.h"
#include "sys/folder.h"

namespace loralei::testing_support {

struct FileWatch {
  // May refuse the read. Empty: nobody looks.
  std::function<Status(const std::string& path, int64_t offset, int64_t bytes)> read;
  std::function<void(const std::string& path, int64_t offset, int64_t bytes)> will_read;
};

class WatchedFile final : public File {
 public:
  WatchedFile(std::unique_ptr<File> file, const FileWatch& watch) : file_(std::move(file)), watch_(watch) {}
  const std::string& path() const override { return file_->path(); }
  FileStamp stamp() const override { return file_->stamp(); }
  Status read_exact(int64_t offset_bytes, std::span<std::byte> dest) const override {
    if (watch_.read) TRY(watch_.read(path(), offset_bytes, std::ssize(dest)));
    return file_->read_exact(offset_bytes, dest);
  }
  void will_read(int64_t offset_bytes, int64_t bytes) const override {
    if (watch_.will_read) watch_.will_read(path(), offset_bytes, bytes);
  }

 private:
  const std::unique_ptr<File> file_;
  const FileWatch& watch_;
};

class WatchedFileSystem final : public FileSystem {
 public:
  explicit WatchedFileSystem(const FileSystem& files) : files_(files) {}
  FileWatch watch;

  Result<std::unique_ptr<File>> open(const std::string& path) const override {
    TRY_ASSIGN(std::unique_ptr<File> file, files_.open(path));
    return std::unique_ptr<File>(std::make_unique<WatchedFile>(std::move(file), watch));
  }
  Result<std::unique_ptr<UntrustedFolder>> open_folder(const std::string& path,
                                                       const std::string& name) const override {
    return files_.open_folder(path, name);
  }
  PathKind kind(const std::string& path) const override { return files_.kind(path); }
  Result<std::vector<DirEntry>> list(const std::string& path) const override { return files_.list(path); }
  Result<std::string> real_path(const std::string& path) const override { return files_.real_path(path); }
  Result<FileStamp> stamp(const std::string& path) const override { return files_.stamp(path); }

 private:
  const FileSystem& files_;
};

}  // namespace loralei::testing_support
