// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_paths.h"

#include <algorithm>

#include "base/printable.h"
#include "store/version_name.h"
#include "sys/hub_folder.h"
#include "wire/requests.h"

namespace loralei {
namespace {

// Symlinks resolved as far as the path exists; the rest is appended. A ".." in the rest
// cannot be resolved: empty then.
std::string resolve_existing_part(const FileSystem& files, std::string path) {
  std::string rest;
  while (!path.empty()) {
    if (auto real = files.real_path(path); real.ok()) return *real + rest;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return "";
    const std::string last = path.substr(slash + 1);
    if (last == "..") return "";
    if (last != ".") rest = "/" + last + rest;
    path.resize(slash == 0 && path.size() > 1 ? 1 : slash);
  }
  return "";
}

Error outside(const std::vector<std::string>& roots) {
  return {ErrorCode::kForbidden,
          roots.empty()
              ? "Adapters cannot be loaded over HTTP: start the server with --adapter-dir DIR to allow a folder."
              : "The path is outside of the folders that --adapter-dir allows."};
}

// `name` is `text`, or "text:...".
bool means_or_begins(const std::string& name, const std::string& text) {
  return name == text || name.starts_with(text + ":");
}

}  // namespace

Result<AdapterPath> resolve_adapter_path(const FileSystem& files, const std::vector<std::string>& roots,
                                         const std::string& requested) {
  for (const std::string& root : roots) {
    auto real_root = files.real_path(root);
    if (!real_root.ok()) continue;
    const std::string full = requested.starts_with('/') ? requested : *real_root + "/" + requested;
    const std::string path = resolve_existing_part(files, full);
    if (path.empty() || path == *real_root || !is_under(*real_root, path)) continue;
    if (!requested.starts_with('/') && &root != &roots.back() && !files.exists(path))
      continue;  // maybe below a later root
    if (!files.exists(path)) return not_found("No adapter found at " + requested + ".");
    return AdapterPath{path, *real_root};
  }
  return outside(roots);
}

Result<std::vector<FoundAdapter>> scan_adapter_root(const FileSystem& files, const std::string& root,
                                                    std::vector<std::string>& notes) {
  TRY_ASSIGN(const std::string real_root, files.real_path(root));
  TRY_ASSIGN(const std::vector<DirEntry> entries, files.list(real_root));
  std::vector<FoundAdapter> found;
  for (const DirEntry& entry : entries) {
    if (entry.name.starts_with('.')) continue;
    if (!entry.is_directory) {
      // What is no folder has no adapter in it; a link that may not be followed could
      // be meant as one.
      if (const Status seen = files.check_visible(join_path(real_root, entry.name)); !seen.ok())
        notes.push_back(seen.error().message);
      continue;
    }
    auto path = files.real_path(real_root + "/" + entry.name);
    if (!path.ok() || *path == real_root || !is_under(real_root, *path)) {
      notes.push_back(root + "/" + entry.name + " is left out: it leads out of the folder");
      continue;
    }
    const auto hub = find_hub_folder(files, *path);
    if (!hub.ok()) {
      notes.push_back(hub.error().message);
      continue;
    }
    const std::string name = *hub ? (*hub)->name : entry.name;
    if (*hub) path = files.real_path((*hub)->path);
    if (!path.ok() || !is_under(real_root, *path)) {
      notes.push_back(root + "/" + entry.name + " is left out: its snapshot leads out of the folder");
      continue;
    }
    auto inside = files.list(*path);
    if (!inside.ok()) {
      notes.push_back(inside.error().message);
      continue;
    }
    std::vector<std::string> ggufs;
    bool peft = false;
    for (const DirEntry& file : *inside) {
      if (file.is_directory) continue;
      peft |= file.name == "adapter_config.json";
      if (file.name.ends_with(".gguf")) ggufs.push_back(file.name);
    }
    if (peft)
      found.push_back({name, *path});
    else if (ggufs.size() == 1)
      found.push_back({name, *path + "/" + ggufs[0]});
    else if (ggufs.size() > 1)
      notes.push_back(root + "/" + entry.name + " is left out: it holds several .gguf files; name one with --adapter");
  }
  return found;
}

Status check_adapter_name(const std::string& name, const std::vector<std::string>& model_names) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return invalid_argument("An adapter's name has 1 to " + std::to_string(kMaxNameBytes) + " bytes.");
  }
  if (name.find(',') != std::string::npos || !is_printable(name, kMaxNameBytes)) {
    return invalid_argument(
        "An adapter's name may not hold commas, control characters or others that cannot be seen, and is UTF-8.");
  }
  if (parse_version_name(name)) {
    return invalid_argument("'" + name +
                            "' cannot be an adapter's name: '@' and digits at its end name a version (NAME@3 is the "
                            "version 3 of NAME). Give it another name.");
  }
  if (std::find(model_names.begin(), model_names.end(), name) != model_names.end()) {
    return invalid_argument("'" + name + "' is the name of the base model; an adapter may not take it.");
  }
  for (const std::string& base : model_names) {
    if (const auto version = parse_version_name(base); version && version->name == name) {
      return invalid_argument("'" + name + "' cannot be an adapter's name beside the base model's name '" + base +
                              "', which would be a version of it. Give it another name.");
    }
    bool unclear = means_or_begins(name, base);
    // With the bases "m" and "m:7b", "m:7b" is never the adapter "7b" of "m".
    for (const std::string& other : model_names)
      unclear |= base.starts_with(other + ":") && means_or_begins(name, base.substr(other.size() + 1));
    if (unclear) {
      return invalid_argument("'" + name + "' cannot be an adapter's name beside the base model's name '" + base +
                              "': clients may write BASE:NAME for an adapter, and it would be unclear which is meant. "
                              "Give it another name.");
    }
  }
  return {};
}

}  // namespace loralei
