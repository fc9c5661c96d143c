// SPDX-License-Identifier: Apache-2.0
#include "route/adapter_homes.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace loralei {
namespace {

constexpr double kForgotten = 1e-3;  // requests

// A number of its own for each pair (SplitMix64's finisher).
uint64_t mix(uint64_t adapter, uint64_t replica) {
  uint64_t x = (adapter + 1) * 0x9E3779B97F4A7C15u + (replica + 1) * 0xD1B54A32D192ED03u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

std::optional<size_t> home_by_lot(AdapterSourceId adapter, std::span<const PlacedReplica> replicas) {
  std::optional<size_t> home;
  uint64_t most = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (!replicas[i].up) continue;
    const uint64_t lot = mix(adapter.value, replicas[i].number);
    if (home && lot <= most) continue;
    home = i;
    most = lot;
  }
  return home;
}

void AdapterHomes::decay(Asked& adapter, double now_s) const {
  const double left = std::exp2(-std::max(0.0, now_s - adapter.at_s) / options_.half_life_s);
  adapter.tokens *= left;
  adapter.requests *= left;
  adapter.at_s = std::max(adapter.at_s, now_s);
}

void AdapterHomes::asked(AdapterSourceId id, int32_t rank, int64_t bytes, double tokens, double now_s,
                         double requests) {
  Asked& adapter = adapters_[id];
  decay(adapter, now_s);
  adapter.rank = rank;
  adapter.bytes = bytes;
  adapter.tokens += tokens;
  adapter.requests += requests;
}

// By rank, the largest first; all others are forgotten or wait to be asked for.
std::vector<std::pair<AdapterSourceId, AdapterHomes::Asked*>> AdapterHomes::hot(double now_s) {
  std::vector<std::pair<AdapterSourceId, Asked*>> found;
  for (auto at = adapters_.begin(); at != adapters_.end();) {
    decay(at->second, now_s);
    if (at->second.requests < kForgotten) {
      at = adapters_.erase(at);
      continue;
    }
    // Homes are an inertia, too: half as much is enough to stay.
    const double enough = options_.hot_requests * (at->second.homes.empty() ? 1.0 : 0.5);
    if (at->second.requests >= enough) {
      found.emplace_back(at->first, &at->second);
    } else {
      at->second.homes.clear();
    }
    ++at;
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.second->rank > b.second->rank; });
  return found;
}

void AdapterHomes::keep_homes(Asked& adapter, size_t wanted, double part, double now_s,
                              std::span<const PlacedReplica> replicas, const std::function<bool(size_t)>& can,
                              std::vector<Part>& parts) const {
  const double tokens = adapter.tokens / static_cast<double>(std::max(wanted, adapter.homes.size()));
  size_t kept = 0;
  std::erase_if(adapter.homes, [&](Home& home) {
    const bool there = home.replica < replicas.size() && replicas[home.replica].up && can(home.replica);
    if (!there) return true;
    Part& here = parts[home.replica];
    if (here.tokens + tokens > options_.keep_share * part && here.tokens > 0) return true;
    if (here.bytes + adapter.bytes > replicas[home.replica].bytes) return true;
    if (kept < wanted) home.needed_s = now_s;
    if (now_s - home.needed_s > options_.dwell_s) return true;
    ++kept;
    here.tokens += tokens;
    here.bytes += adapter.bytes;
    here.rank_max = std::max(here.rank_max, adapter.rank);
    return false;
  });
}

void AdapterHomes::give_homes(Asked& adapter, size_t wanted, double part, double now_s,
                              std::span<const PlacedReplica> replicas, const std::function<bool(size_t)>& can,
                              std::vector<Part>& parts) const {
  const double tokens = adapter.tokens / static_cast<double>(wanted);
  while (adapter.homes.size() < wanted) {
    // Without room for its demand; how far its rank is from those there; how loaded.
    using Cost = std::tuple<bool, int32_t, double>;
    size_t best = replicas.size();
    Cost least{};
    for (size_t i = 0; i < replicas.size(); ++i) {
      const auto is_here = [i](const Home& home) { return home.replica == i; };
      if (!replicas[i].up || parts[i].bytes + adapter.bytes > replicas[i].bytes ||
          std::any_of(adapter.homes.begin(), adapter.homes.end(), is_here) || !can(i))
        continue;
      const bool full = parts[i].tokens > 0 && parts[i].tokens + tokens > part;
      // To its like first, then to where nobody is.
      const int32_t apart = parts[i].rank_max == adapter.rank ? 0
                            : parts[i].rank_max == 0          ? 1
                                                              : 1 + std::abs(parts[i].rank_max - adapter.rank);
      const Cost cost{full, full ? 0 : apart, parts[i].tokens};
      if (best == replicas.size() || cost < least) {
        best = i;
        least = cost;
      }
    }
    if (best == replicas.size()) return;
    adapter.homes.push_back({best, now_s});
    parts[best].tokens += tokens;
    parts[best].bytes += adapter.bytes;
    parts[best].rank_max = std::max(parts[best].rank_max, adapter.rank);
  }
}

