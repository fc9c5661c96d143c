// SPDX-License-Identifier: Apache-2.0
// Which loads and requests find room while an older load waits for its own.
#include <gtest/gtest.h>

#include "adapters/registry_world.h"

namespace loralei {
namespace {

using namespace testing_support;

std::string resident(const AdapterRegistry& registry) {
  std::string names;
  registry.for_each(
      [&](const RegistryView& view) { names += view.adapter != nullptr ? view.source->label + " " : ""; });
  return names;
}

// One round for requests that each want one name, oldest first; what became ready is held
// in `pins` by its name.
struct Rounds {
  RegistryWorld world;
  std::map<std::string, std::vector<AdapterPin>> pins;

  explicit Rounds(int64_t adapter_bytes, RegistryOptions options = {}, Ledger* ledger = nullptr)
      : world(adapter_bytes, options, ledger) {}

  void put(const std::string& name, int64_t bytes) {
    world.put("/" + name, bytes);
    world.registry->add(1, spec_of(name, "/" + name));
  }
  void use(const std::string& name) {
    Error error;
    ASSERT_EQ(world.use(name, pins[name], error), AcquireOutcome::kReady) << name << ": " << error.message;
  }
  // Rounds in which request i, of order 100 + i, wants names[i], until nothing is left to
  // do.
  void run(const std::vector<std::string>& names) {
    for (int round = 0; round < 20; ++round) {
      world.registry->begin_round();
      for (size_t i = 0; i < names.size(); ++i) {
        if (!pins[names[i]].empty()) continue;
        Error error;
        const std::vector<std::string> wanted = {names[i]};
        EXPECT_NE(world.acquire(wanted, 100 + i, 0, pins[names[i]], error), AcquireOutcome::kFailed) << error.message;
      }
      world.registry->pump();
      world.registry->check();
      world.finish_one();
    }
  }
  bool ready(const std::string& name) { return !pins[name].empty(); }
};

// The first ask is for the file's size and a little more.
TEST(RegistryRoom, NobodyLeavesForALoadThatFindsNoRoomEvenSo) {
  Rounds rounds(1000000);
  rounds.put("a", 500000);
  rounds.put("b", 100000);
  rounds.put("c", 100000);
  rounds.put("d", 600000);
  rounds.put("e", 10000);
  for (const char* name : {"a", "b", "c"}) rounds.use(name);
  rounds.pins["b"].clear();
  rounds.pins["c"].clear();
  rounds.run({"d", "b", "e"});
  EXPECT_FALSE(rounds.ready("d"));
  EXPECT_TRUE(rounds.ready("b")) << "it was in memory, and stays";
  EXPECT_TRUE(rounds.ready("e")) << "there is room for it, and for d beside it";
  EXPECT_EQ(rounds.world.registry->counters().evictions, 0u);
  rounds.pins["a"].clear();
  rounds.run({"d"});
  EXPECT_TRUE(rounds.ready("d"));
  EXPECT_EQ(resident(*rounds.world.registry), "b c d e ");
}

// Whatever younger ones come, they share what the load leaves: loads at once, requests
// when its patience ends.
TEST(RegistryRoom, YoungerOnesShareWhatALoadWithoutRoomLeaves) {
  Rounds rounds(1000000);
  rounds.put("a", 500000);
  rounds.put("b", 100000);
  rounds.put("c", 250000);
  rounds.put("d", 600000);
  rounds.put("e", 200000);
  for (const char* name : {"a", "b", "c"}) rounds.use(name);
  rounds.pins["b"].clear();
  rounds.pins["c"].clear();
  rounds.run({"d"});
  rounds.world.clock.advance_ns(kRoomPatienceNs);
  rounds.run({"d", "b", "e", "c"});
  EXPECT_FALSE(rounds.ready("d"));
  EXPECT_TRUE(rounds.ready("b"));
  EXPECT_FALSE(rounds.ready("e")) << "c could go for it, but d would find no room beside b and e";
  EXPECT_FALSE(rounds.ready("c")) << "nor beside b and c";
  rounds.pins["a"].clear();
  rounds.run({"d", "b", "c"});
  EXPECT_TRUE(rounds.ready("d")) << "beside b, which is still in use";
  EXPECT_FALSE(rounds.ready("c"));
  rounds.pins["b"].clear();
  rounds.run({"d", "c"});
  EXPECT_TRUE(rounds.ready("c"));
}

// A loan makes nobody's room smaller in the long run: what does not fit beside it waits,
// and only what has no room without it is refused. Users of what is in memory go on.
TEST(RegistryRoom, WhatIsLentIsWaitedFor) {
  for (const bool sum : {false, true}) {
    SCOPED_TRACE(sum);
    Rounds rounds(200000);
    RegistryWorld& world = rounds.world;
    ASSERT_TRUE(world.ledger.set_budget(200000));
    rounds.put("a", 20000);
    rounds.put("b", 100000);
    rounds.put("c", 20000);
    rounds.put("huge", 2000000);
    rounds.use("a");
    rounds.pins["a"].clear();
    Grant loan = *world.ledger.try_lend(MemoryUse::kOther, 150000);
    Error error;
    std::vector<AdapterPin> pins;
    const std::vector<std::string> wanted = sum ? std::vector<std::string>{"b", "c"} : std::vector<std::string>{"b"};
    EXPECT_EQ(world.use(wanted, pins, error), AcquireOutcome::kWaiting) << error.message;
    world.clock.advance_ns(kRoomPatienceNs);
    EXPECT_EQ(world.use(wanted, pins, error), AcquireOutcome::kWaiting) << error.message;
    rounds.use("a");
    rounds.pins["a"].clear();
    std::vector<AdapterPin> none;
    EXPECT_EQ(world.use("huge", none, error), AcquireOutcome::kFailed);
    EXPECT_NE(error.message.find("at most 195.3 KiB"), std::string::npos) << error.message;
    loan.release();
    EXPECT_EQ(world.use(wanted, pins, error), AcquireOutcome::kReady) << error.message;
    EXPECT_EQ(world.registry->counters().failures, 1u);
  }
}

// The KV cache's part of a memory, by hand: extents of 50,000 bytes.
struct OtherShelf final : Shelf {
  static constexpr int64_t kExtent = 50'000;
  Ledger& ledger;
  Grant grant;
  int64_t used = 0;       // of the grant; the rest can be had
  double uses_per_s = 0;  // each saves a second

