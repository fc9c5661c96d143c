// SPDX-License-Identifier: Apache-2.0
// Folders of Hugging Face's cache: models--ORG--NAME/snapshots/COMMIT, with the commit of
// "main" in refs/main.
// Where they lie, and who fills them: hub/.
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

// "models--ORG--NAME" of "ORG/NAME", and back ("" where it is none).
std::string hub_folder_of(const std::string& name);
std::string hub_name_of(const std::string& folder);
// The commit that refs/REVISION of such a folder names; "" where it names none.
std::string hub_commit(const FileSystem& files, const std::string& folder, const std::string& revision);

}  // namespace loralei
