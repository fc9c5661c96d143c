// SPDX-License-Identifier: Apache-2.0
#include "sim/fleet.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei::sim {
namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kLeaseS = 10;  // as a server's
constexpr int64_t kLookNs = kNsPerS;
constexpr int64_t kLatencyNs = 500'000;
// That news of a lease take at most, with a stream that must be given up, opened again
// and listed anew meanwhile.
constexpr int64_t kWatchDelayNs = 10 * kNsPerS;
constexpr int64_t kMemberNs = kLeaseS * kNsPerS + kWatchDelayNs;
constexpr int64_t kIdleTicksMost = 3600;

}  // namespace

Fleet::Fleet(Kernel& kernel, Faults& faults, const std::vector<std::unique_ptr<Router>>& routers, size_t places,
             std::optional<double> placement_s, Hooks hooks)
    : kernel_(kernel),
      faults_(faults),
      placement_s_(placement_s),
      hooks_(std::move(hooks)),
      etcd_(kernel),
      places_(places),
      sides_(routers.size()) {
  for (size_t i = 0; i < routers.size(); ++i) {
    sides_[i].router = routers[i].get();
    for (size_t place = 0; place < places; ++place) sides_[i].router->leave(place);
  }
}

Status Fleet::start() {
  etcd_.latency(0);
  for (size_t place = 0; place < places_.size(); ++place) keep(place);
  for (Side& side : sides_) watch(side);
  const auto knows_all = [this](const Side& side) { return side.members->all().size() == places_.size(); };
  while (!std::all_of(sides_.begin(), sides_.end(), knows_all)) {
    if (kernel_.now_ns() > 0 || !kernel_.step()) return internal_error("routers and replicas do not find each other");
  }
  etcd_.latency(kLatencyNs);
  if (placement_s_) {
    for (size_t i = 0; i < sides_.size(); ++i) {
      sides_[i].leader = std::make_unique<SimLeader>(etcd_, i, kLeaseS, [this] { return ++last_lease_; });
      sides_[i].leader->start();
    }
    etcd_.on_change([this] { check_decided(); });
    plan_turn();
  }
  if (faults_.fleet().replicas) plan_death();
  if (faults_.fleet().etcd) plan_etcd_trouble();
  if (faults_.fleet().cuts) plan_cut();
  kernel_.after(kLookNs, EventOrder::kEnded, [this] { tick(); });
  return {};
}

void Fleet::keep(size_t place) {
  auto keeper =
      std::make_unique<SimKeeper>(etcd_, SimMember{place, boot_word(place)}, kLeaseS, [this] { return ++last_lease_; });
  places_[place].keeper = std::move(keeper);
  places_[place].keeper->start();
}

void Fleet::watch(Side& side) {
  side.members = std::make_unique<SimMembers>(
      etcd_, [this, &side](const SimMember& member) { joined(side, member); },
      [this, &side](const SimMember& member) { left(side, member); });
  side.members->watch().start();
}

void Fleet::joined(Side& side, const SimMember& member) {
  ++counts_.joined;
  side.router->join(member.place);
  look(side, member.place);
}

// A router that was kept from etcd hears late of what was then.
void Fleet::left(Side& side, const SimMember& member) {
  ++counts_.left;
  side.router->leave(member.place);
  if (etcd_.is_away()) be_wrong("a member left a router while etcd was away (S12)");
  const Place& place = places_[member.place];
  const int64_t now_ns = kernel_.now_ns();
  const auto was_within = [now_ns](int64_t end_ns, int64_t for_ns) {
    return end_ns != kNever && (end_ns > now_ns || now_ns - end_ns < for_ns);
  };
  const bool lives = place.alive && boot_word(member.place) == member.boot;
  const bool reached = !was_within(place.cut_end_ns, kMemberNs);
  const bool heard = !was_within(side.cut_end_ns, kWatchDelayNs) && !was_within(etcd_end_ns_, kWatchDelayNs);
  if (lives && reached && heard) be_wrong("a member left a router that lives and could reach etcd (S12)");
}

