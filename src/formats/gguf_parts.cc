// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_parts.h"

#include <cstdio>

#include "base/limits.h"

namespace loralei {

namespace {

// What a part says of itself and of the whole.
struct Split {
  int64_t part = 0;  // from 0
  int64_t parts = 1;
  int64_t tensors = 0;  // of all parts
};

Result<Split> split_of(const GgufFile& file) {
  Split split;
  TRY_ASSIGN(const auto parts, file.integer("split.count", 0, kMaxShards));
  if (parts.value_or(0) <= 1) return split;
  split.parts = *parts;
  TRY_ASSIGN(const auto part, file.integer("split.no", 0, split.parts - 1));
  TRY_ASSIGN(const auto tensors, file.integer("split.tensors.count", 0, kMaxTensors));
  if (!part || !tensors)
    return corrupt(file.path + ": is one of several parts, but lacks " + (part ? "split.tensors.count" : "split.no"));
  split.part = *part;
  split.tensors = *tensors;
  return split;
}

std::string ending(int64_t part, int64_t parts) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05d-of-%05d.gguf", static_cast<int>(part + 1), static_cast<int>(parts));
  return text;
}

std::string place(int64_t part, int64_t parts) {
  return "part " + std::to_string(part + 1) + " of " + std::to_string(parts);
}

Status add_part(GgufFile part, GgufFile& whole) {
  const auto number = static_cast<uint32_t>(whole.index.files.size());
  whole.index.files.push_back(part.path);
  whole.index.stamps.push_back(part.index.stamps.front());
  for (TensorInfo& tensor : part.index.tensors) {
    tensor.file = number;
    if (!whole.index.by_name.emplace(tensor.name, whole.index.tensors.size()).second)
      return corrupt(part.path + ": tensor \"" + tensor.name + "\" is also in another part of this model");
    whole.index.tensors.push_back(std::move(tensor));
  }
  return {};
}

}  // namespace

Result<GgufFile> read_gguf_parts(const FileSystem& files, const std::string& path) {
  TRY_ASSIGN(GgufFile whole, read_gguf(files, path));
  TRY_ASSIGN(const Split first, split_of(whole));
  if (first.parts == 1) return whole;
  const std::string name = ending(first.part, first.parts);
  if (!path.ends_with(name)) {
    return invalid_argument(path + ": is " + place(first.part, first.parts) +
                            " of a model, and the others are found by their names: give this one back its own, NAME" +
                            name);
  }
  const std::string stem = path.substr(0, path.size() - name.size());
  if (first.part != 0) {
    return invalid_argument(path + ": is " + place(first.part, first.parts) + " of a model; name the first part, " +
                            stem + ending(0, first.parts));
  }
  for (int64_t i = 1; i < first.parts; ++i) {
    const std::string part_path = stem + ending(i, first.parts);
    TRY(files.check_visible(part_path));
    if (files.kind(part_path) != PathKind::kFile) {
      return not_found(part_path + ": is not there, but it is " + place(i, first.parts) +
                       " of this model (download all its parts into one folder)");
    }
    TRY_ASSIGN(GgufFile part, read_gguf(files, part_path));
    TRY_ASSIGN(const Split split, split_of(part));
    if (split.part != i || split.parts != first.parts || split.tensors != first.tensors) {
      return corrupt(part_path + ": says that it is " + place(split.part, split.parts) + " with " +
                     std::to_string(split.tensors) + " tensors in all, but the first part's model has " +
                     std::to_string(first.parts) + " parts with " + std::to_string(first.tensors) +
                     " (download the parts again)");
    }
    TRY(add_part(std::move(part), whole));
  }
  if (std::ssize(whole.index.tensors) != first.tensors) {
    return corrupt(path + ": claims " + std::to_string(first.tensors) + " tensors in all its parts, but they hold " +
                   std::to_string(whole.index.tensors.size()) + " (download the parts again)");
  }
  return whole;
}

}  // namespace loralei
