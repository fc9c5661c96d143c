// SPDX-License-Identifier: Apache-2.0
// What a fleet tells who plans the homes of its adapters, and takes from it.
#include <algorithm>
#include <utility>

#include "router/fleet.h"

namespace loralei {

void Fleet::find_homes(const Wanted& wanted, int64_t now_ns) {
  for (size_t i = 0; i < replicas_.size(); ++i) homes_.set_up(i, replicas_[i].usable(now_ns));
  if (wanted_homes_.size() < wanted.adapters.size()) wanted_homes_.resize(wanted.adapters.size());
  for (size_t i = 0; i < wanted.adapters.size(); ++i) {
    const auto adapter = static_cast<uint32_t>(wanted.adapters[i]);
    homes_.homes_of(adapter, adapters_[adapter].number, wanted_homes_[i]);
  }
}

// What the adapters take from others there; where one is in use it is in nobody's way.
double Fleet::stray_s(size_t index, const Wanted& wanted) const {
  if (!options_.homes) return 0;
  const Replica& replica = replicas_[index];
  const Profile& profile = profile_of(replica);
  double seconds = 0;
  for (size_t i = 0; i < wanted.adapters.size(); ++i) {
    const std::vector<size_t>& homes = wanted_homes_[i];
    const size_t adapter = wanted.adapters[i];
    if (std::find(homes.begin(), homes.end(), index) != homes.end()) continue;
    if (replica.load.all().has(AdapterSourceId{adapter + 1})) continue;
    const int64_t bytes = bytes_of(adapters_[adapter], profile);
    if (profile.disk) seconds += profile.disk->predict_s(bytes);
    if (profile.link) seconds += profile.link->predict_s(bytes);
  }
  return seconds;
}

std::vector<HomeReplica> Fleet::home_replicas() const {
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.now_ns();
  std::vector<HomeReplica> found;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    if (replica.left) continue;
    found.push_back({.replica = i,
                     .address = replica.address,
                     .name = address_text(replica.address),
                     .boot = replica.last_boot,
                     .number = replica.number,
                     .usable = replica.usable(now_ns),
                     .adapter_bytes = replica.adapter_bytes});
  }
  return found;
}

std::vector<AdapterDemand> Fleet::take_demand() {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterDemand> demand;
  for (const auto& [place, requests] : homes_.take_demand()) {
    const Adapter& adapter = adapters_[place];
    demand.push_back({*adapter.name, adapter.rank, adapter.bytes, requests});
  }
  return demand;
}

std::vector<AdapterPlace> Fleet::where(const std::string& adapter) const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterPlace> places(replicas_.size(), AdapterPlace::kNowhere);
  const auto found = names_.find(adapter);
  if (found == names_.end()) return places;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    const uint8_t tier = found->second < replica.tiers.size() ? replica.tiers[found->second] : kAbsent;
    if (tier == kAbsent) continue;
    const bool on_disk = tier == static_cast<uint8_t>(ReplicaTier::kDisk);
    places[i] = on_disk ? AdapterPlace::kToBring : AdapterPlace::kInMemory;
  }
  return places;
}

void Fleet::take_homes(const std::vector<NamedHomes>& homes) {
  const std::lock_guard lock(mutex_);
  std::map<std::string, size_t, std::less<>> places;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (!replicas_[i].left) places.emplace(address_text(replicas_[i].address), i);
  }
  HomeTable::Given given;
  for (const NamedHomes& one : homes) {
    const auto adapter = names_.find(one.adapter);
    if (adapter == names_.end()) continue;
    std::vector<size_t>& replicas = given[adapter->second];
    for (const std::string& name : one.replicas) {
      const auto replica = places.find(name);
      if (replica != places.end()) replicas.push_back(replica->second);
    }
  }
  homes_.give(std::move(given));
}

}  // namespace loralei
