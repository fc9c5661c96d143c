// SPDX-License-Identifier: Apache-2.0
// What the registry decides, against a model that goes through everything anew for every
// decision; and what its decisions cost.
#include <gtest/gtest.h>

#include <algorithm>

#include "adapters/naive_registry.h"
#include "base/prng.h"

namespace loralei {
namespace {

using namespace testing_support;

struct Request {
  std::vector<std::string> names;
  bool early = false;
  uint64_t order = 0, since = 0;
  std::vector<AdapterPin> pins;
  std::vector<NaiveRegistry::Version*> naive_pins;
};

RegistryOptions some_options(uint64_t seed, Prng& random) {
  constexpr KeepPolicy kPolicies[] = {KeepPolicy::kLru, KeepPolicy::kFairShare, KeepPolicy::kChameleon,
                                      KeepPolicy::kDensity};
  RegistryOptions options{.loads_max = 1 + static_cast<int32_t>(random.below(4)), .int8 = random.below(4) == 0};
  options.keep = KeepOrder(kPolicies[seed % 4]);
  options.early = random.below(4) != 0;
  return options;
}

struct Seen {
  uint64_t waiting = 0, failed = 0, evictions = 0, reservations = 0, lost_to_reservations = 0;
  uint64_t early_uses = 0, failed_in_use = 0, dropped_in_use = 0;
};

// Registry and model side by side: after every operation they have started the same jobs,
// dropped the same versions and answered the same.
class SideBySide {
 public:
  SideBySide(uint64_t seed, Seen& seen)
      : random_(seed),
        seen_(seen),
        sums_(random_.below(2) == 0),
        options_(told_of_dropped(some_options(seed, random_))),
        world_(500000, options_),
        naive_{.world = world_, .options = options_},
        count_(4 + static_cast<int>(random_.below(20))) {
    for (int i = 0; i < count_; ++i) {
      const std::string name = "n" + std::to_string(i);
      change_file(name);
      world_.registry->add(0, spec_of(name, "/" + name));
      naive_.names.push_back({.name = name});
    }
  }
  SideBySide(const SideBySide&) = delete;
  SideBySide& operator=(const SideBySide&) = delete;
  ~SideBySide() {
    seen_.evictions += world_.registry->counters().evictions;
    seen_.lost_to_reservations += naive_.lost_to_reservations;
    seen_.early_uses += naive_.early_uses;
    for (auto& request : running_) drop_pins(*request);
  }

  void step() {
    world_.clock.advance_ns(static_cast<int64_t>(random_.below(3) == 0 ? random_.below(400'000'000) : 0));
    const uint64_t what = random_.below(18);
    if (what < 5) {
      command(what);
    } else if (what < 11) {
      request(what);
    } else {
      job(what);
    }
    round();
    if (!testing::Test::HasFatalFailure()) expect_the_same();
  }

 private:
  RegistryOptions told_of_dropped(RegistryOptions options) {
    options.dropped = [this](AdapterVersionId version) { dropped_.push_back(version.value); };
    return options;
  }
  std::string any_name() { return "n" + std::to_string(random_.below(static_cast<uint64_t>(count_))); }
  void change_file(const std::string& name) {
    const std::string path = "/" + name;
    world_.put(path, 1 + static_cast<int64_t>(random_.below(random_.below(8) == 0 ? 600000 : 120000)), random_());
    if (random_.below(2) == 0) world_.files[path].bytes = 1 + static_cast<int64_t>(random_.below(200000));
    if (random_.below(5) == 0) world_.files[path].broken = corrupt("a number that is none");
  }
  void drop_pins(Request& request) {
    request.pins.clear();
    for (NaiveRegistry::Version* version : request.naive_pins) naive_.unpin(version);
  }
  bool is_read(const std::string& name) const {
    return std::any_of(naive_.jobs.begin(), naive_.jobs.end(),
                       [&](const NaiveRegistry::Job& job) { return job.path == name; });
  }

  void command(uint64_t what) {
    const std::string name = any_name();
    NaiveRegistry::Name& one = naive_.at(name);
    if (!one.known) {
      if (what > 1) return;
      world_.registry->add(0, spec_of(name, "/" + name));
      one.known = true;
      return;
    }
    switch (what) {
      case 0:
        world_.registry->load(0, spec_of(name), true);
        return naive_.load(one);
      case 1:
        if (random_.below(4) != 0) return;
        world_.registry->pin(0, source_of(name));
        return naive_.pin(one);
      case 2:
        world_.registry->unpin(0, source_of(name));
        one.pinned = false;
        return;
      case 3:
        if (!one.loading() && !is_read(name)) change_file(name);
        return;
      default:
        if (random_.below(8) == 0)
          world_.ledger.set_cap(MemoryUse::kAdapters, 100000 + static_cast<int64_t>(random_.below(600000)));
    }
  }

