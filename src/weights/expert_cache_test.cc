// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/units.h"
#include "sys/faulty_block_reader.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
constexpr int32_t kLayers = 10, kExperts = 6;

// A file of a small mixture: experts of even layers are larger than those of odd ones,
// and the parts of those of the last layer do not lie side by side.
class ExpertCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(testing::TempDir()) / ("loralei-experts-" + std::to_string(::getpid()));
    shape_.layers = kLayers;
    shape_.experts = kExperts;
    shape_.parts.resize(kLayers * kExperts);
    for (int32_t layer = 0; layer + 1 < kLayers; ++layer) {
      for (int32_t expert = 0; expert < kExperts; ++expert) {
        for (size_t part = 0; part < kExpertParts; ++part) add(layer, expert, part);
      }
    }
    for (size_t part = 0; part < kExpertParts; ++part) {
      for (int32_t expert = 0; expert < kExperts; ++expert) add(kLayers - 1, expert, part);
    }
    write();
    options_.block_bytes = kDirectAlign;
    options_.open = [this] { return open_block_reader(path_.string(), {}); };
  }
  void TearDown() override { fs::remove(path_); }

  void add(int32_t layer, int32_t expert, size_t part) {
    shape_.parts[static_cast<size_t>(layer * kExperts + expert)][part] = static_cast<int32_t>(index_.matrices.size());
    PackedMatrix& matrix = index_.matrices.emplace_back();
    matrix.name = std::to_string(layer) + "." + std::to_string(expert) + "." + std::to_string(part);
    matrix.rows = layer % 2 == 0 ? 50 : 21;
    matrix.cols = 40;
  }
  void write() {
    place_matrices(index_);
    Prng prng(7);
    file_.resize(static_cast<size_t>(index_.file_bytes));
    for (std::byte& byte : file_) byte = static_cast<std::byte>(prng());
    for (const PackedMatrix& matrix : index_.matrices) {
      for (int64_t tile = 0; tile < matrix.tiles(); ++tile) {
        const std::byte* const data = file_.data() + matrix.at + tile * matrix.tile_bytes();
        index_.checks[static_cast<size_t>(matrix.first_check + tile)] =
            tile_check({data, static_cast<size_t>(matrix.bytes_of_tile(tile))}, tile);
      }
    }
    save();
  }
  void save() {
    std::ofstream(path_, std::ios::binary).write(reinterpret_cast<const char*>(file_.data()), std::ssize(file_));
  }
  std::unique_ptr<ExpertCache> make(int64_t bytes) {
    options_.bytes = bytes;
    auto cache = ExpertCache::create(index_, shape_, options_);
    EXPECT_TRUE(cache.ok()) << (cache.ok() ? "" : cache.error().message);
    return std::move(cache).value();
  }
  void expect_data(int32_t layer, const HeldExpert& held) {
    for (size_t part = 0; part < kExpertParts; ++part) {
      const PackedMatrix& matrix =
          index_.matrices[static_cast<size_t>(shape_.parts[static_cast<size_t>(layer * kExperts + held.expert)][part])];
      ASSERT_EQ(std::memcmp(held.data[part], file_.data() + matrix.at, static_cast<size_t>(matrix.bytes())), 0)
          << matrix.name;
    }
  }
  // All of them once, with the bytes of the file.
  Status use(ExpertCache& cache, int32_t layer, const std::vector<int32_t>& chosen) {
    std::vector<int32_t> handed;
    cache.begin(layer, chosen);
    for (;;) {
      auto some = cache.next();
      if (!some.ok()) {
        cache.end();
        return some.error();
      }
      if (some->empty()) break;
      for (const HeldExpert& held : *some) {
        expect_data(layer, held);
        handed.push_back(held.expert);
      }
    }
    cache.end();
    std::sort(handed.begin(), handed.end());
    EXPECT_EQ(handed, chosen);
    return {};
  }
  static std::vector<int32_t> some_experts(Prng& prng) {
    std::vector<int32_t> chosen;
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      if (prng.below(3) == 0) chosen.push_back(expert);
    }
    return chosen;
  }
  int64_t least() const { return least_expert_bytes(expert_bytes(index_, shape_), kExperts); }
  int64_t most() const { return most_expert_bytes(expert_bytes(index_, shape_), kExperts); }

  fs::path path_;
  PackedIndex index_;
  ExpertShape shape_;
  std::vector<std::byte> file_;
  ExpertCacheOptions options_;
};

