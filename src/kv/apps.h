// SPDX-License-Identifier: Apache-2.0
// KvApps: the applications that requests name, how they stand, and which of them use what
// is held (MobiLoRA, §3.3).
//
// Applications that use one holding are a set; equal sets are one. A set only grows while
// its holding is there. Whoever names no application counts as one that is always in the
// foreground, so no holding of his is ever only of killed ones. A set of more than
// kSetMost is everybody's, and so is a new one while there are kSetsMost: whatever ids
// requests name, who evicts looks at no more sets than these.
//
// Thread: the engine's.
// Ownership: an application is known while a request, a set or a stated state keeps it.
// Invariants (check()): a set has members in the order of their names, and as many
// holders as hold() and let_go() say; one without holders is gone.
// Failure: state() says when kStatedMost applications have a state already.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace loralei {

enum class AppState : uint8_t { kForeground, kBackground, kKilled };
inline constexpr const char* kAppStateNames[] = {"foreground", "background", "killed"};

struct KvApp {
  std::string name;  // empty: whoever names none
  AppState state = AppState::kForeground;
};
using KvAppRef = std::shared_ptr<const KvApp>;
using AppSetId = int32_t;

class KvApps {
 public:
  static constexpr size_t kStatedMost = 1024, kSetMost = 64, kSetsMost = 1024;
  static constexpr AppSetId kEverybody = 0, kNobodyNamed = 1;  // sets that are always there

  KvApps();
  // Known, or new and in the foreground. A killed one is in the foreground again.
  KvAppRef asks(const std::string& name);
  // Stated by whoever manages applications. CHECKs that the name is not empty.
  Status state(const std::string& name, AppState state);

  // The set with this one alone; `set` with this one as well. Not held yet. Allocates
  // nothing where the set is there.
  AppSetId alone(const KvAppRef& app);
  AppSetId with(AppSetId set, const KvAppRef& app);
  void hold(AppSetId set) { ++sets_[static_cast<size_t>(set)].holders; }
  void let_go(AppSetId set);

  // Sum over the members: 1 in the foreground, 0.5 in the background, 0 for killed ones.
  double score(AppSetId set) const { return sets_[static_cast<size_t>(set)].score; }
  bool all_killed(AppSetId set) const { return sets_[static_cast<size_t>(set)].all_killed; }
  int32_t holders(AppSetId set) const { return sets_[static_cast<size_t>(set)].holders; }
  // Sets have ids below this one; some may be nobody's.
  int32_t sets_end() const { return static_cast<int32_t>(sets_.size()); }

  // What one is shown as. By name; whoever names none is not among them.
  struct Shown {
    std::string name;
    AppState state = AppState::kForeground;
    int32_t blocks = 0;  // that it uses
    int32_t alone = 0;   // of these: that nobody else uses
  };
  std::vector<Shown> shown() const;
  void check() const;

 private:
  using Members = std::vector<KvAppRef>;  // by name
  struct Set {
    Members members;
    int32_t holders = 0;
    double score = 0;
    bool all_killed = false;
  };
  // One alone is found without a list made for it.
  struct ByNames {
    using is_transparent = void;
    bool operator()(std::span<const KvAppRef> a, std::span<const KvAppRef> b) const;
  };

  std::shared_ptr<KvApp> find(const std::string& name);
  AppSetId set_of(Members members);
  void weigh(Set& set) const;

  std::unordered_map<std::string, std::weak_ptr<KvApp>> known_;
  size_t purge_at_ = 64;
  std::map<std::string, std::shared_ptr<KvApp>> stated_;
  std::vector<Set> sets_;  // [0]: everybody's
  std::vector<AppSetId> free_;
  std::map<Members, AppSetId, ByNames> ids_;
  const KvAppRef nobody_named_;  // its set is held from the start
};

}  // namespace loralei
