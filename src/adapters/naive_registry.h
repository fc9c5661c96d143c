// SPDX-License-Identifier: Apache-2.0
// NaiveRegistry, for tests: what the registry decides, by going through everything anew
// for every decision, so that nothing is summed up before it is asked for.
//
// One thread. Ownership: borrows the world, of which it reads clock, files and ledger.
// Invariant: every operation of the registry is done here as well, and in the same order.
#pragma once

#include <algorithm>
#include <array>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "adapters/registry_world.h"
#include "base/units.h"

namespace loralei::testing_support {

inline constexpr uint64_t kNobody = UINT64_MAX;

struct NaiveRegistry {
  enum class Stage { kIdle, kQueued, kStamping, kWaitingForRoom, kReading };
  struct Name;
  struct Version {
    Name* owner = nullptr;  // null once replaced or dropped
    bool arriving = false;  // its load goes on, and has its bytes
    int64_t bytes = 0;
    uint64_t id = 0, youngest = 0;
    int pins = 0;
    int64_t last_use_ns = 0;
  };
  struct Name {
    std::string name;
    bool known = true;  // not dropped
    Version *version = nullptr, *arriving = nullptr;
    Stage stage = Stage::kIdle;
    bool reload = false, pinned = false, failed = false, size_known = false;
    int tickets = 0, waiting = 0, uses = 0;
    uint64_t wanted = kNobody, failed_serial = 0;
    FileStamp failed_stamp;
    int64_t failed_limit_bytes = INT64_MAX, least_bytes = 0, ask_bytes = 0, without_room_since_ns = INT64_MAX;
    uint64_t order() const { return tickets == 0 && !pinned ? wanted : 0; }
    bool loading() const { return stage != Stage::kIdle; }
  };
  struct Job {
    Name* name = nullptr;  // null once it is dropped
    std::string path;
    bool read = false;
    int64_t bytes = 0;
    uint64_t version = 0;
    int64_t begin_ns = 0;
    bool begun = false;  // handed out, or would have been
  };
  struct Reservation {
    const Name* name = nullptr;
    uint64_t order = 0;
    int64_t spare_bytes = 0;
  };

  const RegistryWorld& world;
  const RegistryOptions options;
  std::list<Name> names;
  std::list<Version> versions;
  std::vector<Job> jobs;
  std::vector<Reservation> reservations;
  std::vector<CacheItem> leaving;  // in their order, as pump() began
  TransferTimes load_times;
  std::vector<uint64_t> dropped;  // versions, as they leave
  uint64_t serial = 0, next_version = 1, lost_to_reservations = 0, early_uses = 0;

  int64_t now_ns() const { return world.clock.now_ns(); }
  Name& at(const std::string& name) {
    return *std::find_if(names.begin(), names.end(), [&](const Name& other) { return other.name == name; });
  }
  Version* find(uint64_t id) {
    const auto found = std::find_if(versions.begin(), versions.end(), [&](const Version& one) { return one.id == id; });
    return found == versions.end() ? nullptr : &*found;
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const Version& version : versions) sum += version.arriving ? 0 : version.bytes;
    for (const Job& job : jobs) sum += job.bytes;
    return sum;
  }
  int64_t free_bytes() const { return std::max<int64_t>(0, world.ledger.cap_bytes(MemoryUse::kAdapters) - bytes()); }
  template <typename Stays>
  int64_t room_beside(Stays stays) const {
    int64_t room = free_bytes() + bytes();
    for (const Version& version : versions)
      if (version.owner != nullptr && !version.arriving && stays(*version.owner)) room -= version.bytes;
    return std::max<int64_t>(0, room);
  }
  int64_t limit_bytes(const Name& name) const {
    return room_beside([&](const Name& other) { return &other != &name && other.pinned; });
  }
  static bool stays_beside(const Name& name, const Name& other) {
    return &other != &name && (other.pinned || (other.wanted == name.wanted && name.wanted != kNobody));
  }
  static bool keeps_from(const Name& name, const Version& version) {
    return version.owner != nullptr && version.pins > 0 && version.youngest > name.order() &&
           !stays_beside(name, *version.owner);
  }
  int64_t room_for(const Name& name) const {
    return room_beside([&](const Name& other) { return stays_beside(name, other); });
  }
  int64_t room_to_ask(const Name& name) const {
    return name.size_known ? name.ask_bytes : std::min(name.ask_bytes, room_for(name));
  }
  int64_t spare_beside(const Name& name) const {
    int64_t spare = room_for(name) - room_to_ask(name);
    for (const Version& version : versions)
      if (!version.arriving && keeps_from(name, version)) spare -= version.bytes;
    for (const Job& job : jobs) {
      if (job.name == nullptr) continue;
      const bool used = job.name->arriving != nullptr && keeps_from(name, *job.name->arriving);
      if (used || goes_before(&name, job.name)) spare -= job.bytes;
    }
    return spare;
  }
  static bool goes_before(const Name* a, const Name* b) {
    return a->order() != b->order() ? a->order() < b->order() : a->name < b->name;
  }

