// SPDX-License-Identifier: Apache-2.0
// Requests that begin while their adapters are on their way.
//
// Such a request has its leases like any other: what has no bytes yet has its place. It
// begins when every layer will be there before the pass gets to it; or at once, where
// helpers compute what is not, and that answers sooner. It shares steps with others where
// layers would be in time even if they came a quarter later than predicted, and where
// helpers keep up with the device. Else steps have rows of such requests alone, in turns
// with steps of the others. In time is also what a step would wait for no longer than a
// small part of it, where others run: else they would wait for a step of its own, or it
// for theirs. Its prompt is computed so; further tokens when all of its adapters are
// there.
//
// A layer that is late in spite of all ends the step, of which nothing counts: its
// requests then wait until all is there, the others go on.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

constexpr double kStallShare = 0.05;   // of a pass, that is no delay where others run
constexpr double kLooksShare = 0.25;   // of a predicted wait, until it is looked at again
constexpr int64_t kLooksPart = 16;     // of what it has waited, at least, whatever was predicted
constexpr int64_t kAloneFactor = 4;    // of a step's bound, for layers where nobody else runs
constexpr int64_t kRetryNs = 100'000;  // predictions are looked at no more often

}  // namespace

// To the device's memory, or to the host's where steps read that.
std::optional<AdapterOnItsWay> EngineLoop::on_its_way(AdapterVersionId version) const {
  if (tier_ != nullptr) return tier_->on_its_way(version);
  const AdapterArriving* const arriving = registry_.arriving(version);
  if (arriving == nullptr) return std::nullopt;
  return AdapterOnItsWay{arriving->arrivals, arriving->bytes_through, 0};
}

// When a layer will be there, from now on, if they come `slowness` times as late as
// predicted. Of what a transfer takes whatever its bytes each layer of an upload has its
// part; what a load takes beside its reading lies behind it.
double EngineLoop::arrival_s(const AdapterOnItsWay& way, int32_t piece, double slowness) const {
  const int64_t bytes = way.bytes_left(piece);
  if (bytes == 0) return 0;
  if (tier_ == nullptr) return slowness * (registry_.load_s(bytes) - registry_.load_s(0));
  const double fixed_s = upload_times_.predict_s(0);
  const int32_t pieces = piece + 1 - way.arrivals->there();
  return slowness * (upload_times_.predict_s(bytes) - fixed_s + fixed_s * pieces / way.arrivals->total());
}

// From now until the layers of all these allow a pass of so long without a wait.
double EngineLoop::stall_of(std::span<const AdapterVersionId> versions, double pass_s, double slowness) const {
  double stall = -pass_s;
  for (const AdapterVersionId version : versions) {
    const std::optional<AdapterOnItsWay> way = on_its_way(version);
    if (!way || way->arrivals->whole()) continue;
    stall = std::max(stall, stall_s(way->arrivals->total() - 1, pass_s,
                                    [&](int32_t piece) { return arrival_s(*way, piece, slowness); }));
  }
  return stall;
}

int32_t EngineLoop::rows_of_step(const Sequence& sequence, int32_t computed) const {
  const auto known = static_cast<int32_t>(sequence.text().size());
  const int32_t most = running_.empty() ? rows_now_.alone : rows_now_.shared;
  return std::min({known - computed, most, parts_.step_tokens});
}

double EngineLoop::pass_s(int32_t rows, int32_t computed) const {
  const int64_t attended = int64_t{rows} * computed + int64_t{rows} * (rows + 1) / 2;
  return times_.predicted_s({.rows = rows, .attended = attended});
}

// ColdStart::kCached: what has come to memory goes to the device and stays there.
void EngineLoop::bring_all() {
  for (const AdapterSourceId source : news_) {
    Error error;
    if (registry_.look({{&source, 1}, {}, true}, UINT64_MAX, 0, adapters_, error) != AcquireOutcome::kReady) continue;
    const Adapter* const adapter = adapters_.front();
    AdapterHold& hold = cached_[adapter->version];
    if (hold) continue;
    const Result<bool> held = hold.take(*tier_, {&adapter, 1});
    note_who_left();
    if (held.ok() && *held) continue;
    cached_.erase(adapter->version);
    parts_.log->log(LogLevel::kWarning, "adapter \"" + registry_.label(source) +
                                            "\" has no room on the device beside the others, so its requests wait "
                                            "for it; raise --adapter-memory for --cold-start cached");
  }
}