void Fleet::look(Side& side, size_t place) {
  const int64_t now_ns = kernel_.now_ns();
  if (!places_[place].alive) return side.router->failed(place, now_ns);
  std::string& heard = side.heard[place];
  const bool anew = !heard.empty() && heard != boot_word(place);
  heard = boot_word(place);
  side.router->heard(place, now_ns, anew);
}

// Every second: looks at members, and whether all is as it must be.
void Fleet::tick() {
  for (Side& side : sides_) {
    for (const auto& [key, member] : side.members->all()) look(side, member.place);
  }
  check_dead();
  check_leaders();
  const bool quiet =
      !hooks_.more() && troubles_ == 0 && (trouble_end_ns_ == 0 || kernel_.now_ns() - trouble_end_ns_ > kMemberNs);
  // Who waits for nothing is found by whoever judges the run.
  if (quiet && (!hooks_.busy() || ++idle_ticks_ > kIdleTicksMost)) {
    check_agreement();
    over_ = true;
    return;
  }
  kernel_.after(kLookNs, EventOrder::kEnded, [this] { tick(); });
}

// As long as requests come.
void Fleet::plan_turn() {
  kernel_.after(static_cast<int64_t>(*placement_s_ * 1e9), EventOrder::kArrival, [this] {
    for (Side& side : sides_) turn(side);
    if (hooks_.more()) plan_turn();
  });
}

// Who leads has heard before what was decided, and goes on from there.
void Fleet::turn(Side& side) {
  const int64_t now_ns = kernel_.now_ns();
  const bool leads = side.leader->leads(), led = std::exchange(side.led, leads);
  if (const auto news = side.leader->news(); news && !news->empty()) {
    auto decided = parse_decided(*news);
    if (!decided.ok()) return be_wrong("what was decided of homes cannot be read");
    side.decided = *std::move(decided);
  }
  if (!(led && leads)) side.router->take_given(side.decided.given, now_ns);
  if (!leads) return;
  if (!led) ++counts_.planners;
  for (const PlacementMove& move : side.router->place(now_ns)) hooks_.ask(move);
  side.decided = {static_cast<size_t>(&side - sides_.data()), side.router->given()};
  side.leader->decide(decided_text(side.decided));
}

void Fleet::check_leaders() {
  const auto leads = [](const Side& side) { return side.leader && side.leader->leads(); };
  if (std::count_if(sides_.begin(), sides_.end(), leads) > 1) be_wrong("two routers lead at a time (S13)");
}

// Behind every change: what was decided at this revision, was by who led there.
void Fleet::check_decided() {
  check_leaders();
  const auto found = etcd_.store().range({.key = kDecidedKey});
  if (!found.ok() || found->keys.empty() || found->keys[0].mod_revision == decided_revision_) return;
  decided_revision_ = found->keys[0].mod_revision;
  const auto decided = parse_decided(found->keys[0].value);
  const auto first = etcd_.store().range(etcd_leader(kLeadPrefix));
  const bool led =
      decided.ok() && first.ok() && !first->keys.empty() && first->keys[0].value == router_name(decided->router);
  if (!led) be_wrong("one that does not lead decided (S13)");
}

void Fleet::plan_death() {
  kernel_.after(faults_.next_death_ns(), EventOrder::kArrival, [this] {
    if (!hooks_.more()) return;
    const size_t place = faults_.dead(places_.size());
    if (places_[place].alive) {
      ++counts_.deaths;
      ++troubles_;
      places_[place].alive = false;
      places_[place].deaths[boot_word(place)] = kernel_.now_ns();
      places_[place].keeper.reset();
      hooks_.died(place);
      kernel_.after(faults_.down_ns(), EventOrder::kArrival, [this, place] {
        places_[place].alive = true;
        ++places_[place].boot;
        places_[place].cut_end_ns = kNever;
        hooks_.started(place);
        keep(place);
        end_trouble();
      });
    }
    plan_death();
  });
}

