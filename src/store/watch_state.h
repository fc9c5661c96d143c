// SPDX-License-Identifier: Apache-2.0
// WatchState: what a watch of etcd does next, and what of its answers is news: a list,
// what comes behind it, how it goes on where a stream ended or its revision was
// compacted. EtcdWatch asks a real etcd for it, the simulator one under virtual time.
//
//   act():  kList ──► kOpen ──► kRead ◄──► kProbe
//             ▲         ▲          │          │
//             └─────────┴── kRest ◄┴──────────┘
//
// Thread: one; no clock, no I/O. Ownership: values.
// Invariants: as EtcdWatch's. Each act has its answer: kList listed(), kOpen opened(),
// kRead read(), silent(), ended() or too_long(), kProbe probed(), kRest rested().
// Failure: none ends it; what an answer says of how it stands is its outcome's status.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/etcd_messages.h"

namespace loralei {

struct EtcdNews {
  std::vector<EtcdEvent> events;
  int64_t revision = 0;  // up to which all is told now
  bool listed = false;   // of a list: what it has that was not known, or no longer has
  bool anew = false;     // forget all before: these are all there is, and revisions began again
};

struct WatchPatience {
  int64_t silence_ms = 2'000;                        // then the member is asked whether it is in touch
  int64_t renew_ms = 60'000;                         // of silence: then the stream is opened again, lest it be dead
  int64_t back_first_ms = 50, back_most_ms = 1'000;  // between attempts
};

// The status comes before the news.
struct WatchOutcome {
  std::optional<Status> status;  // how it stands; ok: all is told. Absent: as before
  bool turned = false;           // and that is another than before
  std::optional<EtcdNews> news;
};

class WatchState {
 public:
  // kRest: without a stream, for rest_ms().
  enum class Act : unsigned char { kList, kOpen, kRead, kProbe, kRest };

  WatchState(std::string prefix, const WatchPatience& patience, size_t endpoint, size_t endpoints)
      : prefix_(std::move(prefix)), patience_(patience), endpoints_(endpoints), endpoint_(endpoint % endpoints) {
    rest_ms_ = patience.back_first_ms;
  }

  Act act() const { return act_; }
  size_t endpoint() const { return endpoint_; }    // of a stream and of a probe
  int64_t from_revision() const { return next_; }  // of a stream
  int64_t rest_ms() const { return rests_ ? rest_ms_ : 0; }

  WatchOutcome listed(Result<EtcdRange> found) {
    if (!found.ok()) return leave(found.error());
    WatchOutcome outcome;
    outcome.news = difference(*std::move(found));
    listed_ = true;
    act_ = Act::kOpen;
    return outcome;
  }
  void opened() {
    pieces_.clear();
    piece_bytes_ = silent_ms_ = 0;
    act_ = Act::kRead;
  }
  // Something came, though it be half a message.
  void heard() { silent_ms_ = 0; }
  WatchOutcome read(EtcdWatchMessage message);
  // Nothing came for silence_ms.
  void silent() {
    silent_ms_ += patience_.silence_ms;
    act_ = Act::kProbe;
  }
  WatchOutcome probed(const Result<EtcdHeader>& header);
  WatchOutcome ended(Error why) { return leave(std::move(why)); }
  // A message that is longer than is read: what it is about is read in pages.
  void too_long() { list_again(); }
  void rested() {
    if (rests_) rest_ms_ = std::min(2 * rest_ms_, patience_.back_most_ms);
    begun_ = false;
    act_ = listed_ ? Act::kOpen : Act::kList;
  }

 private:
  static constexpr size_t kPieceBytesMost = size_t{256} << 20;  // of one revision

  EtcdNews difference(EtcdRange found);
  WatchOutcome take(EtcdWatchMessage message);

  void rest(bool well) {
    if (begun_) rest_ms_ = patience_.back_first_ms;
    rests_ = !well;
    act_ = Act::kRest;
  }
  void list_again() {
    listed_ = false;
    rest(false);
  }
  // It goes on elsewhere.
  WatchOutcome leave(Error why) {
    rest(false);
    endpoint_ = (endpoint_ + 1) % endpoints_;
    return stands(std::move(why));
  }
  WatchOutcome stands(Status status) {
    WatchOutcome outcome;
    outcome.turned = std::exchange(up_, status.ok()) != status.ok();
    outcome.status = std::move(status);
    return outcome;
  }

