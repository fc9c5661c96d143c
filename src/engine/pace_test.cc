// SPDX-License-Identifier: Apache-2.0
#include "engine/pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "adapters/source_test_util.h"
#include "engine/start.h"
#include "kv/block_pool.h"
#include "sim/fake_model.h"

namespace loralei {
namespace {

using namespace sim;
using namespace testing_support;

constexpr int64_t kMs = 1'000'000;

// A row takes so many milliseconds, an adapter's rank a half of one.
Profile pace_of_rows(double row_ms) {
  Profile profile;
  profile.name = "rows";
  profile.model.adapter_bytes_per_rank = 1'000'000;
  profile.step.linear = {{1, row_ms * 1e-3}, {1001, row_ms * 1.001}};
  profile.step.seconds[static_cast<size_t>(CostTerm::kRankSum)] = 0.5e-3;
  return profile;
}

// Takes what it is told to on the clock, and ends as it is told to.
class TimedExecutor final : public Executor {
 public:
  explicit TimedExecutor(ManualClock& clock) : clock_(clock) { limits_.rows_max = 64; }
  void announce(const Adapter&) override {}
  bool begins_early() const override { return true; }
  void withdraw(AdapterVersionId) override {}
  Status reserve_vocab(int32_t) override { return {}; }
  void start(const StepBatch& batch) override {
    clock_.advance_ns(takes_ns);
    end_step({batch.step, ends, waits});
  }
  StepResult result() const override { return {}; }
  const ModelLimits& limits() const override { return limits_; }

  int64_t takes_ns = 0;
  Status ends;
  StepWaits waits;

 private:
  ManualClock& clock_;
  ModelLimits limits_;
};

struct PacedSteps {
  explicit PacedSteps(const Profile& profile) {
    auto inner = std::make_unique<TimedExecutor>(clock);
    steps = inner.get();
    executor = make_paced_executor(std::move(inner), profile, clock, [this](int64_t until_ns) {
      waited_ns += until_ns - clock.now_ns();
      clock.advance_ns(until_ns - clock.now_ns() + wakes_late_ns);
    });
    executor->on_done([this](StepDone&& done) { ended_ns[done.step] = clock.now_ns(); });
  }
  // When a step ended that decodes so many rows and takes so long to compute.
  int64_t step(int32_t rows, int64_t takes_ns, AdapterVersionId adapter = {}) {
    steps->takes_ns = takes_ns;
    std::vector<BatchGroup> groups;
    for (int32_t row = 0; row < rows; ++row) groups.push_back({.row_begin = row, .row_count = 1});
    const std::vector<TokenId> tokens(static_cast<size_t>(rows));
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .row_count = rows, .slot = 0}};
    const std::vector<AdapterVersionId> adapters = {adapter};
    StepBatch batch{.step = ++number, .tokens = tokens, .groups = groups};
    if (adapter != AdapterVersionId()) {
      batch.segments = segments;
      batch.adapters = adapters;
    }
    executor->start(batch);
    EXPECT_EQ(ended_ns.count(number), 1u);
    return ended_ns[number];
  }
  uint64_t late() const { return executor->pace().late_steps; }

  ManualClock clock;
  TimedExecutor* steps = nullptr;
  std::unique_ptr<Executor> executor;
  std::map<uint64_t, int64_t> ended_ns;
  int64_t waited_ns = 0, wakes_late_ns = 0;
  uint64_t number = 0;
};

TEST(Pace, AStepEndsWhenTheProfileSaysSo) {
  PacedSteps paced(pace_of_rows(10));
  EXPECT_EQ(paced.step(1, 2 * kMs), 10 * kMs);
  EXPECT_EQ(paced.waited_ns, 8 * kMs);
  EXPECT_EQ(paced.late(), 0u);
  EXPECT_EQ(paced.executor->pace().profile, "rows");
}

TEST(Pace, ItCountsRowsAndRanks) {
  PacedSteps paced(pace_of_rows(10));
  Adapter adapter;
  adapter.version = AdapterVersionId{7};
  adapter.rank_max = 16;
  paced.executor->announce(adapter);
  EXPECT_EQ(paced.step(3, 0, adapter.version), (3 * 10 + 8) * kMs);
}

