// SPDX-License-Identifier: Apache-2.0
#include "sim/leader.h"

#include <charconv>
#include <utility>

namespace loralei::sim {

std::string router_name(size_t router) { return "router-" + std::to_string(router); }

// "ROUTER", then for each adapter "ADAPTER:PLACE,PLACE", a line each.
std::string decided_text(const DecidedHomes& homes) {
  std::string text = std::to_string(homes.router);
  for (const GivenHomes& one : homes.given) {
    text += "\n" + std::to_string(one.adapter.value) + ":";
    for (size_t i = 0; i < one.replicas.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(one.replicas[i]);
  }
  return text;
}

Result<DecidedHomes> parse_decided(const std::string& text) {
  DecidedHomes homes;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  const auto number = [&](auto& value) {
    const auto [behind, problem] = std::from_chars(at, end, value);
    at = behind;
    return problem == std::errc();
  };
  const auto follows = [&](char mark) { return at < end && *at == mark && ++at != nullptr; };
  bool reads = number(homes.router);
  while (reads && follows('\n')) {
    GivenHomes one;
    reads = number(one.adapter.value) && follows(':');
    const bool has_places = reads && at < end && *at != '\n';
    for (size_t place = 0; has_places && reads;) {
      reads = number(place);
      one.replicas.push_back(place);
      if (!follows(',')) break;
    }
    homes.given.push_back(std::move(one));
  }
  if (!reads || at != end) return corrupt("these are no homes of adapters");
  return homes;
}

SimLeader::SimLeader(SimEtcd& etcd, size_t router, int64_t lease_s, std::function<int64_t()> next_lease)
    : etcd_(etcd),
      client_(etcd, {.deadline_ns = lease_s * 1'000'000'000 / 3}),
      watch_(etcd, kDecidedKey,
             [this](const EtcdNews& news) {
               for (const EtcdEvent& event : news.events) {
                 decided_ = event.removed ? "" : event.kv.value;
                 has_news_ = true;
               }
             }),
      state_(kLeadPrefix, router_name(router), kDecidedKey, lease_s, etcd.now_ns()),
      next_lease_(std::move(next_lease)) {}

void SimLeader::start() {
  watch_.start();
  act();
}

void SimLeader::act() {
  switch (state_.act()) {
    case LeaderState::Act::kKeepAlive:
      return client_.keep_alive(state_.lease(), [this](const Result<EtcdLease>& alive) {
        state_.kept_alive(alive);
        act();
      });
    case LeaderState::Act::kGrant:
      return client_.grant(next_lease_(), state_.lease_s(), [this](const Result<EtcdLease>& lease) {
        state_.granted(lease);
        act();
      });
    case LeaderState::Act::kStand:
      return client_.txn(state_.to_stand(), [this](Result<EtcdTxnAnswer> answer) {
        state_.stands(std::move(answer));
        act();
      });
    case LeaderState::Act::kLook:
      return client_.range(state_.to_look(), [this](const Result<EtcdRange>& found) {
        if (!state_.looked(found) && found.ok()) to_write_.reset();
        act();
      });
    case LeaderState::Act::kWrite:
      return write();
    case LeaderState::Act::kRest:
      return rest();
  }
}

void SimLeader::write() {
  if (!to_write_) {
    state_.wrote_nothing();
    return act();
  }
  client_.txn(state_.to_write(*to_write_), [this, text = to_write_](const Result<EtcdTxnAnswer>& answer) {
    state_.wrote(answer);
    if (answer.ok() && to_write_ == text) to_write_.reset();
    act();
  });
}

void SimLeader::rest() {
  const uint64_t rest = ++rests_;
  if (state_.stood().ok() && to_write_ && leads()) return rested();
  etcd_.kernel().after(state_.rest_ms() * 1'000'000, EventOrder::kEnded,
                       [this, rest, there = std::weak_ptr<bool>(there_)] {
                         if (!there.expired() && rest == rests_ && state_.act() == LeaderState::Act::kRest) rested();
                       });
}

void SimLeader::rested() {
  state_.rested(etcd_.now_ns());
  act();
}

void SimLeader::decide(std::string text) {
  if (!leads() || text == decided_) return;
  to_write_ = std::move(text);
  if (state_.act() == LeaderState::Act::kRest && state_.stood().ok()) rested();
}

std::optional<std::string> SimLeader::news() {
  if (!std::exchange(has_news_, false)) return std::nullopt;
  return decided_;
}

}  // namespace loralei::sim
