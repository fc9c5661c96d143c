// SPDX-License-Identifier: Apache-2.0
#include "workload/lengths.h"

#include <algorithm>
#include <cmath>

#include "workload/csv.h"
#include "workload/draws.h"
#include "workload/spec.h"

namespace loralei {
namespace {

constexpr const char* kWhat = "lengths";
constexpr double kCharsPerToken = 4;

struct KnownColumns {
  const char *input, *output;
  double per_token;
};
constexpr KnownColumns kKnown[] = {
    {"ContextTokens", "GeneratedTokens", 1},
    {"prompt_tokens", "output_tokens", 1},
    {"input_tokens_llama2", "output_tokens_llama2", 1},
    {"input_chars", "output_chars", kCharsPerToken},
};
constexpr const char* kPoints[] = {"_p10", "_p25", "_p50", "_p75", "_p90", "_p99"};
constexpr double kChances[] = {0.10, 0.25, 0.50, 0.75, 0.90, 0.99};

// Reads one distribution: the columns NAME_mean, NAME_p10 ... NAME_p99.
class QuantileColumns {
 public:
  static Result<QuantileColumns> of(const CsvTable& table, const std::string& name) {
    QuantileColumns columns(table);
    TRY_ASSIGN(columns.mean_, table.need_column(name + "_mean"));
    for (size_t i = 0; i < std::size(kPoints); ++i) {
      TRY_ASSIGN(columns.points_[i], table.need_column(name + kPoints[i]));
    }
    return columns;
  }

  Result<WorkloadLengths::Quantiles> read(size_t row) const {
    const double most = static_cast<double>(kMaxModelLen);
    WorkloadLengths::Quantiles read;
    TRY_ASSIGN(const double mean, table_.number(row, mean_, 0, most));
    double before_tail = 0;  // what the chances up to the highest point have in the mean
    for (size_t i = 0; i < points_.size(); ++i) {
      TRY_ASSIGN(const double value, table_.number(row, points_[i], 0, most));
      if (i > 0 && value < read.values[i]) return table_.wrong(row, points_[i], "at or above the quantile before it");
      read.chances[i + 1] = kChances[i];
      read.values[i + 1] = value;
      if (i == 0) read.values[0] = value;
      before_tail += (read.chances[i + 1] - read.chances[i]) * (read.values[i + 1] + read.values[i]) / 2;
    }
    const double highest = read.values[6], chance = 1 - read.chances[6];
    read.chances[7] = 1;
    read.values[7] = std::clamp(2 * (mean - before_tail) / chance - highest, highest, most);
    return read;
  }

