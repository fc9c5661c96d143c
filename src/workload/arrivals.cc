// SPDX-License-Identifier: Apache-2.0
#include "workload/arrivals.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "base/prng.h"
#include "workload/csv.h"
#include "workload/draws.h"
#include "workload/servegen_arrivals.h"
#include "workload/spec.h"
#include "workload/workload.h"

namespace loralei {
namespace {

constexpr const char* kWhat = "arrivals";
constexpr double kRateMin = 1e-6, kRateMax = 1e6;  // requests a second
constexpr double kCvMin = 0.01, kCvMax = 50;

Error too_many(const ArrivalOptions& options) {
  return too_large("arrivals '" + options.spec + "' are more than " + std::to_string(kWorkloadLinesMax) +
                   " requests. Ask for fewer seconds or a lower rate.");
}
Error too_late(const ArrivalOptions& options) {
  return too_large("arrivals '" + options.spec + "' last longer than " + std::to_string(kWorkloadSecondsMax) +
                   " seconds. Ask for fewer requests or a higher rate.");
}

Result<std::vector<WorkloadArrival>> renewals(const ArrivalOptions& options, double rate, const GapShape& gap) {
  if (options.seconds == 0 && options.count == 0)
    return invalid_argument("arrivals '" + options.spec + "' have no end. State the seconds or the count.");
  Prng random(stream_seed(options.seed, "arrivals"));
  std::vector<WorkloadArrival> arrivals;
  double at_s = first_gap_draw(random, gap) / rate;
  while (options.count == 0 || static_cast<int64_t>(arrivals.size()) < options.count) {
    if (options.seconds > 0 && at_s >= options.seconds) break;
    if (at_s > static_cast<double>(kWorkloadSecondsMax)) return too_late(options);
    if (static_cast<int64_t>(arrivals.size()) == kWorkloadLinesMax) return too_many(options);
    arrivals.push_back({.at_ns = static_cast<int64_t>(at_s * 1e9)});
    at_s += gap_draw(random, gap) / rate;
  }
  return arrivals;
}

Result<std::vector<WorkloadArrival>> poisson_arrivals(const ArrivalOptions& options, const WorkloadSpec& spec) {
  TRY_ASSIGN(const double rate, spec_number(kWhat, spec, 0, "RPS", kRateMin, kRateMax));
  return renewals(options, rate * options.rate_scale, {.shape = 1});
}

Result<std::vector<WorkloadArrival>> gamma_arrivals(const ArrivalOptions& options, const WorkloadSpec& spec) {
  TRY_ASSIGN(const double rate, spec_number(kWhat, spec, 0, "RPS", kRateMin, kRateMax));
  TRY_ASSIGN(const double cv, spec_number(kWhat, spec, 1, "CV", kCvMin, kCvMax));
  return renewals(options, rate * options.rate_scale, {.shape = 1 / (cv * cv)});
}

// Digits [at, at + count) of the text.
std::optional<int> digits(std::string_view text, size_t at, size_t count) {
  int number = 0;
  for (const char c : text.substr(std::min(at, text.size()), count)) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + (c - '0');
  }
  return at + count <= text.size() ? std::optional(number) : std::nullopt;
}

// Nanoseconds of "2023-11-16 18:15:46.6805900" since 1970; also with T for the space.
std::optional<int64_t> date_ns(std::string_view text) {
  const auto year = digits(text, 0, 4), month = digits(text, 5, 2), day = digits(text, 8, 2);
  const auto hour = digits(text, 11, 2), minute = digits(text, 14, 2), second = digits(text, 17, 2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (text[4] != '-' || text[7] != '-' || (text[10] != ' ' && text[10] != 'T') || text[13] != ':' || text[16] != ':')
    return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *year < 1970 || *year > 2200 || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  int64_t ns = 0;
  if (text.size() > 19) {
    const size_t count = text.size() - 20;
    const auto part = digits(text, 20, count);
    if (text[19] != '.' || count == 0 || count > 9 || !part) return std::nullopt;
    ns = *part;
    for (size_t i = count; i < 9; ++i) ns *= 10;
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * kNsPerSecond + ns;
}

// Reads the column of times, whatever it is called.
class TraceTimes {
 public:
  static Result<TraceTimes> of(const CsvTable& table) {
    for (const Known& known : kKnown)
      if (const auto column = table.column(known.name)) return TraceTimes(table, *column, known);
    return corrupt(table.path() + ":1: there is no column of times: TIMESTAMP, timestamp_ms or t. The columns are " +
                   table.column_names() + ".");
  }
  Result<int64_t> ns(size_t row) const {
    if (known_.ns_per_unit == 0) {
      if (const auto ns = date_ns(table_.cell(row, column_))) return *ns;
      return table_.wrong(row, column_, "a time such as 2023-11-16 18:15:46.25");
    }
    const double most = static_cast<double>(std::numeric_limits<int64_t>::max()) / known_.ns_per_unit / 4;
    TRY_ASSIGN(const double units, table_.number(row, column_, -most, most));
    return static_cast<int64_t>(std::llround(units * known_.ns_per_unit));
  }
  Error goes_back(size_t row) const { return table_.wrong(row, column_, "at or after the time of the row before"); }

 private:
  struct Known {
    const char* name;
    double ns_per_unit;  // 0: dates
  };
  static constexpr Known kKnown[] = {{"TIMESTAMP", 0}, {"timestamp_ms", 1e6}, {"t", 1e9}};

  TraceTimes(const CsvTable& table, size_t column, const Known& known)
      : table_(table), column_(column), known_(known) {}
  const CsvTable& table_;
  size_t column_;
  Known known_;
};

Result<std::vector<WorkloadArrival>> trace_arrivals(const ArrivalOptions& options, const WorkloadSpec& spec) {
  if (spec.file.empty()) return wrong_spec(kWhat, spec, "no file is named. Write trace:FILE.");
  TRY_ASSIGN(const CsvTable table, CsvTable::read(spec.file));
  TRY_ASSIGN(const TraceTimes times, TraceTimes::of(table));
  std::vector<WorkloadArrival> arrivals;
  int64_t first_ns = 0, last_ns = 0;
  for (size_t row = 0; row < table.rows(); ++row) {
    if (options.count > 0 && static_cast<int64_t>(arrivals.size()) == options.count) break;
    TRY_ASSIGN(const int64_t ns, times.ns(row));
    if (row == 0) first_ns = last_ns = ns;
    if (ns < last_ns) return times.goes_back(row);
    last_ns = ns;
    const double at_ns = std::round(static_cast<double>(ns - first_ns) / options.rate_scale);
    if (options.seconds > 0 && at_ns >= options.seconds * 1e9) break;
    if (at_ns > static_cast<double>(kWorkloadSecondsMax * kNsPerSecond)) return too_late(options);
    if (static_cast<int64_t>(arrivals.size()) == kWorkloadLinesMax) return too_many(options);
    arrivals.push_back({.at_ns = static_cast<int64_t>(at_ns)});
  }
  return arrivals;
}

}  // namespace

double gap_draw(Prng& random, const GapShape& gap) {
  if (gap.weibull) return weibull_draw(random, gap.shape) / std::tgamma(1 + 1 / gap.shape);
  return gap.shape == 1 ? exponential_draw(random) : gamma_draw(random, gap.shape) / gap.shape;
}

// A moment falls into a gap with a chance in proportion to the gap's length, and
// anywhere in it. Gaps weighted by their lengths are of the gamma distribution with a
// shape larger by 1, or of the Weibull one as a power of a gamma draw.
double first_gap_draw(Prng& random, const GapShape& gap) {
  const double left = 1 - random.uniform();
  if (!gap.weibull) return left * gamma_draw(random, gap.shape + 1) / gap.shape;
  const double inverse = 1 / gap.shape;
  return left * std::pow(gamma_draw(random, 1 + inverse), inverse) / std::tgamma(1 + inverse);
}

Result<std::vector<WorkloadArrival>> make_arrivals(const ArrivalOptions& options) {
  const WorkloadSpec spec = parse_workload_spec(options.spec, 3);
  const bool random = spec.kind == "poisson" || spec.kind == "gamma";
  const size_t numbers = spec.kind == "poisson" ? 1 : spec.kind == "gamma" ? 2 : 3;
  if (random && (!spec.file.empty() || spec.numbers.size() != numbers))
    return wrong_spec(kWhat, spec, spec.kind == "poisson" ? "write poisson:RPS." : "write gamma:RPS:CV.");
  if (spec.kind == "poisson") return poisson_arrivals(options, spec);
  if (spec.kind == "gamma") return gamma_arrivals(options, spec);
  if (spec.kind == "trace") return trace_arrivals(options, parse_workload_spec(options.spec, 0));
  if (spec.kind == "servegen") return make_servegen_arrivals(options, spec);
  return wrong_spec(kWhat, spec,
                    "write poisson:RPS, gamma:RPS:CV, trace:FILE or servegen[:RPS[:CLIENTS[:START]]]:FILE.");
}

}  // namespace loralei
