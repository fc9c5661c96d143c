// SPDX-License-Identifier: Apache-2.0
#include "router/placement.h"

#include <algorithm>
#include <chrono>

#include "base/fast_hash.h"
#include "base/printable.h"
#include "http/message.h"
#include "sys/threads.h"

namespace loralei {

// Of a replica that was asked to bring an adapter.
class PlacementController::Answer final : public UpstreamListener {
 public:
  Answer(std::shared_ptr<Asked> asked, Wish wish, LogSink& log)
      : asked_(std::move(asked)), wish_(std::move(wish)), log_(log) {}
  void on_head(int status, const HttpHeaders&) override { status_ = status; }
  bool on_body(std::string_view) override { return true; }
  void on_end() override {
    const std::lock_guard lock(asked_->mutex);
    asked_->under_way.erase(wish_);
    ++(status_ / 100 == 2 ? asked_->brought : asked_->refused);
    const bool needs_key = status_ == 401 || status_ == 403;
    if (!needs_key || !asked_->told.insert(wish_.replica).second) return;
    log_.log(LogLevel::kWarning, "Replica " + wish_.replica +
                                     " lets nobody without its admin key bring adapters: give " +
                                     "that key to the router (--admin-key), or do without (--placement homes).");
  }
  void on_failure(const UpstreamFailure&) override {
    const std::lock_guard lock(asked_->mutex);
    asked_->under_way.erase(wish_);
    ++asked_->failed;
  }

 private:
  const std::shared_ptr<Asked> asked_;
  const Wish wish_;
  LogSink& log_;
  int status_ = 0;
};

PlacementController::PlacementController(const PlacementOptions& options, const PlacementWorld& world)
    : options_(options), world_(world), homes_(options.homes) {}

Status PlacementController::start() {
  TRY_ASSIGN(thread_, start_thread([this] {
               name_this_thread("placement");
               const auto interval = std::chrono::duration<double>(options_.homes.interval_s);
               std::unique_lock lock(mutex_);
               while (!changed_.wait_for(lock, interval, [this] { return stopping_; })) {
                 lock.unlock();
                 turn();
                 lock.lock();
               }
             }));
  return {};
}

void PlacementController::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

PlacementFigures PlacementController::figures() const {
  const std::scoped_lock lock(mutex_, asked_->mutex);
  PlacementFigures figures = figures_;
  figures.brought = asked_->brought;
  figures.refused = asked_->refused;
  figures.failed = asked_->failed;
  return figures;
}

void PlacementController::turn() {
  const double now_s = world_.clock.now_s();
  look_at_replicas(now_s);
  count_demand(now_s);
  // Who leads has heard before what was decided.
  const bool leads = world_.leader == nullptr || world_.leader->leads();
  if (world_.leader != nullptr) hear(*world_.leader);
  if (!(std::exchange(led_, leads) && leads)) follow(now_s);
  if (leads) lead(now_s);
  forget();
  const std::lock_guard lock(mutex_);
  figures_.leads = leads;
  figures_.adapters = decided_.size();
}

void PlacementController::look_at_replicas(double now_s) {
  for (PlacedReplica& room : rooms_) room.up = false;
  for (const HomeReplica& replica : world_.fleet.home_replicas()) {
    auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& one) { return one.name == replica.name; });
    if (slot == slots_.end()) {
      slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& one) { return one.name.empty(); });
      if (slot == slots_.end()) slot = slots_.insert(slots_.end(), Slot());
      *slot = {.name = replica.name, .usable_s = -kMissedS};
      rooms_.resize(slots_.size());
    }
    slot->boot = replica.boot;
    slot->address = replica.address;
    slot->place = replica.replica;
    if (replica.usable) slot->usable_s = now_s;
    rooms_[static_cast<size_t>(slot - slots_.begin())] = {now_s - slot->usable_s < kMissedS, replica.adapter_bytes,
                                                          replica.number};
  }
}

void PlacementController::forget() {
  std::erase_if(names_, [this](const auto& name) { return !homes_.knows(AdapterSourceId{name.first}); });
  std::set<size_t> homes;
  for (const GivenHomes& one : homes_.given()) homes.insert(one.replicas.begin(), one.replicas.end());
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!rooms_[slot].up && homes.count(slot) == 0) slots_[slot].name.clear();
  }
}

