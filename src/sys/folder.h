// SPDX-License-Identifier: Apache-2.0
// UntrustedFolder: a folder whose contents are not trusted, held open, and everything
// below it. Nothing outside of it is reached through it, whatever links lie there and
// whoever exchanges them meanwhile.
//
// Thread: every method may be called from any thread at once.
// Ownership: a UntrustedFolder owns its open handle; Files outlive it.
// Invariants: paths are relative to the folder; links are followed as long as they stay
// below it (an absolute one too, where it names a place below it); what is checked is
// what is open: kind, stamp, size and bytes come from one handle; nothing waits for
// a pipe or a device.
// Failure: kForbidden with the name of the link that leads out; kInvalidArgument for a
// link that leads nowhere or what is no regular file; kNotFound where nothing is there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "sys/file.h"

namespace loralei {

class UntrustedFolder {
 public:
  struct Seen {
    PathKind kind = PathKind::kAbsent;
    FileStamp stamp;
  };
  virtual ~UntrustedFolder() = default;
  virtual Result<std::unique_ptr<File>> open(const std::string& path) const = 0;
  virtual Result<Seen> look(const std::string& path) const = 0;
  // All that lies in it, sorted by name; also what cannot be opened, as no folder:
  // open() says why.
  virtual Result<std::vector<DirEntry>> list(const std::string& path) const = 0;
};

// How a path is followed: by the system (openat2) with ours for what it refuses, or step
// by step alone, as where the system has no such call. Both find the same.
enum class FolderWalk : unsigned char { kSystem, kSteps };

// `real_path`: as real_path() gives it; `name` stands for it in messages.
Result<std::unique_ptr<UntrustedFolder>> open_posix_folder(const std::string& real_path, const std::string& name,
                                                           FolderWalk walk = FolderWalk::kSystem);

// The sentences of all kinds of UntrustedFolder.
Error link_leads_out(const std::string& link, const std::string& target, const std::string& folder);
Error link_leads_nowhere(const std::string& link);
Error path_leads_out(const std::string& path, const std::string& folder);
Error not_a_regular_file(const std::string& path, PathKind kind);

}  // namespace loralei
