// SPDX-License-Identifier: Apache-2.0
// loralei pull NAME...: models and adapters from a hub into Hugging Face's cache, where
// every command finds them by their names.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/console_log.h"
#include "apps/hub_flags.h"
#include "apps/options.h"
#include "base/printable.h"

namespace loralei {
namespace {

struct PullFlags {
  std::vector<std::string> names;
  std::string revision;
  HubFlags hub;
};

Status pull_one(const PullFlags& flags, const HubSettings& settings, const std::string& typed, LogSink& log) {
  TRY_ASSIGN(std::optional<HubName> name, parse_hub_name(typed));
  if (!name) {
    return invalid_argument("'" + printable(typed) +
                            "' is no name on a hub: write ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M.");
  }
  if (!flags.revision.empty()) {
    const bool other = name->revision != "main" && name->revision != flags.revision;
    const std::string with = name->repository + "@" + flags.revision + (name->file.empty() ? "" : ":" + name->file);
    TRY_ASSIGN(name, parse_hub_name(with));
    if (!name || other)
      return invalid_argument("--revision " + printable(flags.revision) + " does not fit " + typed + ".");
  }
  Result<HubPlace> place = internal_error("");
  {
    const HubProgress progress(name->text(), log);
    HubReport report = progress.report();
    report.say = [](const std::string& line) {
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    };
    place = pull_from_hub(settings, *name, HubKind::kAny, report);
  }
  if (!place.ok()) return place.error();
  std::printf("%s\n", printable(place->path).c_str());
  return {};
}

Status pull(const PullFlags& flags) {
  ConsoleLog log(ConsoleLog::Options{});
  TRY_ASSIGN(const HubSettings settings, hub_settings(flags.hub));
  for (const std::string& name : flags.names) TRY(pull_one(flags, settings, name, log));
  return {};
}

}  // namespace

void add_pull_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("pull", "Fetch models and adapters from a hub, by their names.");
  auto flags = std::make_shared<PullFlags>();
  command
      ->add_option("name", flags->names,
                   "ORG/NAME, ORG/NAME@REVISION, or ORG/NAME:Q4_K_M for the GGUF file of that format; several of these")
      ->required();
  command->add_option("--revision", flags->revision, "branch, tag or commit (default: main)");
  add_hub_options(*command, flags->hub);
  command->callback([flags, &exit_code] {
    const Status status = pull(*flags);
    if (status.ok()) return;
    print_error("pull", status.error());
    exit_code = status.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace loralei
