// SPDX-License-Identifier: Apache-2.0
// PlacementController: says where adapters have their homes (route/adapter_homes.h), and
// asks replicas to have in memory what was given to them.
//
//   Fleet::take_demand ──► AdapterHomes::plan ──► Fleet::take_homes, FleetLeader::decide
//                                            └──► POST /v1/adapters/NAME/prefetch
//   FleetLeader::news  ──► (where another router leads) Fleet::take_homes
//
// Of several routers of a fleet one plans, which etcd says; where there is no etcd each
// plans for itself. All see the demand, in the reports of replicas, so whoever takes over
// goes on.
//
// Thread: turn() and stop() from one thread, or the own thread of start(). What is asked
// of replicas is answered on threads of Upstream.
// Ownership: borrows all of PlacementWorld, which outlives it; Upstream may be stopped
// before.
// Invariants: a replica counts as there for kMissedS after it was usable last, so that
// one that fails for a moment keeps its homes. It is asked for few things at a time, and
// one process of it for one thing at most every kAgainS. Nothing is ever unloaded. What
// is not understood of another router's word changes nothing.
// Failure: none; a replica that refuses is told of in the log, once.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "http/upstream.h"
#include "route/adapter_homes.h"
#include "router/fleet.h"
#include "store/fleet_leader.h"

namespace loralei {

struct PlacementOptions {
  HomesOptions homes;
  bool asks = true;       // else adapters have homes, and come when they are asked for
  std::string admin_key;  // of the replicas; empty: none
  int64_t bring_ms = 300'000;
};

struct PlacementWorld {
  Fleet& fleet;
  Upstream& upstream;
  FleetLeader* leader = nullptr;  // null: nobody else plans
  const Clock& clock;
  LogSink& log;
};

struct PlacementFigures {
  bool leads = false;
  size_t adapters = 0;  // that were given homes
  uint64_t brought = 0, refused = 0, failed = 0;
};

class PlacementController {
 public:
  static constexpr double kMissedS = 30, kAgainS = 60;
  static constexpr size_t kAskedMost = 64;  // at a time

  PlacementController(const PlacementOptions& options, const PlacementWorld& world);
  ~PlacementController() { stop(); }

  Status start();  // a turn each options.homes.interval_s
  void stop();
  void turn();
  PlacementFigures figures() const;

 private:
  struct Slot {  // of AdapterHomes; another replica's when nobody has a home there
    std::string name, boot;
    UpstreamAddress address;
    size_t place = 0;  // of the fleet
    double usable_s = 0;
  };
  struct Wish {
    std::string replica, boot, adapter;
    friend auto operator<=>(const Wish&, const Wish&) = default;
  };
  struct Asked {  // shared with answers that are to come
    std::mutex mutex;
    std::set<Wish> under_way;
    std::map<Wish, double> again_s;  // not before
    std::set<std::string> told;      // replicas that were told of in the log
    uint64_t brought = 0, refused = 0, failed = 0;
  };
  class Answer;

  void look_at_replicas(double now_s);
  void forget();  // names and slots that nothing refers to
  void count_demand(double now_s);
  void lead(double now_s);
  void hear(FleetLeader& leader);
  void follow(double now_s);
  void ask(const std::vector<PlacementMove>& moves, double now_s);
  std::vector<NamedHomes> named(const std::vector<GivenHomes>& given) const;
  AdapterSourceId id_of(const std::string& adapter);

  const PlacementOptions options_;
  const PlacementWorld world_;
  AdapterHomes homes_;
  bool led_ = false;  // the last turn
  std::vector<Slot> slots_;
  std::vector<PlacedReplica> rooms_;                 // as slots_
  std::unordered_map<uint64_t, std::string> names_;  // of adapters that homes_ knows
  std::vector<NamedHomes> decided_;                  // last, by whomever
  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  PlacementFigures figures_;  // guarded by mutex_, as stopping_
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loralei
