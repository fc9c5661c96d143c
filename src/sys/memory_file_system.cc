// SPDX-License-Identifier: Apache-2.0
#include "sys/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "sys/folder.h"
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

// "/a/./b/../c" is "/a/c".
std::string plain_path(const std::string& path) {
  std::vector<std::string> steps;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string step = path.substr(begin, end - begin);
    begin = end + 1;
    if (step.empty() || step == ".") continue;
    if (step != "..") {
      steps.push_back(step);
    } else if (!steps.empty()) {
      steps.pop_back();
    }
  }
  std::string plain;
  for (const std::string& step : steps) plain += "/" + step;
  return plain.empty() ? "/" : plain;
}

}  // namespace

class MemoryFolder final : public UntrustedFolder {
 public:
  MemoryFolder(const MemoryFileSystem& files, std::string root, std::string name)
      : files_(files), root_(std::move(root)), name_(std::move(name)) {}

  Result<std::unique_ptr<File>> open(const std::string& path) const override {
    TRY_ASSIGN(const std::string place, place_of(path));
    const PathKind kind = files_.kind(place);
    if (kind == PathKind::kDirectory) return not_a_regular_file(join_path(name_, path), kind);
    if (kind == PathKind::kAbsent) return os_error("cannot open", join_path(name_, path), ENOENT);
    return files_.open(place);
  }
  Result<Seen> look(const std::string& path) const override {
    TRY_ASSIGN(const std::string place, place_of(path));
    const PathKind kind = files_.kind(place);
    if (kind == PathKind::kAbsent) return os_error("cannot open", join_path(name_, path), ENOENT);
    const auto stamp = files_.stamp(place);
    return Seen{kind, stamp.ok() ? *stamp : FileStamp{}};
  }
  Result<std::vector<DirEntry>> list(const std::string& path) const override {
    TRY_ASSIGN(const std::string place, place_of(path));
    TRY_ASSIGN(std::vector<DirEntry> entries, files_.list(place));
    for (DirEntry& entry : entries) {
      const auto seen = look(join_path(path, entry.name));
      entry.is_directory = seen.ok() && seen->kind == PathKind::kDirectory;
    }
    return entries;
  }

 private:
  Result<std::string> place_of(const std::string& path) const {
    const std::lock_guard lock(files_.mutex_);
    return files_.follow_below(root_, name_, path);
  }

  const MemoryFileSystem& files_;
  const std::string root_, name_;
};

Result<std::string> MemoryFileSystem::follow_below(const std::string& root, const std::string& name,
                                                   const std::string& path) const {
  constexpr int kMaxLinks = 40;
  std::string place = plain_path(join_path(root, path));
  if (!is_under(root, place)) return path_leads_out(join_path(name, path), name);
  for (int links = 0; links < kMaxLinks; ++links) {
    const auto link = std::find_if(links_.begin(), links_.end(),
                                   [&](const auto& one) { return is_under(one.first, place) && one.first != root; });
    if (link == links_.end()) return place;
    const std::string shown = join_path(name, link->first.substr(std::min(root.size() + 1, link->first.size())));
    const std::string target = plain_path(join_path(parent_path(link->first), link->second));
    const std::string next = plain_path(target + place.substr(link->first.size()));
    if (!is_under(root, next)) return link_leads_out(shown, link->second, name);
    if (kind_of(target) == PathKind::kAbsent && !links_.contains(target)) return link_leads_nowhere(shown);
    place = next;
  }
  return os_error("cannot open", join_path(name, path), ELOOP);
}

Result<std::unique_ptr<UntrustedFolder>> MemoryFileSystem::open_folder(const std::string& path,
                                                                       const std::string& name) const {
  if (kind(path) != PathKind::kDirectory) return os_error("cannot open the folder", name, ENOENT);
  return std::unique_ptr<UntrustedFolder>(std::make_unique<MemoryFolder>(*this, path, name));
}

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
