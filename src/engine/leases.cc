// SPDX-License-Identifier: Apache-2.0
// A request and its adapters.
//
//   cold  --all in memory-->  ready  --its turn in admission-->  leases
//
// A request that waits has no lease. It is made ready for the versions that are in memory
// then (KV identity, vocabulary) and claims them. They may leave again, which it finds
// out when its turn comes: then it is cold once more. Its leases (pins, a hold on the
// device) are taken together when it is admitted, and dropped when none of its choices
// runs any more. While its adapters are on their way to the device it keeps them, too:
// that is what the upload needs.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

// Of those that wait for adapters: so many, the oldest, have theirs loaded, and of those
// that wait for a step so many have theirs kept from leaving for others.
constexpr size_t kWantedMax = 64;
constexpr size_t kPrefetchesMax = 2;  // on their way at once: whoever is admitted waits for no more of them

AdapterNeeds needs_of(const Request& request) { return {request.sources, request.claims, request.used}; }

// Something of it has been seen: it cannot go on with another version.
bool has_begun(const Request& request) {
  return request.prompt_logprobs_next > 1 || std::any_of(request.choices.begin(), request.choices.end(),
                                                         [](const auto& choice) { return choice->announced; });
}

}  // namespace

void EngineLoop::wait_for_adapters(Request& request) {
  CHECK(request.pins.empty() && !request.hold && request.running == 0);
  request.ready = false;
  set_lacks(request, false);
  for (const auto& sequence : request.choices) {
    const bool waits = sequence->phase == SeqPhase::kWaiting;
    if (!waits && sequence->phase != SeqPhase::kForming) continue;
    if (waits) leave_waiting(*sequence);
    if (!waits) std::erase(forming_, sequence.get());
    sequence->phase = SeqPhase::kHeld;
    sequence->chilled = true;
  }
  CHECK(cold_.emplace(request.order, &request).second);
  for (const AdapterSourceId source : request.sources) cold_by_source_[source].insert(request.order);
  to_look_at_.push_back(request.order);
  cold_changed_ = true;
  note_wait(request);
}

// For tell_adapters().
void EngineLoop::count_waiting(Request& request, bool waits) {
  if (std::exchange(request.counted, waits) == waits) return;
  for (const AdapterSourceId source : request.sources) {
    int32_t& count = waiting_by_source_[source];
    count += waits ? 1 : -1;
    CHECK(count >= 0);
    if (count == 0) {
      waiting_by_source_.erase(source);
      if (kv_room_.joint()) registry_.unwant(source);  // KvRoom asks between rounds
    }
    registry_.touch(source);
  }
}

void EngineLoop::leave_cold(Request& request) {
  CHECK(cold_.erase(request.order) == 1);
  for (const AdapterSourceId source : request.sources) {
    const auto found = cold_by_source_.find(source);
    if (found == cold_by_source_.end()) continue;  // named twice
    found->second.erase(request.order);
    if (found->second.empty()) cold_by_source_.erase(found);
  }
}

bool EngineLoop::needs_round() const {
  if (cold_changed_ || registry_.has_news()) return true;
  return (!cold_.empty() || registry_.loading()) && registry_.generation() != round_generation_;
}

// One round over those who wait for adapters, oldest first: those that are new, those of
// whose adapters there is news, and as many of the oldest as may have theirs loaded.
void EngineLoop::look_at_cold() {
  if (!needs_round()) return;
  cold_changed_ = false;
  news_.clear();
  registry_.take_news(news_);
  for (const AdapterSourceId source : news_) {
    const auto found = cold_by_source_.find(source);
    if (found != cold_by_source_.end())
      to_look_at_.insert(to_look_at_.end(), found->second.begin(), found->second.end());
  }
  size_t wanted = 0;
  for (auto oldest = cold_.begin(); oldest != cold_.end() && wanted < kWantedMax; ++oldest, ++wanted)
    to_look_at_.push_back(oldest->first);
  std::sort(to_look_at_.begin(), to_look_at_.end());
  to_look_at_.erase(std::unique(to_look_at_.begin(), to_look_at_.end()), to_look_at_.end());
  registry_.begin_round();
  std::swap(looked_at_, to_look_at_);
  for (const uint64_t order : looked_at_) {
    const auto found = cold_.find(order);
    if (found != cold_.end()) look_at(*found->second);
  }
  looked_at_.clear();
  admission_.for_first(kWantedMax, [this](SeqId id) {
    const Request& request = *sequences_.at(id)->request;
    if (request.pins.empty() && !request.sources.empty()) registry_.want(needs_of(request), request.order);
  });
  const uint64_t before = registry_.generation();
  registry_.pump();
  if (registry_.is_starved()) give_up_claims();
  admission_.places_changed();
  if (parts_.cold_start == ColdStart::kCached && tier_ != nullptr) bring_all();
  round_generation_ = before;  // what pump() changed is looked at in the next turn
}

