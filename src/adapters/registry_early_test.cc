// SPDX-License-Identifier: Apache-2.0
// Versions that are arriving: who is given them, and what becomes of those who have them
// when the load ends well, fails, or is nobody's any more.
#include <algorithm>

#include "adapters/registry_world.h"
#include "base/prng.h"

namespace loralei {
namespace {

using namespace testing_support;

struct EarlyWorld : RegistryWorld {
  explicit EarlyWorld(int64_t adapter_bytes = 1 << 20, RegistryOptions options = {})
      : RegistryWorld(adapter_bytes, with_early(std::move(options))) {
    put("/a", 1000, 1);
    registry->add(1, spec_of("a", "/a"));
    (void)replies();
  }
  static RegistryOptions with_early(RegistryOptions options) {
    options.early = true;
    return options;
  }
  // A request of now, or of `since`.
  AcquireOutcome early(const std::string& name, std::vector<AdapterPin>& pins, std::optional<uint64_t> since = {}) {
    registry->begin_round();
    const auto outcome = acquire({name}, ++order, since.value_or(registry->serial()), pins, error, true);
    registry->pump();
    registry->check();
    return outcome;
  }
  // Until the load of what is wanted has its memory.
  void begin(const std::string& name) {
    std::vector<AdapterPin> none;
    const std::string path = "/" + name;
    for (int turn = 0; turn < 4; ++turn) {
      if (early(name, none) == AcquireOutcome::kReady) return;
      for (size_t index = 0; index < jobs.size(); ++index) {
        if (jobs[index].path != path) continue;
        if (!jobs[index].read)
          finish_one(index);
        else
          begin_one(index);
        break;
      }
    }
    FAIL() << name << " does not begin";
  }
  void end(const std::string& name) {
    const auto job = std::find_if(jobs.begin(), jobs.end(), [&](const LoadJob& one) { return one.path == "/" + name; });
    ASSERT_TRUE(job != jobs.end());
    finish_one(static_cast<size_t>(job - jobs.begin()));
  }
  std::vector<AdapterSourceId> news() {
    std::vector<AdapterSourceId> sources;
    registry->take_news(sources);
    return sources;
  }
  // Of one source.
  AcquireOutcome with_claim(const char* name, std::vector<AdapterClaim>& claims, bool early,
                            std::vector<AdapterPin>& pins) {
    const std::vector<AdapterSourceId> sources = {source_of(name)};
    const AdapterNeeds needs{sources, claims};
    return early ? registry->acquire_early(needs, ++order, registry->serial(), pins, error)
                 : registry->acquire(needs, ++order, registry->serial(), pins, error);
  }
  int64_t used_bytes() const { return ledger.used_bytes(MemoryUse::kAdapters); }

