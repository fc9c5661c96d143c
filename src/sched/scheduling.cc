// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduling.h"

#include <algorithm>

namespace loralei {
namespace {

constexpr double kStepFade = 0.95;
constexpr int64_t kGrowth = 16;  // tokens that are taken at a time
constexpr double kNeedsMostS = 1e6;

int64_t wanted_ns(double seconds) {
  return static_cast<int64_t>(std::clamp(seconds * 1e9, static_cast<double>(Scheduling::kWantedLeastNs),
                                         static_cast<double>(Scheduling::kWantedMostNs)));
}

LengthAsked length_of(const AskedFor& asked) {
  return {{asked.source, asked.prompt}, asked.output_most, asked.output_so_far, asked.features};
}

}  // namespace

Standing Scheduling::place(const AskedFor& asked) const {
  Standing standing;
  if (options_.policy == SchedulePolicy::kPriority) standing.priority = asked.priority;
  standing.wanted_ns = kWantedNs;
  set_deadline(asked, standing);
  if (!predicts()) return standing;
  const LengthAsked length = length_of(asked);
  const bool known = asked.output_foreseen.has_value();
  const double most = asked.output_most;
  standing.size = {asked.prompt, known ? std::min(*asked.output_foreseen, most) : lengths_.predict(length),
                   asked.adapter_bytes};
  standing.foreseen = asked.foreseen;
  if (!known && asked.foreseen.predicted <= 0) standing.foreseen = lengths_.foresee(length);
  const int32_t rows = asked.prompt + asked.output_so_far;
  const double run_s = times_.predicted_s({rows, int64_t{rows} * rows / 2}) +
                       step_s_ * std::max(0.0, standing.size.output - asked.output_so_far);
  standing.run_ns = static_cast<int64_t>(run_s * 1e9);
  standing.wanted_ns = wanted_ns(SizeQueues::kSloFactor * run_s);
  if (options_.policy == SchedulePolicy::kSjf)
    standing.rank = run_s + kAgeing * static_cast<double>(asked.arrived_ns) * 1e-9;
  place_anew(standing);
  return standing;
}

// It is asked behind the step under way, and its prompt takes at least one.
void Scheduling::set_deadline(const AskedFor& asked, Standing& standing) const {
  if (asked.ttft_ns <= 0 || options_.policy == SchedulePolicy::kPriority) return;
  const double needs_s = 2 * step_s_ + times_.predicted_s({asked.prompt, int64_t{asked.prompt} * asked.prompt / 2});
  standing.deadline_ns = asked.arrived_ns + asked.ttft_ns;
  standing.latest_ns = standing.deadline_ns - static_cast<int64_t>(std::min(needs_s, kNeedsMostS) * 1e9);
}

void Scheduling::place_anew(Standing& standing) const {
  if (!has_queues()) return;
  standing.weighted = queues_.size_of(standing.size);
  standing.queue = queues_.queue_of(standing.weighted);
  standing.tokens = std::max(standing.tokens, queues_.tokens_of(standing.size));
}

void Scheduling::arrived(const Standing& standing, int64_t now_ns) {
  if (has_queues()) queues_.arrived(standing.size, now_ns);
}

void Scheduling::ended(const AskedFor& asked, const Standing& standing, int32_t output, bool cut, double seconds) {
  if (!predicts()) return;
  lengths_.ended(length_of(asked), standing.foreseen, output, cut);
  if (has_queues() && !cut) queues_.ended(standing.size, seconds);
}

void Scheduling::learn_step(int64_t ns) {
  const double seconds = static_cast<double>(ns) * 1e-9;
  step_s_ = step_s_ == 0 ? seconds : kStepFade * step_s_ + (1 - kStepFade) * seconds;
}

bool Scheduling::refit(int64_t now_ns) { return has_queues() && queues_.refit(now_ns); }

void Scheduling::grow(Standing& standing, int32_t known) {
  if (!has_queues()) return;
  const int64_t now = queues_.tokens_of({known, 0, standing.size.adapter_bytes});
  if (now <= standing.tokens) return;
  queues_.take(standing.queue, kGrowth);
  standing.tokens += kGrowth;
}

AdmissionRooms Scheduling::rooms(int64_t now_ns) {
  if (!has_queues()) return {.queues = {}, .now_ns = now_ns};
  for (int32_t queue = 0; queue < queues_.count(); ++queue) {
    const auto index = static_cast<size_t>(queue);
    rooms_[index] = {queues_.quota(queue), queues_.taken(queue), wanted_ns(queues_.loads()[index].slo_s)};
  }
  return {.queues = {rooms_.data(), static_cast<size_t>(queues_.count())},
          .spare = queues_.total() - queues_.taken(),
          .bypass = true,
          .now_ns = now_ns};
}

std::span<const double> Scheduling::row_shares() {
  if (!has_queues()) return {};
  for (int32_t queue = 0; queue < queues_.count(); ++queue) shares_[static_cast<size_t>(queue)] = queues_.share(queue);
  return {shares_.data(), static_cast<size_t>(queues_.count())};
}

}  // namespace loralei