// Those that wait for adapters keep versions that were replaced or unloaded, and what
// they wait for finds no room beside these: nobody would ever go on. The youngest lets go
// of its own, and is made ready for what is there instead, or told that it is gone.
void EngineLoop::give_up_claims() {
  bool others = false;  // may run with theirs, and give room then
  admission_.for_first(kWantedMax, [&](SeqId id) { others = others || !sequences_.at(id)->request->sources.empty(); });
  if (others) return;
  const auto keeps_retired = [this](const AdapterClaim& claim) { return registry_.is_retired(claim.version()); };
  for (auto youngest = cold_.rbegin(); youngest != cold_.rend(); ++youngest) {
    Request& request = *youngest->second;
    if (std::none_of(request.claims.begin(), request.claims.end(), keeps_retired)) continue;
    request.claims.clear();
    to_look_at_.push_back(request.order);
    cold_changed_ = true;
    return;
  }
}

void EngineLoop::look_at(Request& request) {
  Error error;
  switch (registry_.look(needs_of(request), request.order, request.since, adapters_, error)) {
    case AcquireOutcome::kReady:
      leave_cold(request);
      make_ready(request, adapters_);
      break;
    case AcquireOutcome::kWaiting:
      request.was_cold = true;
      if (!begins_while_loading(request)) break;
      leave_cold(request);
      make_ready(request, adapters_);
      break;
    case AcquireOutcome::kFailed:
      leave_cold(request);
      request.ready = true;
      end_request(request, EndReason::kError, error);
      break;
  }
}

// `adapters` beside its sources.
void EngineLoop::make_ready(Request& request, std::span<const Adapter* const> adapters) {
  CHECK(!request.ready && request.pins.empty() && request.running == 0);
  request.ready = true;
  const Status status = prepare(request, adapters);
  if (!status.ok()) return end_request(request, EndReason::kError, status.error());
  if (!wait_for_disk(request)) start_choices(request);
}

// Those that had to wait for adapters again go on. At first one leads; those after it
// find its prompt in the cache (and its prompt log-probabilities) when it is through.
void EngineLoop::start_choices(Request& request) {
  bool led = false;
  for (const auto& sequence : request.choices) {
    if (!std::exchange(sequence->chilled, false) || sequence->phase == SeqPhase::kEnded) continue;
    enqueue(*sequence);
    led = true;
  }
  const bool hold = std::exchange(request.started, true) || parts_.prefix_cache || request.wants_prompt_logprobs();
  for (const auto& sequence : request.choices) {
    if (sequence->phase != SeqPhase::kHeld || sequence->parked) continue;
    if (!led || !hold) enqueue(*sequence);
    led = true;
  }
}