std::vector<PlacementMove> AdapterHomes::plan(double now_s, std::span<const PlacedReplica> replicas,
                                              const PlaceOf& place_of) {
  const auto up = std::count_if(replicas.begin(), replicas.end(), [](const PlacedReplica& one) { return one.up; });
  auto all = hot(now_s);
  if (up == 0) return {};
  double demand = 0;
  for (const auto& [id, adapter] : all) demand += adapter->tokens;
  const double part = demand / static_cast<double>(up);
  const auto wanted = [&](const Asked& adapter) {
    const double homes = std::ceil(adapter.tokens / std::max(1e-9, options_.copy_share * part));
    return static_cast<size_t>(std::clamp(homes, 1.0, static_cast<double>(up)));
  };
  std::vector<Part> parts(replicas.size());
  const auto can = [&](AdapterSourceId id) {
    return [&place_of, id](size_t replica) { return place_of(replica, id) != AdapterPlace::kNowhere; };
  };
  for (const auto& [id, adapter] : all) keep_homes(*adapter, wanted(*adapter), part, now_s, replicas, can(id), parts);
  for (const auto& [id, adapter] : all) give_homes(*adapter, wanted(*adapter), part, now_s, replicas, can(id), parts);

  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second->tokens > b.second->tokens; });
  std::vector<PlacementMove> moves;
  int64_t bytes = 0;
  for (const auto& [id, adapter] : all) {
    for (const Home& home : adapter->homes) {
      if (place_of(home.replica, id) != AdapterPlace::kToBring) continue;
      if (moves.size() >= options_.moves_most || bytes + adapter->bytes > options_.bytes_most) return moves;
      moves.push_back({home.replica, id, adapter->bytes});
      bytes += adapter->bytes;
    }
  }
  return moves;
}

std::vector<size_t> AdapterHomes::given_homes(AdapterSourceId id) const {
  std::vector<size_t> replicas;
  if (const auto found = adapters_.find(id); found != adapters_.end()) {
    for (const Home& home : found->second.homes) replicas.push_back(home.replica);
  }
  return replicas;
}

std::vector<size_t> AdapterHomes::homes(AdapterSourceId id, std::span<const PlacedReplica> replicas) const {
  std::vector<size_t> found = given_homes(id);
  std::erase_if(found, [&](size_t home) { return home >= replicas.size() || !replicas[home].up; });
  if (!found.empty()) return found;
  if (const std::optional<size_t> home = home_by_lot(id, replicas)) found.push_back(*home);
  return found;
}

std::vector<GivenHomes> AdapterHomes::given() const {
  std::vector<GivenHomes> given;
  for (const auto& [id, adapter] : adapters_) {
    if (!adapter.homes.empty()) given.push_back({id, given_homes(id)});
  }
  return given;
}

void AdapterHomes::take_given(std::span<const GivenHomes> given, double now_s) {
  for (auto& [id, adapter] : adapters_) adapter.homes.clear();
  for (const GivenHomes& homes : given) {
    const auto [found, is_new] = adapters_.try_emplace(homes.adapter);
    Asked& adapter = found->second;
    if (is_new) adapter = {.tokens = options_.hot_requests, .requests = options_.hot_requests, .at_s = now_s};
    for (const size_t replica : homes.replicas) adapter.homes.push_back({replica, now_s});
  }
  for (auto at = adapters_.begin(); at != adapters_.end();) {
    decay(at->second, now_s);
    at = at->second.homes.empty() && at->second.requests < kForgotten ? adapters_.erase(at) : std::next(at);
  }
}

}  // namespace loralei