AdapterSourceId PlacementController::id_of(const std::string& adapter) {
  const uint64_t number = fast_hash(reinterpret_cast<const std::byte*>(adapter.data()), adapter.size(), 0);
  names_.try_emplace(number, adapter);
  return AdapterSourceId{number};
}

void PlacementController::count_demand(double now_s) {
  for (const AdapterDemand& asked : world_.fleet.take_demand()) {
    homes_.asked(id_of(asked.name), asked.rank, asked.bytes, asked.requests, now_s, asked.requests);
  }
}

std::vector<NamedHomes> PlacementController::named(const std::vector<GivenHomes>& given) const {
  std::vector<NamedHomes> named;
  for (const GivenHomes& one : given) {
    NamedHomes homes{names_.at(one.adapter.value), {}};
    for (const size_t slot : one.replicas) homes.replicas.push_back(slots_[slot].name);
    named.push_back(std::move(homes));
  }
  return named;
}

void PlacementController::lead(double now_s) {
  std::unordered_map<uint64_t, std::vector<AdapterPlace>> places;
  const auto place_of = [&](size_t slot, AdapterSourceId adapter) {
    const auto [found, is_new] = places.try_emplace(adapter.value);
    if (is_new) found->second = world_.fleet.where(names_.at(adapter.value));
    const size_t place = slots_[slot].place;
    return place < found->second.size() ? found->second[place] : AdapterPlace::kNowhere;
  };
  const std::vector<PlacementMove> moves = homes_.plan(now_s, rooms_, place_of);
  decided_ = named(homes_.given());
  world_.fleet.take_homes(decided_);
  if (world_.leader != nullptr) world_.leader->decide(fleet_homes_text(decided_));
  if (options_.asks) ask(moves, now_s);
}

void PlacementController::hear(FleetLeader& leader) {
  const std::optional<std::string> news = leader.news();
  if (!news || news->empty()) return;
  auto homes = parse_fleet_homes(*news);
  if (homes.ok()) {
    decided_ = *std::move(homes);
    return;
  }
  world_.log.log(LogLevel::kWarning, "What etcd has of the homes of adapters cannot be read: " + homes.error().message +
                                         ". They stay as they are.");
}

// Also of one that begins to lead: it goes on from there.
void PlacementController::follow(double now_s) {
  std::vector<GivenHomes> given;
  for (const NamedHomes& one : decided_) {
    GivenHomes homes{id_of(one.adapter), {}};
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const auto& names = one.replicas;
      if (std::find(names.begin(), names.end(), slots_[slot].name) != names.end()) homes.replicas.push_back(slot);
    }
    given.push_back(std::move(homes));
  }
  homes_.take_given(given, now_s);
  world_.fleet.take_homes(decided_);
}

void PlacementController::ask(const std::vector<PlacementMove>& moves, double now_s) {
  for (const PlacementMove& move : moves) {
    const Slot& slot = slots_[move.replica];
    const std::string& adapter = names_.at(move.adapter.value);
    const Wish wish{slot.name, slot.boot, adapter};
    {
      const std::lock_guard lock(asked_->mutex);
      std::erase_if(asked_->again_s, [now_s](const auto& one) { return one.second <= now_s; });
      if (asked_->under_way.size() >= kAskedMost) return;
      if (asked_->under_way.count(wish) != 0 || !asked_->again_s.emplace(wish, now_s + kAgainS).second) continue;
      asked_->under_way.insert(wish);
    }
    UpstreamRequest request{.method = "POST", .target = "/v1/adapters/" + percent_encode(adapter) + "/prefetch"};
    if (!options_.admin_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + options_.admin_key);
    request.body = std::make_shared<const std::string>();
    request.head_timeout_ms = options_.bring_ms;
    request.idempotent = true;
    world_.upstream.call(slot.address, std::move(request), std::make_shared<Answer>(asked_, wish, world_.log));
  }
}

}  // namespace loralei
