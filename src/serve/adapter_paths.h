// SPDX-License-Identifier: Apache-2.0
// Where adapters may lie: the roots of --adapter-dir, what is found below them, and
// whether a path given over HTTP lies below one.
//
// Thread: pure but for reading folders; any thread.
// Ownership: borrows the FileSystem.
// Invariants: links are resolved before a path is compared with a root; the answer to a
// path outside does not tell whether it exists.
// Failure: kForbidden outside the roots (also when there are none), kNotFound inside when
// nothing is there; a root that cannot be read.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "sys/file.h"

namespace loralei {

struct AdapterPath {
  std::string path;  // resolved
  std::string root;  // resolved
};
Result<AdapterPath> resolve_adapter_path(const FileSystem& files, const std::vector<std::string>& roots,
                                         const std::string& requested);

struct FoundAdapter {
  std::string name;  // the folder's
  std::string path;
};
// Sub-folders that hold an adapter_config.json or one *.gguf file; those whose links
// lead out of the root are left out, and everything left out for a reason has a
// sentence in `notes`.
Result<std::vector<FoundAdapter>> scan_adapter_root(const FileSystem& files, const std::string& root,
                                                    std::vector<std::string>& notes);

// Names go into comma-separated lists and log lines, and BASE:NAME and NAME@3 must name
// one adapter, whatever others there are.
Status check_adapter_name(const std::string& name, const std::vector<std::string>& model_names);

}  // namespace loralei
