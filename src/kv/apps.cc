// SPDX-License-Identifier: Apache-2.0
#include "kv/apps.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {
namespace {

double score_of(AppState state) {
  switch (state) {
    case AppState::kForeground:
      return 1;
    case AppState::kBackground:
      return 0.5;
    case AppState::kKilled:
      return 0;
  }
  return 0;
}

bool named_before(const KvAppRef& a, const KvAppRef& b) { return a->name < b->name; }

}  // namespace

bool KvApps::ByNames::operator()(std::span<const KvAppRef> a, std::span<const KvAppRef> b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), named_before);
}

KvApps::KvApps() : nobody_named_(std::make_shared<const KvApp>()) {
  sets_.push_back({.score = kSetMost});
  hold(alone(nobody_named_));
}

std::shared_ptr<KvApp> KvApps::find(const std::string& name) {
  std::weak_ptr<KvApp>& known = known_[name];
  std::shared_ptr<KvApp> app = known.lock();
  if (app != nullptr) return app;
  app = std::make_shared<KvApp>(KvApp{.name = name});
  known = app;
  if (known_.size() >= purge_at_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    purge_at_ = std::max<size_t>(64, 2 * known_.size());
  }
  return app;
}

KvAppRef KvApps::asks(const std::string& name) {
  if (name.empty()) return nobody_named_;
  std::shared_ptr<KvApp> app = find(name);
  if (app->state == AppState::kKilled) {
    app->state = AppState::kForeground;
    for (Set& set : sets_) weigh(set);
  }
  return app;
}

Status KvApps::state(const std::string& name, AppState state) {
  CHECK(!name.empty());
  if (state == AppState::kKilled) {
    stated_.erase(name);  // nothing is left to be known of it, but by those that use the same
  } else if (stated_.count(name) == 0) {
    if (stated_.size() == kStatedMost) {
      return Error{ErrorCode::kOverloaded,
                   std::to_string(kStatedMost) + " applications have a state; say of some that they are killed first."};
    }
    stated_[name] = find(name);
  }
  const auto known = known_.find(name);
  const std::shared_ptr<KvApp> app = known == known_.end() ? nullptr : known->second.lock();
  if (app == nullptr || app->state == state) return {};
  app->state = state;
  for (Set& set : sets_) weigh(set);
  return {};
}

void KvApps::weigh(Set& set) const {
  if (set.members.empty()) return;  // everybody's, or nobody's
  set.score = 0;
  set.all_killed = true;
  for (const KvAppRef& app : set.members) {
    set.score += score_of(app->state);
    set.all_killed = set.all_killed && app->state == AppState::kKilled;
  }
}

AppSetId KvApps::set_of(Members members) {
  if (members.size() > kSetMost) return kEverybody;
  const auto known = ids_.find(members);
  if (known != ids_.end()) return known->second;
  if (ids_.size() == kSetsMost) return kEverybody;
  AppSetId id = sets_end();
  if (free_.empty()) {
    sets_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Set& set = sets_[static_cast<size_t>(id)];
  set.members = members;
  weigh(set);
  ids_.emplace(std::move(members), id);
  return id;
}

AppSetId KvApps::alone(const KvAppRef& app) {
  const auto known = ids_.find(std::span(&app, 1));
  return known != ids_.end() ? known->second : set_of({app});
}

AppSetId KvApps::with(AppSetId set, const KvAppRef& app) {
  if (set == kEverybody) return set;
  const Members& members = sets_[static_cast<size_t>(set)].members;
  const auto place = std::lower_bound(members.begin(), members.end(), app, named_before);
  if (place != members.end() && (*place)->name == app->name) return set;
  Members more;
  more.reserve(members.size() + 1);
  more.insert(more.end(), members.begin(), place);
  more.push_back(app);
  more.insert(more.end(), place, members.end());
  return set_of(std::move(more));
}

void KvApps::let_go(AppSetId id) {
  Set& set = sets_[static_cast<size_t>(id)];
  CHECK(set.holders > 0);
  if (--set.holders > 0 || id == kEverybody) return;
  ids_.erase(set.members);
  set = {};
  free_.push_back(id);
}

std::vector<KvApps::Shown> KvApps::shown() const {
  std::map<std::string, Shown> apps;
  const auto shown_of = [&](const KvApp& app) -> Shown& {
    Shown& shown = apps[app.name];
    shown.name = app.name;
    shown.state = app.state;
    return shown;
  };
  for (const auto& [name, app] : stated_) shown_of(*app);
  for (const Set& set : sets_) {
    for (const KvAppRef& app : set.members) {
      if (app->name.empty()) continue;
      Shown& shown = shown_of(*app);
      shown.blocks += set.holders;
      if (set.members.size() == 1) shown.alone += set.holders;
    }
  }
  std::vector<Shown> all;
  all.reserve(apps.size());
  for (auto& [name, shown] : apps) all.push_back(std::move(shown));
  return all;
}

void KvApps::check() const {
  CHECK(sets_[0].members.empty() && !sets_[0].all_killed);
  size_t used = 0;
  for (size_t id = 1; id < sets_.size(); ++id) {
    const Set& set = sets_[id];
    if (set.members.empty()) {
      CHECK(set.holders == 0);
      continue;
    }
    ++used;
    CHECK(set.members.size() <= kSetMost && ids_.at(set.members) == static_cast<AppSetId>(id));
    CHECK(std::is_sorted(set.members.begin(), set.members.end(), named_before));
    Set weighed = set;
    weigh(weighed);
    CHECK(weighed.score == set.score && weighed.all_killed == set.all_killed);
  }
  CHECK(used == ids_.size() && used + free_.size() + 1 == sets_.size());
}

}  // namespace loralei
