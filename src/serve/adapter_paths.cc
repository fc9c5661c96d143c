// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_paths.h"

#include <algorithm>

#include "wire/requests.h"

namespace loralei {
namespace {

// Symlinks resolved as far as the path exists; the rest is appended. A ".." in the rest cannot be resolved: empty then.
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
    if (!entry.is_directory || entry.name.starts_with('.')) continue;
    auto path = files.real_path(real_root + "/" + entry.name);
    if (!path.ok() || *path == real_root || !is_under(real_root, *path)) {
      notes.push_back(root + "/" + entry.name + " is left out: it leads out of the folder");
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
      found.push_back({entry.name, *path});
    else if (ggufs.size() == 1)
      found.push_back({entry.name, *path + "/" + ggufs[0]});
    else if (ggufs.size() > 1)
      notes.push_back(root + "/" + entry.name + " is left out: it holds several .gguf files; name one with --adapter");
  }
  return found;
}

Status check_adapter_name(const std::string& name, const std::vector<std::string>& model_names) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return invalid_argument("An adapter's name has 1 to " + std::to_string(kMaxNameBytes) + " bytes.");
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == ',') {
      return invalid_argument("An adapter's name may not hold control characters or commas.");
    }
  }
  if (std::find(model_names.begin(), model_names.end(), name) != model_names.end()) {
    return invalid_argument("'" + name + "' is the name of the base model; an adapter may not take it.");
  }
  return {};
}

}  // namespace loralei