// Its leases, for the step that is planned. kSkip: others are to be asked; kGone: it does
// not wait for a step any more.
EngineLoop::Leases EngineLoop::take_leases(Sequence& sequence) {
  Request& request = *sequence.request;
  CHECK(request.ready && request.unfinished > 0 && !in_flight_);
  if (request.sources.empty()) return Leases::kTaken;
  if (request.pins.empty()) {
    const bool on_device = tier_ != nullptr && !request.segments.empty();
    if (on_device && device_full_) return Leases::kSkip;
    Error error;
    AcquireOutcome acquired = registry_.acquire(needs_of(request), request.order, request.since, request.pins, error);
    if (acquired == AcquireOutcome::kWaiting && request.provisional)
      acquired = registry_.acquire_early(needs_of(request), request.order, request.since, request.pins, error);
    switch (acquired) {
      case AcquireOutcome::kReady:
        break;
      case AcquireOutcome::kWaiting:
        if (registry_.look(needs_of(request), request.order, request.since, adapters_, error) == AcquireOutcome::kReady)
          return Leases::kSkip;  // an older load waits for the room
        wait_for_adapters(request);
        return Leases::kGone;
      case AcquireOutcome::kFailed:
        end_request(request, EndReason::kError, error);
        return Leases::kGone;
    }
    CHECK(request.pins.size() == request.sources.size());
    request.used = true;
    for (const AdapterPin& pin : request.pins) {
      announce(pin);
      if (parts_.on_step) ranks_.announce(*pin);
    }
    if (const Status status = renew(request); !status.ok()) {
      end_request(request, EndReason::kError, status.error());
      return Leases::kGone;
    }
  }
  if (tier_ == nullptr) return request.provisional && request.alone ? take_alone(sequence) : Leases::kTaken;
  if (request.segments.empty()) return Leases::kTaken;
  return hold_on_device(sequence);
}

// What it was made ready for must be what it has pinned.
Status EngineLoop::renew(Request& request) {
  CHECK(request.claims.size() == request.pins.size());
  const bool same =
      std::equal(request.pins.begin(), request.pins.end(), request.claims.begin(), request.claims.end(),
                 [](const AdapterPin& pin, const AdapterClaim& claim) { return pin->version == claim.version(); });
  if (same && !request.provisional) return {};
  adapters_.clear();
  for (const AdapterPin& pin : request.pins) adapters_.push_back(&*pin);
  return prepare(request, adapters_);
}

// Room on the device for what the request applies; until all of it has arrived, or enough
// to begin with, it is skipped. While one waits for room there, none with adapters
// begins: it would take that room, or keep what must go for it in use for ever.
EngineLoop::Leases EngineLoop::hold_on_device(Sequence& sequence) {
  Request& request = *sequence.request;
  Result<bool> there = true;
  if (!request.hold) {
    there = hold_adapters(request);
    if (there.ok() && !*there) {
      device_full_ = true;
      drop_unused_leases(request);
      return Leases::kSkip;
    }
    request.arriving = there.ok();
  }
  if (there.ok() && request.arriving) there = have_arrived(request);
  if (!there.ok()) {
    if (there.error().code == ErrorCode::kUnavailable && health_.ok()) lose(there.error());
    end_request(request, EndReason::kError, there.error());
    return Leases::kGone;
  }
  if (*there && request.arriving) request.arriving = request.alone = request.assisted = false;
  request.was_cold |= request.arriving;
  return *there || begins_early(sequence) ? Leases::kTaken : Leases::kSkip;
}

Result<bool> EngineLoop::hold_adapters(Request& request) {
  CHECK(!request.hold && request.running == 0);
  std::vector<const Adapter*> wanted;
  for (const AdapterPin& pin : request.pins) {
    const auto names = [&](const SeqAdapter& segment) { return segment.version == pin->version; };
    const bool applied = std::any_of(request.segments.begin(), request.segments.end(), names);
    if (applied && std::find(wanted.begin(), wanted.end(), &*pin) == wanted.end()) wanted.push_back(&*pin);
  }
  const bool there = std::all_of(wanted.begin(), wanted.end(),
                                 [this](const Adapter* adapter) { return tier_->has(adapter->version); });
  request.held_as_is = there ? plans_ : 0;
  const Result<bool> held = request.hold.take(*tier_, wanted);
  note_who_left();
  return held;
}

Result<bool> EngineLoop::have_arrived(const Request& request) {
  for (const AdapterVersionId version : request.hold.versions()) {
    const Result<bool> there = tier_->arrived(version);
    if (there.ok() && *there) continue;
    if (there.ok()) return false;
    const auto named = std::find_if(request.pins.begin(), request.pins.end(),
                                    [&](const AdapterPin& pin) { return pin->version == version; });
    CHECK(named != request.pins.end());
    const std::string& label = request.labels[static_cast<size_t>(named - request.pins.begin())];
    return Error(there.error()).with_context("adapter \"" + label + "\" could not be brought to the device");
  }
  return true;
}