TEST(Pace, WhatIsDoneBetweenStepsThatFollowEachOtherIsPartOfTheirTime) {
  PacedSteps paced(pace_of_rows(10));
  paced.step(1, kMs);
  paced.clock.advance_ns(3 * kMs);  // sampling, planning
  EXPECT_EQ(paced.step(1, kMs), 20 * kMs);
  paced.executor->idle();
  paced.clock.advance_ns(5 * kMs);  // nobody asks
  EXPECT_EQ(paced.step(1, kMs), 35 * kMs);
}

TEST(Pace, WhoWakesALittleLateLosesNothingBehind) {
  PacedSteps paced(pace_of_rows(10));
  paced.wakes_late_ns = kPaceSlackNs / 2;
  for (int i = 1; i <= 100; ++i) ASSERT_EQ(paced.step(1, kMs), i * 10 * kMs + paced.wakes_late_ns);
  EXPECT_EQ(paced.late(), 0u);
}

TEST(Pace, AStepThatTakesLongerIsCountedAndTheNextBeginsBehindIt) {
  PacedSteps paced(pace_of_rows(10));
  paced.step(1, kMs);
  EXPECT_EQ(paced.step(1, 25 * kMs), 35 * kMs);
  EXPECT_EQ(paced.late(), 1u);
  EXPECT_DOUBLE_EQ(paced.executor->pace().late_s, 15e-3);
  EXPECT_EQ(paced.step(1, kMs), 45 * kMs);
  EXPECT_EQ(paced.late(), 1u);
}

TEST(Pace, WaitsForLayersComeOnTop) {
  PacedSteps paced(pace_of_rows(10));
  paced.steps->waits.ns = 4 * kMs;
  EXPECT_EQ(paced.step(1, 5 * kMs), 14 * kMs);
}

TEST(Pace, AStepThatFailedIsNotHeldUp) {
  PacedSteps paced(pace_of_rows(10));
  paced.steps->ends = internal_error("damaged");
  EXPECT_EQ(paced.step(1, 2 * kMs), 2 * kMs);
  paced.steps->ends = {};
  EXPECT_EQ(paced.step(1, 2 * kMs), 12 * kMs);
  EXPECT_EQ(paced.late(), 0u);
}

TEST(Pace, AdaptersComeAsAWhole) {
  const PacedSteps paced(pace_of_rows(10));
  EXPECT_TRUE(paced.steps->begins_early());
  EXPECT_FALSE(paced.executor->begins_early());
}

// Whatever comes: never earlier than the profile from where a step began, and as many
// are late as took longer.
TEST(Pace, NoStepEndsEarlierThanTheProfileSays) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  const Profile profile = pace_of_rows(2);
  PacedSteps paced(profile);
  int64_t end_ns = 0;  // by the profile
  uint64_t late = 0;
  bool follows = false;
  for (int i = 0; i < 5000; ++i) {
    if (upto(4) == 0) {
      paced.executor->idle();
      follows = false;
    }
    paced.clock.advance_ns(upto(3 * kMs));
    paced.wakes_late_ns = upto(2 * kPaceSlackNs);
    const auto rows = static_cast<int32_t>(1 + upto(20));
    const int64_t begin_ns = follows ? end_ns : paced.clock.now_ns();
    const int64_t due_ns = begin_ns + std::llround(profile.step.linear_s(rows) * 1e9);
    const int64_t ended_ns = paced.step(rows, upto(50 * kMs));
    ASSERT_GE(ended_ns, due_ns);
    const bool is_late = ended_ns - due_ns > kPaceSlackNs;
    late += is_late ? 1 : 0;
    end_ns = is_late ? ended_ns : due_ns;
    follows = true;
    ASSERT_EQ(paced.late(), late);
  }
  EXPECT_GT(late, 0u);
  EXPECT_LT(late, 5000u);
}

