// SPDX-License-Identifier: Apache-2.0
#include "workload/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/printable.h"

namespace loralei {
namespace {

WorkloadSummary::Lengths lengths_of(std::span<const WorkloadRequest> requests, int32_t WorkloadRequest::*length) {
  std::vector<int32_t> sorted;
  for (const WorkloadRequest& request : requests) sorted.push_back(request.*length);
  std::sort(sorted.begin(), sorted.end());
  WorkloadSummary::Lengths lengths;
  for (const int32_t one : sorted) lengths.sum += one;
  const auto at = [&sorted](size_t percent) { return sorted[(sorted.size() * percent + 99) / 100 - 1]; };
  lengths.mean = static_cast<double>(lengths.sum) / static_cast<double>(sorted.size());
  lengths.p50 = at(50);
  lengths.p99 = at(99);
  return lengths;
}

void add_times(std::span<const WorkloadRequest> requests, WorkloadSummary& summary) {
  summary.seconds = static_cast<double>(requests.back().at_ns) / 1e9;
  const double gaps = static_cast<double>(requests.size() - 1);
  const double span_s = static_cast<double>(requests.back().at_ns - requests.front().at_ns) / 1e9;
  if (span_s == 0) return;
  const double mean_s = span_s / gaps;
  double squares = 0;
  for (size_t i = 1; i < requests.size(); ++i) {
    const double gap_s = static_cast<double>(requests[i].at_ns - requests[i - 1].at_ns) / 1e9;
    squares += (gap_s - mean_s) * (gap_s - mean_s);
  }
  summary.rate = 1 / mean_s;
  summary.gap_cv = std::sqrt(squares / gaps) / mean_s;
}

void add_adapters(std::span<const WorkloadRequest> requests, WorkloadSummary& summary) {
  struct Asked {
    int32_t rank = 0;
    int64_t requests = 0;
  };
  std::map<std::string, Asked> asked;  // in the order of names, so that equal ones are told alike
  for (const WorkloadRequest& request : requests) {
    if (request.adapter.empty()) {
      ++summary.base_requests;
      continue;
    }
    Asked& one = asked[request.adapter];
    one.rank = std::max(one.rank, request.rank);
    ++one.requests;
  }
  summary.adapters = static_cast<int64_t>(asked.size());
  std::map<int32_t, WorkloadSummary::RankShare> ranks;
  for (const auto& [name, one] : asked) {
    WorkloadSummary::RankShare& share = ranks[one.rank];
    share.rank = one.rank;
    ++share.adapters;
    share.requests += one.requests;
    if (one.requests > summary.most_asked_requests) {
      summary.most_asked_requests = one.requests;
      summary.most_asked = name;
    }
  }
  for (const auto& [rank, share] : ranks) summary.ranks.push_back(share);
}

// How much of each prefix was told before, by anybody and by the same adapter.
void add_prefixes(std::span<const WorkloadRequest> requests, WorkloadSummary& summary) {
  std::unordered_map<std::string, int32_t> told;
  std::map<std::pair<std::string, std::string>, int32_t> told_by;  // by adapter and prefix
  for (const WorkloadRequest& request : requests) {
    int32_t shared = 0, shared_by_adapter = 0;
    for (const WorkloadPrefix& prefix : request.prefixes) {
      int32_t& before = told[prefix.id];
      int32_t& before_by = told_by[{request.adapter, prefix.id}];
      shared = std::max(shared, std::min(before, prefix.tokens));
      shared_by_adapter = std::max(shared_by_adapter, std::min(before_by, prefix.tokens));
      before = std::max(before, prefix.tokens);
      before_by = std::max(before_by, prefix.tokens);
    }
    summary.shared_tokens += shared;
    summary.shared_by_adapter_tokens += shared_by_adapter;
  }
}

int64_t distinct(std::span<const WorkloadRequest> requests, std::string WorkloadRequest::*name) {
  std::unordered_set<std::string> names;
  for (const WorkloadRequest& request : requests)
    if (!(request.*name).empty()) names.insert(request.*name);
  return static_cast<int64_t>(names.size());
}

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}
std::string percent(int64_t part, int64_t whole) {
  return number(whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}
std::string line(const std::string& name, const std::string& text) {
  return name + std::string(name.size() < 16 ? 16 - name.size() : 1, ' ') + text + "\n";
}
std::string lengths_text(const WorkloadSummary::Lengths& lengths) {
  return "mean " + number(lengths.mean, 1) + ", P50 " + std::to_string(lengths.p50) + ", P99 " +
         std::to_string(lengths.p99) + ", together " + std::to_string(lengths.sum);
}

}  // namespace

WorkloadSummary summarise_workload(std::span<const WorkloadRequest> requests) {
  WorkloadSummary summary;
  summary.requests = static_cast<int64_t>(requests.size());
  if (requests.empty()) return summary;
  add_times(requests, summary);
  summary.prompt = lengths_of(requests, &WorkloadRequest::prompt_tokens);
  summary.output = lengths_of(requests, &WorkloadRequest::output_tokens);
  add_adapters(requests, summary);
  add_prefixes(requests, summary);
  summary.apps = distinct(requests, &WorkloadRequest::app);
  summary.keys = distinct(requests, &WorkloadRequest::key);
  return summary;
}

std::string summary_text(const WorkloadSummary& summary) {
  std::string text = line("requests", std::to_string(summary.requests));
  text += line("seconds", number(summary.seconds, 3));
  text += line("requests/s", number(summary.rate, 3));
  text += line("CV of gaps", number(summary.gap_cv, 3));
  text += line("prompt tokens", lengths_text(summary.prompt));
  text += line("output tokens", lengths_text(summary.output));
  text += line("adapters",
               std::to_string(summary.adapters) + ", without one " + percent(summary.base_requests, summary.requests));
  if (summary.adapters > 0)
    text += line("most asked",
                 printable(summary.most_asked, 80) + ", " + percent(summary.most_asked_requests, summary.requests));
  for (const WorkloadSummary::RankShare& share : summary.ranks)
    text += line(share.rank == 0 ? "rank not stated" : "rank " + std::to_string(share.rank),
                 std::to_string(share.adapters) + " adapters, " + percent(share.requests, summary.requests));
  text += line("shared prefix", percent(summary.shared_tokens, summary.prompt.sum) +
                                    " of prompt tokens, with the same adapter " +
                                    percent(summary.shared_by_adapter_tokens, summary.prompt.sum));
  if (summary.apps > 0) text += line("apps", std::to_string(summary.apps));
  if (summary.keys > 0) text += line("keys", std::to_string(summary.keys));
  return text;
}

}  // namespace loralei
