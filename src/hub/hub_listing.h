// SPDX-License-Identifier: Apache-2.0
// HubListing: which files a revision has, as a hub says it. Untrusted: what a hub says
// become names of files on this machine.
//
// Thread: pure functions. Ownership: values.
// Invariants: every path is relative, in plain parts, printable and there once; the
// commit is 40 digits of hex.
// Failure: a sentence that says what is wrong with the list; nothing of it is used then.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr int64_t kMaxHubListBytes = int64_t{32} << 20;
inline constexpr size_t kMaxHubFiles = 10'000;

struct HubFile {
  std::string path;
  int64_t bytes = -1;  // -1: not said
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;

  const HubFile* find(std::string_view path) const;
};

// `place` stands for the answer in messages.
Result<HubListing> parse_hub_listing(std::string_view json, const std::string& place);
// Whether it can be a file below a folder of ours.
Status check_hub_path(std::string_view path);

// What a hub calls a file's contents: SHA-256 in hex for large files, SHA-1 in hex of a
// git blob for the others. An etag, perhaps quoted or weak, is one or an error.
Result<std::string> parse_hub_digest(std::string_view etag);

}  // namespace loralei
