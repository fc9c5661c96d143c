// SPDX-License-Identifier: Apache-2.0
// The engine loop under random traffic, and what it allocates in steady state.
#include <gtest/gtest.h>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "engine/loop_test_world.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

using namespace testing_support;

// Drafts or none; tokens chosen by the executor, or all of them from logits.
class SteadyState : public testing::TestWithParam<std::tuple<Speculation, bool>> {};
INSTANTIATE_TEST_SUITE_P(Speculation, SteadyState,
                         testing::Combine(testing::Values(Speculation::kOff, Speculation::kLookup), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Speculation::kOff ? "Off" : "Lookup") +
                                  (std::get<1>(info.param) ? "Chosen" : "");
                         });

TEST_P(SteadyState, ADecodeStepAllocatesNothing) {
  const auto [speculation, chooses] = GetParam();
  const bool drafts = speculation == Speculation::kLookup;
  World world({.blocks = 256, .step_tokens = 64, .max_model_len = 400, .speculate = speculation, .draft_rows = 40});
  world.executor.chooses = chooses;
  for (int i = 0; i < 2; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    world.files.put("/" + name, 100 + static_cast<uint64_t>(i));
    world.command(AdapterAction::kAdd, name, "/" + name);
  }
  for (int i = 0; i < 8; ++i) {
    Submit submit =
        repeating(20, 380, i, drafts ? std::vector<TokenId>{3, 4, 5} : std::vector<TokenId>{},
                  i < 2 ? std::vector<AdapterUse>{} : std::vector<AdapterUse>{{source_of(i % 2 ? "a" : "b"), 0.5f}});
    submit.sampling.top_k = i % 3 == 0 ? 5 : 0;
    submit.sampling.top_p = i % 3 == 1 ? 0.9f : 1.0f;
    submit.sampling.repetition_penalty = i % 2 ? 1.1f : 1.0f;
    world.submit(submit);
  }
  for (int i = 0; i < 60; ++i) {
    world.turn();
    if (i % 3 == 0) world.finish_load();
  }
  ASSERT_EQ(world.stats().running, 8);
  EngineOutput output;
  output.tokens.reserve(4000);
  ASSERT_EQ(world.adapters().size(), 2u);
  start_counting_allocations();
  for (int i = 0; i < 60; ++i) {
    world.clock.advance_ns(kAdapterNewsNs / 8);
    world.turn(output);
  }
  const int64_t allocations = stop_counting_allocations().count;
  EXPECT_EQ(world.stats().running, 8);
  if (drafts) {
    EXPECT_GT(output.tokens.size(), 600u);
  } else {
    EXPECT_EQ(output.tokens.size(), 480u);
  }
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(world.executor.chosen > 0, chooses && !drafts);  // drafts are made likely by bias, which the host adds
}

const int64_t kBlockBytes = [] {
  const ModelConfig config = fake_config();
  return kv_block_bytes({config.layers, config.kv_heads, config.head_dim, DType::kF32});
}();

// KV and adapters that share a memory, of which both want all.
void share_memory(WorldOptions& setup, uint64_t seed) {
  setup.joint = true;
  setup.adapter_bytes = 110000;  // of the largest, and a little
  setup.blocks = 10;
  setup.blocks_max = 200;
  setup.adapter_keeping.policy = seed % 2 == 0 ? KeepPolicy::kDensity : KeepPolicy::kLru;
  setup.memory_bytes = setup.blocks * kBlockBytes + setup.adapter_bytes;
  setup.adapter_floor_bytes = setup.adapter_bytes / 10;
}

SchedulingOptions scheduling_of(uint64_t seed) {
  return {.policy = static_cast<SchedulePolicy>(seed / 3 % kSchedulePolicies),
          .prediction = static_cast<LengthPrediction>(seed / 9 % kLengthPredictions),
          .first_fit = 20,
          .fairness = seed / 2 % 2 == 0 ? Fairness::kVtc : Fairness::kNone};
}

