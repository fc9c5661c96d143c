// SPDX-License-Identifier: Apache-2.0
// Fleet: the replicas behind a router: which there are and how they are, which adapters
// each has, what each has to do, and where the next request goes (route/policy).
//
// What a router knows of a replica: the requests it sent there, as sums (ReplicaLoad);
// what its reports say (wire/replica_report); whether it answers (ReplicaHealth). How
// long an answer will be, and how many tokens a text has, it learns from those that
// ended; what of a text a replica has cached it guesses from what it sent there.
//
// Thread-safe: one lock, held for some microseconds.
// Ownership: borrows clock and log.
// Invariants: replicas come and go; a place in the list is another's only when it is
// vacant(). Nothing is sent to one that left, what runs there counts until it ended, and
// what is told of it changes nothing. What place() counts, ended() takes back, once; a
// pick costs the same whatever the number of requests and of adapters; an adapter costs a
// byte for each replica, once its name, and with homes some bytes where it was used; no
// request goes to a replica of another base model.
// Failure: place() answers kUnavailable where nobody can be asked, and kOverloaded where
// requests are shed; kNotFound never: a name that nobody is known to have is for a
// replica to refuse, which may have it since its last report.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "cost/profile.h"
#include "http/upstream.h"
#include "route/policy.h"
#include "route/replica_health.h"
#include "router/home_table.h"
#include "router/prefix_map.h"
#include "store/fleet_homes.h"
#include "wire/replica_report.h"
#include "wire/route_facts.h"

namespace loralei {

struct FleetOptions {
  RoutePolicy policy = RoutePolicy::kRankAware;
  RouteObjectives objectives;  // of requests that state none
  bool shed = false;           // refuse what nobody can serve within its objectives
  Profile profile;             // of replicas that do not say what their steps cost
  HealthOptions health;
  uint64_t seed = 1;
  bool homes = false;  // adapters have homes, where their requests rather go
};

// What is known of a request when it is sent somewhere.
struct RouteQuery {
  const RouteFacts* facts = nullptr;
  RouteObjectives objectives;
  std::span<const size_t> tried = {};  // replicas that are not to be asked again
  // Whom alone it may be sent to; empty: anybody. Called with the fleet's lock held.
  std::function<bool(const UpstreamAddress&)> may = {};
  int others = 0;  // replicas that are named besides
};

// A request on a replica, until ended().
struct Placed {
  size_t replica = 0;
  UpstreamAddress address = {};  // its own
  RequestId id;
  bool known = true;             // the replica is known to have what the request names
  bool meets_objectives = true;  // as predicted
  // Where it would have gone if not there, and so on: for who sends it on by himself.
  std::vector<UpstreamAddress> others = {};
};

// What an answer said of itself, as far as it did.
struct AnswerCounts {
  int64_t prompt_tokens = 0, output_tokens = 0;  // 0: not known
};

// A replica as it is shown.
struct ReplicaState {
  size_t replica = 0;  // its place
  UpstreamAddress address;
  std::string name;  // host:port
  HealthState health = HealthState::kUnknown;
  std::string why;                // its last failure; empty: none, or it was heard since
  int32_t sent = 0, waiting = 0;  // requests of this router that are there, and of these without a token
  int32_t reported_running = 0, reported_waiting = 0;
  int32_t sequences_max = 0;
  size_t adapters = 0, adapters_in_memory = 0, adapters_on_device = 0;
  uint64_t picks = 0, failures = 0;
  bool reports = true;  // false: a server of another make, of which only the models are known
  bool store = false;   // takes uploads of adapters
  bool own_cost = false;
};

// An adapter as it was asked for.
struct AdapterDemand {
  std::string name;
  int32_t rank = 0;   // 0: not known yet
  int64_t bytes = 0;  // likewise
  double requests = 0;
};

// A replica as one that may be a home.
struct HomeReplica {
  size_t replica = 0;  // its place
  UpstreamAddress address;
  std::string name;  // host:port
  std::string boot;  // of its process, as it reported; empty: it says none
  uint64_t number = 0;
  bool usable = false;
  int64_t adapter_bytes = 0;  // that adapters may take; INT64_MAX: not known
};

class Fleet {
 public:
  Fleet(const FleetOptions& options, const Clock& clock, LogSink& log);

  // Its place: that one, which is vacant(), or a new one.
  size_t add(const UpstreamAddress& address, std::optional<size_t> vacant = std::nullopt);
  void leave(size_t replica);         // once
  bool vacant(size_t replica) const;  // it left, and nothing runs there any more
  size_t size() const;                // of those that have not left
  UpstreamAddress address(size_t replica) const;

  Result<Placed> place(const RouteQuery& query);
  // It was sent on to that one: what counts for it counts there from now on, and the new
  // placement holds in the old one's stead. Nothing where no other replica is there.
  std::optional<Placed> moved(const Placed& placement, const UpstreamAddress& address);
  void answers(const Placed& placement);  // its first bytes have come
  // `counts` where a whole answer came.
  void ended(const Placed& placement, const std::optional<AnswerCounts>& counts);

  // Of looks at the replica. `asked_since`: the cursor it was asked with.
  void take(size_t replica, const ReplicaReport& report);
  void take(size_t replica, const ModelNames& names);  // of a server that makes no reports
  void failed(size_t replica, const std::string& why);
  void not_ready(size_t replica, const std::string& why);
  // What to ask for next: the boot and cursor of what was taken.
  std::string report_query(size_t replica) const;

