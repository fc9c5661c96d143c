// SPDX-License-Identifier: Apache-2.0
#include "sched/size_queues.h"

#include <algorithm>

#include "base/check.h"

namespace loralei {
namespace {

double part(double number, double most) { return most > 0 ? number / most : 0; }

}  // namespace

SizeQueues::SizeQueues(const Options& options) : options_(options), groups_{.centres = {0}, .borders = {}} {
  CHECK(options.bytes_per_token > 0 && options.tokens_total >= 0 && options.interval_ns > 0);
  CHECK(options.first_fit >= 1 && options.first_fit <= kRecentMost);
  CHECK(options.queues_max >= 1 && options.queues_max <= kSizeGroupsMax);
  loads_.assign(1, QueueLoad{.slo_s = 1});
  quotas_ = share_tokens(loads_, options.tokens_total);
  taken_.assign(1, 0);
}

void SizeQueues::Maxima::include(const RequestSize& request) {
  input = std::max(input, static_cast<double>(request.input));
  output = std::max(output, request.output);
  adapter = std::max(adapter, static_cast<double>(request.adapter_bytes));
}

double SizeQueues::size_of(const RequestSize& request) const {
  return options_.input * part(request.input, std::max(before_.input, current_.input)) +
         options_.output * part(request.output, std::max(before_.output, current_.output)) +
         options_.adapter *
             part(static_cast<double>(request.adapter_bytes), std::max(before_.adapter, current_.adapter));
}

int64_t SizeQueues::tokens_of(const RequestSize& request) const {
  const int64_t slot = options_.sequences_max > 0 ? options_.tokens_total / options_.sequences_max : 0;
  return std::max(
      slot, request.input + static_cast<int64_t>(request.output) + request.adapter_bytes / options_.bytes_per_token);
}

template <typename Entry>
void SizeQueues::keep(std::vector<Entry>& ring, size_t& next, const Entry& entry) {
  if (ring.size() < kRecentMost) {
    ring.push_back(entry);
  } else {
    ring[next] = entry;
  }
  next = (next + 1) % kRecentMost;
}

void SizeQueues::arrived(const RequestSize& request, int64_t now_ns) {
  CHECK(request.input >= 0 && request.output >= 0 && request.adapter_bytes >= 0);
  if (arrivals_++ == 0) refit_ns_ = now_ns;
  current_.include(request);
  keep(recent_, recent_next_, {request, now_ns});
}

void SizeQueues::ended(const RequestSize& request, double seconds) {
  CHECK(seconds >= 0);
  keep(ended_, ended_next_, {request, seconds});
}

bool SizeQueues::refit(int64_t now_ns) {
  const bool first = refits_ == 0 && arrivals_ >= options_.first_fit;
  if (!first && now_ns - refit_ns_ < options_.interval_ns) return false;
  refit_ns_ = now_ns;
  before_ = current_;
  current_ = {};
  if (arrivals_ < options_.first_fit) return false;
  ++refits_;
  measure(now_ns);
  taken_.assign(static_cast<size_t>(count()), 0);
  taken_all_ = 0;
  return true;
}

// Groups, and what each of them asks for, from the requests of the last interval.
void SizeQueues::measure(int64_t now_ns) {
  std::vector<Recent> recent = recent_;
  std::sort(recent.begin(), recent.end(), [](const Recent& a, const Recent& b) { return a.arrived_ns > b.arrived_ns; });
  const auto old = std::find_if(recent.begin(), recent.end(),
                                [&](const Recent& one) { return now_ns - one.arrived_ns > options_.interval_ns; });
  const auto within = static_cast<size_t>(old - recent.begin());
  recent.resize(std::min(recent.size(), std::max(within, options_.first_fit)));
  std::vector<double> sizes;
  for (const Recent& one : recent) sizes.push_back(size_of(one.request));
  std::vector<double> sorted = sizes;
  std::sort(sorted.begin(), sorted.end());
  groups_ = choose_size_groups(sorted, options_.queues_max);
  const auto queues = static_cast<size_t>(count());
  const double seconds = std::max(1e-3, static_cast<double>(now_ns - recent.back().arrived_ns) * 1e-9);
  loads_.assign(queues, QueueLoad{});
  for (size_t i = 0; i < recent.size(); ++i) {
    QueueLoad& load = loads_[static_cast<size_t>(queue_of(sizes[i]))];
    load.arrivals_per_s += 1 / seconds;
    load.largest_tokens = std::max(load.largest_tokens, static_cast<double>(tokens_of(recent[i].request)));
  }
  std::vector<double> counts(queues);
  double all_seconds = 0;
  for (const Ended& one : ended_) {
    const auto queue = static_cast<size_t>(queue_of(size_of(one.request)));
    loads_[queue].duration_s += one.seconds;
    ++counts[queue];
    all_seconds += one.seconds / static_cast<double>(ended_.size());
  }
  for (size_t queue = 0; queue < queues; ++queue) {
    QueueLoad& load = loads_[queue];
    load.duration_s = counts[queue] > 0 ? load.duration_s / counts[queue] : all_seconds;
    load.slo_s = std::max(1e-3, kSloFactor * load.duration_s);
  }
  quotas_ = share_tokens(loads_, options_.tokens_total);
  times_short_ += quotas_.short_of ? 1 : 0;
}

void SizeQueues::set_total(int64_t tokens) {
  CHECK(tokens >= 0);
  options_.tokens_total = tokens;
  quotas_ = share_tokens(loads_, tokens);
}

void SizeQueues::take(int32_t queue, int64_t tokens) {
  CHECK(tokens >= 0);
  taken_[static_cast<size_t>(queue)] += tokens;
  taken_all_ += tokens;
}

void SizeQueues::give_back(int32_t queue, int64_t tokens) {
  CHECK(tokens >= 0 && taken(queue) >= tokens);
  taken_[static_cast<size_t>(queue)] -= tokens;
  taken_all_ -= tokens;
}

double SizeQueues::share(int32_t queue) const {
  if (options_.tokens_total == 0) return 1.0 / count();
  return static_cast<double>(quota(queue)) / static_cast<double>(options_.tokens_total);
}

void SizeQueues::check() const {
  CHECK(static_cast<size_t>(count()) == taken_.size() && quotas_.tokens.size() == taken_.size());
  int64_t quotas = 0, taken = 0;
  for (int32_t queue = 0; queue < count(); ++queue) {
    CHECK(quota(queue) >= 0 && this->taken(queue) >= 0);
    quotas += quota(queue);
    taken += this->taken(queue);
  }
  CHECK(quotas == options_.tokens_total && taken == taken_all_);
}

}  // namespace loralei
