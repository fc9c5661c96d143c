// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_steps_file.h"

#include <span>
#include <utility>

#include "sys/write_file.h"

namespace loralei {
namespace {

constexpr const char* kName = "kv-steps.json";

Result<KvSteps> read_steps(const FileSystem& files, const std::string& path, const std::string& fingerprint,
                           const KvGridShape& shape) {
  TRY_ASSIGN(const std::string text, files.read_all(path, kKvStepsBytesMost));
  TRY_ASSIGN(KvSteps steps, parse_kv_steps(text, "'" + path + "'"));
  TRY(check_kv_steps(steps, fingerprint, shape, "'" + path + "'"));
  return steps;
}

}  // namespace

std::vector<std::string> kv_steps_paths(const FileSystem& files, const std::string& model_path,
                                        const std::string& cache_dir, const std::string& fingerprint) {
  const bool folder = files.kind(model_path) == PathKind::kDirectory;
  std::vector<std::string> paths = {folder ? join_path(model_path, kName) : model_path + "." + kName};
  if (!cache_dir.empty()) paths.push_back(join_path(cache_dir, fingerprint + "." + kName));
  return paths;
}

FoundKvSteps find_kv_steps(const FileSystem& files, const std::string& model_path, const std::string& cache_dir,
                           const std::string& fingerprint, const KvGridShape& shape) {
  FoundKvSteps found;
  for (const std::string& path : kv_steps_paths(files, model_path, cache_dir, fingerprint)) {
    if (!files.exists(path)) continue;
    auto steps = read_steps(files, path, fingerprint, shape);
    if (!steps.ok()) {
      found.notes.push_back("Measured steps of the KV cache are not used: " + steps.error().message + ".");
      continue;
    }
    found.steps = *std::move(steps);
    found.path = path;
    break;
  }
  return found;
}

Status write_kv_steps(const KvSteps& steps, const std::string& path) {
  TRY_ASSIGN(const std::string text, kv_steps_text(steps));
  if (const std::string folder = parent_path(path); !folder.empty()) TRY(make_folders(folder));
  TRY_ASSIGN(WriteFile file, WriteFile::open(path + ".part"));
  TRY(file.resize(0));  // of a part that was left
  TRY(file.write(0, std::as_bytes(std::span(text))));
  return file.commit(path);
}

}  // namespace loralei