// How a request with these rows would fare with helpers. No rows: they can do nothing for
// it.
EngineLoop::Assisted EngineLoop::assisted(const Request& request, double pass_s, int32_t rows) {
  Assisted assisted{.pass_s = pass_s, .rows = INT32_MAX};
  for (const AdapterPin& pin : request.pins) {
    const auto versions = request.hold.versions();
    if (std::find(versions.begin(), versions.end(), pin->version) == versions.end()) continue;
    const std::optional<AdapterOnItsWay> way = tier_->on_its_way(pin->version);
    if (!way || way->arrivals->whole()) continue;
    const AssistOffer offer = parts_.executor->assist_with(*pin);
    if (offer.rows == 0) return {};
    const int32_t layers = way->arrivals->total() - 1;
    const double layer_s = offer.layer_s(std::min(rows, offer.rows));
    assisted.rows = std::min(assisted.rows, offer.rows);
    assisted.holds_up |= layer_s > pass_s / layers;
    assisted.pass_s =
        std::max(assisted.pass_s,
                 assisted_pass_s(layers, pass_s, layer_s, [&](int32_t layer) { return arrival_s(*way, layer, 1.0); }));
  }
  return assisted;
}

// Of one that has its leases, and of whose adapters some are on their way: whether it is
// to begin now. False: it is asked again when something has arrived, or its time has
// come.
bool EngineLoop::begins_early(Sequence& sequence) {
  Request& request = *sequence.request;
  CHECK(request.hold && request.arriving);
  const ColdStart way = parts_.cold_start;
  if (way == ColdStart::kOndemand || way == ColdStart::kCached || request.late) return false;
  const auto comes = [this](AdapterVersionId version) { return tier_->on_its_way(version).has_value(); };
  if (!std::all_of(request.hold.versions().begin(), request.hold.versions().end(), comes)) return false;
  const KvMatch match = parts_.kv->peek(request.key, sequence.text(), match_limit(sequence));
  const int32_t rows = rows_of_step(sequence, match.tokens());
  const double pass = pass_s(rows, match.tokens());
  const double stall = stall_of(request.hold.versions(), pass, 1.0);
  const double allowed = stall_allowed_s(pass);
  if (stall > 0 && begins_assisted(request, pass, stall, rows)) {
    request.assisted = true;
  } else if (stall <= allowed) {
    request.assisted = false;
    request.alone = stall_of(request.hold.versions(), pass, kEarlySlowness) > allowed;
  } else {
    look_again_in(stall, request);
    return false;
  }
  return !request.alone || take_alone(sequence) == Leases::kTaken;
}

// The step of others that somebody would have to wait for who does not begin now.
double EngineLoop::others_step_s() const { return running_.empty() ? 0 : static_cast<double>(pass_ns_) * 1e-9; }

// For how long a step may wait for layers, as predicted, for a request to begin in it.
double EngineLoop::stall_allowed_s(double pass_s) const { return std::min(kStallShare * pass_s, others_step_s()); }

// Sooner than predicted: layers may come faster, and nobody tells of each. Later, the
// longer nothing of what was predicted has come true.
void EngineLoop::look_again_in(double seconds, Request& request) {
  const int64_t now_ns = parts_.clock->now_ns();
  if (request.looks_since_ns == 0) request.looks_since_ns = now_ns;
  const auto predicted_ns = static_cast<int64_t>(std::min(seconds * kLooksShare, 3600.0) * 1e9);
  const int64_t ns = std::max({kRetryNs, predicted_ns, (now_ns - request.looks_since_ns) / kLooksPart});
  looks_early_ns_ = std::min(looks_early_ns_, now_ns + ns);
}

// Of one that may begin, in steps of such alone: now, or in the next turn of these.
EngineLoop::Leases EngineLoop::take_alone(Sequence& sequence) {
  if (alone_turn_) return Leases::kTaken;
  alone_waiting_.push_back(sequence.id);
  drop_unused_leases(*sequence.request);
  return Leases::kSkip;
}

// It would have to wait for `stall` otherwise.
bool EngineLoop::begins_assisted(Request& request, double pass, double stall, int32_t rows) {
  if (parts_.cold_start != ColdStart::kAuto && parts_.cold_start != ColdStart::kAssisted) return false;
  if (assist_rows_left_ == 0) return false;
  const Assisted helped = assisted(request, pass, rows);
  if (helped.rows == 0) return false;
  // Who waits for layers before its step begins it behind the one that is planned now.
  const double missed = stall <= stall_allowed_s(pass) ? 0 : others_step_s();
  if (parts_.cold_start == ColdStart::kAuto && helped.pass_s >= stall + pass + missed) return false;
  request.alone = helped.holds_up;
  return true;
}

// Helpers have so many rows of a step, and its sequences share them.
void EngineLoop::take_assist_rows(const Request& request, SeqState& state) {
  if (!request.assisted || !(request.early || request.arriving)) return;
  state.waits |= assist_rows_left_ == 0;
  if (state.waits) return;
  state.rows_most = assist_rows_left_;
  assist_rows_left_ -= std::min(assist_rows_left_, state.remaining());
}

// The time at which somebody may begin has come: those that were set aside are asked.
void EngineLoop::look_early(int64_t now_ns) {
  if (now_ns < looks_early_ns_) return;
  looks_early_ns_ = Next::kNever;
  if (tier_ == nullptr) return room_changed();  // those that wait for loads are looked at
  admission_.places_changed();
}

