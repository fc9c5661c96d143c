// SPDX-License-Identifier: Apache-2.0
// Decode steps run as recorded graphs give the bits of the same steps launched kernel
// by kernel: two models of the same weights, one with graphs and one without, each with
// a KV cache of its own, on the emulated GPU (cuda_graphs_emulated_test) or a real one
// (cuda_graphs_test, which skips without). Every decode step but those of new shapes runs
// filled up with idle rows, from tables that were written for it alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "equality/cuda_graphs_fixture.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::test {
namespace {

uint64_t seed_of_run() {
  const char* given = std::getenv("CUDA_GRAPHS_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 4711;
}

TEST_P(CudaGraphs, RandomDecodeStepsHaveTheBitsOfPlainOnes) {
  const uint64_t seed = seed_of_run();
  talk(seed, 70, 5);
  const StepGraphs& graphs = graphs_.model->graphs();
  std::printf("seed %llu: %lld graphs, %lld steps run as one\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(graphs.recorded()), static_cast<long long>(graphs.launched()));
  EXPECT_GE(graphs.launched(), 20);
  EXPECT_EQ(plain_.model->graphs().launched(), 0);
  EXPECT_TRUE(log_.lines().empty()) << log_.lines()[0];
}

// More rows than a GEMV takes: idle ones beside them keep the class.
TEST_P(CudaGraphs, ManyRowsKeepTheirClass) {
  std::vector<Span> prompts;
  std::vector<std::vector<AdapterRef>> uses;
  for (int i = 0; i < 11; ++i) {
    uses.push_back(i % 3 == 0 ? std::vector<AdapterRef>{} : std::vector<AdapterRef>{{adapters_.back(), 1.0f, 0}});
    prompts.push_back(span(i, 0, 2, uses.back()));
  }
  both(prompts);
  for (int round = 0; round < 4; ++round) {
    std::vector<Span> decode;
    for (int i = 0; i < 11 - round % 2; ++i) {
      decode.push_back(token(i, 2 + round, uses[static_cast<size_t>(i)]));
      if (i >= 9) decode.back().logits_at.clear();  // nine rows of logits beside ten and eleven rows
    }
    both(decode);
  }
  EXPECT_EQ(cache_of(plain_), cache_of(graphs_));
  EXPECT_LE(graphs_.model->graphs().recorded(), 2);
  EXPECT_GE(graphs_.model->graphs().launched(), 2);
}

INSTANTIATE_TEST_SUITE_P(Some, CudaGraphs, testing::ValuesIn(subjects()),
                         [](const auto& info) { return std::string(info.param.name); });

class CudaGraphsRules : public CudaGraphs {};

TEST_P(CudaGraphsRules, OneGraphServesASteadyStream) {
  const std::vector<std::vector<AdapterRef>> uses = {{{adapters_[0], 1.0f, 0}}, {}, {{adapters_.back(), 0.5f, 0}}};
  std::vector<Span> prompts;
  for (int i = 0; i < 3; ++i) prompts.push_back(span(i, 0, 3 + i, uses[static_cast<size_t>(i)]));
  both(prompts);
  for (int round = 0; round < 20; ++round) {
    std::vector<Span> decode;
    for (int i = 0; i < 3; ++i) decode.push_back(token(i, 3 + i + round, uses[static_cast<size_t>(i)]));
    both(decode);
  }
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 19);
  // Two other sequences instead, with the same ranks: nothing is recorded.
  both({token(5, 0, uses[0]), token(6, 0), token(7, 0, uses[2])});
  both({token(5, 1, uses[0]), token(6, 1), token(7, 1, uses[2]), token(8, 0)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_GE(graphs_.model->graphs().launched(), 20);
}

// A context that grows past the positions a graph was recorded for takes another one.
TEST_P(CudaGraphsRules, AContextGrowsIntoTheNextBucket) {
  both({span(0, 238, 12), span(1, 0, 3)});
  for (int at = 250; at < 262; ++at) both({token(0, at), token(1, at - 247)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(graphs_.model->graphs().launched(), 10);
  both({token(0, 200), token(1, 15)});  // back to the first
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(graphs_.model->graphs().launched(), 11);
}

// All else equal, a higher rank needs more blocks than a lower one has recorded, and a
// module nobody changed is not in its graph at all.
TEST_P(CudaGraphsRules, AHigherRankTakesAnotherGraph) {
  const Adapter* const odd = adapters_[adapters_.size() - 3];
  const Adapter* const small = adapters_[adapters_.size() - 2];
  const Adapter* const large = adapters_.back();
  int at = 0;
  for (const Adapter* adapter : {odd, odd, odd, small, small, small, large, large, large, small, odd}) {
    both({token(0, at++, {{adapter, 1.0f, 0}})});
  }
  EXPECT_EQ(graphs_.model->graphs().recorded(), 3);
  EXPECT_EQ(graphs_.model->graphs().launched(), 8);
}

// Adapters that are dropped and uploaded again lie elsewhere on the device; their
// table says where.
TEST_P(CudaGraphsRules, AnAdapterThatMovedIsReadWhereItIs) {
  const Adapter* const one = adapters_[adapters_.size() - 2];
  const Adapter* const two = adapters_.back();
  const auto drop = [&](const Adapter& adapter) { graphs_.model->adapters().drop(adapter.version); };
  const auto decode = [&](int at) { both({token(0, at, {{one, 1.0f, 0}}), token(1, at, {{two, 1.0f, 0}})}); };
  for (int at = 0; at < 3; ++at) decode(at);
  const int64_t uploads = graphs_.model->adapters().uploads();
  drop(*one);
  drop(*two);
  both({token(2, 0, {{two, 1.0f, 0}})});  // first the other
  both({token(2, 1, {{adapters_[0], 1.0f, 0}})});
  for (int at = 3; at < 6; ++at) decode(at);
  EXPECT_GE(graphs_.model->adapters().uploads(), uploads + 2);
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 5);
}

// Another version with other factors at the same host addresses.
TEST_P(CudaGraphsRules, AnAdapterReplacedAtItsAddressIsTheNewOne) {
  std::vector<LoraPair> pairs(adapters_.back()->pairs.begin(), adapters_.back()->pairs.end());
  std::vector<std::vector<std::byte>> factors;
  std::vector<LoraSource> sources(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].rank == 0) continue;
    const int64_t bytes = row_bytes(pairs[i].dtype, int64_t{pairs[i].rank} * pairs[i].out);
    factors.emplace_back(pairs[i].b_t, pairs[i].b_t + bytes);
    pairs[i].b_t = factors.back().data();
    sources[i].pair = &pairs[i];
  }
  const LoraSegment segments[] = {{0, 1, 0, 1.0f}};
  AdapterVersionId version{100};
  const auto with_version = [&](ModelBatch batch) {
    batch.segments = segments;
    batch.sources = sources.data();
    batch.slots = 1;
    batch.versions = {&version, 1};
    return batch;
  };
  for (int at = 0; at < 3; ++at) both({token(0, at)}, with_version);
  const Span same = token(0, 3);
  const StepOutput before = both({same}, with_version);
  const size_t size = static_cast<size_t>(row_bytes(adapters_.back()->pairs[0].dtype, 1));
  for (auto& factor : factors) {
    for (size_t i = size - 1; i < factor.size(); i += size) factor[i] ^= std::byte{0x80};  // the sign
  }
  version = AdapterVersionId{101};
  const StepOutput after = both({same}, with_version);
  EXPECT_FALSE(same_bits(before, after));
  EXPECT_EQ(graphs_.model->graphs().recorded(), 1);
  EXPECT_EQ(graphs_.model->graphs().launched(), 4);
}

// The table of sources is made and copied where a step's adapters are others than before,
// or lie elsewhere; never for a step that uses what the one before did.
TEST_P(CudaGraphsRules, SourcesAreCopiedWhereTheyChange) {
  uint64_t reloaded = 0;  // later versions of all
  std::vector<AdapterVersionId> versions;
  const auto versioned = [&](ModelBatch batch) {
    versions.clear();
    for (int32_t slot = 0; slot < batch.slots; ++slot) {
      // By one of the modules that it touches.
      const auto of = [&](const Adapter* adapter) {
        for (size_t module = 0; module < adapter->pairs.size(); ++module) {
          const LoraPair* const pair =
              batch.sources[module * static_cast<size_t>(batch.slots) + static_cast<size_t>(slot)].pair;
          if (pair != nullptr) return pair == &adapter->pairs[module];
        }
        return false;
      };
      const auto found = std::find_if(adapters_.begin(), adapters_.end(), of);
      EXPECT_NE(found, adapters_.end());
      versions.push_back(AdapterVersionId{1 + reloaded + static_cast<uint64_t>(found - adapters_.begin())});
    }
    batch.versions = versions;
    return batch;
  };
  int at = 0;
  const auto makes = [&](const std::vector<const Adapter*>& uses, const Change& change) {
    const int64_t before = graphs_.model->sources_made();
    std::vector<Span> spans;
    for (size_t i = 0; i < uses.size(); ++i) {
      spans.push_back(
          token(static_cast<int>(i), at,
                uses[i] == nullptr ? std::vector<AdapterRef>() : std::vector<AdapterRef>{{uses[i], 1.0f, 0}}));
    }
    ++at;
    both(spans, change);
    return graphs_.model->sources_made() - before;
  };
  const Adapter *one = adapters_[0], *two = adapters_[1], *three = adapters_.back();
  EXPECT_EQ(makes({one, two, three}, versioned), 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(makes({one, two, three}, versioned), 0) << i;
  EXPECT_EQ(makes({nullptr}, versioned), 0);
  EXPECT_EQ(makes({one, nullptr, two, three, one}, versioned), 0) << "slots are those of before";
  EXPECT_EQ(makes({one, three}, versioned), 1);
  EXPECT_EQ(makes({one, nullptr, three}, versioned), 0);
  reloaded = 100;
  EXPECT_EQ(makes({one, three}, versioned), 1) << "other versions";
  graphs_.model->adapters().drop(versions[0]);
  EXPECT_EQ(makes({one, three}, versioned), 1) << "it lies elsewhere";
  EXPECT_EQ(makes({one, three}, versioned), 0);
  // Three slots of a prompt's own, four of the bucket.
  both({span(0, at, 2, {{one, 1.0f, 0}}), span(1, at, 1, {{two, 1.0f, 0}}), span(2, at, 1, {{three, 1.0f, 0}})},
       versioned);
  at += 2;
  EXPECT_EQ(makes({one, two, three}, versioned), 1);
}

// A step's adapters stay used though their table was not made anew: what comes then
// takes another's place.
TEST_P(CudaGraphsRules, AdaptersOfAKnownTableAreInUse) {
  CudaAdapters& adapters = graphs_.model->adapters();
  adapters.begin_step();
  const auto ensure = [&](const Adapter& adapter) {
    const auto pair = std::find_if(adapter.pairs.begin(), adapter.pairs.end(), present);
    const CudaAdapters::ModulePair one{static_cast<int32_t>(pair - adapter.pairs.begin()), &*pair};
    return adapters.ensure(adapter.version, {&one, 1});
  };
  ASSERT_TRUE(ensure(*adapters_[0]).ok());
  std::vector<int32_t> slabs, now;
  adapters.used(slabs);
  EXPECT_EQ(slabs.size(), 1u);
  const uint64_t generation = adapters.generation();
  adapters.begin_step();
  adapters.used(now);
  EXPECT_TRUE(now.empty());
  adapters.use(slabs);
  adapters.used(now);
  EXPECT_EQ(now, slabs);
  EXPECT_EQ(adapters.generation(), generation);
  ASSERT_TRUE(ensure(*adapters_.back()).ok());
  EXPECT_NE(adapters.generation(), generation);
}

TEST_P(CudaGraphsRules, FewGraphsAreKept) {
  ASSERT_NO_FATAL_FAILURE(make(graphs_, true, 2));
  talk(seed_of_run() + 1, 40, 4);
  for (int round = 0; round < 3; ++round) {
    for (int rows = 1; rows <= 5; ++rows) {
      std::vector<Span> decode;
      for (int i = 0; i < rows; ++i) decode.push_back(token(6 + i, round));
      for (int twice = 0; twice < 2; ++twice) both(decode);
    }
  }
  const StepGraphs& graphs = graphs_.model->graphs();
  EXPECT_LE(graphs.held(), 2);
  EXPECT_GT(graphs.recorded(), 2);
}

// What a graph addresses is part of its shape.
TEST_P(CudaGraphsRules, AnotherCacheHasItsOwnGraph) {
  for (int at = 0; at < 3; ++at) both({token(0, at)});
  Device other_plain, other;
  ASSERT_NO_FATAL_FAILURE(make(other_plain, false));
  ASSERT_NO_FATAL_FAILURE(make(other, true));
  std::swap(other.kv, graphs_.kv);
  std::swap(other_plain.kv, plain_.kv);
  for (int at = 0; at < 3; ++at) both({token(0, at)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  std::swap(other.kv, graphs_.kv);
  std::swap(other_plain.kv, plain_.kv);
  both({token(0, 3)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 2);
  EXPECT_EQ(cache_of(plain_), cache_of(graphs_));
}

TEST_P(CudaGraphsRules, OnlyDecodeStepsAreRecorded) {
  for (int at = 0; at < 3; ++at) {
    both({span(0, 2 * at, 2), token(1, at)});
    std::vector<Span> with_hidden = {token(2, at)};
    with_hidden[0].hidden = true;
    both(with_hidden);
  }
  EXPECT_EQ(graphs_.model->graphs().recorded(), 0);
  ASSERT_NO_FATAL_FAILURE(make(graphs_, true, 0));
  ASSERT_NO_FATAL_FAILURE(make(plain_, false));
  for (int at = 0; at < 3; ++at) both({token(1, at)});
  EXPECT_EQ(graphs_.model->graphs().recorded(), 0);
}

#ifdef LORALEI_CUDA_EMULATION
TEST_P(CudaGraphsRules, ADriverThatRefusesToRecordIsSaidOnceAndForGood) {
  for (int at = 0; at < 2; ++at) both({token(0, at)});
  cuda_emulated::refuse_captures(true);
  for (int at = 0; at < 3; ++at) both({token(1, at), token(2, at)});
  for (int at = 0; at < 3; ++at) both({token(1, 3 + at), token(2, 3 + at), token(3, at)});
  cuda_emulated::refuse_captures(false);
  both({token(1, 6), token(2, 6)});
  const StepGraphs& graphs = graphs_.model->graphs();
  EXPECT_EQ(graphs.recorded(), 1);
  EXPECT_EQ(graphs.launched(), 1);
  ASSERT_EQ(log_.lines().size(), 1u);
  EXPECT_NE(log_.lines()[0].find("--enforce-eager"), std::string::npos) << log_.lines()[0];
  EXPECT_EQ(graphs.refusal(), log_.lines()[0]);
  both({token(0, 2)});  // what was recorded before still runs
  EXPECT_EQ(graphs.launched(), 2);
}
#endif

INSTANTIATE_TEST_SUITE_P(Rules, CudaGraphsRules, testing::Values(subjects()[0]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loralei::test