// In half of the runs speculation on texts of few words, in a quarter adapters that
// leave behind their last request, in a fifth adapters that are loaded before anybody
// asks, in a fifth a memory that KV and adapters share, in half prefixes that go by
// density, in about half prefixes that are encoded, in a third prefixes that go to disk
// (`folder`) and are found there by later runs, in half turns between clients, every
// policy of scheduling, and every way to predict lengths.
WorldOptions soak_setup(uint64_t seed, Prng& random, const std::string& folder) {
  WorldOptions setup{.blocks_max = 40, .adapter_bytes = 200000, .max_model_len = 160};
  setup.blocks = 10 + static_cast<int32_t>(random.below(20));
  setup.max_sequences = 1 + static_cast<int32_t>(random.below(8));
  setup.step_tokens = setup.max_sequences + static_cast<int32_t>(random.below(40));
  setup.prefix_cache = random.below(4) != 0;
  if (seed % 4 == 1) setup.adapter_keeping = AdapterKeeping::none();
  if (seed % 5 == 2) setup.adapter_keeping.prefetch = AdapterPrefetch::kHistogram;
  setup.scheduling = scheduling_of(seed);
  if (seed % 2 == 0) setup.speculate = Speculation::kLookup;
  if (seed % 2 == 0) setup.draft_rows = 1 + static_cast<int32_t>(random.below(20));
  if (seed % 5 == 3) share_memory(setup, seed);
  if (seed % 4 < 2) setup.kv_eviction = KvEviction::kDensity;
  if (seed % 5 != 3 && seed % 3 != 0) setup.kv_sharing = KvSharing::kLossless;
  // Blocks of one format each.
  if (setup.prefix_cache && seed % 5 != 3 && seed / 2 % 3 == 0)
    setup.kv_dir = folder + (setup.kv_sharing == KvSharing::kExact ? "/floats" : "/bytes");
  return setup;
}

