// SPDX-License-Identifier: Apache-2.0
// Scheduling: who stands where in admission, by the policy that the server was started
// with (mechanisms §4).
//
//   fifo  one queue, by arrival
//   sjf   one queue, by predicted time; who waits rises: a second of waiting is worth
//         kAgeing seconds of it. Bound: a request of r seconds is passed by one of s only
//         if that came within (r - s) / kAgeing behind it.
//   wrs   a queue for each group of sizes, and a quota for each queue (SizeQueues), by
//         arrival in each of them. A queue's wanted time (Admission, rule 6) is that of
//         SizeQueues, between kWantedLeastNs and kWantedMostNs.
//   priority  one queue, by the number that requests bring, the lower first, then by
//         arrival. No bound: as long as lower numbers come the higher ones wait. With the
//         others the number says nothing.
//
// A deadline of the first token is one for admission, too, but with priority, where the
// number alone counts: the request is to be asked by latest_ns, and may go first for that
// while nobody before it has waited its wanted time (sched/waiting_line.h). That is
// SizeQueues::kSloFactor times what it is predicted to take, kWantedLeastNs at least and
// kWantedMostNs at most; with fifo, where nothing is predicted, kWantedNs.
//
// With Fairness::kVtc clients have turns in each queue, by what they have had of the
// server (sched/virtual_tokens.h). All of the above holds among the requests of one.
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
#include "sched/length_predictor.h"
#include "sched/size_queues.h"
#include "sched/step_times.h"

namespace loralei {

enum class SchedulePolicy : uint8_t { kFifo, kSjf, kWrs, kPriority };
inline constexpr int kSchedulePolicies = 4;
enum class Fairness : uint8_t {
  kNone,  // everybody is one client
  kVtc,
};

struct SchedulingOptions {
  SchedulePolicy policy = SchedulePolicy::kFifo;
  LengthPrediction prediction = LengthPrediction::kHistory;
  size_t first_fit = 500;  // SizeQueues::Options
  Fairness fairness = Fairness::kNone;
};

// What is known of one that begins to wait.
struct AskedFor {
  AdapterSourceId source;  // of its first adapter
  int32_t prompt = 0, output_most = 0, output_so_far = 0;
  int64_t adapter_bytes = 0;  // of all its adapters
  int64_t arrived_ns = 0;
  std::span<const uint16_t> features;  // Scheduling::features_of; borrowed
  ForeseenLength foreseen;             // when it arrived, if it has before
  int32_t priority = 0;
  int64_t ttft_ns = 0;                    // wanted from arrival to the first token; 0: nothing, or it is out
  std::optional<double> output_foreseen;  // in simulations alone
};

// Where it stands, and what it takes of its queue's quota while it runs.
struct Standing {
  RequestSize size;
  double weighted = 0;  // SizeQueues::size_of
  int32_t priority = 0;
  int32_t queue = 0;
  int64_t tokens = 0;
  double rank = 0;
  int64_t run_ns = 0;       // predicted, from admission to its end
  ForeseenLength foreseen;  // when it arrived
  int64_t wanted_ns = 0;
  int64_t deadline_ns = kNoDeadline, latest_ns = kNoDeadline;  // as in Waiting
};

class Scheduling {
 public:
  static constexpr double kAgeing = 0.25;
  static constexpr int64_t kWantedNs = 10'000'000'000, kWantedLeastNs = 1'000'000'000;
  static constexpr int64_t kWantedMostNs = 600'000'000'000;

  Scheduling(const SchedulingOptions& options, const SizeQueues::Options& queues, const StepTimes& times)
      : options_(options), queues_(queues), lengths_(options.prediction), times_(times) {}

  SchedulePolicy policy() const { return options_.policy; }
  bool has_clients() const { return options_.fairness == Fairness::kVtc; }
  LengthPrediction prediction() const { return options_.prediction; }
  bool has_queues() const { return options_.policy == SchedulePolicy::kWrs; }
  bool predicts() const { return options_.policy == SchedulePolicy::kSjf || has_queues(); }
  // Once for a request, when it arrives.
  LearnedLengths::Features features_of(AdapterSourceId source, const PromptFacts& facts) const {
    return predicts() ? lengths_.features_of(source, facts) : LearnedLengths::Features();
  }
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
  LengthPredictor& lengths() { return lengths_; }
  const LengthPredictor& lengths() const { return lengths_; }
  void check() const { queues_.check(); }

 private:
  void set_deadline(const AskedFor& asked, Standing& standing) const;

  const SchedulingOptions options_;
  SizeQueues queues_;
  LengthPredictor lengths_;
  const StepTimes& times_;
  double step_s_ = 0;  // a moving average
  std::array<AdmissionRooms::Queue, kSizeGroupsMax> rooms_{};
  std::array<double, kSizeGroupsMax> shares_{};
};

}  // namespace loralei
