// SPDX-License-Identifier: Apache-2.0
// What the registry decides, against a model that goes through everything anew for every
// decision; and what its decisions cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <list>

#include "adapters/registry_world.h"
#include "base/prng.h"
#include "base/units.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr uint64_t kNobody = UINT64_MAX;

// The rules of registry.h for names whose files are all in order: nothing is summed up
// before it is asked for.
struct NaiveRegistry {
  enum class Stage { kIdle, kQueued, kStamping, kWaitingForRoom, kReading };
  struct Name;
  struct Version {
    Name* owner = nullptr;  // null once replaced
    int64_t bytes = 0;
    uint64_t id = 0, youngest = 0;
    int pins = 0;
    int64_t last_use_ns = 0;
  };
  struct Name {
    std::string name;
    Version* version = nullptr;
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
    Name* name = nullptr;
    bool read = false;
    int64_t bytes = 0;
    uint64_t version = 0;
    int64_t begin_ns = 0;
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
  uint64_t serial = 0, next_version = 1, lost_to_reservations = 0;

  int64_t now_ns() const { return world.clock.now_ns(); }
  Name& at(const std::string& name) {
    return *std::find_if(names.begin(), names.end(), [&](const Name& other) { return other.name == name; });
  }
  const RegistryWorld::File& file(const Name& name) const { return world.files.at("/" + name.name); }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const Version& version : versions) sum += version.bytes;
    for (const Job& job : jobs) sum += job.bytes;
    return sum;
  }
  int64_t free_bytes() const { return std::max<int64_t>(0, world.ledger.cap_bytes(MemoryUse::kAdapters) - bytes()); }
  template <typename Stays>
  int64_t room_beside(Stays stays) const {
    int64_t room = free_bytes() + bytes();
    for (const Version& version : versions)
      if (version.owner != nullptr && stays(*version.owner)) room -= version.bytes;
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
      if (keeps_from(name, version)) spare -= version.bytes;
    for (const Job& job : jobs)
      if (goes_before(&name, job.name)) spare -= job.bytes;
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
          if (std::find(wanted.begin(), name, *name) == name && !keeps_from(*reservation.name, *other.version))
            more += other.version->bytes;
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
  AcquireOutcome acquire(const std::vector<std::string>& wanted, uint64_t order, uint64_t since,
                         std::vector<Version*>& pins) {
    bool ready = true;
    for (const std::string& name : wanted) {
      const Name& one = at(name);
      if (one.version != nullptr) continue;
      ready = false;
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
        Version& version = *one.version;
        version.youngest = version.pins++ == 0 ? order : std::max(version.youngest, order);
        version.last_use_ns = now_ns();
        ++one.uses;
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
      if (version.pins == 0 && version.owner != nullptr && !version.owner->pinned) leaving.push_back(item_of(version));
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
        jobs.push_back({name});
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
      return version.pins == 0 &&
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
    jobs.push_back({&name, true, bytes, next_version++, now_ns()});
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

  void done(size_t index) {
    const Job job = jobs[index];
    jobs.erase(jobs.begin() + static_cast<int64_t>(index));
    Name& name = *job.name;
    if (!job.read) return on_stamp(name, file(name).stamp);
    if (file(name).bytes > job.bytes) {
      name.size_known = true;
      name.least_bytes = name.ask_bytes = file(name).bytes;
      name.stage = Stage::kWaitingForRoom;
      return;
    }
    load_times.learn(file(name).bytes, static_cast<double>(now_ns() - job.begin_ns) * 1e-9);
    versions.push_back({.owner = &name, .bytes = file(name).bytes, .id = job.version, .last_use_ns = now_ns()});
    Version* const old = std::exchange(name.version, &versions.back());
    if (old != nullptr) {
      old->owner = nullptr;
      if (old->pins == 0) drop(old);
    }
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

struct Request {
  std::vector<std::string> names;
  uint64_t order = 0, since = 0;
  std::vector<AdapterPin> pins;
  std::vector<NaiveRegistry::Version*> naive_pins;
};

RegistryOptions some_options(uint64_t seed, Prng& random) {
  constexpr KeepPolicy kPolicies[] = {KeepPolicy::kLru, KeepPolicy::kFairShare, KeepPolicy::kChameleon,
                                      KeepPolicy::kDensity};
  RegistryOptions options{.loads_max = 1 + static_cast<int32_t>(random.below(4)), .int8 = random.below(4) == 0};
  options.keep = KeepOrder(kPolicies[seed % 4]);
  return options;
}

struct Seen {
  uint64_t waiting = 0, failed = 0, evictions = 0, reservations = 0, lost_to_reservations = 0;
};

// Registry and model side by side: after every operation they have started the same jobs,
// dropped the same versions and answered the same.
void expect_the_same_decisions(uint64_t seed, Seen& seen) {
  Prng random(seed);
  const bool sums = random.below(2) == 0;
  std::vector<uint64_t> dropped;
  RegistryOptions options = some_options(seed, random);
  options.dropped = [&](AdapterVersionId version) { dropped.push_back(version.value); };
  RegistryWorld world(500000, options);
  NaiveRegistry naive{.world = world, .options = options};
  std::vector<std::unique_ptr<Request>> waiting, running;
  const int count = 4 + static_cast<int>(random.below(20));
  uint64_t order = 0;
  const auto change_file = [&](const std::string& name) {
    world.put("/" + name, 1 + static_cast<int64_t>(random.below(random.below(8) == 0 ? 600000 : 120000)), random());
    if (random.below(2) == 0) world.files["/" + name].bytes = 1 + static_cast<int64_t>(random.below(200000));
  };
  for (int i = 0; i < count; ++i) {
    const std::string name = "n" + std::to_string(i);
    change_file(name);
    world.registry->add(0, spec_of(name, "/" + name));
    naive.names.push_back({.name = name});
  }
  const auto any_name = [&] { return "n" + std::to_string(random.below(static_cast<uint64_t>(count))); };
  const auto drop_pins = [&](Request& request) {
    request.pins.clear();
    for (NaiveRegistry::Version* version : request.naive_pins) naive.unpin(version);
  };
  for (int step = 0; step < 1500; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    world.clock.advance_ns(static_cast<int64_t>(random.below(3) == 0 ? random.below(400'000'000) : 0));
    const std::string name = any_name();
    NaiveRegistry::Name& one = naive.at(name);
    switch (random.below(16)) {
      case 0:
        world.registry->load(0, spec_of(name), true);
        naive.load(one);
        break;
      case 1:
        if (random.below(4) != 0) break;
        world.registry->pin(0, source_of(name));
        naive.pin(one);
        break;
      case 2:
        world.registry->unpin(0, source_of(name));
        one.pinned = false;
        break;
      case 3:
        if (!one.loading()) change_file(name);
        break;
      case 4:
        if (random.below(8) == 0)
          world.ledger.set_cap(MemoryUse::kAdapters, 100000 + static_cast<int64_t>(random.below(600000)));
        break;
      case 5:
      case 6:
      case 7: {
        if (waiting.size() > 20) break;
        auto request = std::make_unique<Request>();
        request->names.push_back(name);
        if (sums && random.below(3) == 0) request->names.push_back(any_name());
        request->order = ++order;
        request->since = world.registry->serial();
        waiting.push_back(std::move(request));
        break;
      }
      case 8:
      case 9:
        if (running.empty()) break;
        std::swap(running[random.below(running.size())], running.back());
        drop_pins(*running.back());
        running.pop_back();
        break;
      case 10:
        if (!waiting.empty()) waiting.erase(waiting.begin() + static_cast<int64_t>(random.below(waiting.size())));
        break;
      default:
        if (world.jobs.empty()) break;
        const size_t index = random.below(world.jobs.size());
        world.finish_one(index);
        naive.done(index);
    }
    world.registry->begin_round();
    naive.begin_round();
    seen.reservations += naive.reservations.size();
    for (auto& request : waiting) {
      Error error;
      const auto outcome = world.acquire(request->names, request->order, request->since, request->pins, error);
      ASSERT_EQ(outcome, naive.acquire(request->names, request->order, request->since, request->naive_pins))
          << "request " << request->order << " for " << request->names[0] << " " << error.message;
      seen.waiting += outcome == AcquireOutcome::kWaiting;
      seen.failed += outcome == AcquireOutcome::kFailed;
      if (outcome == AcquireOutcome::kReady) running.push_back(std::move(request));
      if (outcome == AcquireOutcome::kFailed) request.reset();
    }
    std::erase(waiting, nullptr);
    world.registry->pump();
    naive.pump();
    world.registry->check();
    ASSERT_EQ(dropped, naive.dropped);
    ASSERT_EQ(world.registry->bytes(), naive.bytes());
    ASSERT_EQ(world.registry->serial(), naive.serial);
    ASSERT_EQ(world.jobs.size(), naive.jobs.size());
    for (size_t i = 0; i < naive.jobs.size(); ++i) {
      ASSERT_EQ(world.jobs[i].path, "/" + naive.jobs[i].name->name);
      ASSERT_EQ(world.jobs[i].read, naive.jobs[i].read);
      ASSERT_EQ(world.jobs[i].options.bytes_max, naive.jobs[i].bytes);
    }
  }
  seen.evictions += world.registry->counters().evictions;
  seen.lost_to_reservations += naive.lost_to_reservations;
  for (auto& request : running) drop_pins(*request);
}

TEST(RegistryOracle, RandomTrafficIsDecidedAsByGoingThroughEverything) {
  Seen seen;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_the_same_decisions(seed, seen);
    if (HasFatalFailure()) return;
  }
  for (const uint64_t times : {seen.waiting, seen.failed, seen.evictions, seen.reservations, seen.lost_to_reservations})
    EXPECT_GT(times, 500u);
}

// Many adapters in use and as many that wait for their room: a round goes through each of
// them a few times, not through all of the ones for each of the others.
TEST(RegistryOracle, ARoundCostsTheSumOfLoadsAndVersionsNotTheirProduct) {
  constexpr int kCount = 2000;
  RegistryWorld world(kCount * 100, {.loads_max = 200, .int8 = true});
  std::vector<AdapterPin> in_use[kCount], cold[kCount];
  const auto name_of = [](const char* kind, int index) { return kind + std::to_string(index); };
  for (const char* kind : {"used", "cold"}) {
    for (int i = 0; i < kCount; ++i) {
      world.put("/" + name_of(kind, i), 400);
      world.files["/" + name_of(kind, i)].bytes = 100;
      world.registry->add(1, spec_of(name_of(kind, i), "/" + name_of(kind, i)));
    }
  }
  Error error;
  const auto round = [&](const char* kind, std::vector<AdapterPin>* pins, uint64_t order) {
    world.registry->begin_round();
    for (int i = 0; i < kCount; ++i) {
      const std::vector<std::string> name = {name_of(kind, i)};
      if (!pins[i].empty()) continue;
      EXPECT_NE(world.acquire(name, order + static_cast<uint64_t>(i), 0, pins[i], error), AcquireOutcome::kFailed);
    }
    world.registry->pump();
  };
  const auto rounds = [&](const char* kind, std::vector<AdapterPin>* pins, uint64_t order) {
    do {
      round(kind, pins, order);
      for (; !world.jobs.empty(); world.jobs.pop_front())
        world.registry->on_load_done(run_load_job(world.source(), world.jobs.front()));
      round(kind, pins, order);
    } while (!world.jobs.empty());
  };
  rounds("used", in_use, 1);
  rounds("cold", cold, kCount + 1);
  ASSERT_EQ(world.registry->counters().loads, static_cast<uint64_t>(kCount));
  for (const bool patient : {true, false}) {
    SCOPED_TRACE(patient);
    const uint64_t before = world.registry->counters().versions_looked_at;
    round("cold", cold, kCount + 1);
    EXPECT_LT(world.registry->counters().versions_looked_at - before, 5u * (kCount + kCount));
    world.clock.advance_ns(kRoomPatienceNs);
  }
  for (int i = 0; i < kCount; i += 2) in_use[i].clear();
  world.put("/large", 4 * kCount * 40);  // half of the memory but a little
  world.files["/large"].bytes = kCount * 40;
  world.registry->load(7, spec_of("large", "/large"), false);
  world.registry->pump();
  for (; !world.jobs.empty(); world.jobs.pop_front())
    world.registry->on_load_done(run_load_job(world.source(), world.jobs.front()));
  const uint64_t before = world.registry->counters().versions_looked_at;
  world.registry->pump();
  EXPECT_EQ(world.registry->counters().evictions, kCount / 2u) << "for it, and for some of those behind it";
  EXPECT_LT(world.registry->counters().versions_looked_at - before, 5u * (kCount + kCount));
  world.registry->check();
}

}  // namespace
}  // namespace loralei