// For the count of those that wait for adapters.
void EngineLoop::set_lacks(Request& request, bool lacks) {
  lacking_ += static_cast<int32_t>(lacks) - static_cast<int32_t>(std::exchange(request.lacks, lacks));
  CHECK(lacking_ >= 0);
  note_wait(request);
}

void EngineLoop::drop_leases(Request& request) {
  CHECK(request.running == 0);
  end_early(request);
  request.arriving = request.alone = request.late = request.assisted = false;
  // There is more room on the device, but for what was only looked at in this turn.
  if (request.hold && request.held_as_is != plans_) arriving_changed_ = prefetch_due_ = true;
  request.hold.release();
  request.pins.clear();
}

// Of one that has ended, where none are kept: what nobody else uses or waits with leaves.
void EngineLoop::let_go_unused(const Request& request) {
  CHECK(request.unfinished == 0 && request.pins.empty() && !request.counted);
  if (parts_.adapter_keeping.keeps) return;
  for (size_t i = 0; i < request.sources.size(); ++i) {
    if (waiting_by_source_.count(request.sources[i]) != 0) continue;
    if (tier_ == nullptr) {
      registry_.let_go_unused(request.sources[i]);
    } else if (i < request.claims.size()) {
      drop_copy(request.claims[i].version());
    }
  }
}

// Of the copies on the device that nobody holds, those that may leave for others, the
// first to leave first: for a request that is to run now any of them, for one that will
// be asked later only what no other waits with.
void EngineLoop::choose_leaving(std::vector<AdapterVersionId>& idle) {
  wanted_versions_.clear();
  admission_.for_first(kWantedMax, [this](SeqId id) {
    const Request& request = *sequences_.at(id)->request;
    for (const AdapterClaim& claim : request.claims) wanted_versions_.emplace_back(claim.version(), request.order);
  });
  std::sort(wanted_versions_.begin(), wanted_versions_.end());
  leaving_.clear();
  for (const AdapterVersionId version : idle) {
    CacheItem item = registry_.item_of(version);
    item.recreate_s = upload_times_.predict_s(item.bytes);
    const auto wanted =
        std::lower_bound(wanted_versions_.begin(), wanted_versions_.end(), std::pair(version, uint64_t{0}));
    const bool waits = wanted != wanted_versions_.end() && wanted->first == version;
    item.wanted = waits ? wanted->second : CacheItem::kUnwanted;
    if (!waits || !brings_ahead_) leaving_.push_back(item);
  }
  registry_.options().keep.sort(leaving_);
  idle.clear();
  for (const CacheItem& item : leaving_) idle.push_back(AdapterVersionId{item.id});
}

void EngineLoop::note_arrived(const UploadDone& done) {
  if (!done.status.ok() || !tier_->has(done.version) || !on_device_.insert(done.version).second) return;
  registry_.touch(done.version);
}

void EngineLoop::note_left(AdapterVersionId version) {
  if (!tier_->has(version) && on_device_.erase(version) != 0) registry_.touch(version);
}

// Of those that could leave the device for others, if somebody asked.
void EngineLoop::note_who_left() {
  for (const CacheItem& item : leaving_) note_left(AdapterVersionId{item.id});
  leaving_.clear();
}

void EngineLoop::drop_copy(AdapterVersionId version) {
  tier_->drop_unused(version);
  note_left(version);
}

// What an upload takes is what has been seen of those since the last look.
void EngineLoop::learn_uploads() {
  const DeviceTierStats now = tier_->stats();
  const int64_t uploads = now.uploads - uploads_seen_.uploads;
  if (uploads > 0) {
    upload_times_.learn(
        (now.upload_bytes - uploads_seen_.upload_bytes) / uploads,
        static_cast<double>(now.upload_ns - uploads_seen_.upload_ns) * 1e-9 / static_cast<double>(uploads));
  }
  uploads_seen_ = now;
}

