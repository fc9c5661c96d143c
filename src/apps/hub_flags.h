// SPDX-License-Identifier: Apache-2.0
// Models and adapters by their names on a hub, where a command takes a path:
// --offline, --download-dir, and what was typed to where it lies on this machine.
//
// Thread: one, at start. Ownership: borrows the log.
// Invariant: the environment is read, and a hub asked, only for what is no path.
// Failure: sentences that tell both readings of what was typed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/progress.h"
#include "base/log.h"
#include "base/result.h"
#include "hub/hub_pull.h"

namespace loralei {

struct HubFlags {
  bool offline = false;
  std::string download_dir;  // empty: as the environment says
};
// After the command's --model, whose help they complete.
void add_hub_options(CLI::App& command, HubFlags& flags, const std::string& group = {});
void add_download_dir_option(CLI::App& command, HubFlags& flags, const std::string& group = {});
// The environment's, with what was typed.
Result<HubSettings> hub_settings(const HubFlags& flags);

// What a download tells: lines to the log, and its progress as one line on the terminal
// or a line of the log now and then. Shown until it is destroyed.
class HubProgress {
 public:
  HubProgress(const std::string& name, LogSink& log);
  HubReport report() const;  // used while it lives

 private:
  static constexpr int kLogSeconds = 10;
  std::shared_ptr<ProgressPrinter> printer_;
  LogSink& log_;
};

// Where `typed` lies if it is a name: found in the cache or fetched, with lines to the
// log and progress on the terminal. Nothing: it is a path.
Result<std::optional<HubPlace>> find_hub_name(const std::string& typed, HubKind kind, const HubFlags& flags,
                                              LogSink& log);
// For the commands that take a path: `path` becomes that place's, if it is a name.
Status resolve_path(std::string& path, HubKind kind, const HubFlags& flags, LogSink& log);

// As adapter_flags.h asks for it.
using HubAdapters = std::function<Result<std::optional<HubPlace>>(const std::string& typed)>;
HubAdapters hub_adapters(const HubFlags& flags, LogSink& log);

}  // namespace loralei
