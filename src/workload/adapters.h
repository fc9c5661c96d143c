// SPDX-License-Identifier: Apache-2.0
// AdapterMix: which adapter a request asks for, by a word of how they are chosen:
//   none                       the base alone
//   uniform:N:RANK             N adapters of one rank, equally likely
//   powerlaw:N[:ALPHA]         N adapters, a fifth of them of each of the ranks 8, 16,
//                              32, 64 and 128; the i-th rank is drawn in proportion to
//                              i^-ALPHA (1 if left out), then any of its adapters
//                              (Chameleon, section 5.1)
//   functions:N[:sample]:FILE  N functions of a trace of calls, each an adapter as
//                              popular as it: the N most popular, or N drawn with the
//                              seed. Columns: function, invocations_per_day. The
//                              same five ranks in turn, from the most popular on
//   servegen                   the client of a ServeGen arrival; the five ranks in turn
//                              by the client's number
//
// Names are a000, a001, ... by place in the list (of servegen: by the client's number).
//
// Thread: immutable; draws take the caller's generator.
// Failure: a sentence about the word, or FILE:LINE about the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "workload/arrivals.h"
#include "workload/draws.h"
#include "workload/spec.h"

namespace loralei {

class AdapterMix {
 public:
  struct Named {
    std::string name;  // empty: the base
    int32_t rank = 0;
  };
  static Result<AdapterMix> open(const std::string& spec, uint64_t seed);

  // Every so many seconds each adapter gets the popularity of another one, of another
  // rank where there are several: of one a third of the list on. 0: never.
  void shift_every(double seconds) { shift_s_ = seconds; }
  Named draw(const WorkloadArrival& arrival, Prng& random) const;
  bool by_client() const { return by_client_; }  // needs arrivals that know their clients
  size_t size() const { return adapters_.size(); }
  double share(size_t index) const { return draw_->share(index); }

 private:
  static Result<AdapterMix> power_law_mix(const WorkloadSpec& spec);
  static Result<AdapterMix> functions_mix(const WorkloadSpec& spec, uint64_t seed);
  void add(const std::vector<double>& weights, const std::vector<int32_t>& ranks);

  bool by_client_ = false;
  double shift_s_ = 0;
  std::vector<Named> adapters_;
  std::optional<WeightedDraw> draw_;  // nothing: of no adapters, or by client
};

}  // namespace loralei