TEST(Pace, NoProfileMakesATimeThatIsNone) {
  Profile profile = pace_of_rows(10);
  profile.step.linear = {{1, 1e300}, {2, 1e308}};
  profile.step.seconds.fill(1e308);
  ManualClock clock;
  auto inner = std::make_unique<TimedExecutor>(clock);
  const auto executor = make_paced_executor(std::move(inner), profile, clock, [](int64_t until_ns) {
    EXPECT_GT(until_ns, 0);  // somebody stopped the sleep
  });
  int ended = 0;
  executor->on_done([&](StepDone&&) { ++ended; });
  const std::vector<BatchGroup> groups = {{.row_begin = 0, .row_count = 3, .position = 1000}};
  const std::vector<TokenId> tokens(3);
  for (uint64_t step = 1; step <= 100; ++step) executor->start({.step = step, .tokens = tokens, .groups = groups});
  EXPECT_EQ(ended, 100);
}

TEST(Pace, ASleepThatIsStoppedHoldsNobody) {
  PaceSleep sleep;
  const SteadyClock clock;
  std::thread sleeper([&] { sleep.until(INT64_MAX / 4); });
  sleep.stop();
  sleeper.join();
  sleep.until(INT64_MAX / 4);  // nor anybody who comes later
  PaceSleep other;
  const int64_t until_ns = clock.now_ns() + kMs;
  other.until(until_ns);
  EXPECT_GE(clock.now_ns(), until_ns);
}

// --- loads

struct PacedLoads {
  PacedLoads(const Profile& profile, bool has_device) {
    AdapterSource source;
    source.load = [this](const std::string& path, const AdapterLoadOptions&,
                         AdapterVersionId version) -> Result<AdapterLoad> {
      clock.advance_ns(kMs);
      if (path == "/broken") return corrupt("broken");
      if (path == "/large") return AdapterLoad{.bytes_needed = 1};
      auto adapter = std::make_shared<Adapter>();
      adapter->version = version;
      adapter->rank_max = 10;
      return AdapterLoad{.adapter = std::move(adapter)};
    };
    paced = paced_adapters(std::move(source), profile, has_device, clock, [this](int64_t until_ns) {
      waits.push_back(until_ns);
      if (waits_end) clock.advance_ns(until_ns - clock.now_ns());
    });
  }
  int64_t load(const std::string& path) {
    const auto loaded = paced.load(path, {}, AdapterVersionId{1});
    EXPECT_EQ(loaded.ok(), path != "/broken");
    return clock.now_ns();
  }

  ManualClock clock;
  AdapterSource paced;
  std::vector<int64_t> waits;
  bool waits_end = true;
};

// Ten ranks are 10 MB: 12 ms from the disk, 5 ms over the link.
Profile pace_of_loads() {
  Profile profile = pace_of_rows(10);
  profile.disk = TransferCost{.seconds = 2e-3, .bytes_per_second = 1e9, .at_once = 2};
  profile.link = TransferCost{.seconds = 0, .bytes_per_second = 2e9, .at_once = 1};
  return profile;
}

TEST(Pace, ALoadTakesWhatDiskAndLinkTakeInTheProfilesModel) {
  PacedLoads here(pace_of_loads(), false), beside_a_device(pace_of_loads(), true);
  EXPECT_EQ(here.load("/a"), 17 * kMs);
  EXPECT_EQ(beside_a_device.load("/a"), 12 * kMs);
}

TEST(Pace, OneAdapterAtATimeGoesOverTheLink) {
  PacedLoads loads(pace_of_loads(), false);
  loads.waits_end = false;  // as several loaders at once: nobody's wait is over
  for (int i = 0; i < 3; ++i) loads.load("/a");
  EXPECT_EQ(loads.waits, (std::vector<int64_t>{17 * kMs, 22 * kMs, 27 * kMs}));
}

TEST(Pace, ALoadThatFailedOrFoundNoRoomIsNotHeldUp) {
  PacedLoads loads(pace_of_loads(), false);
  EXPECT_EQ(loads.load("/broken"), kMs);
  EXPECT_EQ(loads.load("/large"), 2 * kMs);
  EXPECT_TRUE(loads.waits.empty());
}