  void request(uint64_t what) {
    if (what < 8) {
      if (waiting_.size() > 20) return;
      auto request = std::make_unique<Request>();
      request->names.push_back(any_name());
      if (sums_ && random_.below(3) == 0) request->names.push_back(any_name());
      request->early = random_.below(3) != 0;
      request->order = ++order_;
      request->since = world_.registry->serial();
      waiting_.push_back(std::move(request));
    } else if (what < 10) {
      if (running_.empty()) return;
      std::swap(running_[random_.below(running_.size())], running_.back());
      drop_pins(*running_.back());
      running_.pop_back();
    } else if (!waiting_.empty()) {
      waiting_.erase(waiting_.begin() + static_cast<int64_t>(random_.below(waiting_.size())));
    }
  }

  void job(uint64_t what) {
    if (what == 17) {  // rarely: who has it in use keeps it
      NaiveRegistry::Name& one = naive_.at(any_name());
      if (random_.below(4) != 0 || !one.known) return;
      seen_.dropped_in_use += one.arriving != nullptr && one.arriving->pins > 0;
      world_.registry->drop(0, source_of(one.name));
      return naive_.forget(one);
    }
    if (world_.jobs.empty()) return;
    const size_t index = random_.below(world_.jobs.size());
    if (what > 12) {
      if (world_.begin_one(index)) naive_.begun(index);
      return;
    }
    const NaiveRegistry::Version* const arriving = naive_.find(naive_.jobs[index].version);
    seen_.failed_in_use += arriving != nullptr && arriving->pins > 0 && world_.files.at(world_.jobs[index].path).broken;
    world_.finish_one(index);
    naive_.done(index);
  }

  void round() {
    world_.registry->begin_round();
    naive_.begin_round();
    seen_.reservations += naive_.reservations.size();
    for (auto& request : waiting_) {
      Error error;
      const auto outcome =
          world_.acquire(request->names, request->order, request->since, request->pins, error, request->early);
      ASSERT_EQ(outcome,
                naive_.acquire(request->names, request->early, request->order, request->since, request->naive_pins))
          << "request " << request->order << " for " << request->names[0] << " " << error.message;
      seen_.waiting += outcome == AcquireOutcome::kWaiting;
      seen_.failed += outcome == AcquireOutcome::kFailed;
      if (outcome == AcquireOutcome::kReady) running_.push_back(std::move(request));
      if (outcome == AcquireOutcome::kFailed) request.reset();
    }
    std::erase(waiting_, nullptr);
    world_.registry->pump();
    naive_.pump();
    world_.registry->check();
  }

  void expect_the_same() {
    ASSERT_EQ(dropped_, naive_.dropped);
    ASSERT_EQ(world_.registry->bytes(), naive_.bytes());
    ASSERT_EQ(world_.registry->serial(), naive_.serial);
    ASSERT_EQ(world_.jobs.size(), naive_.jobs.size());
    for (size_t i = 0; i < naive_.jobs.size(); ++i) {
      ASSERT_EQ(world_.jobs[i].path, "/" + naive_.jobs[i].path);
      ASSERT_EQ(world_.jobs[i].read, naive_.jobs[i].read);
      // What is granted for it later goes back as soon as its size is known.
      if (!naive_.jobs[i].begun) {
        ASSERT_EQ(world_.jobs[i].options.bytes_max, naive_.jobs[i].bytes);
      }
    }
    for (const auto& request : running_) {
      for (size_t i = 0; i < request->pins.size(); ++i)
        ASSERT_EQ(request->pins[i]->version.value, request->naive_pins[i]->id);
    }
  }

  Prng random_;
  Seen& seen_;
  const bool sums_;
  std::vector<uint64_t> dropped_;
  const RegistryOptions options_;
  RegistryWorld world_;
  NaiveRegistry naive_;
  const int count_;
  std::vector<std::unique_ptr<Request>> waiting_, running_;
  uint64_t order_ = 0;
};

TEST(RegistryOracle, RandomTrafficIsDecidedAsByGoingThroughEverything) {
  Seen seen;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SideBySide both(seed, seen);
    for (int step = 0; step < 1500; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      both.step();
      if (HasFatalFailure()) return;
    }
  }
  for (const uint64_t times :
       {seen.waiting, seen.failed, seen.evictions, seen.reservations, seen.lost_to_reservations, seen.early_uses})
    EXPECT_GT(times, 500u);
  EXPECT_GT(seen.failed_in_use, 50u);
  EXPECT_GT(seen.dropped_in_use, 20u);
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