 private:
  explicit QuantileColumns(const CsvTable& table) : table_(table) {}
  const CsvTable& table_;
  size_t mean_ = 0;
  std::array<size_t, std::size(kPoints)> points_{};
};

}  // namespace

int32_t scaled_tokens(double tokens, double scale, int64_t most) {
  return static_cast<int32_t>(std::clamp(std::round(tokens * scale), 1.0, static_cast<double>(most)));
}

double WorkloadLengths::Quantiles::at(double chance) const {
  size_t i = 1;
  while (i + 1 < chances.size() && chance > chances[i]) ++i;
  const double part = (chance - chances[i - 1]) / (chances[i] - chances[i - 1]);
  return values[i - 1] + part * (values[i] - values[i - 1]);
}

WorkloadLengths::WorkloadLengths(const LengthOptions& options, Kind kind)
    : options_(options), kind_(kind), random_(stream_seed(options.seed, "lengths")) {}

Result<WorkloadLengths> WorkloadLengths::open(const LengthOptions& options) {
  const WorkloadSpec spec = parse_workload_spec(options.spec, options.spec.starts_with("fixed:") ? 2 : 0);
  if (spec.kind == "fixed") {
    if (!spec.file.empty()) return wrong_spec(kWhat, spec, "write fixed:IN:OUT.");
    WorkloadLengths lengths(options, Kind::kFixed);
    TRY_ASSIGN(const int64_t prompt, spec_count(kWhat, spec, 0, "IN", 1, kMaxModelLen));
    TRY_ASSIGN(const int64_t output, spec_count(kWhat, spec, 1, "OUT", 1, kMaxModelLen));
    lengths.rows_.push_back({static_cast<double>(prompt), static_cast<double>(output)});
    return lengths;
  }
  if ((spec.kind != "draw" && spec.kind != "order") || spec.file.empty())
    return wrong_spec(kWhat, spec, "write fixed:IN:OUT, draw:FILE or order:FILE.");
  TRY_ASSIGN(const CsvTable table, CsvTable::read(spec.file));
  const bool quantiles = table.column("input_p50").has_value();
  if (quantiles && spec.kind == "order")
    return wrong_spec(kWhat, spec, "a row of the file is a distribution, so there is no order. Write draw:FILE.");
  WorkloadLengths lengths(options, quantiles ? Kind::kQuantiles : spec.kind == "draw" ? Kind::kDraw : Kind::kOrder);
  TRY(quantiles ? lengths.read_quantiles(table) : lengths.read_rows(table));
  return lengths;
}

Status WorkloadLengths::read_rows(const CsvTable& table) {
  const auto known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const KnownColumns& one) {
    return table.column(one.input) && table.column(one.output);
  });
  if (known == std::end(kKnown)) {
    std::string pairs;
    for (const KnownColumns& one : kKnown)
      pairs += (pairs.empty() ? "" : "; ") + std::string(one.input) + " and " + one.output;
    return corrupt(table.path() + ":1: no two columns are known as lengths (" + pairs +
                   "; input_p10 and the others of ServeGen). The columns are " + table.column_names() + ".");
  }
  const size_t input = *table.column(known->input), output = *table.column(known->output);
  for (size_t row = 0; row < table.rows(); ++row) {
    TRY_ASSIGN(const double prompt, table.number(row, input, 0, static_cast<double>(kMaxModelLen)));
    TRY_ASSIGN(const double answer, table.number(row, output, 0, static_cast<double>(kMaxModelLen)));
    rows_.push_back({prompt / known->per_token, answer / known->per_token});
  }
  return {};
}

Status WorkloadLengths::read_quantiles(const CsvTable& table) {
  TRY_ASSIGN(const size_t client, table.need_column("client"));
  TRY_ASSIGN(const size_t start, table.need_column("start_s"));
  TRY_ASSIGN(const QuantileColumns input, QuantileColumns::of(table, "input"));
  TRY_ASSIGN(const QuantileColumns output, QuantileColumns::of(table, "output"));
  for (size_t row = 0; row < table.rows(); ++row) {
    QuantileRow read;
    TRY_ASSIGN(const double id, table.number(row, client, 0, 1e6));
    TRY_ASSIGN(read.start_s, table.number(row, start, 0, 1e9));
    TRY_ASSIGN(read.input, input.read(row));
    TRY_ASSIGN(read.output, output.read(row));
    std::vector<size_t>& rows = by_client_[static_cast<int32_t>(id)];
    if (!rows.empty() && read.start_s <= quantiles_[rows.back()].start_s)
      return table.wrong(row, start, "behind the time of this client's row before");
    rows.push_back(quantiles_.size());
    quantiles_.push_back(read);
  }
  return {};
}

// Draws once whatever it finds, so that who has rows changes nothing for others.
size_t WorkloadLengths::quantile_row(const WorkloadArrival& arrival) {
  const size_t any = below_draw(random_, quantiles_.size());
  const auto found = by_client_.find(arrival.client);
  if (found == by_client_.end()) return any;
  const std::vector<size_t>& rows = found->second;
  const auto later = std::upper_bound(rows.begin(), rows.end(), arrival.source_s,
                                      [this](double at_s, size_t row) { return at_s < quantiles_[row].start_s; });
  return later == rows.begin() ? rows.front() : *std::prev(later);
}

WorkloadLength WorkloadLengths::next(const WorkloadArrival& arrival) {
  Tokens tokens;
  if (kind_ == Kind::kQuantiles) {
    const QuantileRow& row = quantiles_[quantile_row(arrival)];
    tokens.prompt = row.input.at(random_.uniform());
    tokens.output = row.output.at(random_.uniform());
  } else {
    tokens = rows_[kind_ == Kind::kDraw ? below_draw(random_, rows_.size()) : next_row_++ % rows_.size()];
  }
  return {scaled_tokens(tokens.prompt, options_.scale, options_.prompt_max),
          scaled_tokens(tokens.output, options_.scale, options_.output_max)};
}

}  // namespace loralei
