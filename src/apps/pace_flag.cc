// SPDX-License-Identifier: Apache-2.0
#include "apps/pace_flag.h"

#include <memory>
#include <utility>

#include "apps/simulation.h"
#include "base/printable.h"
#include "engine/pace.h"

namespace loralei {

void add_pace_option(CLI::App& command, std::string& name, const std::string& group) {
  command
      .add_option("--pace", name,
                  "profile (a file of loralei profile, or a name that loralei simulate knows) of a machine whose time "
                  "steps and loads of adapters take at least: to try what stands in front of servers, not to measure")
      ->group(group);
}

Status set_pace(const std::string& name, EngineHostOptions& options, ServeOptions& serve, LogSink& log) {
  if (name.empty()) return {};
  auto found = find_profile(name);
  if (!found.ok()) return std::move(found).error().with_context("--pace");
  Profile profile = *std::move(found);
  if (profile.name.empty()) profile.name = name;
  const Profile told = told_pace(profile, static_cast<bool>(options.device));
  if (serve.cost.empty()) serve.cost = profile_text(told);
  serve.told_rank_bytes = told.model.adapter_bytes_per_rank;
  log.log(LogLevel::kWarning, "This server is paced: steps and loads of adapters take what the profile '" +
                                  printable(profile.name) +
                                  "' says of another machine. No time here is one of this machine.");
  options.pace = std::make_shared<const Profile>(std::move(profile));
  return {};
}

}  // namespace loralei