TEST_F(ExpertCacheTest, EveryStepHasItsExpertsWhateverTheMemory) {
  for (const int64_t bytes : {least(), (least() + most()) / 3, most() - 1, most()}) {
    SCOPED_TRACE(testing::Message() << format_bytes(bytes) << ", seed 11");
    const auto cache = make(bytes);
    EXPECT_LE(cache->plan().bytes, bytes);
    Prng prng(11);
    for (int step = 0; step < 60; ++step) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        if (prng.below(3) == 0) cache->expect(static_cast<int32_t>(prng.below(kLayers)), some_experts(prng));
        ASSERT_TRUE(use(*cache, layer, some_experts(prng)).ok());
        cache->check();
      }
    }
  }
}

TEST_F(ExpertCacheTest, WhereAllFitEachIsReadOnce) {
  const auto cache = make(most());
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5};
  for (int step = 0; step < 3; ++step) {
    for (int32_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(use(*cache, layer, all).ok());
  }
  EXPECT_EQ(cache->totals().read_bytes, most());
  EXPECT_EQ(cache->totals().misses, kLayers * kExperts);
  EXPECT_EQ(cache->totals().hits, 2 * kLayers * kExperts);
}

// Half of them have room; each step uses all.
TEST_F(ExpertCacheTest, AFixedPartStaysWhereAllAreUsedInTurn) {
  const auto cache = make((least() + most()) / 2);
  int32_t places = 0;
  for (const ExpertPlan::Size& size : cache->plan().sizes) places += size.places;
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5};
  int64_t hits = 0;
  for (int step = 0; step < 20; ++step) {
    hits = -cache->totals().hits;
    for (int32_t layer = 0; layer < kLayers; ++layer) ASSERT_TRUE(use(*cache, layer, all).ok());
    hits += cache->totals().hits;
  }
  EXPECT_GE(hits, places - 2 * kExperts);  // of each size a layer's places are those of what passes through
}

TEST_F(ExpertCacheTest, WhatIsHereIsHandedOutBeforeWhatIsRead) {
  ReadGate gate;
  options_.open = [&]() -> Result<std::unique_ptr<BlockReader>> {
    TRY_ASSIGN(std::unique_ptr<BlockReader> reader, open_block_reader(path_.string(), {}));
    return std::unique_ptr<BlockReader>(std::make_unique<GatedBlockReader>(std::move(reader), gate));
  };
  const auto cache = make(most());
  gate.allow(1 << 20);
  ASSERT_TRUE(use(*cache, 0, {1, 4}).ok());
  gate.allow(0);
  const std::vector<int32_t> chosen = {0, 1, 4, 5};
  cache->begin(0, chosen);
  const auto here = cache->next();
  ASSERT_TRUE(here.ok());
  ASSERT_EQ(here->size(), 2U);
  EXPECT_EQ((*here)[0].expert, 1);
  EXPECT_EQ((*here)[1].expert, 4);
  gate.allow(1 << 20);
  size_t others = 0;
  for (auto some = cache->next(); some.ok() && !some->empty(); some = cache->next()) others += some->size();
  EXPECT_EQ(others, 2U);
  cache->end();
}

// A read that fails, and what was left of the step, harm no later one.
TEST_F(ExpertCacheTest, FailingReadsEndTheirStepAndNothingElse) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    options_.open = [&]() -> Result<std::unique_ptr<BlockReader>> {
      TRY_ASSIGN(std::unique_ptr<BlockReader> reader, open_block_reader(path_.string(), {}));
      return std::unique_ptr<BlockReader>(std::make_unique<FaultyBlockReader>(std::move(reader), seed, 0.02));
    };
    const auto cache = make((least() + most()) / 3);
    Prng prng(seed);
    int failed = 0, whole = 0;
    for (int step = 0; step < 100; ++step) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const Status status = use(*cache, layer, some_experts(prng));
        if (!status.ok()) {
          EXPECT_NE(status.error().message.find("injected"), std::string::npos);
        }
        ++(status.ok() ? whole : failed);
      }
    }
    cache->check();
    EXPECT_GT(failed, 0);
    EXPECT_GT(whole, 0);
  }
}

