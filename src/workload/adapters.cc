// SPDX-License-Identifier: Apache-2.0
#include "workload/adapters.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "base/limits.h"
#include "workload/csv.h"

namespace loralei {
namespace {

constexpr const char* kWhat = "adapters";
constexpr int64_t kAdaptersMax = 1'000'000;
constexpr double kAlphaMax = 20;
constexpr std::array<int32_t, 5> kRanks = {8, 16, 32, 64, 128};

std::string adapter_name(size_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "a%03zu", number);
  return text;
}

struct Popularity {
  size_t row = 0;
  double calls = 0;
};

Result<std::vector<Popularity>> read_popularity(const CsvTable& table) {
  TRY(table.need_column("function"));
  TRY_ASSIGN(const size_t column, table.need_column("invocations_per_day"));
  std::vector<Popularity> functions;
  for (size_t row = 0; row < table.rows(); ++row) {
    TRY_ASSIGN(const double calls, table.number(row, column, 0, 1e15));
    if (calls > 0) functions.push_back({row, calls});
  }
  return functions;
}

// The first `count` of them are a sample without repetition.
void sample_first(std::vector<Popularity>& functions, size_t count, uint64_t seed) {
  Prng random(stream_seed(seed, "sample of functions"));
  for (size_t i = 0; i < count; ++i) std::swap(functions[i], functions[i + below_draw(random, functions.size() - i)]);
}

}  // namespace

void AdapterMix::add(const std::vector<double>& weights, const std::vector<int32_t>& ranks) {
  for (size_t i = 0; i < weights.size(); ++i) adapters_.push_back({adapter_name(i), ranks[i]});
  draw_.emplace(weights);
}

Result<AdapterMix> AdapterMix::power_law_mix(const WorkloadSpec& spec) {
  if (!spec.file.empty()) return wrong_spec(kWhat, spec, "write powerlaw:N[:ALPHA].");
  TRY_ASSIGN(const int64_t count, spec_count(kWhat, spec, 0, "N", 5, kAdaptersMax));
  double alpha = 1;
  if (spec.numbers.size() > 1) {
    TRY_ASSIGN(alpha, spec_number(kWhat, spec, 1, "ALPHA", 0, kAlphaMax));
  }
  if (count % 5 != 0)
    return wrong_spec(kWhat, spec, "N is shared equally by five ranks, so it must be a multiple of 5.");
  const std::vector<double> of_ranks = power_law(kRanks.size(), alpha);
  const size_t of_each = static_cast<size_t>(count) / kRanks.size();
  std::vector<double> weights;
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    weights.push_back(of_ranks[i / of_each]);
    ranks.push_back(kRanks[i / of_each]);
  }
  AdapterMix mix;
  mix.add(weights, ranks);
  return mix;
}

Result<AdapterMix> AdapterMix::functions_mix(const WorkloadSpec& spec, uint64_t seed) {
  TRY_ASSIGN(const int64_t count, spec_count(kWhat, spec, 0, "N", 1, kAdaptersMax));
  const std::string sample = "sample:";
  const bool sampled = spec.file.starts_with(sample);
  const std::string path = sampled ? spec.file.substr(sample.size()) : spec.file;
  if (path.empty()) return wrong_spec(kWhat, spec, "no file is named. Write functions:N[:sample]:FILE.");
  TRY_ASSIGN(const CsvTable table, CsvTable::read(path));
  TRY_ASSIGN(std::vector<Popularity> functions, read_popularity(table));
  const size_t wanted = static_cast<size_t>(count);
  if (wanted > functions.size())
    return wrong_spec(
        kWhat, spec,
        "the file has " + std::to_string(functions.size()) + " functions with calls. Ask for at most so many.");
  if (sampled) {
    sample_first(functions, wanted, seed);
    functions.resize(wanted);
  }
  std::sort(functions.begin(), functions.end(), [](const Popularity& a, const Popularity& b) {
    return a.calls != b.calls ? a.calls > b.calls : a.row < b.row;
  });
  functions.resize(wanted);
  std::vector<double> weights;
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < functions.size(); ++i) {
    weights.push_back(functions[i].calls);
    ranks.push_back(kRanks[i % kRanks.size()]);
  }
  AdapterMix mix;
  mix.add(weights, ranks);
  return mix;
}

Result<AdapterMix> AdapterMix::open(const std::string& text, uint64_t seed) {
  const WorkloadSpec spec = parse_workload_spec(text, 2);
  AdapterMix mix;
  if (text == "none") return mix;
  if (text == "servegen") {
    mix.by_client_ = true;
    return mix;
  }
  if (spec.kind == "powerlaw") return power_law_mix(spec);
  if (spec.kind == "functions") return functions_mix(parse_workload_spec(text, 1), seed);
  if (spec.kind != "uniform" || !spec.file.empty())
    return wrong_spec(kWhat, spec,
                      "write none, uniform:N:RANK, powerlaw:N[:ALPHA], functions:N[:sample]:FILE or servegen.");
  TRY_ASSIGN(const int64_t count, spec_count(kWhat, spec, 0, "N", 1, kAdaptersMax));
  TRY_ASSIGN(const int64_t rank, spec_count(kWhat, spec, 1, "RANK", 1, kMaxLoraRank));
  const size_t size = static_cast<size_t>(count);
  mix.add(std::vector<double>(size, 1.0), std::vector<int32_t>(size, static_cast<int32_t>(rank)));
  return mix;
}

AdapterMix::Named AdapterMix::draw(const WorkloadArrival& arrival, Prng& random) const {
  if (by_client_) {
    const size_t client = static_cast<size_t>(arrival.client);
    return {adapter_name(client), kRanks[client % kRanks.size()]};
  }
  if (!draw_) return {};
  const size_t drawn = draw_->draw(random);
  if (shift_s_ <= 0) return adapters_[drawn];
  const auto times = static_cast<size_t>(static_cast<double>(arrival.at_ns) * 1e-9 / shift_s_);
  return adapters_[(drawn + times * (adapters_.size() / 3 + 1)) % adapters_.size()];
}

}  // namespace loralei
