// SPDX-License-Identifier: Apache-2.0
// SimLeader: one of the routers that may say where adapters have their homes. What it
// does and when, LeaderState decides, as that of a live router (store/fleet_leader); here
// its acts are calls to SimEtcd.
//
// Thread: one. Ownership: owns its client and its watch; borrows SimEtcd.
// Invariants and failure: as FleetLeader's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "route/adapter_homes.h"
#include "sim/etcd.h"
#include "sim/members.h"
#include "store/leader_state.h"

namespace loralei::sim {

inline constexpr const char* kLeadPrefix = "/loralei/default/lead/";
inline constexpr const char* kDecidedKey = "/loralei/default/decided";

std::string router_name(size_t router);  // as it stands

// What the one that leads says of homes.
struct DecidedHomes {
  size_t router = 0;
  std::vector<GivenHomes> given;
};
std::string decided_text(const DecidedHomes& homes);
Result<DecidedHomes> parse_decided(const std::string& text);

class SimLeader {
 public:
  SimLeader(SimEtcd& etcd, size_t router, int64_t lease_s, std::function<int64_t()> next_lease);

  void start();
  void cut(bool is) {
    client_.cut(is);
    watch_.cut(is);
  }
  bool leads() const { return watch_.was_up() && etcd_.now_ns() < state_.leads_until_ns(); }
  // As FleetLeader's.
  void decide(std::string text);
  std::optional<std::string> news();

 private:
  void act();
  void write();
  void rest();
  void rested();

  SimEtcd& etcd_;
  SimEtcdClient client_;
  SimWatch watch_;
  LeaderState state_;
  const std::function<int64_t()> next_lease_;
  std::optional<std::string> to_write_;
  std::string decided_;  // as etcd has it
  bool has_news_ = false;
  uint64_t rests_ = 0;  // one that is broken off is not ended twice
  const std::shared_ptr<bool> there_ = std::make_shared<bool>(true);
};

}  // namespace loralei::sim