// Those that will be asked next have their adapters brought to the device, a few at a
// time, as far as there is room that nobody has or waits for.
void EngineLoop::prefetch() {
  if (tier_ == nullptr || !std::exchange(prefetch_due_, false)) return;
  size_t refused = 0;
  admission_.for_first(kWantedMax, [&](SeqId id) {
    Request& request = *sequences_.at(id)->request;
    if (request.hold || request.segments.empty() || prefetched_.size() == kPrefetchesMax) return;
    if (refused == kPrefetchesMax) return;
    Error error;
    if (registry_.look(needs_of(request), request.order, request.since, adapters_, error) != AcquireOutcome::kReady)
      return;
    for (size_t i = 0; i < adapters_.size() && prefetched_.size() < kPrefetchesMax; ++i) {
      const Adapter* const adapter = adapters_[i];
      const auto is_this = [&](const SeqAdapter& segment) { return segment.version == adapter->version; };
      if (std::none_of(request.segments.begin(), request.segments.end(), is_this)) continue;
      if (refused == kPrefetchesMax || tier_->has(adapter->version)) continue;
      AdapterHold hold;  // for as long as it takes to begin
      brings_ahead_ = true;
      const Result<bool> begun = hold.take(*tier_, {&adapter, 1});
      brings_ahead_ = false;
      note_who_left();
      refused += begun.ok() && *begun ? 0 : 1;
      if (!begun.ok() || !*begun) continue;  // whoever asks for it is told
      prefetched_.emplace(adapter->version, request.sources[i]);
    }
  });
}

// Of one that was not admitted. What is on its way to the device is kept: it will be
// wanted at once.
void EngineLoop::drop_unused_leases(Request& request) {
  if (request.running == 0 && !request.arriving) drop_leases(request);
}

// Everything that follows from prompt and adapters together.
Status EngineLoop::prepare(Request& request, std::span<const Adapter* const> adapters) {
  CHECK(adapters.size() == request.sources.size());
  std::vector<KvIdentityPart> identity;
  std::vector<AdapterClaim> claims;
  for (const Adapter* adapter : adapters) claims.push_back(registry_.claim(adapter->version));
  request.claims = std::move(claims);
  const std::string before = std::exchange(request.version, {});
  request.provisional = false;
  request.segments.clear();
  request.saved.reset();
  request.saved_first_position = 0;
  request.vocab = request.embed_vocab = parts_.config.vocab;
  TRY(apply_adapters(request, adapters, identity));
  choose_lower(request, adapters, identity);
  if (!before.empty() && has_begun(request) && request.version != before) {
    return Error{ErrorCode::kUnavailable,
                 "an adapter of this request was replaced, and the version that began the answer has left memory; "
                 "send the request again"};
  }
  const auto check_tokens = [&](int32_t begin, int32_t end, int32_t vocab) -> Status {
    for (int32_t position = begin; position < end; ++position) {
      const TokenId token = request.submit.prompt[static_cast<size_t>(position)];
      if (token >= vocab) {
        return invalid_argument("the prompt holds the token id " + std::to_string(token) + ", but the vocabulary has " +
                                std::to_string(vocab));
      }
    }
    return {};
  };
  const int32_t prompt = request.prompt_size();
  const int32_t changed = !request.saved ? prompt : std::min(prompt, request.saved_first_position);
  TRY(check_tokens(0, changed, !request.saved ? request.embed_vocab : parts_.config.vocab));
  TRY(check_tokens(changed, prompt, request.embed_vocab));
  request.vocab = std::min(request.vocab, request.embed_vocab);  // what is sampled is read in the next step
  if (request.provisional) request.version.clear();
  if (tier_ == nullptr && !request.provisional && !request.early) request.alone = false;
  request.key = make_kv_key(parts_.kv->identities(), identity, request.submit.cache_salt);
  request.key.app = parts_.kv->apps().asks(request.submit.app_id);
  request.key.exact = sharing_of(request) < KvSharing::kBounded;
  return {};
}

