// SPDX-License-Identifier: Apache-2.0
#include "assist/assist_factors.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <functional>
#include <tuple>

#include "assist/assist_test_util.h"

namespace loralei {
namespace {

std::vector<std::byte> table_of(const AssistFactors& factors) {
  const SharedMemory table =
      std::move(SharedMemory::open(Descriptor(::fcntl(factors.table_descriptor(), F_DUPFD_CLOEXEC, 0)), 1,
                                   SharedMemory::Access::kRead))
          .value();
  return {table.bytes().begin(), table.bytes().end()};
}

TEST(AssistFactors, ATableHasTheAdaptersPairsAndNothingThatIsAddedLater) {
  Prng prng(510);
  const AssistShape shape = test_shape();
  for (int round = 0; round < 20; ++round) {
    const SharedAdapter shared(prng, shape);
    const AssistFactors factors = shared.factors(shape);
    EXPECT_TRUE(factors.check(shape).ok());
    auto places = read_factor_table(table_of(factors), factors.memory_bytes(), shape);
    ASSERT_TRUE(places.ok()) << places.error().message;
    for (size_t i = 0; i < places->size(); ++i) {
      const LoraPair& pair = shared.adapter().pairs[i];
      const LoraPair read = pair_of((*places)[i], shared.memory().data());
      EXPECT_EQ(read.rank, pair.rank);
      EXPECT_EQ(read.scaling, 1.0f);
      EXPECT_EQ(read.bias_delta, nullptr);
      if (pair.rank == 0) continue;
      EXPECT_EQ(std::tuple(read.a, read.b_t, read.a_scale, read.b_scale, read.b_bias),
                std::tuple(pair.a, pair.b_t, pair.a_scale, pair.b_scale, pair.b_bias));
      EXPECT_EQ(std::tuple(read.dtype, read.in, read.out), std::tuple(pair.dtype, pair.in, pair.out));
    }
  }
}

TEST(AssistFactors, ArraysOutsideOfTheMemoryAreRefused) {
  Prng prng(511);
  const AssistShape shape = test_shape();
  const SharedAdapter shared(prng, shape);
  std::vector<std::byte> elsewhere(1 << 20);
  const auto refused = [&](const std::function<void(LoraPair&)>& change) {
    Adapter adapter = shared.adapter();
    const auto pair = std::find_if(adapter.pairs.begin(), adapter.pairs.end(),
                                   [](const LoraPair& one) { return one.rank > 1 && one.a_scale != nullptr; });
    EXPECT_NE(pair, adapter.pairs.end());
    change(*pair);
    return !AssistFactors::make(adapter, shared.memory(), shape.layers).ok();
  };
  const std::byte* const end = shared.memory().data() + shared.memory().size_bytes();
  const auto* const floats = reinterpret_cast<const float*>(elsewhere.data());
  EXPECT_FALSE(refused([](LoraPair&) {}));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.a = elsewhere.data(); }));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.a = nullptr; }));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.b_t = end - 4; }));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.b_t = shared.memory().data() - 64; }));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.a_scale = floats; }));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.b_scale = floats; }));
  EXPECT_TRUE(refused([&](LoraPair& pair) { pair.b_bias = floats; }));
}

TEST(AssistFactors, TheirMemoryCannotBeWrittenThroughWhatIsHandedOut) {
  Prng prng(512);
  const SharedAdapter shared(prng, test_shape());
  const AssistFactors factors = shared.factors(test_shape());
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, factors.memory_descriptor(), 0), MAP_FAILED);
}

// Any bytes changed in a table: it is refused, or all it leads to lies in the memory.
TEST(AssistFactors, NoChangedTableLeadsOutOfTheMemory) {
  const uint64_t seed = 513;
  Prng prng(seed);
  const AssistShape shape = test_shape();
  const SharedAdapter shared(prng, shape);
  const AssistFactors factors = shared.factors(shape);
  const std::vector<std::byte> right = table_of(factors);
  int accepted = 0;
  const int rounds = 20'000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::byte> table = right;
    for (uint64_t changes = 1 + prng.below(3); changes > 0; --changes) {
      const size_t at = prng.below(table.size() / 4) * 4;
      constexpr uint32_t kValues[] = {0, 1, 64, 65, 0x7fffffff, 0x80000000, 0xffffffff};
      const uint32_t value = prng.below(2) == 0 ? kValues[prng.below(7)] : static_cast<uint32_t>(prng());
      std::memcpy(&table[at], &value, sizeof value);
    }
    if (prng.below(50) == 0) table.resize(prng.below(table.size()));
    auto places = read_factor_table(table, factors.memory_bytes(), shape);
    if (!places.ok()) continue;
    ++accepted;
    const std::byte *begin = shared.memory().data(), *end = begin + shared.memory().size_bytes();
    const auto inside = [&](const void* array, int64_t bytes) {
      const auto* const first = static_cast<const std::byte*>(array);
      return first >= begin && first <= end && end - first >= bytes;
    };
    for (const FactorPlace& place : *places) {
      const LoraPair pair = pair_of(place, begin);
      if (pair.rank == 0) continue;
      ASSERT_LE(pair.rank, shape.rank_max);
      ASSERT_TRUE(inside(pair.a, pair.rank * lora_a_stride_bytes(pair))) << "seed " << seed << " round " << round;
      ASSERT_TRUE(inside(pair.b_t, pair.rank * lora_b_stride_bytes(pair))) << "seed " << seed << " round " << round;
      ASSERT_EQ(pair.a_scale == nullptr, pair.b_scale == nullptr);
      ASSERT_TRUE(pair.a_scale == nullptr || inside(pair.a_scale, pair.rank * lora_quant_groups(pair.in) * 4));
      ASSERT_TRUE(pair.b_scale == nullptr || inside(pair.b_scale, pair.rank * lora_quant_groups(pair.out) * 4));
      ASSERT_TRUE(pair.b_bias == nullptr || inside(pair.b_bias, int64_t{pair.out} * 4));
    }
  }
  EXPECT_GT(accepted, 100);  // changes that hit an unused number, or a rank that became smaller
  EXPECT_LT(accepted, rounds / 2);
}

}  // namespace
}  // namespace loralei
