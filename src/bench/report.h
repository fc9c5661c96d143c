// SPDX-License-Identifier: Apache-2.0
// BenchReport: the figures of one bench run, as a table on the screen, JSON and a page of
// HTML with charts (bench/report_page.h).
//
// A plain value, one thread. Row names are stable and lower-case
// ("decode.llama-1b.bf16.b8.tok_s"). A figure above its bound is a measuring error until
// explained and is marked as such. Failure: parse_report says in a sentence what the
// text, which is anybody's, lacks.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "report/chart.h"

namespace loralei {

struct BenchRow {
  std::string name;
  std::string unit;
  double value = 0;  // the median
  double min = 0;
  double max = 0;
  int samples = 1;
  std::optional<double> bound;
  std::optional<double> peer;  // the same figure of another program, measured in turn with ours
  int dropped = 0;             // rounds that did not count because other processes ran
  std::string note;            // "probe unreliable", "not resolved at this noise"

  std::optional<double> fraction() const {
    return bound && *bound > 0 ? std::optional<double>(value / *bound) : std::nullopt;
  }
  std::optional<double> ratio() const {
    return peer && *peer > 0 ? std::optional<double>(value / *peer) : std::nullopt;
  }
};

struct BenchTarget {
  std::string name;
  std::string op;  // ">=" or "<="
  double target = 0;
  double measured = 0;
  bool ok() const { return op == ">=" ? measured >= target : measured <= target; }
};

struct BenchReport {
  std::string scenario;
  std::string version;
  std::string time;                            // ISO 8601
  std::map<std::string, std::string> machine;  // cores, isa, memory
  std::map<std::string, std::string> args;
  std::vector<BenchRow> rows;
  std::vector<BenchTarget> targets;
  std::vector<Chart> plots;  // what happened in time, and distributions
  std::string command;       // as it was typed, without secrets; empty: not told
};

// Median, minimum and maximum of samples (not empty).
BenchRow summarise(std::string name, std::string unit, std::vector<double> samples);
double median(std::vector<double> values);

// Median and a 95 % interval of it by order statistics (binomial, normal approximation).
struct Interval {
  double low = 0, median = 0, high = 0;
};
Interval median_interval(std::vector<double> samples);
std::string interval_note(const Interval& interval);  // of a row

std::string report_time();  // now, ISO 8601
std::string report_table(const BenchReport& report);
std::string report_markdown(const BenchReport& report);  // figures, then targets
// Curves of the plots are thinned there.
std::string report_json(const BenchReport& report);
// What report_json wrote.
Result<BenchReport> parse_report(std::string_view text, const std::string& place);
std::string figure_text(double value);  // as tables show it
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace loralei
