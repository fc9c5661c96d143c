// SPDX-License-Identifier: Apache-2.0
#include "workload/served.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace loralei {
namespace {

constexpr double kWidth = 1.01, kFirstNs = 1000;  // what is shorter counts as a microsecond
constexpr size_t kBuckets = 2600;                 // up to some hours
constexpr int32_t kPromptClasses[] = {128, 512, 1024, 2048, 4096};

std::string prompt_class(int32_t tokens) {
  for (const int32_t most : kPromptClasses)
    if (tokens <= most) return "prompt_to_" + std::to_string(most);
  return "prompt_longer";
}
std::string rank_class(const WorkloadRequest& request) {
  if (request.adapter.empty()) return "base";
  return request.rank > 0 ? "rank_" + std::to_string(request.rank) : "adapters";
}

struct Times {
  ServedClass told;
  std::vector<double> first_s, end_s, token_s;
};

double end_s(const WorkloadRequest& request, const ServedRequest& served) {
  return static_cast<double>(served.end_ns - request.at_ns) * 1e-9;
}
double first_s(const WorkloadRequest& request, const ServedRequest& served) {
  return static_cast<double>(served.first_ns - request.at_ns) * 1e-9;
}
double token_s(const WorkloadRequest& request, const ServedRequest& served) {
  return end_s(request, served) / std::max(1, served.tokens);
}

bool meets(const ServedObjectives& objectives, const WorkloadRequest& request, const ServedRequest& served) {
  if (objectives.first_s && first_s(request, served) > *objectives.first_s) return false;
  return !objectives.token_s || token_s(request, served) <= *objectives.token_s;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

void count(const WorkloadRequest& request, const ServedRequest& served, Times& times) {
  ++times.told.requests;
  times.told.failed += served.failed ? 1 : 0;
  if (served.failed) return;
  CHECK(request.at_ns <= served.first_ns && served.first_ns <= served.end_ns);
  times.first_s.push_back(first_s(request, served));
  times.end_s.push_back(end_s(request, served));
  times.token_s.push_back(token_s(request, served));
}

ServedClass tell(const std::string& name, Times&& times) {
  ServedClass told = times.told;
  told.name = name;
  told.mean_first_s = mean(times.first_s);
  told.mean_end_s = mean(times.end_s);
  told.mean_token_s = mean(times.token_s);
  told.first_s = percentiles_of(std::move(times.first_s));
  told.end_s = percentiles_of(std::move(times.end_s));
  told.token_s = percentiles_of(std::move(times.token_s));
  return told;
}

}  // namespace

size_t GapCounts::bucket_of(int64_t ns) {
  const double steps = std::log(std::max(static_cast<double>(ns), kFirstNs) / kFirstNs) / std::log(kWidth);
  return std::min(static_cast<size_t>(steps), kBuckets - 1);
}

void GapCounts::add(int64_t ns) {
  CHECK(ns >= 0);
  if (buckets_.empty()) buckets_.resize(kBuckets);
  ++buckets_[bucket_of(ns)];
  ++count_;
}

void GapCounts::add(const GapCounts& other) {
  if (other.count_ == 0) return;
  if (buckets_.empty()) buckets_.resize(kBuckets);
  for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

double GapCounts::percentile_s(double share) const {
  if (count_ == 0) return 0;
  auto left = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(share * static_cast<double>(count_))));
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && (left -= buckets_[bucket]) > 0) ++bucket;
  return seconds_of(bucket);
}

double GapCounts::seconds_of(size_t bucket) {
  return kFirstNs * 1e-9 * std::pow(kWidth, static_cast<double>(bucket) + 0.5);
}

std::vector<std::pair<double, double>> GapCounts::distribution() const {
  std::vector<std::pair<double, double>> shares;
  int64_t sum = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (buckets_[bucket] == 0) continue;
    sum += buckets_[bucket];
    shares.emplace_back(seconds_of(bucket), static_cast<double>(sum) / static_cast<double>(count_));
  }
  return shares;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Percentiles percentiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)};
}

ServedSummary summarise(std::span<const WorkloadRequest> workload, std::span<const ServedRequest> served,
                        const GapCounts& gaps, const ServedObjectives& objectives) {
  CHECK(workload.size() == served.size());
  std::map<std::string, Times> by_prompt;
  std::map<std::pair<int32_t, std::string>, Times> by_rank;  // ranks as numbers ascend
  Times all;
  ServedSummary summary;
  double well = 0, tokens = 0, good = 0;
  for (size_t i = 0; i < workload.size(); ++i) {
    const WorkloadRequest& request = workload[i];
    count(request, served[i], all);
    count(request, served[i], by_rank[{request.rank, rank_class(request)}]);
    count(request, served[i], by_prompt[prompt_class(request.prompt_tokens)]);
    summary.seconds = std::max(summary.seconds, static_cast<double>(served[i].end_ns) * 1e-9);
    if (served[i].failed) continue;
    ++well;
    tokens += served[i].tokens;
    good += objectives.any() && meets(objectives, request, served[i]) ? 1 : 0;
  }
  summary.classes.push_back(tell("all", std::move(all)));
  for (auto& [rank, times] : by_rank) summary.classes.push_back(tell(rank.second, std::move(times)));
  for (const int32_t most : kPromptClasses) {
    const auto found = by_prompt.find(prompt_class(most));
    if (found != by_prompt.end()) summary.classes.push_back(tell(found->first, std::move(found->second)));
  }
  if (const auto found = by_prompt.find("prompt_longer"); found != by_prompt.end())
    summary.classes.push_back(tell(found->first, std::move(found->second)));
  summary.gap_s = {gaps.percentile_s(0.5), gaps.percentile_s(0.9), gaps.percentile_s(0.99)};
  if (!workload.empty() && workload.back().at_ns > workload.front().at_ns)
    summary.offered_per_s = static_cast<double>(workload.size() - 1) * 1e9 /
                            static_cast<double>(workload.back().at_ns - workload.front().at_ns);
  if (summary.seconds > 0) {
    summary.requests_per_s = well / summary.seconds;
    summary.tokens_per_s = tokens / summary.seconds;
    summary.good_per_s = good / summary.seconds;
    summary.good_share = good / static_cast<double>(workload.size());
  }
  return summary;
}

}  // namespace loralei
