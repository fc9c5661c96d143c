// SPDX-License-Identifier: Apache-2.0
// KeptLengths: what a server has learned of answers' lengths, in its --state-dir: a file
// for each base model (sched/lengths_state.h).
//
// Thread: recall() by one thread at start; keep() by any one, which never waits for the
// disk. Ownership: of the file's thread; borrows the log. Failure: a folder that cannot
// be written is refused at the start. A file that cannot be used is a line in the log,
// and is written anew.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "engine/engine_host.h"
#include "sched/lengths_state.h"
#include "sys/kept_file.h"

namespace loralei {

class KeptLengths {
 public:
  // Makes the folder, and sets `options` to recall from it and keep there; outlives the
  // engine. Null where there is no folder, or nothing is learned.
  static Result<std::unique_ptr<KeptLengths>> open(const std::string& folder, LogSink& log, EngineHostOptions& options);
  static std::string path_in(const std::string& folder, const std::string& base);

 private:
  KeptLengths(std::string folder, LogSink& log) : folder_(std::move(folder)), log_(log) {}
  std::shared_ptr<const LengthsState> recall(const std::string& base);
  void keep(LengthsState&& state);

  const std::string folder_;
  LogSink& log_;
  std::string base_;
  std::unique_ptr<KeptFile> file_;
};

}  // namespace loralei
