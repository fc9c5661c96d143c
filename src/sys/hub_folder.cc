// SPDX-License-Identifier: Apache-2.0
#include "sys/hub_folder.h"

#include <vector>

namespace loralei {
namespace {

constexpr std::string_view kBegin = "models--";
constexpr std::string_view kBetween = "--";
constexpr int64_t kMaxRevisionBytes = 256;

std::string without_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Result<std::string> main_snapshot(const FileSystem& files, const std::string& folder) {
  const std::string snapshots = join_path(folder, "snapshots");
  if (const std::string commit = hub_commit(files, folder, "main"); !commit.empty()) {
    const std::string path = join_path(snapshots, commit);
    if (files.kind(path) == PathKind::kDirectory) return path;
  }
  std::vector<std::string> found;
  const auto entries = files.list(snapshots);
  if (entries.ok()) {
    for (const DirEntry& entry : *entries) {
      if (entry.is_directory) found.push_back(entry.name);
    }
  }
  if (found.size() == 1) return join_path(snapshots, found[0]);
  if (found.empty())
    return not_found(folder + " holds no snapshot: fetch it again (loralei pull " + hub_name_of(base_name(folder)) +
                     ")");
  return invalid_argument(folder + " holds several snapshots, and refs/main names none of them; give one of " +
                          snapshots);
}

}  // namespace

std::string hub_name_of(const std::string& folder) {
  if (!folder.starts_with(kBegin)) return "";
  std::string name = folder.substr(kBegin.size());
  const size_t between = name.find(kBetween);
  if (between != std::string::npos) name.replace(between, kBetween.size(), "/");
  return name;
}

std::string hub_folder_of(const std::string& name) {
  std::string folder(kBegin);
  for (const char c : name) folder += c == '/' ? std::string(kBetween) : std::string(1, c);
  return folder;
}

std::string hub_commit(const FileSystem& files, const std::string& folder, const std::string& revision) {
  const auto text = files.read_all(join_path(folder, "refs/" + revision), kMaxRevisionBytes);
  if (!text.ok()) return "";
  const std::string commit = text->substr(0, text->find_last_not_of(" \r\n") + 1);
  return commit.find('/') == std::string::npos && !commit.starts_with('.') ? commit : "";
}

Result<std::optional<HubFolder>> find_hub_folder(const FileSystem& files, const std::string& given) {
  const std::string path = without_end(given);
  const std::string parent = parent_path(path);
  if (base_name(parent) == "snapshots") {
    const std::string name = hub_name_of(base_name(parent_path(parent)));
    if (name.empty()) return std::optional<HubFolder>();
    return std::optional<HubFolder>({path, name});
  }
  const std::string name = hub_name_of(base_name(path));
  if (name.empty() || files.kind(join_path(path, "snapshots")) != PathKind::kDirectory)
    return std::optional<HubFolder>();
  TRY_ASSIGN(std::string snapshot, main_snapshot(files, path));
  return std::optional<HubFolder>({std::move(snapshot), name});
}

}  // namespace loralei