// Of one of a few clients; every other request wants something of time.
Submit some_submit(bool drafts, Prng& random, Prng& wishes) {
  Submit submit = simple(1 + static_cast<int>(random.below(100)), 1 + static_cast<int>(random.below(50)),
                         static_cast<int>(random.below(3)));
  submit.choices = 1 + static_cast<int32_t>(random.below(3) * random.below(2));
  submit.ignore_eos = random.below(2);
  submit.min_tokens = static_cast<int32_t>(random.below(10));
  submit.sampling.temperature = random.below(3) == 0 ? 0.0f : 0.8f;
  submit.sampling.top_k = static_cast<int32_t>(random.below(2) * 10);
  submit.sampling.repetition_penalty = random.below(3) == 0 ? 1.2f : 1.0f;
  submit.sampling.logprobs = static_cast<int32_t>(random.below(4)) - 1;
  submit.prompt_logprobs = random.below(6) == 0;
  if (drafts) {
    for (auto count = random.below(4); count > 0; --count)
      submit.sampling.logit_bias.emplace_back(static_cast<TokenId>(random.below(6)), 50.0f);
  }
  submit.client = ClientId{wishes.below(4)};
  submit.priority = static_cast<int32_t>(wishes.below(3));
  if (wishes.below(2) == 0) submit.slo.ttft_ns = 1 + static_cast<int64_t>(wishes.below(100'000));
  if (wishes.below(2) == 0) submit.slo.tpot_ns = 1 + static_cast<int64_t>(wishes.below(3'000));
  return submit;
}

// What the runs have shown, each as far as it may.
struct Seen {
  int drafting = 0, choosing = 0;
  uint64_t ahead = 0;                 // loads
  int64_t decoded = 0, restored = 0;  // blocks

  void add(const World& world) {
    const EngineStats stats = world.stats();
    EXPECT_TRUE(world.setup_.speculate == Speculation::kLookup || stats.drafted_tokens == 0);
    EXPECT_TRUE(world.executor.chooses || world.executor.chosen == 0);
    EXPECT_TRUE(world.setup_.adapter_keeping.prefetch == AdapterPrefetch::kHistogram || stats.adapter_loads_ahead == 0);
    drafting += stats.drafted_tokens > stats.accepted_tokens && stats.accepted_tokens > 0;
    choosing += world.executor.chosen > 0 && world.executor.not_chosen > 0;
    ahead += stats.adapter_loads_ahead;
    decoded += stats.kv_coded.times.decoded_blocks;
    restored += stats.kv_restored_blocks;
  }
  void expect_enough() const {
    EXPECT_GE(drafting, 25);
    EXPECT_GE(choosing, 15);
    EXPECT_GE(ahead, 8u);
    EXPECT_GE(decoded, 200);
    EXPECT_GE(restored, 100);
  }
};

// Everything at once: arrivals, cancels, failures, adapter churn with too little memory
// for all, replaced versions, activated ones among them, preemption, a KV cache that
// shrinks and grows, requests that are held for a while, in a third of the runs an
// executor that chooses tokens where nothing but logits is needed, requests that want
// something of time, and what soak_setup() says.
TEST(EngineLoop, RandomSoakKeepsEveryPromise) {
  Seen seen;
  const DiskFolder folder;
  for (uint64_t seed = 1; seed <= 70; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed), holds(seed + 1000), times(seed + 2000), wishes(seed + 3000);
    World world(soak_setup(seed, random, folder.path()));
    const bool drafts = world.setup_.speculate == Speculation::kLookup;
    const bool foresees = world.setup_.adapter_keeping.prefetch == AdapterPrefetch::kHistogram;
    world.executor.chooses = seed % 3 == 0;
    uint64_t content = 1000;
    // A third of them is activated by a token that some prompts hold.
    const auto put = [&](const std::string& name) {
      world.files.put("/" + name, ++content, static_cast<int64_t>(random.below(100000)));
      if (random.below(3) != 0) return;
      world.invocations[content] = {1 + static_cast<TokenId>(random.below(kVocab - 1))};
      world.files.change("/" + name, [&](FakeFiles::File& file) { file.invocation = world.invocations[content]; });
    };
    const auto name_of = [&] { return std::string(1, static_cast<char>('a' + random.below(5))); };
    for (int i = 0; i < 5; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      put(name);
      world.command(AdapterAction::kAdd, name, "/" + name);
    }
    std::map<RequestId, bool> disturbed;  // may end with an error or cancelled
    bool step_failed = false;
    for (int step = 0; step < 1200; ++step) {
      switch (random.below(24)) {
        case 0:
        case 1: {
          Submit submit = some_submit(drafts, random, wishes);
          for (auto count = random.below(3); count > 0; --count)
            submit.adapters.push_back({source_of(name_of()), random.below(2) ? 1.0f : 0.5f});
          world.submit(submit);
          break;
        }
        case 2:
          if (world.last_id > 0) {
            const RequestId id{1 + random.below(world.last_id)};
            disturbed[id] = true;
            world.cancel(id);
          }
          break;
        case 3: {
          const std::string name = name_of();
          put(name);
          world.command(AdapterAction::kLoad, name, "/" + name, true);
          break;
        }
        case 4: {
          if (foresees && times.below(20) != 0) break;  // what is gone is forgotten
          const std::string name = name_of();
          world.command(AdapterAction::kDrop, name);
          if (random.below(3) != 0) world.command(AdapterAction::kAdd, name, "/" + name);
          break;
        }
        case 5:
          world.command(random.below(3) ? AdapterAction::kUnpin : AdapterAction::kPin, name_of());
          break;
        case 6:
          if (random.below(10) == 0) world.executor.fail_next = step_failed = true;
          break;
        case 7:
          if (random.below(5) == 0)
            world.files.change("/" + name_of(), [](FakeFiles::File& file) { file.broken = corrupt("bad"); });
          break;
        case 8:
          if (random.below(3) == 0) world.resize(10 + static_cast<int32_t>(random.below(31)));
          break;
        default:
          break;
      }
      if (world.last_id > 0 && holds.below(12) == 0)
        world.hold(RequestId{1 + holds.below(world.last_id)}, holds.below(3) == 0);
      if (foresees && times.below(4) == 0)
        world.clock.advance_ns(static_cast<int64_t>(times.below(4)) * IdleTimes::kBinNs);
      if (!world.jobs.empty() && random.below(3) == 0) world.finish_load(random.below(world.jobs.size()));
      world.turn();
      ASSERT_FALSE(HasFailure());
    }
    for (int i = 0; i < 5; ++i) world.command(AdapterAction::kUnpin, std::string(1, static_cast<char>('a' + i)));
    for (uint64_t id = 1; id <= world.last_id; ++id) world.hold(RequestId{id}, false);
    world.run(20000);
    int compared = 0;
    for (const auto& [id, submit] : world.submits) {
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        const World::Record& record = world.record(id, choice);
        ASSERT_NE(record.end, EndReason::kNone) << "request " << id.value << " never ended";
        if (record.end == EndReason::kStop || record.end == EndReason::kLength) {
          world.expect_oracle(id, choice);
          ++compared;
        } else {
          EXPECT_TRUE(record.end == EndReason::kError ? (!submit.adapters.empty() || step_failed)
                                                      : disturbed.count(id) == 1);
        }
      }
    }
    EXPECT_GT(compared, 10);
    seen.add(world);
    EXPECT_EQ(world.replies.size(), world.tickets);
    world.expect_nothing_held();
    for (int i = 0; i < 5; ++i) world.command(AdapterAction::kDrop, std::string(1, static_cast<char>('a' + i)));
    world.run();
    EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
  }
  seen.expect_enough();
}

}  // namespace
}  // namespace loralei