  const std::string prefix_;
  const WatchPatience patience_;
  const size_t endpoints_;
  size_t endpoint_;
  Act act_ = Act::kList;
  std::map<std::string, int64_t> known_;  // keys, and when each was changed
  std::string cluster_;
  int64_t next_ = 0;  // revision; 0: nothing was told yet
  bool listed_ = false, up_ = false;
  int64_t rest_ms_ = 0;
  bool rests_ = false;
  // Of the stream that is read.
  std::vector<EtcdEvent> pieces_;  // of a revision that is not whole
  size_t piece_bytes_ = 0;
  int64_t silent_ms_ = 0;
  bool begun_ = false;
  std::optional<EtcdWatchMessage> unsure_;  // what a probe is to confirm
};

// What of the list is news.
inline EtcdNews WatchState::difference(EtcdRange found) {
  EtcdNews news;
  news.listed = true;
  news.anew = next_ > 0 && (found.header.revision + 1 < next_ || found.header.cluster != cluster_);
  std::map<std::string, int64_t> before = std::exchange(known_, {});
  if (news.anew) before.clear();
  for (EtcdKeyValue& kv : found.keys) {
    known_[kv.key] = kv.mod_revision;
    const auto known = before.find(kv.key);
    const bool same = known != before.end() && known->second == kv.mod_revision;
    if (known != before.end()) before.erase(known);
    if (!same) news.events.push_back({false, std::move(kv)});
  }
  for (const auto& [key, revision] : before) {
    EtcdEvent gone{true, {}};
    gone.kv.key = key;
    gone.kv.mod_revision = found.header.revision;
    news.events.push_back(std::move(gone));
  }
  const auto earlier = [](const EtcdEvent& a, const EtcdEvent& b) { return a.kv.mod_revision < b.kv.mod_revision; };
  std::stable_sort(news.events.begin(), news.events.end(), earlier);
  cluster_ = found.header.cluster;
  next_ = found.header.revision + 1;
  news.revision = next_ - 1;
  return news;
}

// Revisions that went back are those of a store that began anew; or of a member that
// lags, which is asked again in a way that it must catch up for.
inline WatchOutcome WatchState::read(EtcdWatchMessage message) {
  if (message.canceled) {
    Error why{ErrorCode::kUnavailable, "etcd ended the watch" + (message.why.empty() ? "" : ": " + message.why)};
    if (message.compact_revision == 0) return leave(std::move(why));
    list_again();
    return {};
  }
  if (!message.created) return take(std::move(message));
  if (message.header.cluster != cluster_) {
    list_again();
    return {};
  }
  if (message.header.revision + 1 >= next_) return take(std::move(message));
  unsure_ = std::move(message);
  act_ = Act::kProbe;
  return {};
}

inline WatchOutcome WatchState::probed(const Result<EtcdHeader>& header) {
  std::optional<EtcdWatchMessage> message = std::exchange(unsure_, std::nullopt);
  if (!header.ok()) return leave(header.error());
  act_ = Act::kRead;
  if (!message) {
    if (silent_ms_ >= patience_.renew_ms) rest(true);
    return {};
  }
  if (header->revision + 1 >= next_) return take(*std::move(message));
  list_again();
  return {};
}

inline WatchOutcome WatchState::take(EtcdWatchMessage message) {
  WatchOutcome outcome;
  if (message.created) {
    begun_ = true;
    outcome = stands({});
  }
  for (EtcdEvent& event : message.events) {
    if (event.kv.mod_revision < next_ || !event.kv.key.starts_with(prefix_)) continue;
    piece_bytes_ += sizeof(EtcdEvent) + event.kv.key.size() + event.kv.value.size();
    pieces_.push_back(std::move(event));
  }
  if (piece_bytes_ > kPieceBytesMost) {
    list_again();
    return outcome;
  }
  if (message.fragment) return outcome;
  EtcdNews news;
  news.events = std::exchange(pieces_, {});
  piece_bytes_ = 0;
  for (const EtcdEvent& event : news.events) {
    next_ = std::max(next_, event.kv.mod_revision + 1);
    if (event.removed) {
      known_.erase(event.kv.key);
    } else {
      known_[event.kv.key] = event.kv.mod_revision;
    }
  }
  // One that says nothing tells how far it is.
  if (news.events.empty() && !message.created) next_ = std::max(next_, message.header.revision + 1);
  news.revision = next_ - 1;
  if (!news.events.empty()) outcome.news = std::move(news);
  return outcome;
}

}  // namespace loralei
