// SPDX-License-Identifier: Apache-2.0
// A model or an adapter by its name on a hub: found in the cache, or fetched into it.
//
// Thread: one; its report is called on it.
// Ownership: values in and out.
// Invariants: what a revision names changes only when everything of the new commit is
// there. Two processes that want the same file fetch it once.
// Failure: sentences; what was fetched so far stays for the next time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "hub/hub_cache.h"
#include "hub/hub_settings.h"

namespace loralei {

struct HubReport {
  std::function<void(const std::string&)> say = [](const std::string&) {};              // a line
  std::function<void(int64_t done, int64_t total)> progress = [](int64_t, int64_t) {};  // bytes
};

// The newest of the revision: what is here already is not fetched again.
Result<HubPlace> pull_from_hub(const HubSettings& settings, const HubName& name, HubKind kind, const HubReport& report);
// As it is in the cache, whole; only else is the hub asked.
Result<HubPlace> find_or_pull(const HubSettings& settings, const HubName& name, HubKind kind, const HubReport& report);
// The name that a user means by `text`. Nothing: a path, because something is there, or
// because no name looks so.
Result<std::optional<HubName>> name_meant_by(const FileSystem& files, const std::string& text);
// find_or_pull() of it; a failure tells both readings of `text`.
Result<HubPlace> place_meant_by(const HubSettings& settings, const std::string& text, const HubName& name, HubKind kind,
                                const HubReport& report);

}  // namespace loralei
