// SPDX-License-Identifier: Apache-2.0
// Where reports of bench, profile and simulate go, and what a report says of the machine
// and of what was typed.
//
// Thread: one. Invariant: a page or JSON of a report is at its path whole or not at all.
// Failure: sentences with the path.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "bench/report.h"

namespace loralei {

struct ReportFlags {
  std::string json, page;
  bool any() const { return !json.empty() || !page.empty(); }
};

// --json and --report; the latter's old name is --html.
void add_report_options(CLI::App& command, ReportFlags& flags);

// The options that were stated, with their values as `words` (as of typed_command) have
// them where that can be told: CLI11 puts numbers in the place of names.
std::map<std::string, std::string> stated_options(const CLI::App& command, std::string_view words);
std::map<std::string, std::string> stated_options(const CLI::App& command);  // of this process

// Date, machine and command of this process.
void say_where(BenchReport& report);
Status write_report_json(const ReportFlags& flags, const BenchReport& report);
Status write_report_page(const ReportFlags& flags, const BenchReport& report);

// Words of a command as one would type them in a shell; of options that are or hold
// secrets ("--api-key") only the names. `words` are parted by zeros, as the system has
// them.
std::string typed_command(std::string_view words);
std::string own_command();  // of this process; empty where the system does not say

}  // namespace loralei
