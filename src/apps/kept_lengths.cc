// SPDX-License-Identifier: Apache-2.0
#include "apps/kept_lengths.h"

#include <cstdio>
#include <span>
#include <utility>

#include "base/fast_hash.h"
#include "sys/file.h"
#include "sys/write_file.h"

namespace loralei {

std::string KeptLengths::path_in(const std::string& folder, const std::string& base) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(base));
  char name[40];
  std::snprintf(name, sizeof(name), "lengths-%016llx.state",
                static_cast<unsigned long long>(fast_hash(bytes.data(), bytes.size(), 0)));
  return join_path(folder, name);
}

Result<std::unique_ptr<KeptLengths>> KeptLengths::open(const std::string& folder, LogSink& log,
                                                       EngineHostOptions& options) {
  if (folder.empty()) return std::unique_ptr<KeptLengths>();
  if (options.engine.scheduling.policy == SchedulePolicy::kFifo) {
    log.log(LogLevel::kInfo,
            "--state-dir has nothing to keep with --schedule-policy fifo; sjf and wrs learn how long answers are.");
    return std::unique_ptr<KeptLengths>();
  }
  Status made = make_folders(folder);
  if (made.ok()) {
    auto probe = WriteFile::open(join_path(folder, "lengths-probe.state.part"));
    made = probe.ok() ? remove_file(probe->path()) : Status(probe.error());
  }
  if (!made.ok()) return Error(made.error()).with_context("--state-dir needs a folder that can be written");
  std::unique_ptr<KeptLengths> kept(new KeptLengths(folder, log));
  options.recall_lengths = [lengths = kept.get()](const std::string& base) { return lengths->recall(base); };
  options.keep_lengths = [lengths = kept.get()](LengthsState&& state) { lengths->keep(std::move(state)); };
  return kept;
}

std::shared_ptr<const LengthsState> KeptLengths::recall(const std::string& base) {
  base_ = base;
  const std::string path = path_in(folder_, base);
  auto file = KeptFile::start(path, log_);
  if (file.ok()) file_ = std::move(*file);
  if (!file.ok()) log_.log(LogLevel::kWarning, "--state-dir: " + file.error().message + "; nothing is kept there.");
  const PosixFileSystem files;
  if (!files.exists(path)) return nullptr;
  const auto bytes = files.read_all(path, kLengthsBytesMost);
  auto state = bytes.ok() ? decode_lengths(*bytes, base) : Result<LengthsState>(bytes.error());
  if (state.ok()) {
    log_.log(LogLevel::kInfo, "--state-dir: lengths of answers as learned before, of " +
                                  std::to_string(state->adapters.size()) + " adapters");
    return std::make_shared<const LengthsState>(std::move(*state));
  }
  log_.log(LogLevel::kWarning, "--state-dir: '" + path + "' is not used (" + state.error().message +
                                   "). Lengths are learned from nothing and written in its place; copy it elsewhere "
                                   "first if it is wanted.");
  return nullptr;
}

void KeptLengths::keep(LengthsState&& state) {
  if (file_ == nullptr) return;
  file_->put([base = base_, state = std::make_shared<const LengthsState>(std::move(state))] {
    return encode_lengths(*state, base);
  });
}

}  // namespace loralei