  void want_load(Name& name) {
    if (!name.loading()) name.stage = Stage::kQueued;
  }
  void finish(Name& name) {
    name.stage = Stage::kIdle;
    name.reload = false;
    name.without_room_since_ns = INT64_MAX;
  }
  void drop(const Version* version) {
    dropped.push_back(version->id);
    versions.remove_if([&](const Version& other) { return &other == version; });
  }

  void load(Name& name) {  // with `replace`
    ++name.tickets;
    if (name.loading()) return;
    name.reload = name.version != nullptr;
    want_load(name);
  }
  void pin(Name& name) {
    name.pinned = true;
    if (name.version != nullptr) return;
    ++name.tickets;
    want_load(name);
  }
  void retire(Version* version) {
    version->owner = nullptr;
    if (version->pins == 0) drop(version);
  }
  void forget(Name& name) {
    for (Job& job : jobs)
      if (job.name == &name) job.name = nullptr;
    if (name.arriving != nullptr) retire(name.arriving);
    if (name.version != nullptr) retire(name.version);
    name = Name{.name = name.name, .known = false};
  }
  void unpin(Version* version) {
    version->last_use_ns = now_ns();
    if (--version->pins == 0 && version->owner == nullptr) drop(version);
  }

  void begin_round() {
    reservations.clear();
    for (const Name& name : names)
      if (name.loading() && name.without_room_since_ns <= now_ns() - kRoomPatienceNs)
        reservations.push_back({&name, name.order(), spare_beside(name)});
    for (Name& name : names) {
      name.wanted = kNobody;
      name.waiting = 0;
    }
  }
  bool leaves_reserved_room(const std::vector<std::string>& wanted, uint64_t order) {
    for (const bool take : {false, true}) {
      for (Reservation& reservation : reservations) {
        if (reservation.order >= order) continue;
        int64_t more = 0;
        bool concerned = false;
        for (auto name = wanted.begin(); name != wanted.end(); ++name) {
          const Name& other = at(*name);
          if (stays_beside(*reservation.name, other)) continue;
          concerned = true;
          const Version& version = *(other.version != nullptr ? other.version : other.arriving);
          const bool counted = keeps_from(*reservation.name, version) ||
                               (version.arriving && goes_before(reservation.name, version.owner));
          if (std::find(wanted.begin(), name, *name) == name && !counted) more += version.bytes;
        }
        if (take) reservation.spare_bytes -= more;
        if (!take && concerned && more > reservation.spare_bytes) return false;
      }
    }
    return true;
  }
  bool fit_together(const std::vector<std::string>& wanted) {
    std::vector<const Name*> members;
    int64_t needed_bytes = 0;
    for (const std::string& name : wanted) {
      const Name& member = at(name);
      if (std::count(members.begin(), members.end(), &member) != 0) continue;
      members.push_back(&member);
      const bool looked_at = member.stage == Stage::kWaitingForRoom || member.stage == Stage::kReading;
      const int64_t needed = member.version != nullptr ? member.version->bytes : looked_at ? member.least_bytes : 0;
      if (member.version == nullptr && needed > limit_bytes(member)) return true;
      needed_bytes += needed;
    }
    return needed_bytes <= room_beside([&](const Name& other) {
             return other.pinned && std::count(members.begin(), members.end(), &other) == 0;
           });
  }
  static Version* there(const Name& name, bool early) {
    return name.version == nullptr && early ? name.arriving : name.version;
  }
  AcquireOutcome acquire(const std::vector<std::string>& wanted, bool early, uint64_t order, uint64_t since,
                         std::vector<Version*>& pins) {
    bool ready = true;
    for (const std::string& name : wanted) {
      const Name& one = at(name);
      if (!one.known) return AcquireOutcome::kFailed;
      ready = ready && there(one, early) != nullptr;
      if (one.version != nullptr) continue;
      if (one.failed && one.failed_serial > since) return AcquireOutcome::kFailed;
    }
    if (ready && !leaves_reserved_room(wanted, order)) {
      ready = false;
      ++lost_to_reservations;
    }
    if (!ready && wanted.size() > 1 && !fit_together(wanted)) return AcquireOutcome::kFailed;
    for (const std::string& name : wanted) {
      Name& one = at(name);
      if (ready) {
        Version& version = *there(one, early);
        version.youngest = version.pins++ == 0 ? order : std::max(version.youngest, order);
        version.last_use_ns = now_ns();
        ++one.uses;
        early_uses += version.arriving;
        pins.push_back(&version);
      } else {
        ++one.waiting;
        one.wanted = std::min(one.wanted, order);
        if (one.version == nullptr) want_load(one);
      }
    }
    return ready ? AcquireOutcome::kReady : AcquireOutcome::kWaiting;
  }

