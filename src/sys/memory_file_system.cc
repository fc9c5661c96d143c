// SPDX-License-Identifier: Apache-2.0
#include "sys/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "sys/os_error.h"

namespace loralei {
namespace {

class MemoryFile final : public File {
 public:
  MemoryFile(std::string path, std::shared_ptr<const std::string> contents, FileStamp stamp, FileFaults faults)
      : path_(std::move(path)), contents_(std::move(contents)), stamp_(stamp), faults_(faults) {}

  const std::string& path() const override { return path_; }
  FileStamp stamp() const override { return stamp_; }

  Status read_exact(int64_t offset_bytes, std::span<std::byte> dest) const override {
    const auto wanted = static_cast<int64_t>(dest.size());
    if (wanted == 0) return {};
    if (offset_bytes < 0) return os_error("cannot read at a negative offset of", path_, EINVAL);
    if (faults_.fail_reads_from_byte >= 0 && offset_bytes + wanted > faults_.fail_reads_from_byte) {
      return os_error(
          "cannot read bytes " + std::to_string(offset_bytes) + " to " + std::to_string(offset_bytes + wanted) + " of",
          path_, EIO);
    }
    auto end = static_cast<int64_t>(contents_->size());
    if (faults_.end_at_byte >= 0) end = std::min(end, faults_.end_at_byte);
    const int64_t got = std::clamp<int64_t>(end - offset_bytes, 0, wanted);
    if (got < wanted) return end_of_file(path_, offset_bytes, dest.size(), static_cast<size_t>(got));
    std::memcpy(dest.data(), contents_->data() + offset_bytes, dest.size());
    return {};
  }

 private:
  const std::string path_;
  const std::shared_ptr<const std::string> contents_;
  const FileStamp stamp_;
  const FileFaults faults_;
};

}  // namespace

void MemoryFileSystem::put(const std::string& path, std::string contents) {
  const std::lock_guard lock(mutex_);
  Node& node = nodes_[path];
  ++changes_;
  node.stamp = {changes_, static_cast<int64_t>(contents.size()), static_cast<int64_t>(changes_)};
  node.contents = std::make_shared<const std::string>(std::move(contents));
}

void MemoryFileSystem::link(const std::string& path, const std::string& target) {
  const std::lock_guard lock(mutex_);
  links_[path] = target;
}

void MemoryFileSystem::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  nodes_.erase(path);
  links_.erase(path);
}

void MemoryFileSystem::set_faults(const std::string& path, FileFaults faults) {
  const std::lock_guard lock(mutex_);
  if (const auto node = nodes_.find(path); node != nodes_.end()) node->second.faults = faults;
}

std::string MemoryFileSystem::follow(const std::string& path) const {
  for (const auto& [from, to] : links_) {
    if (is_under(from, path)) return to + path.substr(from.size());
  }
  return path;
}

PathKind MemoryFileSystem::kind_of(const std::string& path) const {
  if (nodes_.contains(path)) return PathKind::kFile;
  for (const auto& [name, node] : nodes_) {
    if (is_under(path, name)) return PathKind::kDirectory;
  }
  return PathKind::kAbsent;
}

Result<std::unique_ptr<File>> MemoryFileSystem::open(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto node = nodes_.find(follow(path));
  if (node == nodes_.end()) return os_error("cannot open", path, ENOENT);
  if (node->second.faults.fail_open) return os_error("cannot open", path, EIO);
  return std::unique_ptr<File>(
      std::make_unique<MemoryFile>(path, node->second.contents, node->second.stamp, node->second.faults));
}

PathKind MemoryFileSystem::kind(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return kind_of(follow(path));
}

Result<std::vector<DirEntry>> MemoryFileSystem::list(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const std::string folder = follow(path);
  if (kind_of(folder) != PathKind::kDirectory) return os_error("cannot list folder", path, ENOENT);
  const size_t prefix = folder == "/" ? 1 : folder.size() + 1;
  std::set<std::string> names;
  const auto add = [&](const std::string& name) {
    if (name != folder && is_under(folder, name)) names.insert(name.substr(prefix, name.find('/', prefix) - prefix));
  };
  for (const auto& [name, node] : nodes_) add(name);
  for (const auto& [name, target] : links_) add(name);
  std::vector<DirEntry> entries;
  for (const std::string& name : names) {
    const PathKind entry_kind = kind_of(follow(join_path(folder, name)));
    if (entry_kind != PathKind::kAbsent) entries.push_back({name, entry_kind == PathKind::kDirectory});
  }
  return entries;
}

Result<std::string> MemoryFileSystem::real_path(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const std::string target = follow(path);
  if (kind_of(target) == PathKind::kAbsent) return os_error("cannot resolve path", path, ENOENT);
  return target;
}

Result<FileStamp> MemoryFileSystem::stamp(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto node = nodes_.find(follow(path));
  if (node == nodes_.end()) return os_error("cannot inspect", path, ENOENT);
  return node->second.stamp;
}

}  // namespace loralei