void EngineLoop::begin_early(Request& request) {
  CHECK(request.running > 0 && (request.arriving || request.provisional));
  request.arriving = false;
  request.early = true;
  ++early_;
  request.early_ns = parts_.clock->now_ns();
  request.layers_waited_ns = 0;
}

// It is a request like others now.
void EngineLoop::end_early(Request& request) {
  if (!std::exchange(request.early, false)) return;
  --early_;
  CHECK(early_ >= 0);
  request.late = request.alone = request.assisted = false;
}

// Those whose adapters are all there now; those whose adapters will not come end.
void EngineLoop::settle_early() {
  if (early_ == 0) return;
  early_requests_.clear();
  for (const Sequence* sequence : running_) {
    Request* const request = sequence->request;
    if (request->early && (early_requests_.empty() || early_requests_.back() != request))
      early_requests_.push_back(request);
  }
  CHECK(std::ssize(early_requests_) == early_);
  for (Request* request : early_requests_) {
    const Result<bool> there = tier_ != nullptr ? have_arrived(*request) : have_been_read(*request);
    if (!there.ok()) {
      const bool lost = tier_ != nullptr && there.error().code == ErrorCode::kUnavailable;  // not a file that changed
      if (lost && health_.ok()) lose(there.error());
      end_request(*request, EndReason::kError, there.error());
    } else if (*there) {
      const int64_t taken_ns = parts_.clock->now_ns() - request->early_ns - request->layers_waited_ns;
      counters_.cold_starts.hidden_s += static_cast<double>(std::max<int64_t>(0, taken_ns)) * 1e-9;
      if (request->provisional) confirm(*request);
      end_early(*request);
    }
  }
}

namespace {

// It goes on when all of its adapters are there.
bool waits_for_arrival(const Sequence& sequence) {
  const Request& request = *sequence.request;
  return request.early && (request.late || sequence.text().size() > request.submit.prompt.size());
}

}  // namespace

// Whether a running sequence has no rows in steps of this turn.
bool EngineLoop::waits_for_layers(const Sequence& sequence) const {
  const Request& request = *sequence.request;
  return waits_for_arrival(sequence) || alone_turn_ != (request.early && request.alone);
}

// Nobody who runs can go on before something arrives: for whom a step had no rows those
// have the blocks that wait for their adapters.
bool EngineLoop::all_wait_for_arrivals() const {
  if (running_.empty()) return true;
  return early_ > 0 && std::all_of(running_.begin(), running_.end(), [this](const Sequence* sequence) {
           return waits_for_arrival(*sequence) || (stalled_ && !waits_for_mask(*sequence));
         });
}

// Somebody could compute in a step of those that are alone.
bool EngineLoop::wants_alone() const {
  if (!alone_waiting_.empty()) return true;
  return early_ > 0 && std::any_of(running_.begin(), running_.end(), [](const Sequence* sequence) {
           return sequence->request->early && sequence->request->alone && !waits_for_arrival(*sequence);
         });
}

// For the layers of a step's adapters, in all: as much as its step might take, or more
// where nobody else waits for its end.
int64_t EngineLoop::arrivals_wait_ns() const {
  if (early_ == 0) return 0;
  const int64_t bound_ns = std::min(times_.bound_ns(), StepTimes::kStepTimeMostNs);
  return running_.size() == 1 ? kAloneFactor * bound_ns : bound_ns;
}

// The step ended with layers of this one.
void EngineLoop::give_up_early(const StepWaits& waits) {
  ++counters_.cold_starts.given_up;
  for (const Sequence* sequence : group_sequences_) {
    Request& request = *sequence->request;
    const auto has_it = [&](const AdapterPin& pin) { return pin->version == waits.ended_by; };
    if (request.early && std::any_of(request.pins.begin(), request.pins.end(), has_it)) request.late = true;
  }
}

void EngineLoop::count_waits(const StepWaits& waits) {
  counters_.cold_starts.layers_waited += static_cast<uint64_t>(waits.layers);
  counters_.cold_starts.waited_s += static_cast<double>(waits.ns) * 1e-9;
  if (waits.assisted_layers > 0) {
    const int32_t handover = waits.handover_layer < 0 ? parts_.config.layers : waits.handover_layer;
    counters_.cold_starts.assisted_layers += static_cast<uint64_t>(waits.assisted_layers);
    counters_.cold_starts.handover_layers += static_cast<uint64_t>(handover);
    const auto limit = std::lower_bound(kHandoverLimits.begin(), kHandoverLimits.end(), handover);
    ++counters_.cold_starts.handovers[static_cast<size_t>(limit - kHandoverLimits.begin())];
  }
  if (waits.ns == 0) return;
  for (const Sequence* sequence : group_sequences_)
    if (sequence->request->early) sequence->request->layers_waited_ns += waits.ns;
}

}  // namespace loralei
