// SPDX-License-Identifier: Apache-2.0
// SizeQueues: which queue a request waits in by its size, and how much of the server the
// requests of a queue may take together (Chameleon, §4.2; mechanisms §4).
//
//   size   = A * input / max + B * predicted output / max + C * adapter bytes / max
//   queue  = the group of sizes it lies in (sched/size_groups.h)
//   quota  = of the server's tokens (sched/token_quotas.h)
//
// The maxima are those of the last one to two intervals. There is one queue, which may
// take everything, until first_fit requests have come; groups and quotas are laid out
// anew then and every interval, from the requests that came within the last one (at
// least first_fit, at most kRecentMost).
//
// A request counts as its tokens, and at least as much as its part of the sequences that
// may run together: so quotas share slots where those are what is short.
//
// A queue's wanted time in the system is kSloFactor times what its requests take from
// admission to their end.
//
// Thread: one. Ownership: of its own numbers; time is an argument. Invariants (check()):
// what queues have taken is what was taken and not given back; the quotas add up to
// tokens_total. Cost: a request costs the same whatever waits or has been; refit() costs
// n log n of the recent ones.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/size_groups.h"
#include "sched/token_quotas.h"

namespace loralei {

struct RequestSize {
  int32_t input = 0;          // tokens of the prompt
  double output = 0;          // predicted
  int64_t adapter_bytes = 0;  // of all its adapters
};

class SizeQueues {
 public:
  struct Options {
    double input = 0.3, output = 0.5, adapter = 0.2;  // A, B, C
    int32_t queues_max = kSizeGroupsMax;
    size_t first_fit = 500;  // at most kRecentMost
    int64_t interval_ns = 300'000'000'000;
    int64_t bytes_per_token = 1;  // of KV: what turns an adapter's bytes into tokens
    int64_t tokens_total = 0;     // that KV and adapters have room for
    int32_t sequences_max = 0;    // that run together; 0: any number
  };
  static constexpr size_t kRecentMost = 4096;
  static constexpr double kSloFactor = 5;

  explicit SizeQueues(const Options& options);

  // --- sizes
  double size_of(const RequestSize& request) const;  // 0 to A + B + C; more where a maximum is exceeded
  int64_t tokens_of(const RequestSize& request) const;
  int32_t queue_of(double size) const { return groups_.of(size); }
  void arrived(const RequestSize& request, int64_t now_ns);
  // What it took from admission to its end.
  void ended(const RequestSize& request, double seconds);
  // Lays the queues out anew when that is due: then every request's queue is another, and
  // nothing is taken; whoever runs takes again.
  bool refit(int64_t now_ns);

  // --- quotas
  int32_t count() const { return groups_.count(); }
  void set_total(int64_t tokens);
  int64_t total() const { return options_.tokens_total; }
  int64_t quota(int32_t queue) const { return quotas_.tokens[static_cast<size_t>(queue)]; }
  int64_t taken(int32_t queue) const { return taken_[static_cast<size_t>(queue)]; }
  int64_t taken() const { return taken_all_; }
  void take(int32_t queue, int64_t tokens);
  void give_back(int32_t queue, int64_t tokens);
  // Of a step's rows for prompts, those of this queue's: its part of the quotas.
  double share(int32_t queue) const;

  // --- for status
  const SizeGroups& groups() const { return groups_; }
  const std::vector<QueueLoad>& loads() const { return loads_; }
  uint64_t refits() const { return refits_; }
  uint64_t arrivals() const { return arrivals_; }
  // The last time, or when the first request came.
  int64_t refit_ns() const { return refit_ns_; }
  const Options& options() const { return options_; }
  uint64_t times_short() const { return times_short_; }  // of them, where minima exceeded the total
  void check() const;

 private:
  struct Recent {
    RequestSize request;
    int64_t arrived_ns = 0;
  };
  struct Ended {
    RequestSize request;
    double seconds = 0;
  };
  struct Maxima {
    double input = 0, output = 0, adapter = 0;
    void include(const RequestSize& request);
  };
  template <typename Entry>
  static void keep(std::vector<Entry>& ring, size_t& next, const Entry& entry);
  void measure(int64_t now_ns);

  Options options_;
  Maxima before_, current_;  // of the interval before this one, and of this one
  std::vector<Recent> recent_;
  std::vector<Ended> ended_;
  size_t recent_next_ = 0, ended_next_ = 0;
  int64_t refit_ns_ = 0;  // last
  uint64_t arrivals_ = 0, refits_ = 0, times_short_ = 0;
  SizeGroups groups_;
  std::vector<QueueLoad> loads_;
  TokenQuotas quotas_;
  std::vector<int64_t> taken_;
  int64_t taken_all_ = 0;
};

}  // namespace loralei