  OtherShelf(Ledger& ledger, int64_t bytes) : ledger(ledger), grant(*ledger.try_grant(MemoryUse::kKv, bytes)) {}
  int64_t idle_bytes() const override { return grant.bytes() - used; }
  int64_t most_bytes() const override { return grant.bytes(); }
  std::optional<CacheItem> next() override {
    if (idle_bytes() == 0) return std::nullopt;
    return CacheItem{.bytes = std::min(kExtent, idle_bytes()), .expected_per_s = uses_per_s, .recreate_s = 1};
  }
  int64_t give_up(const char*) override {
    const int64_t bytes = std::min(kExtent, idle_bytes());
    grant.shrink_to(grant.bytes() - bytes);
    return bytes;
  }
};

// 500,000 bytes, of which the other shelf has 300,000.
struct Shared {
  Ledger ledger{500'000};
  OtherShelf other{ledger, 300'000};
  Rounds rounds;
  explicit Shared(int64_t adapter_bytes) : rounds(adapter_bytes, {.beside = &other}, &ledger) {}
};

TEST(RegistryRoom, ALoadTakesOfTheShelfBesideWhatIsWorthLess) {
  Shared shared(500'000);
  Rounds& rounds = shared.rounds;
  rounds.world.clock.advance_ns(1000);
  for (const char* name : {"a", "b", "c"}) rounds.put(name, 100'000);
  rounds.use("a");
  rounds.pins["a"].clear();
  rounds.use("b");
  rounds.pins["b"].clear();
  EXPECT_EQ(resident(*rounds.world.registry), "a b ");
  const int64_t had = shared.other.grant.bytes();
  EXPECT_LT(had, 300'000);
  shared.other.uses_per_s = 1000;
  rounds.use("c");
  EXPECT_EQ(resident(*rounds.world.registry), "b c ") << "a saves less time than what is beside";
  EXPECT_EQ(shared.other.grant.bytes(), had);
}

TEST(RegistryRoom, NobodyGivesInVainAndWhatTheOtherUsesIsWaitedFor) {
  Shared shared(500'000);
  Rounds& rounds = shared.rounds;
  rounds.put("large", 350'000);
  rounds.put("huge", 450'000);
  shared.other.used = 200'000;
  rounds.run({"large"});
  EXPECT_FALSE(rounds.ready("large")) << "there are 300,000";
  EXPECT_EQ(shared.other.grant.bytes(), 300'000);
  EXPECT_FALSE(rounds.world.registry->is_starved()) << "the other's users will end";
  EXPECT_FALSE(rounds.world.registry->is_impatient());
  rounds.world.clock.advance_ns(kRoomPatienceNs);
  EXPECT_TRUE(rounds.world.registry->is_impatient());
  shared.other.used = 0;
  rounds.run({"large"});
  EXPECT_TRUE(rounds.ready("large"));
  EXPECT_FALSE(rounds.world.registry->is_impatient());
  rounds.pins.clear();
  rounds.world.ledger.set_cap(MemoryUse::kAdapters, 400'000);
  Error error;
  std::vector<AdapterPin> pins;
  EXPECT_EQ(rounds.world.use("huge", pins, error), AcquireOutcome::kFailed);
  EXPECT_NE(error.message.find("at most 390.6 KiB"), std::string::npos) << error.message;
}

TEST(RegistryRoom, BeyondTheirOwnPartAdaptersGoThemselves) {
  Shared shared(450'000);
  Rounds& rounds = shared.rounds;
  rounds.world.clock.advance_ns(1000);
  for (const char* name : {"a", "b"}) rounds.put(name, 150'000);
  rounds.use("a");
  rounds.pins["a"].clear();
  rounds.use("b");
  rounds.put("c", 200'000);
  rounds.use("c");
  EXPECT_EQ(resident(*rounds.world.registry), "b c ") << "the other is worth less, and its room would not help";
}

TEST(RegistryRoom, AsInt8AnAdapterThatIsSmallerThanItsFileNeedsItsOwnRoomOnly) {
  Rounds rounds(110000, {.int8 = true});
  for (const char* name : {"a", "b"}) {
    rounds.put(name, 100000);
    rounds.world.files[std::string("/") + name].bytes = 53000;
  }
  rounds.use("a");
  rounds.use("b");
  EXPECT_EQ(resident(*rounds.world.registry), "a b ");
  EXPECT_EQ(rounds.world.ledger.used_bytes(MemoryUse::kAdapters), 106000);
  EXPECT_EQ(rounds.world.registry->counters().evictions, 0u);
}

TEST(RegistryRoom, TellsHowOftenAnAdapterWasUsedWhatItTookAndWhyItLeft) {
  RegistryWorld world(1500 + 64 * 1024);
  for (const char* path : {"/a", "/b"}) {
    world.put(path, 1000);
    world.registry->add(1, spec_of(path + 1, path));
  }
  const auto look = [&](const std::string& name, const auto& at) {
    world.registry->for_each([&](const RegistryView& view) {
      if (view.source->label == name) at(view);
    });
  };
  std::vector<AdapterPin> pins;
  Error error;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
    pins.clear();
  }
  look("a", [&](const RegistryView& view) {
    EXPECT_EQ(view.recent_uses->count(world.clock.now_ns()), 3);
    EXPECT_EQ(*view.left, "");
    EXPECT_FALSE(view.keep_score) << "nobody has looked for room";
  });
  world.put("/b", 66000);
  ASSERT_EQ(world.use("b", pins, error), AcquireOutcome::kReady);
  look("a", [&](const RegistryView& view) {
    EXPECT_EQ(*view.left, "to make room for \"b\"");
    EXPECT_TRUE(view.keep_score);
  });
  pins.clear();
  ASSERT_EQ(world.use("a", pins, error), AcquireOutcome::kReady);
  look("a", [&](const RegistryView& view) {
    EXPECT_EQ(*view.left, "");
    EXPECT_FALSE(view.keep_score);
    EXPECT_EQ(view.recent_uses->count(world.clock.now_ns()), 4) << "it is no newcomer";
  });
}

// So many in memory that helpers may read; of the others the log speaks once.
TEST(RegistryRoom, WhatHelpersCannotReadIsSaidOnce) {
  RegistryWorld world(1 << 20, {.shared = true});
  std::vector<AdapterPin> pins;
  Error error;
  for (size_t i = 0; i < kSharedVersionsMost + 3; ++i) {
    const std::string name = "a" + std::to_string(i);
    world.put("/" + name, 100, i + 1);
    world.registry->add(i, spec_of(name, "/" + name));
    ASSERT_EQ(world.use(name, pins, error), AcquireOutcome::kReady);
    EXPECT_EQ(world.asked.shared, i < kSharedVersionsMost);
    EXPECT_EQ(world.log.warnings.size(), i < kSharedVersionsMost ? 0u : 1u);
  }
  EXPECT_NE(world.log.warnings[0].find("64 adapters"), std::string::npos) << world.log.warnings[0];
}

}  // namespace
}  // namespace loralei
