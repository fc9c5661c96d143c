// SPDX-License-Identifier: Apache-2.0
// Pages of HTML of one report, and of several beside each other (report/page.h).
//
// Thread: any; pure. Invariants: every number is one of the report's rows or points, as
// its table and its JSON have them. Failure: none.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/report.h"

namespace loralei {

std::string report_html(const BenchReport& report);

struct NamedReport {
  std::string file;
  BenchReport report;
};

// What tells each run from the others: its options that they do not share, or its file.
std::vector<std::string> run_names(std::span<const NamedReport> runs);

// Charts of all together. Where served workloads of several rates are among them, what
// became of them stands against the rate.
std::string comparison_html(const std::string& title, const std::string& command, std::span<const NamedReport> runs);

}  // namespace loralei
