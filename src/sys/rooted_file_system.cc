// SPDX-License-Identifier: Apache-2.0
#include "sys/rooted_file_system.h"

#include <optional>

namespace loralei {
namespace {

// Of ".../models--ORG--NAME/snapshots/..." the part before "/snapshots"; nullopt for what
// lies in no such folder.
std::optional<std::string> hub_folder(std::string real_path) {
  constexpr const char* kSnapshots = "/snapshots/";
  real_path += '/';
  for (size_t at = real_path.find(kSnapshots); at != std::string::npos; at = real_path.find(kSnapshots, at + 1)) {
    const std::string folder = real_path.substr(0, at);
    if (base_name(folder).starts_with("models--")) return folder;
  }
  return std::nullopt;
}

// What of `path` follows behind `folder`, which it lies below.
std::string below(const std::string& folder, const std::string& path) {
  if (path.size() <= folder.size()) return "";
  return path.substr(folder.size() + (folder.ends_with('/') ? 0 : 1));
}

}  // namespace

Result<RootedFileSystem::Root> RootedFileSystem::resolve(const std::string& named) const {
  TRY_ASSIGN(std::string real, files_.real_path(named));
  std::string folder = real;
  if (const auto hub = hub_folder(real))
    folder = *hub;
  else if (files_.kind(real) != PathKind::kDirectory)
    folder = parent_path(real);
  return Root{named, std::move(real), std::move(folder)};
}

Result<RootedFileSystem::Place> RootedFileSystem::place_of(const std::string& path) const {
  std::optional<Root> nearest;
  for (std::string name = path; !name.empty() && !nearest; name = name == "/" ? "" : parent_path(name)) {
    if (!named_.contains(name)) continue;
    TRY_ASSIGN(nearest, resolve(name));
  }
  std::vector<Root> wide;
  for (const std::string& name : wide_) {
    auto root = resolve(name);
    if (!root.ok()) continue;  // gone meanwhile; what lies below it is not found
    if (!is_under(name, path)) root->named = root->real;
    if (is_under(root->named, path) && (!nearest || root->named.size() > nearest->named.size())) nearest = *root;
    wide.push_back(std::move(*root));
  }
  if (!nearest) return Error{ErrorCode::kForbidden, "'" + path + "' lies in no folder that adapters are read from"};
  std::string folder = nearest->folder;
  for (const Root& root : wide) {
    if (is_under(root.folder, nearest->real) && root.folder.size() < folder.size()) folder = root.folder;
  }
  // Messages name files as they were named, where that is a path below the root.
  const std::string& shown = folder == nearest->real ? nearest->named : folder;
  TRY_ASSIGN(auto root, files_.open_folder(folder, shown));
  const std::string rest = below(nearest->named, path);
  return Place{std::move(root), below(folder, rest.empty() ? nearest->real : join_path(nearest->real, rest))};
}

Result<std::unique_ptr<File>> RootedFileSystem::open(const std::string& path) const {
  TRY_ASSIGN(const Place place, place_of(path));
  return place.root->open(place.path);
}

Result<std::unique_ptr<UntrustedFolder>> RootedFileSystem::open_folder(const std::string& path,
                                                                       const std::string&) const {
  return Error{ErrorCode::kForbidden, "'" + path + "' is opened below its root alone"};
}

Result<UntrustedFolder::Seen> RootedFileSystem::look(const std::string& path) const {
  TRY_ASSIGN(const Place place, place_of(path));
  return place.root->look(place.path);
}

PathKind RootedFileSystem::kind(const std::string& path) const {
  const auto seen = look(path);
  return seen.ok() ? seen->kind : PathKind::kAbsent;
}

Result<std::vector<DirEntry>> RootedFileSystem::list(const std::string& path) const {
  TRY_ASSIGN(const Place place, place_of(path));
  return place.root->list(place.path);
}

Result<FileStamp> RootedFileSystem::stamp(const std::string& path) const {
  TRY_ASSIGN(const UntrustedFolder::Seen seen, look(path));
  return seen.stamp;
}

}  // namespace loralei