  void pump() {
    reservations.clear();
    leaving.clear();
    for (const Version& version : versions)
      if (!version.arriving && version.pins == 0 && version.owner != nullptr && !version.owner->pinned)
        leaving.push_back(item_of(version));
    options.keep.sort(leaving);
    std::vector<Name*> turn;
    for (Name& name : names) {
      if (!name.loading()) continue;
      const bool begun = name.stage == Stage::kStamping || name.stage == Stage::kReading;
      if (!begun && name.order() == kNobody) {
        finish(name);
      } else {
        turn.push_back(&name);
      }
    }
    std::sort(turn.begin(), turn.end(), goes_before);
    int64_t spare = INT64_MAX;
    for (Name* name : turn) {
      if (static_cast<int32_t>(jobs.size()) >= options.loads_max) return;
      if (name->stage == Stage::kQueued) {
        jobs.push_back({name, name->name});
        name->stage = Stage::kStamping;
      } else if (name->stage == Stage::kWaitingForRoom && room_to_ask(*name) <= spare) {
        if (const auto taken = advance_room(*name)) {
          spare -= *taken;
        } else {
          name->without_room_since_ns = std::min(name->without_room_since_ns, now_ns());
          spare = std::min(spare, spare_beside(*name));
        }
      }
    }
  }
  std::optional<int64_t> advance_room(Name& name) {
    const int64_t limit = limit_bytes(name);
    if (name.least_bytes > limit) {
      name.failed_limit_bytes = limit;
      fail(name);
      return 0;
    }
    const int64_t bytes = room_to_ask(name);
    const auto may_go = [&](const Version& version) {
      return version.pins == 0 && !version.arriving &&
             (version.owner == &name || (!version.owner->pinned && version.owner->wanted > name.order()));
    };
    int64_t evictable_bytes = 0;
    for (const Version& version : versions) evictable_bytes += may_go(version) ? version.bytes : 0;
    if (free_bytes() + evictable_bytes < bytes) return std::nullopt;
    while (free_bytes() < bytes) {
      const Version* victim = nullptr;
      for (const Version& version : versions)
        if (may_go(version) && !version.owner->pinned && (victim == nullptr || place_of(version) < place_of(*victim)))
          victim = &version;
      // A pinned one that is to be replaced is held against the first of the others.
      const Version* const own = name.pinned ? name.version : nullptr;
      if (own != nullptr && may_go(*own) && (victim == nullptr || leaves_before(*own, *victim))) victim = own;
      if (victim == nullptr) return std::nullopt;  // the cap fell below what is held
      victim->owner->version = nullptr;
      drop(victim);
    }
    jobs.push_back({&name, name.name, true, bytes, next_version++, now_ns()});
    name.stage = Stage::kReading;
    name.without_room_since_ns = INT64_MAX;
    return bytes;
  }
  // All uses fall into one window, and nobody is idle for longer.
  CacheItem item_of(const Version& version) const {
    const double window_s = static_cast<double>(RecentUses::kWindowNs) * 1e-9;
    return {.id = version.id,
            .bytes = version.bytes,
            .last_use_ns = version.last_use_ns,
            .uses_per_s = version.owner->uses / window_s,
            .expected_per_s = std::max(version.owner->uses / window_s, 0.5 / window_s),
            .recreate_s = load_times.predict_s(version.bytes),
            .wanted = version.owner->wanted};
  }
  size_t place_of(const Version& version) const {
    const auto found =
        std::find_if(leaving.begin(), leaving.end(), [&](const CacheItem& item) { return item.id == version.id; });
    return static_cast<size_t>(found - leaving.begin());
  }
  bool leaves_before(const Version& a, const Version& b) const {
    std::array<CacheItem, 2> both{item_of(a), item_of(b)};
    options.keep.sort(both);
    return both.front().id == a.id;
  }
  void fail(Name& name) {
    const bool replacement = name.reload;
    finish(name);
    name.tickets = 0;
    if (replacement) {
      if (name.version == nullptr && (name.pinned || name.waiting > 0)) want_load(name);
      return;
    }
    name.pinned = false;
    name.failed = true;
    name.failed_serial = ++serial;
  }