  Error error;
};

TEST(RegistryEarly, WhatIsArrivingIsThereForThoseThatAskForItSo) {
  EarlyWorld world;
  std::vector<AdapterPin> pins, none;
  std::vector<const Adapter*> adapters;
  world.begin("a");
  EXPECT_EQ(world.news(), std::vector{source_of("a")}) << "who waits may go on";
  EXPECT_EQ(world.used_bytes(), 1000) << "what it does not take goes back at once";
  EXPECT_EQ(world.acquire({"a"}, 50, 0, none, world.error), AcquireOutcome::kWaiting);
  const std::vector<AdapterSourceId> sources = {source_of("a")};
  EXPECT_EQ(world.registry->look({sources, {}}, 50, 0, adapters, world.error), AcquireOutcome::kWaiting);
  ASSERT_EQ(world.registry->look_early({sources, {}}, 50, 0, adapters, world.error), AcquireOutcome::kReady);
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  const Adapter* const adapter = &*pins[0];
  EXPECT_EQ(adapters, std::vector{adapter});
  const AdapterArriving* const arriving = world.registry->arriving(adapter->version);
  ASSERT_NE(arriving, nullptr);
  EXPECT_EQ(arriving->adapter.get(), adapter);
  EXPECT_EQ(arriving->bytes_through.size(), 2u);
  EXPECT_EQ(world.registry->bytes_of(source_of("a")), 0);
  EXPECT_EQ(world.registry->idle_bytes(), 0);
  EXPECT_EQ(world.registry->item_of(adapter->version).bytes, 1000);
  int users = 0;
  world.registry->for_each([&](const RegistryView& view) {
    users += view.users;
    EXPECT_EQ(view.state, AdapterState::kLoading);
  });
  EXPECT_EQ(users, 1);
  world.expect_changes_tell_all();

  const auto arrivals = arriving->arrivals;
  world.end("a");
  EXPECT_TRUE(arrivals->whole());
  EXPECT_EQ(world.news(), std::vector{source_of("a")});
  EXPECT_EQ(world.registry->arriving(adapter->version), nullptr);
  ASSERT_EQ(world.use("a", pins, world.error), AcquireOutcome::kReady);
  EXPECT_EQ(&*pins[1], adapter) << "the same version";
  EXPECT_EQ(world.registry->counters().loads, 1u);
  EXPECT_EQ(world.used_bytes(), 1000);
  pins.clear();
  EXPECT_EQ(world.registry->idle_bytes(), 1000) << "a version like any other";
  EXPECT_EQ(world.registry->missing_load_s(adapter->digest), 0);
}

TEST(RegistryEarly, NobodyIsHandedAnythingUnlessThatIsSet) {
  for (const bool early : {false, true}) {
    RegistryWorld world(1 << 20, {.early = early});
    world.put("/a", 1000);
    world.registry->load(1, spec_of("a", "/a"), false);
    world.registry->pump();
    world.finish_one();
    world.registry->pump();
    ASSERT_EQ(world.jobs.size(), 1u);
    EXPECT_EQ(world.jobs[0].early, early);
  }
}

TEST(RegistryEarly, ALoadThatFailsLeavesItToThoseWhoHaveIt) {
  EarlyWorld world;
  std::vector<AdapterPin> pins, none;
  world.begin("a");
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  const AdapterVersionId version = pins[0]->version;
  std::vector<AdapterClaim> claims;
  claims.push_back(world.registry->claim(version));
  const uint64_t since = world.registry->serial();
  world.files["/a"].broken = corrupt("a number that is none");
  world.end("a");
  ASSERT_NE(world.registry->arriving(version), nullptr);
  EXPECT_TRUE(world.registry->arriving(version)->arrivals->failed());
  EXPECT_EQ(world.used_bytes(), 1000) << "as long as somebody has it";
  EXPECT_TRUE(world.registry->is_retired(version));
  EXPECT_EQ(world.early("a", none, since), AcquireOutcome::kFailed) << "nobody new is given it";
  EXPECT_NE(world.error.message.find("a number that is none"), std::string::npos);
  EXPECT_EQ(world.with_claim("a", claims, true, none), AcquireOutcome::kWaiting) << "the claim says nothing any more";

  world.put("/a", 2000, 2);
  world.begin("a");  // another version beside it
  ASSERT_EQ(world.early("a", none), AcquireOutcome::kReady);
  EXPECT_NE(none[0]->version, version);
  EXPECT_EQ(world.used_bytes(), 3000);
  world.end("a");
  pins.clear();
  EXPECT_EQ(world.used_bytes(), 2000) << "with its last pin, whoever claims it";
  EXPECT_EQ(world.registry->arriving(version), nullptr);
  claims.clear();
  world.registry->check();
}

TEST(RegistryEarly, AnUnusedOneIsNothingButItsLoad) {
  EarlyWorld world;
  world.begin("a");
  world.files["/a"].broken = corrupt("bad");
  world.end("a");
  EXPECT_EQ(world.used_bytes(), 0);
  EXPECT_EQ(world.registry->counters().failures, 1u);
  // Pinned and let go again while it arrives.
  world.put("/a", 1000, 2);
  world.begin("a");
  std::vector<AdapterPin> pins;
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  pins.clear();
  EXPECT_EQ(world.used_bytes(), 1000);
  world.registry->evict_idle(0);
  world.registry->let_go_unused(source_of("a"));
  EXPECT_EQ(world.registry->counters().evictions, 0u);
  world.end("a");
  EXPECT_EQ(world.registry->idle_bytes(), 1000);
}

// Its memory is answered for when it is free: behind the load, and the last who has it.
TEST(RegistryEarly, ADroppedOneStaysWithThoseWhoHaveIt) {
  for (const bool fails : {false, true}) {
    for (const bool first_the_pin : {false, true}) {
      SCOPED_TRACE(testing::Message() << "fails " << fails << ", first the pin " << first_the_pin);
      EarlyWorld world;
      std::vector<AdapterPin> pins, none;
      world.begin("a");
      ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
      const AdapterVersionId version = pins[0]->version;
      world.registry->drop(7, source_of("a"));
      EXPECT_EQ(world.early("a", none), AcquireOutcome::kFailed) << "it is not registered";
      if (fails) world.files["/a"].broken = corrupt("bad");
      if (first_the_pin) pins.clear();
      EXPECT_EQ(world.used_bytes(), 1000) << "it is still read";
      EXPECT_TRUE(world.replies().empty());
      world.end("a");
      if (!first_the_pin) {
        EXPECT_EQ(world.registry->arriving(version) != nullptr, fails);
        EXPECT_TRUE(world.replies().empty());
        EXPECT_EQ(world.used_bytes(), 1000);
        pins.clear();
      }
      const auto replies = world.replies();
      ASSERT_EQ(replies.size(), 1u);
      EXPECT_EQ(replies[0].ticket, 7u);
      EXPECT_TRUE(replies[0].status.ok());
      EXPECT_EQ(replies[0].bytes_freed, fails && first_the_pin ? 0 : 1000);
      EXPECT_EQ(world.used_bytes(), 0);
      EXPECT_EQ(world.registry->counters().loads, 0u);
      world.registry->check();
    }
  }
}

// Who waits with a claim was made for this version, and no other load can bring it.
TEST(RegistryEarly, AClaimKeepsADroppedOneUntilItsLoadFails) {
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    EarlyWorld world;
    std::vector<AdapterPin> pins;
    world.begin("a");
    ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
    const AdapterVersionId version = pins[0]->version;
    std::vector<AdapterClaim> claims;
    claims.push_back(world.registry->claim(version));
    pins.clear();
    world.registry->drop(7, source_of("a"));
    EXPECT_EQ(world.with_claim("a", claims, false, pins), AcquireOutcome::kWaiting);
    if (fails) world.files["/a"].broken = corrupt("bad");
    (void)world.news();
    world.end("a");
    EXPECT_EQ(world.news(), std::vector{source_of("a")});
    if (fails) {
      EXPECT_EQ(world.replies().at(0).ticket, 7u);
      EXPECT_EQ(world.used_bytes(), 0);
      EXPECT_EQ(world.with_claim("a", claims, true, pins), AcquireOutcome::kFailed);
    } else {
      ASSERT_EQ(world.with_claim("a", claims, false, pins), AcquireOutcome::kReady);
      EXPECT_EQ(pins[0]->version, version);
      EXPECT_EQ(world.used_bytes(), 1000);
    }
    claims.clear();
    pins.clear();
    EXPECT_EQ(world.used_bytes(), 0);
    world.registry->check();
  }
}

TEST(RegistryEarly, WhileAVersionServesItsReplacementIsGivenToNobody) {
  EarlyWorld world;
  std::vector<AdapterPin> pins;
  ASSERT_EQ(world.use("a", pins, world.error), AcquireOutcome::kReady);
  world.put("/a", 2000, 2);
  world.registry->load(3, spec_of("a"), true);
  world.registry->pump();
  world.finish_one();
  world.registry->pump();
  ASSERT_TRUE(world.begin_one());
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  EXPECT_EQ(pins[1]->version, pins[0]->version);
  world.registry->load(4, spec_of("a"), true);  // once more, while it arrives: the same load
  world.end("a");
  EXPECT_TRUE(world.jobs.empty());
  EXPECT_EQ(world.replies().size(), 2u);
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  EXPECT_EQ(pins[2]->bytes, 2000);
  EXPECT_EQ(world.used_bytes(), 3000);
}

TEST(RegistryEarly, AReplacementWhoseOldVersionIsGoneIsGivenEarly) {
  EarlyWorld world(70000);
  world.put("/a", 60000, 1);
  std::vector<AdapterPin> pins;
  ASSERT_EQ(world.use("a", pins, world.error), AcquireOutcome::kReady);
  pins.clear();
  world.put("/a", 50000, 2);
  world.registry->load(3, spec_of("a"), true);
  world.registry->pump();
  world.finish_one();
  world.registry->pump();
  EXPECT_EQ(world.registry->bytes_of(source_of("a")), 0) << "the old one gives its room";
  ASSERT_TRUE(world.begin_one());
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  EXPECT_EQ(pins[0]->bytes, 50000);
  world.files["/a"].broken = io_error("not now");
  const uint64_t serial = world.registry->serial();
  world.end("a");
  EXPECT_EQ(world.replies().at(0).status.error().code, ErrorCode::kIo);
  EXPECT_EQ(world.registry->serial(), serial) << "no answer to requests: they have it loaded again";
  world.files["/a"].broken.reset();
  pins.clear();
  ASSERT_EQ(world.use("a", pins, world.error), AcquireOutcome::kReady);
}

TEST(RegistryEarly, APinOfTheOperatorGoesOverWhenTheReplacementIsWhole) {
  EarlyWorld world(200000);
  world.registry->pin(2, source_of("a"));
  world.settle();
  world.put("/b", 5000);
  world.registry->load(3, spec_of("b", "/b"), false, source_of("a"));
  world.begin("b");
  std::vector<AdapterPin> pins;
  ASSERT_EQ(world.early("b", pins), AcquireOutcome::kReady);
  const auto pinned = [&] {
    std::vector<AdapterSourceId> sources;
    world.registry->for_each([&](const RegistryView& view) {
      if (view.pinned) sources.push_back(view.source->id);
    });
    return sources;
  };
  EXPECT_EQ(pinned(), std::vector{source_of("a")});
  world.end("b");
  EXPECT_EQ(pinned(), std::vector{source_of("b")});
  EXPECT_EQ(world.registry->bytes_of(source_of("b")), 5000);
}

TEST(RegistryEarly, ALoadWaitsForTheRoomOfWhatIsArriving) {
  EarlyWorld world(200000);
  world.put("/a", 120000);
  world.put("/b", 120000);
  world.registry->add(2, spec_of("b", "/b"));
  std::vector<AdapterPin> pins, other;
  world.begin("a");
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  const auto wait_for_b = [&] {
    for (int turn = 0; turn < 4; ++turn) {
      EXPECT_EQ(world.early("b", other), AcquireOutcome::kWaiting);
      if (world.jobs.size() > 1) world.finish_one(1);
    }
  };
  wait_for_b();
  world.end("a");
  wait_for_b();
  EXPECT_EQ(world.registry->counters().evictions, 0u);
  pins.clear();
  ASSERT_EQ(world.use("b", other, world.error), AcquireOutcome::kReady);
  EXPECT_EQ(world.registry->counters().evictions, 1u);
}

TEST(RegistryEarly, WhatIsNotAdmittedIsHandedToNobody) {
  EarlyWorld world(1 << 20, {.rank_max = 4});
  std::vector<AdapterPin> pins;
  EXPECT_EQ(world.early("a", pins), AcquireOutcome::kWaiting);
  world.finish_one();
  EXPECT_EQ(world.early("a", pins), AcquireOutcome::kWaiting);
  EXPECT_TRUE(world.begin_one());
  EXPECT_EQ(world.early("a", pins), AcquireOutcome::kWaiting);
  world.end("a");
  EXPECT_EQ(world.early("a", pins, 0), AcquireOutcome::kFailed);
  EXPECT_NE(world.error.message.find("rank 8"), std::string::npos) << world.error.message;
  EXPECT_EQ(world.used_bytes(), 0);
}

TEST(RegistryEarly, ALoaderThatAnswersAnotherAdapterThanItHandedOutIsRefused) {
  EarlyWorld world;
  world.begin("a");
  std::vector<AdapterPin> pins;
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  world.begun.clear();
  world.end("a");
  EXPECT_EQ(world.registry->counters().failures, 1u);
  EXPECT_EQ(world.used_bytes(), 1000);
  pins.clear();
  EXPECT_EQ(world.used_bytes(), 0);
}

TEST(RegistryEarly, ALoadAheadThatIsUsedEarlyIsCountedOnce) {
  EarlyWorld world(1 << 20, {.foresees = true});
  const std::vector<AdapterSourceId> sources = {source_of("a")};
  std::vector<AdapterPin> pins;
  for (int use = 0; use < 8; ++use) {
    world.registry->asked(sources);
    ASSERT_EQ(world.use("a", pins, world.error), AcquireOutcome::kReady);
    pins.clear();
    world.registry->answered(sources);
    world.clock.advance_ns(10 * IdleTimes::kBinNs);
  }
  world.registry->asked(sources);
  world.registry->answered(sources);
  world.registry->evict_idle(0);
  world.clock.advance_ns(world.registry->foresees_at_ns() - world.clock.now_ns());
  world.registry->foresee();
  world.registry->pump();
  ASSERT_TRUE(world.finish_one());
  world.registry->pump();
  ASSERT_TRUE(world.begin_one());
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  world.end("a");
  EXPECT_EQ(world.registry->counters().loads_ahead, 1u);
  ASSERT_EQ(world.early("a", pins), AcquireOutcome::kReady);
  EXPECT_EQ(world.registry->counters().loads_ahead_used, 1u);
}

struct Request {
  std::vector<std::string> names;
  bool early = false;
  uint64_t order = 0, since = 0;
  std::vector<AdapterPin> pins;
  std::vector<AdapterClaim> claims;
};

// Commands at random, with sources that replace others.
class Traffic {
 public:
  explicit Traffic(uint64_t seed) : random_(seed), world_(400000, {.loads_max = 3, .early = true}) {}

