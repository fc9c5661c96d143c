// SPDX-License-Identifier: Apache-2.0
#include "events/kv_event_publisher.h"

#include <chrono>
#include <utility>

#include "sys/threads.h"

namespace loralei {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string key_of(const Digest& version) { return {reinterpret_cast<const char*>(version.data()), version.size()}; }

}  // namespace

KvEventPublisher::KvEventPublisher(std::unique_ptr<KvEventSockets> sockets, std::shared_ptr<KvEvents> events,
                                   AdapterNameOf name_of, const Clock& clock)
    : sockets_(std::move(sockets)), events_(std::move(events)), look_up_(std::move(name_of)), clock_(clock) {
  batch_.reserve(kEventsMost);
}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(std::unique_ptr<KvEventSockets> sockets,
                                                                  std::shared_ptr<KvEvents> events,
                                                                  AdapterNameOf name_of, const Clock& clock) {
  std::unique_ptr<KvEventPublisher> made(
      new KvEventPublisher(std::move(sockets), std::move(events), std::move(name_of), clock));
  TRY_ASSIGN(made->thread_, start_thread([publisher = made.get()] { publisher->run(); }));
  return made;
}

KvEventPublisher::~KvEventPublisher() {
  ends_.store(true);
  if (thread_.joinable()) thread_.join();
}

void KvEventPublisher::run() {
  name_this_thread("kv events");
  constexpr int kMessagesAtOnce = 64;  // before whoever asks is looked at
  while (!ends_.load()) {
    for (int sent = 0; sent < kMessagesAtOnce && publish_some();) ++sent;
    for (int answered = sockets_->answer(kLookMs); answered > 0; --answered) events_->count_replay();
  }
  while (publish_some()) {
  }
}

// False: there is nothing, or it waits for a name.
bool KvEventPublisher::publish_some() {
  if (batch_.empty()) take_batch();
  if (batch_.empty() || (!names_are_known() && !ends_.load())) return false;
  sockets_->publish(
      kv_event_message(seconds_since_1970(), batch_, [this](const Digest& version) { return name_of(version); }));
  uint64_t stored = 0, removed = 0;
  for (const KvEvent& event : batch_) {
    stored += event.kind == KvEvent::Kind::kStored ? 1 : 0;
    removed += event.kind == KvEvent::Kind::kRemoved ? 1 : 0;
  }
  events_->count_published(stored, removed);
  batch_.clear();
  return true;
}

void KvEventPublisher::take_batch() {
  for (KvEvent event; batch_.size() < kEventsMost && events_->take(event);) batch_.push_back(event);
  batch_since_ns_ = clock_.now_ns();
}

// Or were waited for long enough, and are taken for unknown from then on.
bool KvEventPublisher::names_are_known() {
  const bool waits = clock_.now_ns() - batch_since_ns_ < kNameWaitNs;
  bool known = true;
  for (const KvEvent& event : batch_) {
    if (event.kind != KvEvent::Kind::kStored || event.owner.adapters != 1) continue;
    const std::string key = key_of(event.owner.adapter);
    if (seen_.contains(key)) continue;
    if (waits && name_of(event.owner.adapter).empty()) {
      names_.erase(key);  // it is asked for again
      known = false;
      continue;
    }
    if (seen_.size() >= kVersionsMost) seen_.clear();
    seen_.insert(key);
  }
  return known;
}

// To look through thousands of adapters for each block would take long.
std::string KvEventPublisher::name_of(const Digest& version) {
  const int64_t now_ns = clock_.now_ns();
  if (now_ns - names_since_ns_ > kNamesKeptNs) {
    names_.clear();
    names_since_ns_ = now_ns;
  }
  const auto [place, is_new] = names_.try_emplace(key_of(version));
  if (is_new && look_up_) place->second = look_up_(version);
  return place->second;
}

}  // namespace loralei
