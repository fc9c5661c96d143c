// SPDX-License-Identifier: Apache-2.0
// Folders of Hugging Face's cache: models--ORG--NAME/snapshots/REVISION, with the
// revision of "main" in refs/main.
//
// Thread: pure functions over files. Ownership: values. Failure: a sentence where a
// folder is one of these and nothing in it can be read as a model.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "sys/file.h"

namespace loralei {

struct HubFolder {
  std::string path;  // of the snapshot
  std::string name;  // "ORG/NAME"
};

// Of models--ORG--NAME the snapshot of "main", or the only one there is; of a snapshot
// itself. Nothing where `path` is neither.
Result<std::optional<HubFolder>> find_hub_folder(const FileSystem& files, const std::string& path);

}  // namespace loralei
