// SPDX-License-Identifier: Apache-2.0
// VirtualTokens: what each of several clients has had of the server, so that whoever has
// had least goes next (Sheng et al., "Fairness in Serving Large Language Models",
// OSDI 2024, Algorithm 2: VTC).
//
//   served = kInputWeight * tokens of prompts + kOutputWeight * tokens of answers
//
// A client that begins to wait again is lifted to the least of those that wait, so that
// idling earns nothing. Where nobody waits, to the one that waited last.
//
// Bound (Theorem 4.4 there): of two clients that both wait all the time one gets at most
// 2 * max(kInputWeight * largest prompt, kOutputWeight * tokens that run together) more
// than the other, however long, if the one with the least is always asked first.
//
// Nothing is known of a client but what it has here. One without requests is forgotten as
// soon as it would be lifted beyond what it had. Those that had more are remembered, but
// no more than kGoneMax of them: those furthest ahead.
//
// Thread: one. Ownership: of its own numbers. Invariants (check()): the least of those
// that wait never falls; a client is known while it has requests. Cost: each call costs
// the logarithm of the clients; serve() allocates nothing. Failure: none; calls that do
// not pair are defects (CHECK).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

#include "sched/client_id.h"

namespace loralei {

// A client's place among others: who has had less comes first.
struct ClientTurn {
  int64_t served = 0;
  ClientId client;
  friend auto operator<=>(const ClientTurn&, const ClientTurn&) = default;
};

// The entry is another's place from now on; it is not allocated anew.
void move_turn(std::set<ClientTurn>& turns, const ClientTurn& from, const ClientTurn& to);

class VirtualTokens {
 public:
  static constexpr int64_t kInputWeight = 1, kOutputWeight = 2;
  static constexpr size_t kGoneMax = 1024;

  // Of each request: from arrival to its end.
  void came(ClientId client);
  void left(ClientId client);
  // Of each part of it that waits for a step; what the client has had by now.
  int64_t begin_wait(ClientId client);
  void end_wait(ClientId client);
  // Of one that has requests; what it has had by now.
  int64_t serve(ClientId client, int64_t input_tokens, int64_t output_tokens);

  size_t known() const { return clients_.size(); }
  // What a client has at least that begins to wait.
  int64_t least() const;
  void check() const;

 private:
  struct Client {
    int64_t served = 0;
    int32_t requests = 0, waiting = 0;
  };
  void forget(ClientId client);

  std::unordered_map<ClientId, Client> clients_;
  std::set<ClientTurn> waiting_, gone_;  // with something that waits; without requests
  std::optional<ClientId> last_;         // that ended to wait
  int64_t last_served_ = 0;              // of that, where it was forgotten
};

}  // namespace loralei
