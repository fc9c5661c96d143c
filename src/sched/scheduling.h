// SPDX-License-Identifier: Apache-2.0
// Scheduling: who stands where in admission, by the policy that the server was started
// with (mechanisms §4).
//
//   fifo  one queue, by arrival
//   sjf   one queue, by predicted time; who waits rises: a second of waiting is worth
//         kAgeing seconds of it. Bound: a request of r seconds is passed by one of s only
//         if that came within (r - s) / kAgeing behind it.
//   wrs   a queue for each group of sizes, and a quota for each queue (SizeQueues), by
//         arrival in each of them
//
// Thread: one. Ownership: of its own numbers; step times are borrowed. Time is an
// argument. Invariant (check()): what the queues have taken is what the standings of
// those that run say. No policy reads what it could not know: an answer's length is
// predicted from those that have ended.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "sched/admission.h"
#include "sched/output_lengths.h"
#include "sched/size_queues.h"
#include "sched/step_times.h"

namespace loralei {

enum class SchedulePolicy : uint8_t { kFifo, kSjf, kWrs };
enum class LengthPrediction : uint8_t {
  kHistory,    // OutputLengths
  kMaxTokens,  // as long as the request allows
};

struct SchedulingOptions {
  SchedulePolicy policy = SchedulePolicy::kFifo;
  LengthPrediction prediction = LengthPrediction::kHistory;
  size_t first_fit = 500;  // SizeQueues::Options
};

// What is known of one that begins to wait.
struct AskedFor {
  AdapterSourceId source;  // of its first adapter
  int32_t prompt = 0, output_most = 0, output_so_far = 0;
  int64_t adapter_bytes = 0;  // of all its adapters
  int64_t arrived_ns = 0;
  std::optional<double> output_foreseen;  // in simulations alone
};

// Where it stands, and what it takes of its queue's quota while it runs.
struct Standing {
  RequestSize size;
  double weighted = 0;  // SizeQueues::size_of
  int32_t queue = 0;
  int64_t tokens = 0;
  double rank = 0;
  int64_t run_ns = 0;  // predicted, from admission to its end
};

class Scheduling {
 public:
  static constexpr double kAgeing = 0.25;

  Scheduling(const SchedulingOptions& options, const SizeQueues::Options& queues, const StepTimes& times)
      : options_(options), queues_(queues), times_(times) {}

  SchedulePolicy policy() const { return options_.policy; }
  LengthPrediction prediction() const { return options_.prediction; }
  bool has_queues() const { return options_.policy == SchedulePolicy::kWrs; }
  Standing place(const AskedFor& asked) const;
  void place_anew(Standing& standing) const;               // behind refit()
  void arrived(const Standing& standing, int64_t now_ns);  // once a request
  void ended(const AskedFor& asked, const Standing& standing, int32_t output, bool cut, double seconds);
  void learn_step(int64_t ns);  // of a step with rows that decode
  // True: the queues are others, and nothing is taken: everybody is to be placed anew,
  // and those that run take again.
  bool refit(int64_t now_ns);
  void set_total(int64_t tokens) { queues_.set_total(tokens); }

  void take(const Standing& standing) { queues_.take(standing.queue, standing.tokens); }
  void give_back(const Standing& standing) { queues_.give_back(standing.queue, standing.tokens); }
  // One that runs has so many tokens now: more than was predicted count when they come.
  void grow(Standing& standing, int32_t known);

  // For a planning; valid until the next call.
  AdmissionRooms rooms(int64_t now_ns);
  std::span<const double> row_shares();

  const SizeQueues& queues() const { return queues_; }
  const OutputLengths& lengths() const { return lengths_; }
  void forget(AdapterSourceId source) { lengths_.forget(source); }
  void check() const { queues_.check(); }

 private:
  const SchedulingOptions options_;
  SizeQueues queues_;
  OutputLengths lengths_;
  const StepTimes& times_;
  double step_s_ = 0;  // a moving average
  std::array<AdmissionRooms::Queue, kSizeGroupsMax> rooms_{};
  std::array<double, kSizeGroupsMax> shares_{};
};

}  // namespace loralei
