// SPDX-License-Identifier: Apache-2.0
#include "sched/virtual_tokens.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {

void move_turn(std::set<ClientTurn>& turns, const ClientTurn& from, const ClientTurn& to) {
  auto node = turns.extract(from);
  CHECK(!node.empty());
  node.value() = to;
  CHECK(turns.insert(std::move(node)).inserted);
}

void VirtualTokens::came(ClientId client) {
  Client& state = clients_[client];
  if (state.requests++ == 0) gone_.erase({state.served, client});
}

void VirtualTokens::left(ClientId client) {
  Client& state = clients_.at(client);
  CHECK(state.requests > 0);
  if (--state.requests > 0) return;
  CHECK(state.waiting == 0);
  gone_.insert({state.served, client});
  while (!gone_.empty() && (gone_.begin()->served <= least() || gone_.size() > kGoneMax)) forget(gone_.begin()->client);
}

void VirtualTokens::forget(ClientId client) {
  const int64_t served = clients_.at(client).served;
  if (last_ == client) {
    last_served_ = served;
    last_.reset();
  }
  gone_.erase({served, client});
  clients_.erase(client);
}

int64_t VirtualTokens::least() const {
  if (!waiting_.empty()) return waiting_.begin()->served;
  return last_ ? clients_.at(*last_).served : last_served_;
}

int64_t VirtualTokens::begin_wait(ClientId client) {
  Client& state = clients_.at(client);
  CHECK(state.requests > 0);
  if (state.waiting++ > 0) return state.served;
  state.served = std::max(state.served, least());
  waiting_.insert({state.served, client});
  return state.served;
}

void VirtualTokens::end_wait(ClientId client) {
  Client& state = clients_.at(client);
  CHECK(state.waiting > 0);
  if (--state.waiting > 0) return;
  waiting_.erase({state.served, client});
  last_ = client;
}

int64_t VirtualTokens::serve(ClientId client, int64_t input_tokens, int64_t output_tokens) {
  CHECK(input_tokens >= 0 && output_tokens >= 0);
  Client& state = clients_.at(client);
  CHECK(state.requests > 0);
  const int64_t before = state.served;
  state.served += kInputWeight * input_tokens + kOutputWeight * output_tokens;
  if (state.waiting > 0) move_turn(waiting_, {before, client}, {state.served, client});
  return state.served;
}

void VirtualTokens::check() const {
  size_t waiting = 0, gone = 0;
  for (const auto& [client, state] : clients_) {
    CHECK(state.served >= 0 && state.requests >= 0 && state.waiting >= 0);
    CHECK(state.requests > 0 || state.waiting == 0);
    CHECK((waiting_.count({state.served, client}) == 1) == (state.waiting > 0));
    CHECK((gone_.count({state.served, client}) == 1) == (state.requests == 0));
    waiting += state.waiting > 0 ? 1 : 0;
    gone += state.requests == 0 ? 1 : 0;
  }
  CHECK(waiting == waiting_.size() && gone == gone_.size() && gone <= kGoneMax);
  CHECK(!last_ || clients_.count(*last_) == 1);
}

}  // namespace loralei