  void step() {
    world_.clock.advance_ns(1);
    command(random_.below(20));
    round();
    if (random_.below(3) == 0) world_.expect_changes_tell_all();
    answered_ += world_.replies().size();
  }
  void expect_nothing_is_left() {
    requests_.clear();
    for (int name = 0; name < 6; ++name) world_.registry->drop(++tickets_, source_of("n" + std::to_string(name)));
    world_.settle();
    answered_ += world_.replies().size();
    EXPECT_EQ(answered_, tickets_);
    EXPECT_EQ(world_.ledger.used_bytes(MemoryUse::kAdapters), 0);
  }
  uint64_t early_pins() const { return early_pins_; }

 private:
  std::string name() { return "n" + std::to_string(random_.below(6)); }
  std::string path() { return "/p" + std::to_string(random_.below(7)); }
  size_t any(size_t count) { return random_.below(count); }

  void command(uint64_t what) {
    AdapterRegistry& registry = *world_.registry;
    if (what == 0) {
      registry.add(++tickets_, spec_of(name(), path()));
    } else if (what == 1) {
      registry.load(++tickets_, spec_of(name(), random_.below(2) ? path() : ""), random_.below(2),
                    random_.below(2) ? source_of(name()) : AdapterSourceId{});
    } else if (what == 2) {
      registry.drop(++tickets_, source_of(name()));
    } else if (what == 3) {
      random_.below(3) ? registry.unpin(++tickets_, source_of(name())) : registry.pin(++tickets_, source_of(name()));
    } else if (what == 4) {
      change_file();
    } else if (what < 8) {
      request();
    } else if (what < 10) {
      if (!requests_.empty()) requests_.erase(requests_.begin() + static_cast<int64_t>(any(requests_.size())));
    } else if (what == 10) {
      claim();
    } else if (!world_.jobs.empty()) {
      const size_t index = any(world_.jobs.size());
      if (what < 15) {
        world_.begin_one(index);
      } else {
        world_.finish_one(index);
      }
    }
  }
  // Not one that is being read, which the world takes as it is at its end.
  void change_file() {
    const std::string changed = path();
    for (const LoadJob& job : world_.jobs)
      if (job.path == changed) return;
    world_.put(changed, static_cast<int64_t>(random_.below(150000)), random_());
    if (random_.below(4) == 0) world_.files[changed].broken = corrupt("bad");
    if (random_.below(6) == 0) world_.files[changed].broken = io_error("not now");
  }
  void request() {
    auto request = std::make_unique<Request>();
    for (auto count = 1 + random_.below(2); count > 0; --count) request->names.push_back(name());
    request->early = random_.below(3) != 0;
    request->order = ++order_;
    request->since = world_.registry->serial();
    requests_.push_back(std::move(request));
  }
  // As one that has to wait again.
  void claim() {
    if (requests_.empty()) return;
    Request& request = *requests_[any(requests_.size())];
    if (request.pins.empty()) return;
    request.claims.clear();
    for (const AdapterPin& pin : request.pins) request.claims.push_back(world_.registry->claim(pin->version));
    request.pins.clear();
  }
  void round() {
    AdapterRegistry& registry = *world_.registry;
    registry.begin_round();
    Error error;
    std::erase_if(requests_, [&](const auto& request) {
      if (!request->pins.empty()) return false;
      std::vector<AdapterSourceId> sources;
      for (const std::string& name : request->names) sources.push_back(source_of(name));
      const AdapterNeeds needs{sources, request->claims};
      const auto outcome = request->early
                               ? registry.acquire_early(needs, request->order, request->since, request->pins, error)
                               : registry.acquire(needs, request->order, request->since, request->pins, error);
      EXPECT_EQ(outcome == AcquireOutcome::kReady, !request->pins.empty());
      for (const AdapterPin& pin : request->pins) {
        const bool arriving = registry.arriving(pin->version) != nullptr;
        EXPECT_TRUE(request->early || !arriving);
        early_pins_ += arriving;
      }
      return outcome == AcquireOutcome::kFailed;
    });
    registry.pump();
    registry.check();
  }

  Prng random_;
  EarlyWorld world_;
  std::vector<std::unique_ptr<Request>> requests_;
  uint64_t tickets_ = 0, answered_ = 0, order_ = 0, early_pins_ = 0;
};

TEST(RegistryEarly, RandomTrafficLeavesNothingBehind) {
  uint64_t early_pins = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Traffic traffic(seed);
    for (int step = 0; step < 1500; ++step) traffic.step();
    traffic.expect_nothing_is_left();
    early_pins += traffic.early_pins();
  }
  EXPECT_GT(early_pins, 500u);
}

}  // namespace
}  // namespace loralei
