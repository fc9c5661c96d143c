// SPDX-License-Identifier: Apache-2.0
#include "apps/adapter_flags.h"

#include <algorithm>
#include <optional>

#include "adapters/adapter.h"
#include "base/units.h"
#include "formats/gguf.h"
#include "formats/json_util.h"
#include "sys/env.h"
#include "sys/hub_folder.h"

namespace loralei {
namespace {

constexpr const char* kForms = "write NAME=PATH, PATH, or {\"name\": NAME, \"path\": PATH}";

// The shell does this only where the path begins the word.
std::string at_home(const std::string& path) {
  const auto home = env_string("HOME");
  return path.starts_with("~/") && home ? *home + path.substr(1) : path;
}

std::string without_end(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// A path may hold '=' itself, as in "/out/r=16"; no name begins like a path.
size_t end_of_name(const std::string& text) {
  for (const char* const begin : {"/", "./", "../", "~/"}) {
    if (text.starts_with(begin)) return std::string::npos;
  }
  return text.find('=');
}

Result<AdapterFlag> parse_one(const FileSystem& files, const std::string& text) {
  AdapterFlag flag;
  const size_t equals = end_of_name(text);
  flag.path = at_home(without_end(equals == std::string::npos ? text : text.substr(equals + 1)));
  flag.name = equals == std::string::npos ? base_name(flag.path) : text.substr(0, equals);
  const auto hub = find_hub_folder(PosixFileSystem(), flag.path);
  if (equals == std::string::npos && hub.ok() && *hub) flag.name = (*hub)->name;
  TRY_ASSIGN(const std::optional<HubName> named, name_meant_by(files, flag.path));
  if (equals == std::string::npos && named) flag.name = named->repository;
  if (equals == std::string::npos && flag.name.ends_with(".gguf")) flag.name.resize(flag.name.size() - 5);
  if (flag.name.empty() || flag.path.empty())
    return invalid_argument("'" + text + "' does not name an adapter; " + kForms);
  return flag;
}

Result<AdapterFlag> parse_object(const std::string& text) {
  const std::string place = "'" + text + "'";
  const Result<Json> object = parse_json_object(text, place, kMiB);
  if (!object.ok()) return invalid_argument(object.error().message + "; " + kForms);
  for (const auto& [key, value] : object->items()) {
    if (key != "name" && key != "path" && key != "base_model_name")
      return invalid_argument(place + " holds the key '" + key + "', which is not known here; " + kForms);
  }
  TRY_ASSIGN(const std::optional<std::string> name, json_string(*object, "name", place));
  TRY_ASSIGN(const std::optional<std::string> path, json_string(*object, "path", place));
  TRY(json_string(*object, "base_model_name", place));
  if (!name || name->empty() || !path || path->empty())
    return invalid_argument(place + " lacks a name or a path; " + kForms);
  return AdapterFlag{*name, at_home(without_end(*path))};
}

Status check_gguf(const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(const GgufFile gguf, read_gguf(files, path));
  TRY_ASSIGN(const auto type, gguf.text("general.type"));
  if (type == "adapter") return {};
  return invalid_argument(path + ": is no adapter but a GGUF file of the type '" +
                          type.value_or("model").substr(0, 40) + "'");
}

// Where the adapter's files are: `path`, or the one .gguf file in it.
Result<std::string> find_adapter(const FileSystem& files, const std::string& path) {
  std::string found = path;
  TRY_ASSIGN(const std::optional<HubFolder> hub, find_hub_folder(files, path));
  if (hub) found = hub->path;
  if (!hub && files.kind(path) == PathKind::kDirectory && !files.exists(join_path(path, "adapter_config.json"))) {
    TRY_ASSIGN(const std::vector<DirEntry> entries, files.list(path));
    std::vector<std::string> ggufs;
    for (const DirEntry& entry : entries) {
      if (!entry.is_directory && entry.name.ends_with(".gguf")) ggufs.push_back(entry.name);
      if (entry.is_directory && files.exists(join_path(join_path(path, entry.name), "adapter_config.json")))
        return invalid_argument(path + ": is a folder of adapters, such as " + entry.name +
                                "; give it as --adapter-dir, or name one of them");
    }
    if (ggufs.size() > 1) return invalid_argument(path + ": holds several .gguf files; name one of them");
    if (ggufs.size() == 1) found = join_path(path, ggufs[0]);
  }
  TRY(adapter_stamp(files, found));
  if (found.ends_with(".gguf")) TRY(check_gguf(files, found));
  return found;
}

}  // namespace

Result<std::vector<AdapterFlag>> parse_adapter_flag(const FileSystem& files, const std::string& text) {
  if (text.starts_with('{')) {
    TRY_ASSIGN(AdapterFlag flag, parse_object(text));
    return std::vector<AdapterFlag>{std::move(flag)};
  }
  if (text.starts_with('['))
    return invalid_argument("'" + text + "' is a list; give each adapter as a value of its own: " + kForms);
  std::vector<AdapterFlag> flags;
  TRY_ASSIGN(AdapterFlag whole, parse_one(files, text));
  if (text.find(',') == std::string::npos || files.exists(whole.path)) {
    flags.push_back(std::move(whole));
    return flags;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    TRY_ASSIGN(AdapterFlag part, parse_one(files, text.substr(begin, end - begin)));
    flags.push_back(std::move(part));
    begin = end + 1;
  }
  return flags;
}

Result<std::vector<AdapterFlag>> find_adapters(const FileSystem& files, RootedFileSystem& adapter_files,
                                               const std::string& flag, const std::vector<std::string>& values,
                                               const HubAdapters& hub) {
  std::vector<AdapterFlag> found;
  for (const std::string& value : values) {
    auto parsed = parse_adapter_flag(files, value);
    if (!parsed.ok()) return std::move(parsed).error().with_context(flag);
    for (AdapterFlag& adapter : *parsed) {
      auto named = hub ? hub(adapter.path) : std::optional<HubPlace>();
      if (!named.ok()) return std::move(named).error().with_context(flag + " " + value);
      if (*named) adapter.path = (*named)->path;
      adapter_files.add_root(adapter.path);
      auto place = find_adapter(adapter_files, adapter.path);
      if (!place.ok()) return std::move(place).error().with_context(flag + " " + value);
      adapter.path = std::move(*place);
      found.push_back(std::move(adapter));
    }
  }
  return found;
}

}  // namespace loralei
