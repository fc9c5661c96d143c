// SPDX-License-Identifier: Apache-2.0
// Loads before anybody asks: whom they leave alone.
#include "adapters/registry_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kMinute = IdleTimes::kBinNs;
constexpr int64_t kBytes = 200'000, kRoom = 3 * kBytes + 70'000;  // three, and what a load asks for beside its size

// Room for three adapters, and one, "often", that is used every ten minutes.
struct ForesightWorld : RegistryWorld {
  explicit ForesightWorld(Shelf* beside = nullptr, Ledger* shared = nullptr)
      : RegistryWorld(kRoom, {.beside = beside, .foresees = true}, shared) {
    for (const char* name : {"often", "a", "b", "c", "d", "e"}) {
      put(std::string("/") + name, kBytes);
      registry->add(1, spec_of(name, std::string("/") + name));
    }
  }
  // A request, from its arrival to its end.
  void serve(const std::string& name) {
    const std::vector<AdapterSourceId> sources = {source_of(name)};
    registry->asked(sources);
    std::vector<AdapterPin> pins;
    Error error;
    EXPECT_EQ(use(name, pins, error), AcquireOutcome::kReady) << error.message;
    pins.clear();
    registry->answered(sources);
  }
  // Ends with "often" out of memory, and expected now.
  void until_often_is_expected() {
    for (int use = 0; use < 8; ++use) {
      serve("often");
      clock.advance_ns(10 * kMinute);
    }
    serve("often");
    for (const char* name : {"a", "b", "c"}) serve(name);
    EXPECT_FALSE(in_memory("often"));
    clock.advance_ns(registry->foresees_at_ns() - clock.now_ns());
  }
  bool in_memory(const std::string& name) const { return registry->bytes_of(source_of(name)) > 0; }
  void foresee() {
    registry->foresee();
    registry->begin_round();
    registry->pump();
    registry->check();
  }
  uint64_t ahead() const { return registry->counters().loads_ahead; }
};

TEST(RegistryForesight, WhatIsExpectedComesBackOnceAndItsUseIsCounted) {
  ForesightWorld world;
  world.until_often_is_expected();
  world.foresee();
  ASSERT_EQ(world.jobs.size(), 1u);
  EXPECT_EQ(world.registry->foresees_at_ns(), AdapterForesight::kNever) << "the end of that load is waited for";
  world.settle();
  EXPECT_TRUE(world.in_memory("often"));
  EXPECT_FALSE(world.in_memory("a")) << "used longest ago";
  EXPECT_EQ(world.ahead(), 1u);
  EXPECT_EQ(world.registry->counters().loads_ahead_used, 0u);
  // Others come and go beside it.
  for (const char* name : {"d", "e", "a", "b"}) world.serve(name);
  EXPECT_TRUE(world.in_memory("often"));
  world.serve("often");
  world.serve("often");
  EXPECT_EQ(world.registry->counters().loads_ahead_used, 1u);
  world.foresee();
  EXPECT_TRUE(world.jobs.empty());
}

TEST(RegistryForesight, WhatReplacesAnAdapterIsExpectedInItsPlace) {
  for (const bool in_use : {false, true}) {
    SCOPED_TRACE(in_use);
    ForesightWorld world;
    for (int use = 0; use < 8; ++use) {
      world.serve("often");
      world.clock.advance_ns(10 * kMinute);
    }
    world.serve("often");
    const std::vector<AdapterSourceId> old = {source_of("often")}, next = {source_of("next")};
    if (in_use) {
      world.clock.advance_ns(10 * kMinute);
      world.registry->asked(old);
    }
    world.put("/next", kBytes);
    world.registry->load(2, spec_of("next", "/next"), false, old[0]);
    world.settle();
    if (in_use) {
      world.registry->answered(old);
      world.clock.advance_ns(10 * kMinute);
      world.serve("next");
    }
    world.registry->drop(3, old[0]);
    for (const char* name : {"a", "b", "c"}) world.serve(name);
    ASSERT_FALSE(world.in_memory("next"));
    ASSERT_NE(world.registry->foresees_at_ns(), AdapterForesight::kNever);
    world.clock.advance_ns(std::max<int64_t>(0, world.registry->foresees_at_ns() - world.clock.now_ns()));
    world.foresee();
    world.settle();
    EXPECT_TRUE(world.in_memory("next"));
    EXPECT_EQ(world.ahead(), 1u);
  }
}

