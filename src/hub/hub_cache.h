// SPDX-License-Identifier: Apache-2.0
// The folder where what comes from a hub lies, as Hugging Face's own library has it, so
// that each finds what the other has fetched:
//   models--ORG--NAME/refs/REVISION               its commit
//   models--ORG--NAME/blobs/DIGEST                what files hold
//   models--ORG--NAME/snapshots/COMMIT/PATH       links to blobs
//   .locks/models--ORG--NAME/DIGEST.lock          held by who fetches a blob
//
// Thread: functions over files, any thread. Ownership: values.
// Invariant: a snapshot is used only when all that is needed of it is there.
// Failure: a sentence with the path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/hub_choice.h"
#include "hub/hub_name.h"
#include "sys/file.h"

namespace loralei {

// A model or adapter on this machine.
struct HubPlace {
  std::string path;        // a folder, or a GGUF file
  std::string repository;  // "ORG/NAME"
  std::string commit;
  bool adapter = false;
};

struct CachedHubModel {
  std::optional<HubPlace> place;  // where it is there and whole
  std::string missing;            // else why not: "... is not there" or what lacks
};
CachedHubModel find_in_hub_cache(const FileSystem& files, const std::string& cache_dir, const HubName& name,
                                 HubKind kind);
// The files of a snapshot, as paths below it, sorted; at most kMaxHubFiles of them.
std::vector<std::string> snapshot_files(const FileSystem& files, const std::string& snapshot);
// Of the weights that an index in the folder names, the first that is not there; "".
std::string missing_weights(const FileSystem& files, const std::string& snapshot);

struct HubListed {
  std::string repository, commit;
  std::vector<std::string> revisions;  // that name the commit
  std::string path;
  std::string kind;  // "model", "adapter", or "other"
  std::string base;  // of an adapter, as its config names it
  int64_t bytes = 0;
  bool whole = false;
};
// Every snapshot of every model in the folder, by name; empty where there is no folder.
std::vector<HubListed> list_hub_cache(const FileSystem& files, const std::string& cache_dir);

}  // namespace loralei
