// SPDX-License-Identifier: Apache-2.0
#include "sim/members.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"

namespace loralei::sim {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr WatchPatience kPatience;

// What is no member is nobody's here.
struct Ears {
  const SimMembers::Listener& on_joined;
  const SimMembers::Listener& on_left;
  void joined(const SimMember& member) const { on_joined(member); }
  void left(const SimMember& member) const { on_left(member); }
  void stray(const std::string&, const Error&) const { CHECK(false); }
  Result<SimMember> read(const EtcdKeyValue& kv) const { return read_member(kv); }
};

}  // namespace

std::string member_key(size_t place) { return kMembersPrefix + std::to_string(place); }

Result<SimMember> read_member(const EtcdKeyValue& kv) {
  SimMember member{.place = 0, .boot = kv.value};
  const std::string number = kv.key.substr(std::min(kv.key.size(), std::string(kMembersPrefix).size()));
  const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), member.place);
  if (problem != std::errc() || end != number.data() + number.size()) return corrupt("its key names no replica");
  return member;
}

void SimKeeper::act() {
  switch (state_.act()) {
    case KeeperState::Act::kKeepAlive:
      return client_.keep_alive(state_.lease(), [this](const Result<EtcdLease>& alive) {
        state_.kept_alive(alive);
        act();
      });
    case KeeperState::Act::kGrant:
      return client_.grant(next_lease_(), state_.lease_s(), [this](const Result<EtcdLease>& lease) {
        state_.granted(lease);
        act();
      });
    case KeeperState::Act::kRead:
      return client_.get(state_.key(), [this](const Result<EtcdKeyValue>& there) {
        state_.read(there);
        act();
      });
    case KeeperState::Act::kPut:
      return client_.put(state_.to_put(), [this](const Status& done) {
        state_.put(done);
        act();
      });
    case KeeperState::Act::kRest:
      return etcd_.kernel().after(state_.rest_ms() * kNsPerMs, EventOrder::kEnded,
                                  [this, there = std::weak_ptr<bool>(there_)] {
                                    if (there.expired()) return;
                                    state_.rested();
                                    act();
                                  });
    case KeeperState::Act::kRevoke:
    case KeeperState::Act::kLeft:
      return CHECK(false);  // replicas here die
  }
}

void SimWatch::act() {
  switch (state_.act()) {
    case WatchState::Act::kList:
      ++lists_;
      return client_.range({.key = prefix_, .end = etcd_prefix_end(prefix_)}, [this](Result<EtcdRange> found) {
        tell(state_.listed(std::move(found)));
        act();
      });
    case WatchState::Act::kOpen:
      return open();
    case WatchState::Act::kRead:
      return read();
    case WatchState::Act::kProbe:
      return client_.probe([this](const Result<EtcdHeader>& header) {
        tell(state_.probed(header));
        act();
      });
    case WatchState::Act::kRest:
      return rest();
  }
}

void SimWatch::open() {
  inbox_.clear();
  stream_ = client_.watch(
      prefix_, state_.from_revision(), [this](EtcdWatchMessage message) { take(std::move(message)); },
      [this](Error why) { take(std::move(why)); });
  state_.opened();
  act();
}

// What comes during a probe is read behind it.
void SimWatch::take(std::variant<EtcdWatchMessage, Error> came) {
  inbox_.push_back(std::move(came));
  if (state_.act() == WatchState::Act::kRead) read();
}

void SimWatch::read() {
  ++reads_;
  while (state_.act() == WatchState::Act::kRead && !inbox_.empty()) {
    auto came = std::move(inbox_.front());
    inbox_.pop_front();
    state_.heard();
    auto* const message = std::get_if<EtcdWatchMessage>(&came);
    tell(message != nullptr ? state_.read(std::move(*message)) : state_.ended(std::get<Error>(came)));
  }
  if (state_.act() != WatchState::Act::kRead) return act();
  etcd_.kernel().after(kPatience.silence_ms * kNsPerMs, EventOrder::kEnded,
                       [this, reads = reads_, there = std::weak_ptr<bool>(there_)] {
                         if (there.expired() || reads != reads_) return;
                         state_.silent();
                         act();
                       });
}

void SimWatch::rest() {
  stream_.reset();
  etcd_.kernel().after(state_.rest_ms() * kNsPerMs, EventOrder::kEnded, [this, there = std::weak_ptr<bool>(there_)] {
    if (there.expired()) return;
    state_.rested();
    act();
  });
}

void SimWatch::tell(const WatchOutcome& outcome) {
  if (outcome.status) up_ = outcome.status->ok();
  was_up_ |= up_;
  if (outcome.news) on_news_(*outcome.news);
}

SimMembers::SimMembers(SimEtcd& etcd, Listener joined, Listener left)
    : joined_(std::move(joined)), left_(std::move(left)), watch_(etcd, kMembersPrefix, [this](const EtcdNews& news) {
        table_.take(news, Ears{joined_, left_});
      }) {}

}  // namespace loralei::sim