TEST(RegistryForesight, ItTakesNoRoomThatIsUsedPinnedOrWaitedFor) {
  ForesightWorld world;
  world.until_often_is_expected();
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  world.registry->pin(2, source_of("b"));
  world.registry->foresee();
  world.registry->begin_round();
  const std::vector<AdapterSourceId> waited = {source_of("c")};
  world.registry->want({waited, {}}, 100);
  world.registry->pump();
  ASSERT_EQ(world.jobs.size(), 1u) << "a look at its files";
  LoadJob look = std::move(world.jobs.front());
  world.jobs.pop_front();
  world.registry->on_load_done(run_load_job(world.source(), look));
  world.registry->begin_round();
  world.registry->want({waited, {}}, 100);
  world.registry->pump();
  world.registry->check();
  EXPECT_TRUE(world.jobs.empty()) << "it was given up";
  EXPECT_FALSE(world.registry->loading());
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(world.in_memory(name)) << name;
  EXPECT_EQ(world.registry->counters().evictions, 1u) << "that of \"often\" itself, before";
}

// Of a memory that the KV cache shares a part is to stay free: more leave for it, or the
// load is not made.
TEST(RegistryForesight, ItLeavesFreeWhatIsToStayFree) {
  struct KvShelf final : Shelf {
    int64_t reserve = 0;
    int64_t idle_bytes() const override { return 0; }
    int64_t most_bytes() const override { return kBytes; }
    int64_t reserve_bytes() const override { return reserve; }
    std::optional<CacheItem> next() override { return std::nullopt; }
    int64_t give_up(const char*) override { return 0; }
  };
  for (const auto& [reserve, stay] : std::map<int64_t, std::string>{{0, "bc"}, {400'000, "c"}, {800'000, "abc"}}) {
    SCOPED_TRACE(reserve);
    Ledger ledger(kRoom + kBytes + 300'000);
    const Grant of_kv = *ledger.try_grant(MemoryUse::kKv, kBytes);
    KvShelf kv;
    ForesightWorld world(&kv, &ledger);
    world.until_often_is_expected();
    kv.reserve = reserve;
    world.foresee();
    world.settle();
    for (const char* name : {"a", "b", "c"})
      EXPECT_EQ(world.in_memory(name), stay.find(name) != std::string::npos) << name;
    EXPECT_EQ(world.in_memory("often"), stay != "abc");
  }
}

TEST(RegistryForesight, ItTakesNoRoomOfWhatRequestsNameHoweverManyTheyAre) {
  ForesightWorld world;
  world.until_often_is_expected();
  for (const char* name : {"a", "b", "c"}) {
    const std::vector<AdapterSourceId> sources = {source_of(name)};
    world.registry->asked(sources);
  }
  world.foresee();
  world.settle();
  EXPECT_FALSE(world.in_memory("often"));
  EXPECT_FALSE(world.registry->loading());
}

TEST(RegistryForesight, RequestsLoadsBeginAtOnceBesideIt) {
  ForesightWorld world;
  world.until_often_is_expected();
  world.foresee();
  ASSERT_TRUE(world.finish_one());
  world.foresee();
  ASSERT_EQ(world.jobs.size(), 1u);
  EXPECT_TRUE(world.jobs.front().read);
  world.registry->begin_round();
  for (const char* name : {"d", "e"}) {
    const std::vector<AdapterSourceId> sources = {source_of(name)};
    world.registry->want({sources, {}}, ++world.order + 100);
  }
  world.registry->pump();
  world.registry->check();
  EXPECT_EQ(world.jobs.size(), 3u) << "as many as go at once, and the one ahead";
}

TEST(RegistryForesight, ItBeginsBesideNoOtherLoadAndGivesWayToOneThatComes) {
  ForesightWorld world;
  world.until_often_is_expected();
  const std::vector<AdapterSourceId> other = {source_of("d")};
  const auto round = [&](bool wants) {
    world.registry->begin_round();
    if (wants) world.registry->want({other, {}}, 100);
    world.registry->pump();
    world.registry->check();
  };
  round(true);
  EXPECT_EQ(world.registry->foresees_at_ns(), AdapterForesight::kNever);
  world.registry->foresee();
  ASSERT_EQ(world.jobs.size(), 1u);
  EXPECT_EQ(world.jobs.front().path, "/d");
  while (!world.jobs.empty()) {
    (void)world.finish_one();
    round(false);
  }
  world.foresee();
  ASSERT_EQ(world.jobs.size(), 1u);
  EXPECT_EQ(world.jobs.front().path, "/often");
  ASSERT_TRUE(world.finish_one());  // looked at, not read yet
  round(true);
  ASSERT_EQ(world.jobs.size(), 1u);
  EXPECT_EQ(world.jobs.front().path, "/d");
  EXPECT_EQ(world.ahead(), 0u);
}

TEST(RegistryForesight, WhoeverComesMeanwhileHasTheLoadThatIsUnderWay) {
  ForesightWorld world;
  world.until_often_is_expected();
  world.foresee();
  world.serve("often");
  EXPECT_EQ(world.reads["/often"], 2);
  EXPECT_EQ(world.ahead(), 1u);
  EXPECT_EQ(world.registry->counters().loads_ahead_used, 1u);
}

TEST(RegistryForesight, WhoeverCameMeanwhileAndLeftLeavesTheLoadUnderWay) {
  for (const bool before_it_is_looked_at : {true, false}) {
    ForesightWorld world;
    world.until_often_is_expected();
    const std::vector<AdapterSourceId> often = {source_of("often")};
    const auto round = [&](bool wants) {
      world.registry->begin_round();
      if (wants) world.registry->want({often, {}}, 100);
      world.registry->pump();
      world.registry->check();
    };
    world.foresee();
    ASSERT_TRUE(before_it_is_looked_at || world.finish_one());
    round(true);  // it is no load ahead any more
    ASSERT_TRUE(!before_it_is_looked_at || world.finish_one());
    round(true);
    round(false);  // and now it is one again
    ASSERT_EQ(world.jobs.size(), 1u);
    EXPECT_TRUE(world.jobs.front().read);
    ASSERT_TRUE(world.finish_one());
    EXPECT_TRUE(world.in_memory("often"));
    EXPECT_FALSE(world.registry->loading());
  }
}

TEST(RegistryForesight, WhatHasFailedOrIsGoneIsNotTriedAhead) {
  ForesightWorld gone;
  gone.until_often_is_expected();
  gone.registry->drop(7, source_of("often"));
  gone.foresee();
  EXPECT_TRUE(gone.jobs.empty());
  ForesightWorld dropped;
  dropped.until_often_is_expected();
  dropped.foresee();
  dropped.registry->drop(7, source_of("often"));
  dropped.settle();
  EXPECT_FALSE(dropped.registry->loading());
  EXPECT_EQ(dropped.ahead(), 0u);
  ForesightWorld broken;
  broken.until_often_is_expected();
  broken.files["/often"].broken = corrupt("bad");
  broken.foresee();
  broken.settle();
  EXPECT_EQ(broken.registry->counters().failures, 1u);
  broken.foresee();
  EXPECT_TRUE(broken.jobs.empty());
}

}  // namespace
}  // namespace loralei
