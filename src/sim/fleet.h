// SPDX-License-Identifier: Apache-2.0
// Fleet: replicas and routers that find each other through a simulated etcd: who is
// there, who dies and comes back, who is cut off, and what must hold of it meanwhile.
//
//   replica: SimKeeper ──► SimEtcd ──► SimWatch: Router::join, leave
//                  Router ── a look every second ──► replica
//
// With placement routers stand for election there, too, and the one that leads says which
// adapters have their homes where, and asks replicas to have them.
//
// Of S10 to S14 (sim/simulate.h) this looks after S11 to S14.
//
// Thread: one. Ownership: borrows kernel, faults and routers; what a process of a replica
// is is its owner's.
// Invariants: nothing goes wrong any more once no request is to come; the run is over
// when what went wrong lies behind and all had their time to agree.
// Failure: wrong() is the first thing that must not happen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/etcd.h"
#include "sim/faults.h"
#include "sim/leader.h"
#include "sim/members.h"
#include "sim/router.h"

namespace loralei::sim {

struct FleetCounts {
  uint64_t joined = 0, left = 0;  // as routers were told, all together
  uint64_t planners = 0;          // times that another router began to plan
  uint64_t deaths = 0, etcd_leaders = 0, compactions = 0, lists = 0, cuts = 0;
  double away_s = 0;  // of etcd
};

class Fleet {
 public:
  struct Hooks {
    std::function<void(size_t place)> died;     // that process is no more
    std::function<void(size_t place)> started;  // another one is
    std::function<bool()> more;                 // requests are to come
    std::function<bool()> busy;                 // or have not ended
    std::function<void(const PlacementMove&)> ask;
  };
  // `placement_s`: one router at a time plans, so often, where adapters have their homes.
  Fleet(Kernel& kernel, Faults& faults, const std::vector<std::unique_ptr<Router>>& routers, size_t places,
        std::optional<double> placement_s, Hooks hooks);

  // At the beginning of time: until all routers know all replicas.
  Status start();
  bool alive(size_t place) const { return places_[place].alive; }
  bool over() const { return over_; }
  const std::string& wrong() const { return wrong_; }
  FleetCounts counts() const;
  SimEtcd& etcd() { return etcd_; }
  bool is_cut(size_t router) const { return sides_[router].members->watch().is_cut(); }

 private:
  static constexpr int64_t kNever = -1;

  struct Place {
    bool alive = true;
    uint64_t boot = 1;
    std::unique_ptr<SimKeeper> keeper;
    int64_t cut_end_ns = kNever;            // it could not reach etcd until then
    std::map<std::string, int64_t> deaths;  // of boots
  };
  struct Side {
    Router* router = nullptr;
    std::unique_ptr<SimMembers> members;
    int64_t cut_end_ns = kNever;
    std::map<size_t, std::string> heard;  // boots, by place
    std::unique_ptr<SimLeader> leader;    // with placement
    bool led = false;                     // at its last turn
    DecidedHomes decided;                 // by whomever
  };
  std::string boot_word(size_t place) const { return "boot-" + std::to_string(places_[place].boot); }
  void keep(size_t place);
  void watch(Side& side);
  void look(Side& side, size_t place);
  void joined(Side& side, const SimMember& member);
  void left(Side& side, const SimMember& member);
  void tick();
  void plan_turn();
  void turn(Side& side);

  void plan_death();
  void plan_etcd_trouble();
  void begin_trouble(EtcdTrouble trouble, int64_t for_ns);
  void end_trouble();
  void plan_cut();
  void cut(size_t who, bool is);

  void check_dead();
  void check_leaders();
  void check_decided();
  void check_agreement();
  void be_wrong(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  Kernel& kernel_;
  Faults& faults_;
  const std::optional<double> placement_s_;
  const Hooks hooks_;
  SimEtcd etcd_;
  std::vector<Place> places_;
  std::vector<Side> sides_;  // of routers
  FleetCounts counts_;
  int64_t last_lease_ = 0, decided_revision_ = 0;
  int troubles_ = 0;              // that have not ended
  int64_t trouble_end_ns_ = 0;    // of the last one
  int64_t etcd_end_ns_ = kNever;  // etcd had no leader until then
  bool over_ = false;
  int64_t idle_ticks_ = 0;
  std::string wrong_;
};

}  // namespace loralei::sim
