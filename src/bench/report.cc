// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace loralei {
namespace {

using nlohmann::ordered_json;

std::string number(double value) {
  char text[32];
  const double size = std::fabs(value);
  std::snprintf(text, sizeof text, size >= 1000 ? "%.0f" : size >= 100 ? "%.1f" : size >= 1 ? "%.2f" : "%.4f", value);
  return text;
}

// A bar of the value's share of its bound; rows without a bound have none.
std::string svg_bar(const BenchRow& row) {
  const auto fraction = row.fraction();
  if (!fraction) return "";
  const int width = static_cast<int>(std::clamp(*fraction, 0.0, 1.2) * 100);
  return "<svg width=\"122\" height=\"12\" role=\"img\"><rect width=\"100\" height=\"12\" fill=\"#e6e8ee\"/><rect "
         "width=\"" +
         std::to_string(width) + "\" height=\"12\" fill=\"" + (*fraction > 1.0 ? "#c0392b" : "#3b6fd4") +
         "\"/><line x1=\"100\" x2=\"100\" y2=\"12\" stroke=\"#333\"/></svg>";
}

}  // namespace

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
                  row.name.c_str(), number(row.value).c_str(), row.unit.c_str(), number(row.min).c_str(),
                  number(row.max).c_str(), row.samples, row.bound ? number(*row.bound).c_str() : "",
                  fraction ? number(*fraction).c_str() : "", row.peer ? number(*row.peer).c_str() : "",
                  row.ratio() ? number(*row.ratio()).c_str() : "", row.note.c_str());
    out += line;
  }
  for (const BenchTarget& target : report.targets) {
    out += std::string(target.ok() ? "  met     " : "  MISSED  ") + target.name + " " + target.op + " " +
           number(target.target) + ": measured " + number(target.measured) + "\n";
  }
  return out;
}

std::string report_markdown(const BenchReport& report) {
  std::string out =
      "| " + report.scenario + " | median | min .. max | n | bound | fraction | |\n|---|---|---|---|---|---|---|\n";
  for (const BenchRow& row : report.rows) {
    const auto fraction = row.fraction();
    out += "| " + row.name + " | " + number(row.value) + " " + row.unit + " | " + number(row.min) + " .. " +
           number(row.max) + " | " + std::to_string(row.samples) + " | " + (row.bound ? number(*row.bound) : "") +
           " | " + (fraction ? number(*fraction) : "") + " | " + row.note + " |\n";
  }
  if (report.targets.empty()) return out;
  out += "\n| number | value | target | met |\n|---|---|---|---|\n";
  for (const BenchTarget& target : report.targets) {
    out += "| " + target.name + " | " + number(target.measured) + " | " + target.op + " " + number(target.target) +
           " | " + (target.ok() ? "yes" : "NO") + " |\n";
  }
  return out;
}

std::string report_json(const BenchReport& report) {
  ordered_json json;
  json["scenario"] = report.scenario;
  json["version"] = report.version;
  json["time"] = report.time;
  json["machine"] = report.machine;
  json["args"] = report.args;
  json["rows"] = ordered_json::array();
  for (const BenchRow& row : report.rows) {
    ordered_json entry{{"name", row.name}, {"unit", row.unit}, {"value", row.value},
                       {"min", row.min},   {"max", row.max},   {"n", row.samples}};
    if (row.bound) {
      entry["bound"] = *row.bound;
      entry["fraction"] = *row.fraction();
    }
    if (row.peer) {
      entry["peer"] = *row.peer;
      if (row.ratio()) entry["ratio"] = *row.ratio();
    }
    if (row.dropped > 0) entry["dropped"] = row.dropped;
    if (!row.note.empty()) entry["note"] = row.note;
    json["rows"].push_back(std::move(entry));
  }
  json["targets"] = ordered_json::array();
  for (const BenchTarget& target : report.targets) {
    json["targets"].push_back({{"name", target.name},
                               {"op", target.op},
                               {"target", target.target},
                               {"measured", target.measured},
                               {"ok", target.ok()}});
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string report_html(const BenchReport& report) {
  std::string page = "<!doctype html><meta charset=\"utf-8\"><title>loralei bench " + html_escape(report.scenario) +
                     "</title><style>:root{color-scheme:light dark}body{font:15px "
                     "system-ui;margin:2rem}h2{font-size:1rem}table{border-collapse:collapse}"
                     "td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid "
                     "#ddd}td:first-child,th:first-child{text-align:left}"
                     "</style><h1>" +
                     html_escape(report.scenario) + "</h1><p>";
  for (const auto& [key, value] : report.machine) page += html_escape(key) + ": " + html_escape(value) + "; ";
  page += html_escape(report.time + ", " + report.version);
  page +=
      "</p><table><tr><th>figure<th>median<th>unit<th>min<th>max<th>n<th>bound<th>fraction<th><th>peer<th>ratio<th></"
      "tr>";
  for (const BenchRow& row : report.rows) {
    const auto fraction = row.fraction();
    page += "<tr><td>" + html_escape(row.name) + "<td>" + number(row.value) + "<td>" + html_escape(row.unit) + "<td>" +
            number(row.min) + "<td>" + number(row.max) + "<td>" + std::to_string(row.samples) + "<td>" +
            (row.bound ? number(*row.bound) : "") + "<td>" + (fraction ? number(*fraction) : "") + "<td>" +
            svg_bar(row) + "<td>" + (row.peer ? number(*row.peer) : "") + "<td>" +
            (row.ratio() ? number(*row.ratio()) : "") + "<td>" + html_escape(row.note) + "</tr>";
  }
  page += "</table>";
  for (const BenchTarget& target : report.targets) {
    page += "<p>" + std::string(target.ok() ? "met" : "<b>missed</b>") + ": " + html_escape(target.name) + " " +
            html_escape(target.op) + " " + number(target.target) + ", measured " + number(target.measured) + "</p>";
  }
  for (const BenchPlot& plot : report.plots) page += "<h2>" + html_escape(plot.title) + "</h2>" + plot_svg(plot);
  return page + "\n";
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
