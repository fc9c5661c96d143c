// SPDX-License-Identifier: Apache-2.0
#include "apps/hub_flags.h"

#include <memory>
#include <utility>

#include "apps/progress.h"
#include "sys/env.h"
#include "sys/file.h"

namespace loralei {

void add_hub_options(CLI::App& command, HubFlags& flags, const std::string& group) {
  if (CLI::Option* const model = command.get_option_no_throw("--model"); model != nullptr)
    model->description(model->get_description() + ", or ORG/NAME[@REVISION][:Q4_K_M] on a hub");
  command
      .add_flag("--offline", flags.offline,
                "ask no hub: names such as ORG/NAME are looked for in the cache alone (as HF_HUB_OFFLINE=1)")
      ->group(group.empty() ? "Options" : group);
  add_download_dir_option(command, flags, group);
}

void add_download_dir_option(CLI::App& command, HubFlags& flags, const std::string& group) {
  command
      .add_option("--download-dir", flags.download_dir,
                  "folder of what comes from a hub, laid out as Hugging Face's cache (default: that one; HF_HUB_CACHE)")
      ->group(group.empty() ? "Options" : group);
}

Result<HubSettings> hub_settings(const HubFlags& flags) {
  TRY_ASSIGN(HubSettings settings, read_hub_settings(PosixFileSystem(), env_string));
  settings.offline |= flags.offline;
  if (!flags.download_dir.empty()) settings.cache_dir = flags.download_dir;
  return settings;
}

Result<std::optional<HubPlace>> find_hub_name(const std::string& typed, HubKind kind, const HubFlags& flags,
                                              LogSink& log) {
  TRY_ASSIGN(const std::optional<HubName> name, name_meant_by(PosixFileSystem(), typed));
  if (!name) return std::optional<HubPlace>();
  TRY_ASSIGN(const HubSettings settings, hub_settings(flags));
  const HubProgress progress(name->text(), log);
  TRY_ASSIGN(HubPlace place, place_meant_by(settings, typed, *name, kind, progress.report()));
  return std::optional<HubPlace>(std::move(place));
}

Status resolve_path(std::string& path, HubKind kind, const HubFlags& flags, LogSink& log) {
  TRY_ASSIGN(const std::optional<HubPlace> place, find_hub_name(path, kind, flags, log));
  if (place) path = place->path;
  return {};
}

HubAdapters hub_adapters(const HubFlags& flags, LogSink& log) {
  return [flags, &log](const std::string& typed) { return find_hub_name(typed, HubKind::kAdapter, flags, log); };
}

HubProgress::HubProgress(const std::string& name, LogSink& log)
    : printer_(std::make_shared<ProgressPrinter>("fetching " + name, log, kLogSeconds)), log_(log) {}

HubReport HubProgress::report() const {
  HubReport report;
  report.say = [&log = log_](const std::string& line) { log.log(LogLevel::kInfo, line); };
  report.progress = [printer = printer_, first = true](int64_t done, int64_t total) mutable {
    if (std::exchange(first, false)) printer->begin_at(done);  // an earlier run's
    printer->update(done, total);
  };
  return report;
}

}  // namespace loralei
