// SPDX-License-Identifier: Apache-2.0
// The step log: a line of text for every step of a server (--step-log), to be fitted,
// replayed or plotted.
//
//   step,begin_ns,ns,waited_ns,prefill_rows,...,admitted
//   17,81234567,41234567,0,0,32,0,40960,32,8,128,16,32,512,2,
//   18,122468101,98234567,0,96,32,4656,40992,33,9,144,16,128,2048,0,57 58
//
// The first line names the columns. `admitted`: ids, with spaces between. Lines that
// begin with # are remarks, as where lines were lost because the disk was too slow.
//
// Thread: add() by one thread, which never waits for the disk; the rest are pure
// functions. The file stays open to the end of the process, as LineWriter asks. Failure:
// sentences with file and line.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/step_features.h"
#include "sys/line_writer.h"

namespace loralei {

std::string step_log_head();
std::string step_log_line(const StepRecord& record);
// `place` names the file in messages.
Result<std::vector<StepRecord>> parse_step_log(std::string_view text, const std::string& place);

class StepLog {
 public:
  static Result<std::unique_ptr<StepLog>> create(const std::string& path);  // an old file is overwritten
  void add(const StepRecord& record) { writer_.push(step_log_line(record)); }
  bool flush(int64_t timeout_ms) { return writer_.flush(timeout_ms); }

 private:
  explicit StepLog(int descriptor);
  LineWriter writer_;
};

}  // namespace loralei
