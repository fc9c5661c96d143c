// SPDX-License-Identifier: Apache-2.0
// ReportPage: one HTML file that needs nothing else: no script, no other file, no host.
// It follows the reader's choice of light or dark, and prints.
//
// Thread: any; a plain value and a pure function.
// Invariants: the page is well-formed XML behind its first line; what stands in it is
// text, whatever it holds (report/markup.h). Every number of `figures` stands there with
// all its digits, as the value of a <data> element. Failure: none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/chart.h"

namespace loralei {

struct ReportTile {
  std::string value, unit, name;
};

struct ReportClaim {
  std::string words;  // what was to be, and what was measured
  bool ok = false;
};

struct ReportPage {
  std::string title, subtitle;
  std::vector<std::pair<std::string, std::string>> facts;  // machine, version, date
  std::string command;
  std::vector<ReportTile> tiles;  // the few numbers that stand large
  std::vector<ReportClaim> claims;
  std::vector<Chart> charts;
  ReportTable figures;
};

std::string report_page(const ReportPage& page);

}  // namespace loralei
