// SPDX-License-Identifier: Apache-2.0
// Requests that begin while their adapters are still being read into memory, where steps
// read them there (cold_start.cc has what becomes of them then).
//
// What an adapter is called by, the digest of its files, is known when all of it has been
// read. Until then its requests compute under a name that nobody else has, find nothing
// in the prefix cache and publish nothing; before they say anything they have their own.
// So a request begins early only where it could have found nothing: the cache keeps
// nothing of the version that was in memory before, and prefixes are neither on disk nor
// lent, of which it would have to know by the digest.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {

bool EngineLoop::loads_early() const {
  const ColdStart way = parts_.cold_start;
  return parts_.executor->device_tier() == nullptr && parts_.executor->begins_early() && parts_.kv_lending.empty() &&
         parts_.kv_disk == nullptr && way != ColdStart::kOndemand && way != ColdStart::kCached;
}

// Of one that waits for loads: whether they are so far that it may begin. Its adapters
// are in adapters_ then. False: it is asked again when there is news of them, or its time
// has come.
bool EngineLoop::begins_while_loading(Request& request) {
  const auto has_spoken = [](const auto& choice) { return choice->announced; };
  const auto arrives = [this](AdapterSourceId source) { return registry_.is_arriving(source); };
  if (std::none_of(request.sources.begin(), request.sources.end(), arrives)) return false;
  if (request.wants_prompt_logprobs() || request.submit.pooling == Pooling::kMean)
    return false;  // it has results at once
  if (std::any_of(request.choices.begin(), request.choices.end(), has_spoken)) return false;
  Error error;
  const AdapterNeeds needs{request.sources, request.claims, request.used};
  if (registry_.look_early(needs, request.order, request.since, adapters_, error) != AcquireOutcome::kReady)
    return false;
  if (keeps_prefixes(request)) return false;
  versions_.clear();
  for (const Adapter* adapter : adapters_) versions_.push_back(adapter->version);
  const double pass = pass_s(rows_of_step(*request.choices.front(), 0), 0);
  const double allowed = stall_allowed_s(pass);
  if (const double stall = stall_of(versions_, pass, 1.0); stall > allowed) {
    look_again_in(stall, request);
    return false;
  }
  request.alone = stall_of(versions_, pass, kEarlySlowness) > allowed;
  return true;
}

// The cache has something of the versions that were in memory before, or may have.
bool EngineLoop::keeps_prefixes(const Request& request) const {
  if (!parts_.prefix_cache) return false;
  std::vector<KvIdentityPart> parts;
  for (size_t index = 0; index < request.sources.size(); ++index) {
    const Digest* const digest = registry_.last_digest(request.sources[index]);
    if (digest == nullptr) return false;
    parts.push_back({*digest, request.submit.adapters[index].scale, 0});
  }
  // Whoever keeps something by that name shares it.
  return parts.size() != 1 || parts_.kv->identities().intern(parts, request.submit.cache_salt).use_count() > 1;
}

// Of one that is still being read, what stands for its digest: its version's alone.
Digest EngineLoop::digest_of(const Adapter& adapter, Request& request) const {
  const AdapterArriving* const arriving = registry_.arriving(adapter.version);
  if (arriving == nullptr || arriving->arrivals->whole()) return adapter.digest;
  request.provisional = true;
  Digest own{};
  constexpr char kName[] = "still being read";
  constexpr size_t kLength = sizeof kName - 1;
  static_assert(kLength + sizeof adapter.version.value <= sizeof own);
  std::memcpy(own.data(), kName, kLength);
  std::memcpy(own.data() + kLength, &adapter.version.value, sizeof adapter.version.value);
  return own;
}

void EngineLoop::announce(const AdapterPin& pin) {
  const AdapterArriving* const arriving = registry_.arriving(pin->version);
  if (arriving == nullptr) {
    parts_.executor->announce(*pin);
  } else {
    parts_.executor->announce_early(*pin, arriving->arrivals);
  }
}

// Of one that runs. An error: one of its adapters could not be read.
Result<bool> EngineLoop::have_been_read(const Request& request) const {
  for (size_t index = 0; index < request.pins.size(); ++index) {
    const AdapterArriving* const arriving = registry_.arriving(request.pins[index]->version);
    if (arriving == nullptr || arriving->arrivals->whole()) continue;
    if (const Status status = arriving->arrivals->status(); !status.ok())
      return not_loaded(status.error(), request.labels[index]);
    return false;
  }
  return true;
}

bool EngineLoop::is_whole(const Request& request) const {
  const Result<bool> read = have_been_read(request);
  return read.ok() && *read;
}

// All of its adapters are there: it goes by their own names.
void EngineLoop::confirm(Request& request) {
  CHECK(request.provisional && request.pins.size() == request.sources.size());
  adapters_.clear();
  for (const AdapterPin& pin : request.pins) adapters_.push_back(&*pin);
  const Status status = prepare(request, adapters_);
  CHECK(status.ok() && !request.provisional);  // the same adapters, of which nothing else has changed
}

// Before anything of a step counts.
void EngineLoop::confirm_step() {
  for (const Sequence* sequence : group_sequences_)
    if (sequence->request->provisional && is_whole(*sequence->request)) confirm(*sequence->request);
}

}  // namespace loralei
