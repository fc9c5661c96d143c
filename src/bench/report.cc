// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/check.h"

namespace loralei {

std::string figure_text(double value) {
  char text[32];
  const double size = std::fabs(value);
  std::snprintf(text, sizeof text, size >= 1000 ? "%.0f" : size >= 100 ? "%.1f" : size >= 1 ? "%.2f" : "%.4f", value);
  return text;
}

BenchRow summarise(std::string name, std::string unit, std::vector<double> samples) {
  CHECK(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  BenchRow row;
  row.name = std::move(name);
  row.unit = std::move(unit);
  row.value = samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  row.min = samples.front();
  row.max = samples.back();
  row.samples = static_cast<int>(samples.size());
  return row;
}

double median(std::vector<double> values) { return summarise("", "", std::move(values)).value; }

Interval median_interval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double count = static_cast<double>(samples.size());
  const double half_width = 0.98 * std::sqrt(count);
  const auto at = [&](double rank) { return samples[static_cast<size_t>(std::clamp(rank, 0.0, count - 1))]; };
  return {at(std::floor((count - 1) / 2 - half_width)), at((count - 1) / 2),
          at(std::ceil((count - 1) / 2 + half_width))};
}

std::string interval_note(const Interval& interval) {
  char note[96];
  std::snprintf(note, sizeof note, "95 %% interval of the median %.4f .. %.4f", interval.low, interval.high);
  return note;
}

std::string report_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string report_table(const BenchReport& report) {
  size_t width = 24;
  for (const BenchRow& row : report.rows) width = std::max(width, row.name.size());
  char line[512];
  std::snprintf(line, sizeof line, "%-*s %10s %-7s %10s %10s %4s %10s %8s %10s %8s\n", static_cast<int>(width),
                report.scenario.c_str(), "median", "unit", "min", "max", "n", "bound", "fraction", "peer", "ratio");
  std::string out = line;
  for (const BenchRow& row : report.rows) {
    const auto fraction = row.fraction();
    std::snprintf(line, sizeof line, "%-*s %10s %-7s %10s %10s %4d %10s %8s %10s %8s  %s\n", static_cast<int>(width),
                  row.name.c_str(), figure_text(row.value).c_str(), row.unit.c_str(), figure_text(row.min).c_str(),
                  figure_text(row.max).c_str(), row.samples, row.bound ? figure_text(*row.bound).c_str() : "",
                  fraction ? figure_text(*fraction).c_str() : "", row.peer ? figure_text(*row.peer).c_str() : "",
                  row.ratio() ? figure_text(*row.ratio()).c_str() : "", row.note.c_str());
    out += line;
  }
  for (const BenchTarget& target : report.targets) {
    out += std::string(target.ok() ? "  met     " : "  MISSED  ") + target.name + " " + target.op + " " +
           figure_text(target.target) + ": measured " + figure_text(target.measured) + "\n";
  }
  return out;
}

std::string report_markdown(const BenchReport& report) {
  std::string out =
      "| " + report.scenario + " | median | min .. max | n | bound | fraction | |\n|---|---|---|---|---|---|---|\n";
  for (const BenchRow& row : report.rows) {
    const auto fraction = row.fraction();
    out += "| " + row.name + " | " + figure_text(row.value) + " " + row.unit + " | " + figure_text(row.min) + " .. " +
           figure_text(row.max) + " | " + std::to_string(row.samples) + " | " +
           (row.bound ? figure_text(*row.bound) : "") + " | " + (fraction ? figure_text(*fraction) : "") + " | " +
           row.note + " |\n";
  }
  if (report.targets.empty()) return out;
  out += "\n| number | value | target | met |\n|---|---|---|---|\n";
  for (const BenchTarget& target : report.targets) {
    out += "| " + target.name + " | " + figure_text(target.measured) + " | " + target.op + " " +
           figure_text(target.target) + " | " + (target.ok() ? "yes" : "NO") + " |\n";
  }
  return out;
}

Status write_text_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    return io_error("Cannot write '" + path + "'; choose a path in a folder that exists and is writable.");
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) return io_error("Writing '" + path + "' failed; is the disk full?");
  return {};
}

}  // namespace loralei