  // For who plans homes (placement.h); with options.homes.
  std::vector<HomeReplica> home_replicas() const;  // in no order that stays
  std::vector<AdapterDemand> take_demand();        // of all replicas, since the last call
  // By place; where the fleet does not know the adapter, nobody has it.
  std::vector<AdapterPlace> where(const std::string& adapter) const;
  // What is not known is passed over.
  void take_homes(const std::vector<NamedHomes>& homes);

  bool any_usable() const;
  std::vector<ReplicaState> states() const;        // without those that are vacant
  std::vector<std::string> base_names() const;     // of replicas that are up
  std::vector<std::string> adapter_names() const;  // likewise, sorted
  // At most so many of them, and how many there are; no more than that is looked at.
  std::vector<std::string> first_adapter_names(size_t most, size_t& total) const;
  bool knows(const std::string& name) const;
  uint64_t shed() const;
  uint64_t missed() const;       // placed where they will miss their objectives, as predicted
  int64_t memory_bytes() const;  // of adapters' names and places, and of prefixes

 private:
  static constexpr uint8_t kAbsent = 0xff;  // else a ReplicaTier
  struct Replica {
    UpstreamAddress address;
    bool left = false;
    ReplicaHealth health;
    std::string why;
    bool usable(int64_t now_ns) const { return !left && health.usable(now_ns); }
    ReplicaLoad load;
    std::string boot;       // of what `cursor` is; empty: all is to be asked for
    std::string last_boot;  // that it reported
    uint64_t cursor = 0;
    bool reports = true;
    bool store = false;
    std::vector<std::string> models;
    std::string base;  // digest that it reported; empty: it says none
    int32_t sequences_max, reported_running = 0, reported_waiting = 0;
    int32_t others = 0;  // requests there that came another way, by its last report
    int64_t kv_tokens;
    int64_t adapter_bytes = std::numeric_limits<int64_t>::max();
    uint64_t number = 0;             // of its lots
    std::vector<uint8_t> tiers;      // by adapter
    std::optional<Profile> profile;  // its own
    std::string cost;                // that this was read from
    size_t counts[3] = {};           // of adapters, by tier
    uint64_t picks = 0;
  };
  struct Adapter {
    const std::string* name = nullptr;  // in names_
    uint64_t number = 0;                // of its lot
    int32_t rank = 0;
    int64_t bytes = 0;
    int32_t replicas = 0;  // that have it
    int32_t requests = 0;  // that count as its
  };
  struct Sent {
    size_t replica = 0;
    double text_bytes = 0;
    AdapterSourceId adapter;
  };
  // A request whose answer comes at once: from then on it counts as one that decodes.
  struct Begins {
    int64_t at_ns = 0;
    RequestId id;
    friend bool operator>(const Begins& a, const Begins& b) { return a.at_ns > b.at_ns; }
  };
  struct Wanted {
    std::vector<size_t> adapters;  // known ones
    bool unknown = false;          // names one that nobody is known to have
  };

  uint32_t adapter_of(const std::string& name);  // made where it is not there
  void put(Replica& replica, const std::string& name, uint8_t tier);
  void release(uint32_t place);  // where neither replicas nor requests need it
  void forget_adapters(Replica& replica);
  // Whether it serves the fleet's base model, which is that of the first one that
  // reports. When none of those is up, it is that of the next.
  bool serves_the_base(const Replica& replica, int64_t now_ns);
  void take_cost(Replica& replica, const std::string& cost);
  Wanted wanted_by(const RouteFacts& facts) const;
  bool has(const Replica& replica, const Wanted& wanted) const;
  int64_t bytes_of(const Adapter& adapter, const Profile& profile) const;
  double adapter_s(const Replica& replica, const Wanted& wanted) const;
  double stray_s(size_t replica, const Wanted& wanted) const;
  void find_homes(const Wanted& wanted, int64_t now_ns);
  int32_t cached_tokens(size_t replica) const;  // of the request that is placed
  RoutedRequest request_of(const RouteFacts& facts, const Wanted& wanted) const;
  void offer(const RouteQuery& query, const Wanted& wanted, bool knowing, int64_t now_ns);
  // Of the candidates, without that one.
  std::vector<UpstreamAddress> others_than(size_t candidate, int count, const RoutedRequest& request,
                                           const RouteObjectives& objectives);
  void begin_due(int64_t now_ns);
  bool is_base(const std::string& name) const;
  size_t index_of(const Replica& replica) const { return static_cast<size_t>(&replica - replicas_.data()); }
  const Profile& profile_of(const Replica& replica) const {
    return replica.profile ? *replica.profile : options_.profile;
  }

  const FleetOptions options_;
  const Clock& clock_;
  LogSink& log_;
  mutable std::mutex mutex_;
  RoutePicker picker_;
  std::vector<Replica> replicas_;
  std::map<std::string, uint32_t, std::less<>> names_;  // to a place in adapters_; never removed while a replica has it
  std::vector<Adapter> adapters_;
  std::vector<uint32_t> free_adapters_;
  std::unordered_map<RequestId, Sent> sent_;
  std::priority_queue<Begins, std::vector<Begins>, std::greater<>> begins_;
  std::vector<RouteCandidate> candidates_;
  std::vector<size_t> candidate_replicas_;
  HomeTable homes_;
  std::vector<std::vector<size_t>> wanted_homes_;  // of the request that is placed, by adapter
  PrefixMap prefixes_;
  std::vector<int32_t> prefix_pieces_;  // of the request that is placed, by replica
  std::string base_;                    // digest of the fleet's base model
  uint64_t next_id_ = 1, shed_ = 0, missed_ = 0;
  double bytes_per_token_, answer_tokens_;  // means over what ended lately
};

}  // namespace loralei