void Fleet::plan_etcd_trouble() {
  kernel_.after(faults_.next_etcd_trouble_ns(), EventOrder::kArrival, [this] {
    if (!hooks_.more()) return;
    const EtcdTrouble trouble = faults_.etcd_trouble();
    if (trouble == EtcdTrouble::kCompaction) {
      etcd_.compact();
      return plan_etcd_trouble();
    }
    const int64_t for_ns = faults_.etcd_trouble_ns(trouble);
    ++troubles_;
    begin_trouble(trouble, for_ns);
    kernel_.after(for_ns, EventOrder::kArrival, [this, trouble] {
      if (trouble == EtcdTrouble::kAway) etcd_.away(false);
      if (trouble == EtcdTrouble::kSlow) etcd_.latency(kLatencyNs);
      etcd_end_ns_ = kernel_.now_ns();
      end_trouble();
      plan_etcd_trouble();
    });
  });
}

void Fleet::begin_trouble(EtcdTrouble trouble, int64_t for_ns) {
  etcd_end_ns_ = INT64_MAX;
  switch (trouble) {
    case EtcdTrouble::kAway:
      counts_.away_s += static_cast<double>(for_ns) * 1e-9;
      return etcd_.away(true);
    case EtcdTrouble::kNoLeader:
      return etcd_.lose_leader(for_ns);
    case EtcdTrouble::kSlow:
      return etcd_.latency(faults_.slow_latency_ns());
    case EtcdTrouble::kCompaction:
      return;
  }
}

void Fleet::end_trouble() {
  --troubles_;
  trouble_end_ns_ = kernel_.now_ns();
}

void Fleet::plan_cut() {
  kernel_.after(faults_.next_cut_ns(), EventOrder::kArrival, [this] {
    if (!hooks_.more()) return;
    const size_t who = faults_.cut_off(places_.size() + sides_.size());
    const int64_t for_ns = faults_.cut_ns();
    ++troubles_;
    ++counts_.cuts;
    cut(who, true);
    kernel_.after(for_ns, EventOrder::kArrival, [this, who] {
      cut(who, false);
      end_trouble();
    });
    plan_cut();
  });
}

// The replicas first, then the routers. One that was started meanwhile is not cut off.
void Fleet::cut(size_t who, bool is) {
  const int64_t end_ns = is ? INT64_MAX : kernel_.now_ns();
  if (who < places_.size()) {
    if (places_[who].keeper) places_[who].keeper->cut(is);
    places_[who].cut_end_ns = end_ns;
  } else {
    Side& side = sides_[who - places_.size()];
    side.members->watch().cut(is);
    if (side.leader) side.leader->cut(is);
    side.cut_end_ns = end_ns;
  }
}

void Fleet::check_dead() {
  const int64_t now_ns = kernel_.now_ns();
  for (const Side& side : sides_) {
    for (const auto& [key, member] : side.members->all()) {
      const auto& deaths = places_[member.place].deaths;
      const auto died = deaths.find(member.boot);
      if (died == deaths.end()) continue;
      const int64_t since_ns = std::max({died->second, side.cut_end_ns, etcd_end_ns_});
      if (since_ns != INT64_MAX && now_ns - since_ns > kMemberNs)
        be_wrong("a router has a member that died longer ago than a lease and its news take (S11)");
    }
  }
}

void Fleet::check_agreement() {
  for (const Side& side : sides_) {
    bool all = side.members->all().size() == places_.size();
    for (const auto& [key, member] : side.members->all()) all &= member.boot == boot_word(member.place);
    if (!all) be_wrong("the routers do not agree on who is there (S14)");
  }
}

FleetCounts Fleet::counts() const {
  FleetCounts all = counts_;
  all.etcd_leaders = etcd_.leaders();
  all.compactions = etcd_.compactions();
  for (const Side& side : sides_) all.lists += side.members->watch().lists();
  return all;
}

}  // namespace loralei::sim
