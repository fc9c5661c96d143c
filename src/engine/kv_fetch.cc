// SPDX-License-Identifier: Apache-2.0
// Prefixes that lie on disk: a request whose prompt goes on there waits until it is read,
// before it takes its turn; and what is held is written there when there is time.
#include <algorithm>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

// A fetch takes a fraction of that: nothing comes of the disk any more, and who waits for
// it is computed.
constexpr int64_t kStuckNs = 5'000'000'000;

}  // namespace

// Whether reading takes less than computing, by what both took so far.
bool EngineLoop::fetch_pays(const Request& request, int32_t first) {
  const KvDiskFound found =
      parts_.kv_disk->readable(std::span(request.disk_keys).subspan(static_cast<size_t>(first)), request.key.exact);
  const double bytes_per_s = parts_.kv_disk->read_bytes_per_s(), row_s = times_.prompt_row_s();
  if (found.blocks == 0 || bytes_per_s == 0 || row_s == 0) return found.blocks > 0;
  return static_cast<double>(found.bytes) / bytes_per_s < static_cast<double>(found.blocks) * kKvBlockTokens * row_s;
}

// Once, when it is ready for the first time.
bool EngineLoop::wait_for_disk(Request& request) {
  if (parts_.kv_disk == nullptr || request.started || disk_is_stuck()) return false;
  const Sequence& leader = *request.choices.front();
  const int32_t limit = match_limit(leader);
  const int32_t there = parts_.kv->peek(request.key, leader.text(), limit).blocks;
  if (there == limit / kKvBlockTokens) return false;
  request.disk_keys = parts_.kv->disk_keys(request.key, leader.text(), limit);
  if (!fetch_pays(request, there)) {
    request.disk_keys.clear();
    return false;
  }
  to_fetch_.push_back(request.id);
  disk_waited_for_ = true;
  note_wait(request);
  fetch_next();
  return true;
}

// As many as the disk takes; the rest follows when one is through.
void EngineLoop::fetch_next() {
  while (!to_fetch_.empty()) {
    const RequestId id = to_fetch_.front();
    const auto found = requests_.find(id);
    if (found != requests_.end() && found->second->unfinished > 0 && !found->second->disk_keys.empty()) {
      Request& request = *found->second;
      const Sequence& leader = *request.choices.front();
      request.disk_first = parts_.kv->peek(request.key, leader.text(), match_limit(leader)).blocks;
      const auto left = std::span(request.disk_keys).subspan(static_cast<size_t>(request.disk_first));
      if (parts_.kv_disk->fetch(id.value, left, request.key.exact)) {
        if (fetches_++ == 0) fetched_ns_ = parts_.clock->now_ns();
      } else if (fetches_ > 0) {
        return;
      } else {  // it has gone meanwhile, or somebody computed it
        end_disk_wait(request);
      }
    }
    to_fetch_.pop_front();
  }
}

void EngineLoop::end_disk_wait(Request& request) {
  request.disk_keys.clear();
  start_choices(request);
  note_wait(request);
}

bool EngineLoop::disk_is_stuck() const { return parts_.clock->now_ns() >= disk_gives_up_ns(); }

int64_t EngineLoop::disk_gives_up_ns() const { return fetches_ > 0 ? fetched_ns_ + kStuckNs : Next::kNever; }

// Who waits for a disk of which nothing comes is computed, and so is whoever comes until
// it answers.
void EngineLoop::go_on_without_disk() {
  if (!disk_waited_for_ || !disk_is_stuck()) return;
  parts_.log->log(LogLevel::kWarning, "--kv-dir: nothing was read for five seconds; prompts are computed until it is");
  to_fetch_.clear();
  disk_waited_for_ = false;
  std::vector<Request*> waiting;
  for (const auto& [id, request] : requests_)
    if (!request->disk_keys.empty() && request->unfinished > 0) waiting.push_back(request.get());
  std::ranges::sort(waiting, {}, &Request::order);
  for (Request* const request : waiting) end_disk_wait(*request);
}

void EngineLoop::receive(KvFetched&& message) {
  {
    const KvFetched fetched = std::move(message);  // its part of the buffer is free behind this
    CHECK(fetches_ > 0);
    --fetches_;
    fetched_ns_ = parts_.clock->now_ns();
    const auto found = requests_.find(RequestId{fetched.ticket});
    // Who has gone, or goes on without, wants nothing of it.
    if (found != requests_.end() && found->second->unfinished > 0 && !found->second->disk_keys.empty()) {
      Request& request = *found->second;
      const Sequence& leader = *request.choices.front();
      const int32_t restored =
          parts_.kv->restore(request.key, leader.text(), request.disk_keys, request.disk_first, fetched.blocks);
      if (fetched.more && restored == std::ssize(fetched.blocks)) {
        to_fetch_.push_front(request.id);
      } else {
        end_disk_wait(request);
      }
    }
  }
  fetch_next();
}

// Nothing runs, and nothing is to be encoded: a few blocks are written. False: there is
// nothing to write, or the disk takes no more now.
bool EngineLoop::keep_idle() {
  keeps_later_ = false;
  if (parts_.kv_disk == nullptr || !running_.empty()) return false;
  const KvCache::Spill kept = parts_.kv->spill();
  keeps_later_ = kept == KvCache::Spill::kFull;
  return kept == KvCache::Spill::kSome;
}

// At the end: as much as the disk takes in some seconds.
void EngineLoop::keep_all() {
  constexpr int64_t kMostMs = 10'000;
  if (parts_.kv_disk == nullptr) return;
  const int64_t until_ns = parts_.clock->now_ns() + kMostMs * 1'000'000;
  const auto left_ms = [&] { return (until_ns - parts_.clock->now_ns()) / 1'000'000; };
  KvCache::Spill kept = KvCache::Spill::kSome;
  while (kept != KvCache::Spill::kNothing && left_ms() > 0) {
    kept = parts_.kv->spill();
    if (kept == KvCache::Spill::kFull && !parts_.kv_disk->flush(left_ms())) break;
    if (kept == KvCache::Spill::kFull && parts_.kv->spill() == KvCache::Spill::kFull)
      break;  // it takes nothing any more
  }
  if (!parts_.kv_disk->flush(std::max<int64_t>(1, left_ms())))
    parts_.log->log(LogLevel::kWarning, "some prefixes were not written to --kv-dir in time; they are computed anew");
}

}  // namespace loralei