TEST(Pace, WhatIsToldOfLoadsIsWhatTheyTake) {
  const Profile told = told_pace(pace_of_loads(), false);
  EXPECT_FALSE(told.link.has_value());
  EXPECT_NEAR(told.disk->predict_s(10'000'000), 17e-3, 1e-9);
  EXPECT_EQ(told.step, pace_of_loads().step);
  EXPECT_EQ(told.name, "rows");
  const Profile with_device = told_pace(pace_of_loads(), true);
  EXPECT_EQ(with_device.disk, pace_of_loads().disk);
  EXPECT_EQ(with_device.link, pace_of_loads().link);
}

// --- a whole engine

using Texts = std::map<uint64_t, std::vector<TokenId>>;

// What twelve requests get, half of them with adapters; and how long that took.
Texts texts_of_engine(bool is_paced, int64_t& took_ns, EngineStats& stats) {
  const SteadyClock clock;
  NullLogSink log;
  FakeFiles files;
  Ledger ledger{8 << 20};
  PaceSleep sleep;
  EngineParts parts;
  parts.config = fake_config();
  parts.options.max_sequences = 8;
  parts.options.step_tokens = 64;
  parts.options.kv_cache_bytes = 64 * kv_block_bytes({1, 1, 4, DType::kF32});
  parts.options.max_model_len = 200;
  parts.executor = std::make_unique<FakeExecutor>(step_limits(parts.options, parts.config));
  parts.adapters = files.source();
  if (is_paced) {
    const PaceWait wait = [&sleep](int64_t until_ns) { sleep.until(until_ns); };
    parts.executor = make_paced_executor(std::move(parts.executor), pace_of_rows(0.1), clock, wait);
    parts.adapters = paced_adapters(std::move(parts.adapters), pace_of_loads(), false, clock, wait);
    parts.before_stop = [&sleep] { sleep.stop(); };
  }
  parts.ledger = &ledger;
  parts.clock = &clock;
  parts.log = &log;
  auto engine = std::move(start_engine(std::move(parts))).value();
  files.put("/a", 100);
  EXPECT_TRUE(engine->command({1, AdapterAction::kAdd, spec_of("a", "/a"), false}).ok());
  const int64_t begin_ns = clock.now_ns();
  for (uint64_t id = 1; id <= 12; ++id) {
    Submit submit;
    submit.id = RequestId{id};
    for (uint64_t i = 0; i < 5 + id; ++i)
      submit.prompt.push_back(1 + static_cast<TokenId>((id * 7 + i) % (kVocab - 1)));
    submit.max_tokens = 20;
    submit.ignore_eos = true;
    submit.sampling.seed = id;
    if (id % 2 == 0) submit.adapters = {{source_of("a"), 1.0f}};
    EXPECT_TRUE(engine->submit(std::move(submit)).ok());
  }
  Texts texts;
  for (size_t ends = 0; ends < 12;) {
    const EngineOutput output = engine->wait_output(20'000'000'000);
    if (output.empty()) {
      ADD_FAILURE() << "the engine says nothing";
      break;
    }
    for (const TokenEvent& event : output.tokens) {
      if (event.has_token) texts[event.id.value].push_back(event.token);
      ends += event.end != EndReason::kNone ? 1 : 0;
    }
  }
  took_ns = clock.now_ns() - begin_ns;
  stats = engine->stats();
  engine->stop();
  return texts;
}

TEST(Pace, APacedEngineSaysTheSameTokens) {
  int64_t plain_ns = 0, paced_ns = 0;
  EngineStats plain, paced;
  const Texts texts = texts_of_engine(false, plain_ns, plain);
  ASSERT_EQ(texts.size(), 12u);
  for (const auto& [id, tokens] : texts) EXPECT_EQ(tokens.size(), 20u) << id;
  EXPECT_EQ(texts_of_engine(true, paced_ns, paced), texts);
  EXPECT_EQ(plain.paced_as, "");
  EXPECT_EQ(paced.paced_as, "rows");
  // Every row, of prompts and answers, takes its time, and so does the adapter's rank 4.
  const auto rows = static_cast<int64_t>(paced.rows);
  EXPECT_GE(rows, 12 * 20);
  EXPECT_GE(paced_ns, rows * 100'000);
}

}  // namespace
}  // namespace loralei