namespace {

// First position of the last occurrence of `wanted` in `prompt`; nullopt when there is
// none.
std::optional<int32_t> last_occurrence(const std::vector<TokenId>& prompt, const std::vector<TokenId>& wanted) {
  const auto found = std::find_end(prompt.begin(), prompt.end(), wanted.begin(), wanted.end());
  if (found == prompt.end()) return std::nullopt;
  return static_cast<int32_t>(found - prompt.begin());
}

}  // namespace

// Which of its positions are the base's, and below which layer. Of a prompt whose adapter
// may borrow all full blocks but for its last tokens are, lent or not: so an answer does
// not depend on who was here before.
void EngineLoop::choose_lower(Request& request, std::span<const Adapter* const> adapters,
                              std::vector<KvIdentityPart>& identity) {
  constexpr int32_t kOwnTokens = 3;  // of a prompt, at least; as bench/kv_trial measures it
  request.lower = {};
  if (parts_.kv_lending.empty()) return;
  const int32_t first = request.segments.empty() ? INT32_MAX : request.segments.front().first_position;
  request.lower = {.layers = kWholeStream,
                   .until = request.saved ? std::min(first, request.saved_first_position) : first};
  const int32_t until = (request.prompt_size() - kOwnTokens) / kKvBlockTokens * kKvBlockTokens;
  const bool plain = adapters.size() == 1 && first == 0 && !request.saved && request.segments.front().scale == 1.0f;
  if (!plain || until <= 0 || sharing_of(request) < KvSharing::kBorrow) return;
  if (!request.samples() || request.submit.prompt_logprobs) return;
  const int32_t layers = parts_.kv_lending.layers_of(adapters.front()->digest);
  if (layers == 0) return;
  SeqAdapter lower = request.segments.front();
  lower.end_position = until;
  lower.first_layer = layers;
  request.segments.front().first_position = until;
  request.segments.insert(request.segments.begin(), lower);
  identity.front().first_layer = layers;
  identity.front().until = until;
  request.lower = {.layers = layers, .until = until, .may_borrow = true};
}

Status EngineLoop::apply_adapters(Request& request, std::span<const Adapter* const> adapters,
                                  std::vector<KvIdentityPart>& identity) {
  for (size_t index = 0; index < adapters.size(); ++index) {
    const Adapter& adapter = *adapters[index];
    const AdapterUse& use = request.submit.adapters[index];
    CHECK(adapter.version.value != 0);
    if (!request.version.empty()) request.version += '+';
    const Digest digest = digest_of(adapter, request);
    request.version += digest_hex(digest).substr(0, 12);
    if (adapter.saved.any() && (adapters.size() > 1 || use.scale != 1.0f)) {
      return invalid_argument(
          "adapter \"" + request.labels[index] +
          "\" replaces whole tensors of the model, so it can neither be summed with another nor scaled");
    }
    const Status accepted = parts_.executor->accepts(adapter);
    if (!accepted.ok()) return Error(accepted.error()).with_context("adapter \"" + request.labels[index] + "\"");
    if (use.scale == 0.0f) continue;  // adds nothing: the text is the base's
    int32_t first_position = 0;
    if (!adapter.alora_invocation.empty()) {
      const auto start = last_occurrence(request.submit.prompt, adapter.alora_invocation);
      if (!start) continue;  // never invoked, so never active (as PEFT does)
      first_position = *start;
    }
    request.segments.push_back({adapter.version, use.scale, first_position});
    identity.push_back({digest, use.scale, first_position});
    if (adapter.embed_pair().rank > 0) request.embed_vocab = std::min(request.embed_vocab, adapter.embed_pair().in);
    if (!adapter.saved.any()) continue;
    request.saved = adapter.version;
    request.saved_first_position = first_position;
    request.vocab = adapter.vocab;
    if (!adapter.saved.embed.empty()) request.embed_vocab = adapter.saved.embed.rows;
    TRY(parts_.executor->reserve_vocab(std::max(adapter.vocab, parts_.config.vocab)));
  }
  std::stable_sort(request.segments.begin(), request.segments.end(),
                   [](const SeqAdapter& a, const SeqAdapter& b) { return a.first_position < b.first_position; });
  return {};
}

}  // namespace loralei