TEST_F(ExpertCacheTest, AStepThatIsGivenUpLeavesTheNextOnesRight) {
  const auto cache = make((least() + most()) / 3);
  Prng prng(5);
  for (int step = 0; step < 200; ++step) {
    const auto layer = static_cast<int32_t>(prng.below(kLayers));
    const std::vector<int32_t> chosen = some_experts(prng);
    cache->begin(layer, chosen);
    for (uint64_t calls = prng.below(3); calls > 0; --calls) {
      const auto some = cache->next();
      ASSERT_TRUE(some.ok());
      for (const HeldExpert& held : *some) expect_data(layer, held);
      if (some->empty()) break;
    }
    cache->end();
    ASSERT_TRUE(use(*cache, static_cast<int32_t>(prng.below(kLayers)), some_experts(prng)).ok());
  }
  cache->check();
}

TEST_F(ExpertCacheTest, ADamagedTileIsFoundWheneverItIsRead) {
  const PackedMatrix& matrix = index_.matrices[static_cast<size_t>(shape_.parts[2 * kExperts + 3][1])];
  const auto at = static_cast<size_t>(matrix.at + matrix.bytes() - 5);
  file_[at] ^= std::byte{1};
  save();
  const auto cache = make(most());
  for (int time = 0; time < 2; ++time) {
    const Status status = use(*cache, 2, {0, 3});
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(status.error().message.find("'2.3.1'"), std::string::npos) << status.error().message;
  }
  EXPECT_TRUE(use(*cache, 2, {0, 1}).ok());
  file_[at] ^= std::byte{1};
  save();
  EXPECT_TRUE(use(*cache, 2, {0, 3}).ok());
}

TEST_F(ExpertCacheTest, WhatIsExpectedIsThereAndTakesNothingThatIsUsedMore) {
  const auto cache = make(most());
  const int32_t soon[] = {2, 3};
  cache->expect(1, soon);
  ASSERT_TRUE(use(*cache, 1, {2, 3}).ok());
  const int64_t read = cache->totals().read_bytes;
  ASSERT_TRUE(use(*cache, 1, {2, 3}).ok());
  EXPECT_EQ(cache->totals().read_bytes, read);

  const auto small = make(least());
  for (int step = 0; step < 10; ++step) {
    ASSERT_TRUE(use(*small, 1, {0, 1}).ok());
    small->expect(1, soon);
  }
  EXPECT_EQ(small->totals().hits, 18);  // 0 and 1 stayed
}

TEST_F(ExpertCacheTest, TooFewBytesAreRefusedWithTheLeastThatWouldDo) {
  options_.bytes = least() - 1;
  const auto cache = ExpertCache::create(index_, shape_, options_);
  ASSERT_FALSE(cache.ok());
  EXPECT_NE(cache.error().message.find(format_bytes(least())), std::string::npos) << cache.error().message;
  EXPECT_NE(cache.error().message.find("--memory-budget"), std::string::npos);
}

TEST_F(ExpertCacheTest, SizesShareInProportion) {
  const auto plan = plan_experts(expert_bytes(index_, shape_), kExperts, (least() + most()) / 2);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->sizes.size(), 2U);
  EXPECT_EQ(plan->sizes[0].layers, (std::vector<int32_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(plan->sizes[1].layers, (std::vector<int32_t>{1, 3, 5, 7, 9}));
  EXPECT_GT(plan->sizes[0].expert_bytes, plan->sizes[1].expert_bytes);
  for (const ExpertPlan::Size& size : plan->sizes) {
    EXPECT_GE(size.places, 15);
    EXPECT_LE(size.places, 17);
  }
}

}  // namespace
}  // namespace loralei