  // The memory of what a job reads is there.
  void begun(size_t index) {
    Job& job = jobs[index];
    job.begun = true;
    if (job.name == nullptr) return;
    job.bytes = world.files.at("/" + job.path).bytes;
    versions.push_back(
        {.owner = job.name, .arriving = true, .bytes = job.bytes, .id = job.version, .last_use_ns = now_ns()});
    job.name->arriving = &versions.back();
  }
  void done(size_t index) {
    const Job job = jobs[index];
    jobs.erase(jobs.begin() + static_cast<int64_t>(index));
    const RegistryWorld::File& file = world.files.at("/" + job.path);
    Version* const arriving = find(job.version);
    if (job.name == nullptr) {
      if (arriving != nullptr) arriving->arriving = false;  // who has it pinned keeps it, whole or not
      return;
    }
    Name& name = *job.name;
    if (!job.read) return on_stamp(name, file.stamp);
    name.arriving = nullptr;
    if (file.broken) {
      if (arriving != nullptr) arriving->arriving = false, retire(arriving);
      return fail(name);
    }
    if (file.bytes > job.bytes) {
      name.size_known = true;
      name.least_bytes = name.ask_bytes = file.bytes;
      name.stage = Stage::kWaitingForRoom;
      return;
    }
    load_times.learn(file.bytes, static_cast<double>(now_ns() - job.begin_ns) * 1e-9);
    if (arriving == nullptr) {
      versions.push_back({.owner = &name, .bytes = file.bytes, .id = job.version, .last_use_ns = now_ns()});
    } else {
      arriving->arriving = false;
      arriving->last_use_ns = now_ns();
    }
    Version* const old = std::exchange(name.version, arriving != nullptr ? arriving : &versions.back());
    if (old != nullptr) retire(old);
    name.failed = false;
    name.tickets = 0;
    finish(name);
  }
  void on_stamp(Name& name, const FileStamp& stamp) {
    const bool same_as_failed = name.failed && name.failed_stamp == stamp;
    if (same_as_failed && name.tickets == 0 && !name.pinned && limit_bytes(name) <= name.failed_limit_bytes) {
      name.failed_serial = ++serial;
      return finish(name);
    }
    name.failed = false;
    name.failed_stamp = stamp;
    name.failed_limit_bytes = INT64_MAX;
    name.least_bytes = stamp.size_bytes / (options.int8 ? 8 : 6);
    name.ask_bytes = options.int8 ? stamp.size_bytes / 4 : stamp.size_bytes + 64 * kKiB;
    name.size_known = false;
    name.stage = Stage::kWaitingForRoom;
  }
};

}  // namespace loralei::testing_support
