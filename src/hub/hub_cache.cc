// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_cache.h"

#include <algorithm>
#include <map>

#include "base/printable.h"
#include "base/units.h"
#include "formats/json_util.h"
#include "hub/hub_listing.h"
#include "sys/hub_folder.h"

namespace loralei {
namespace {

constexpr int kMaxDepth = 4;
constexpr int64_t kMaxIndexBytes = 64 * kMiB;

void collect(const FileSystem& files, const std::string& folder, const std::string& below, int depth,
             std::vector<std::string>& found) {
  const auto entries = files.list(folder);
  if (!entries.ok()) return;
  for (const DirEntry& entry : *entries) {
    if (found.size() == kMaxHubFiles) return;
    const std::string path = join_path(below, entry.name);
    if (!entry.is_directory)
      found.push_back(path);
    else if (depth < kMaxDepth)
      collect(files, join_path(folder, entry.name), path, depth + 1, found);
  }
}

// The commit that is meant: what the revision names, or is, or the only one there is.
std::string commit_of(const FileSystem& files, const std::string& folder, const HubName& name) {
  if (is_commit(name.revision)) return name.revision;
  if (std::string commit = hub_commit(files, folder, name.revision); !commit.empty()) return commit;
  const auto only = name.revision == "main" ? find_hub_folder(files, folder) : std::optional<HubFolder>();
  return only.ok() && *only ? base_name((*only)->path) : "";
}

// Reads the refs of a folder: "main", "refs/pr/1".
void collect_refs(const FileSystem& files, const std::string& folder,
                  std::map<std::string, std::vector<std::string>>& by) {
  for (const std::string& revision : snapshot_files(files, join_path(folder, "refs"))) {
    if (const std::string commit = hub_commit(files, folder, revision); !commit.empty()) by[commit].push_back(revision);
  }
}

HubListed look_at(const FileSystem& files, const std::string& repository, const std::string& snapshot) {
  HubListed one;
  one.repository = repository;
  one.commit = base_name(snapshot);
  one.path = snapshot;
  const std::vector<std::string> all = snapshot_files(files, snapshot);
  for (const std::string& path : all) {
    if (const auto stamp = files.stamp(join_path(snapshot, path)); stamp.ok()) one.bytes += stamp->size_bytes;
  }
  const auto has = [&](const char* path) { return std::find(all.begin(), all.end(), path) != all.end(); };
  const bool gguf = std::any_of(all.begin(), all.end(), [](const auto& path) { return path.ends_with(".gguf"); });
  const auto choice = choose_hub_files(all, {repository, "main", ""}, HubKind::kAny);
  one.kind = has("adapter_config.json") && !(choice.ok() && !choice->adapter) ? "adapter"
             : has("config.json") || gguf                                     ? "model"
                                                                              : "other";
  one.whole = gguf || (choice.ok() && missing_weights(files, snapshot).empty());
  if (one.kind != "adapter") return one;
  const auto text = files.read_all(join_path(snapshot, "adapter_config.json"), kMiB);
  const auto config = text.ok() ? parse_json_object(*text, "adapter_config.json", kMiB) : Result<Json>(text.error());
  if (!config.ok()) return one;
  if (const auto base = json_string(*config, "base_model_name_or_path", ""); base.ok()) one.base = base->value_or("");
  return one;
}

}  // namespace

std::vector<std::string> snapshot_files(const FileSystem& files, const std::string& snapshot) {
  std::vector<std::string> found;
  collect(files, snapshot, "", 0, found);
  std::sort(found.begin(), found.end());
  return found;
}

std::string missing_weights(const FileSystem& files, const std::string& snapshot) {
  const std::string index = join_path(snapshot, "model.safetensors.index.json");
  if (files.exists(join_path(snapshot, "model.safetensors")) || !files.exists(index)) return "";
  const auto text = files.read_all(index, kMaxIndexBytes);
  const auto object = text.ok() ? parse_json_object(*text, index, kMaxIndexBytes) : Result<Json>(text.error());
  const Json* const weights = object.ok() ? json_find(*object, "weight_map") : nullptr;
  if (weights == nullptr || !weights->is_object()) return "";  // whoever opens it says what is wrong
  for (const auto& [tensor, file] : weights->items()) {
    if (!file.is_string()) continue;
    const auto& name = file.get_ref<const std::string&>();
    if (check_hub_path(name).ok() && !files.exists(join_path(snapshot, name))) return name;
  }
  return "";
}

CachedHubModel find_in_hub_cache(const FileSystem& files, const std::string& cache_dir, const HubName& name,
                                 HubKind kind) {
  const std::string folder = join_path(cache_dir, hub_folder_of(name.repository));
  const std::string commit = commit_of(files, folder, name);
  const std::string snapshot = join_path(folder, "snapshots/" + commit);
  if (commit.empty() || files.kind(snapshot) != PathKind::kDirectory)
    return {std::nullopt, name.text() + " is not in " + cache_dir};
  const auto choice = choose_hub_files(snapshot_files(files, snapshot), name, kind);
  if (!choice.ok()) return {std::nullopt, "in " + cache_dir + ": " + choice.error().message};
  if (const std::string part = choice->gguf.empty() ? missing_weights(files, snapshot) : ""; !part.empty())
    return {std::nullopt, name.text() + " is not whole in " + cache_dir + ": " + printable(part) + " is missing"};
  const auto has = [&](const char* path) { return files.exists(join_path(snapshot, path)); };
  if (choice->gguf.empty() && !choice->adapter && !has("tokenizer.json") && !has("tokenizer.model"))
    return {std::nullopt, name.text() + " is not whole in " + cache_dir + ": it has no tokenizer"};
  HubPlace place{choice->gguf.empty() ? snapshot : join_path(snapshot, choice->gguf), name.repository, commit,
                 choice->adapter};
  return {std::move(place), ""};
}

std::vector<HubListed> list_hub_cache(const FileSystem& files, const std::string& cache_dir) {
  std::vector<HubListed> found;
  const auto folders = files.list(cache_dir);
  if (!folders.ok()) return found;
  for (const DirEntry& entry : *folders) {
    const std::string repository = hub_name_of(entry.name), folder = join_path(cache_dir, entry.name);
    if (!entry.is_directory || repository.empty()) continue;
    std::map<std::string, std::vector<std::string>> refs;
    collect_refs(files, folder, refs);
    const auto snapshots = files.list(join_path(folder, "snapshots"));
    if (!snapshots.ok()) continue;
    for (const DirEntry& snapshot : *snapshots) {
      if (!snapshot.is_directory) continue;
      found.push_back(look_at(files, repository, join_path(folder, "snapshots/" + snapshot.name)));
      found.back().revisions = refs[snapshot.name];
    }
  }
  return found;
}

}  // namespace loralei
