// SPDX-License-Identifier: Apache-2.0
#include "engine/emulated/adapter_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "device/host/arena.h"
#include "engine/emulated/made_adapter_test_util.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(AdapterCopy, RandomAdaptersAreTheSameLayerByLayerInTheirRange) {
  const uint64_t seed = 11;
  SCOPED_TRACE("seed 11");
  Prng random(seed);
  AdapterMaker maker(random);
  int64_t arrays_seen = 0;
  for (uint64_t version = 1; version <= 300 && !HasFailure(); ++version) {
    const auto source = maker.any(version);
    const int64_t bytes = copy_bytes(*source, kMadeShape);
    HostBuffer memory = HostBuffer::allocate(std::max<int64_t>(64, bytes)).value();
    std::memset(memory.data(), 0xFF, static_cast<size_t>(bytes));
    const CopyPlan plan = plan_copy(*source, kMadeShape, memory.data());
    const Adapter& copy = plan.copy->adapter;
    EXPECT_EQ(copy.version, source->version);
    EXPECT_EQ(copy.alora_invocation, source->alora_invocation);
    EXPECT_EQ(copy.storage, nullptr);
    const std::vector<TwinArray> arrays = twin_arrays(*source, copy);
    for (const TwinArray& array : arrays) {
      EXPECT_TRUE(array.copy >= memory.data() && array.copy + array.bytes <= memory.data() + bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(array.copy) % 64, 0u);
    }
    // Parts lie one behind another and reach the end.
    const std::byte* at = memory.data();
    for (const LinkPart& part : plan.parts) {
      EXPECT_TRUE(part.to >= at && part.to < at + 64);
      at = part.to + part.bytes;
    }
    EXPECT_LT(memory.data() + bytes - at, 64);
    // A layer that has arrived is whole, whatever has not.
    ASSERT_EQ(plan.layer_parts.size(), static_cast<size_t>(kMadeShape.layers) + 1);
    auto part = plan.parts.begin();
    for (int32_t layer = 0; layer <= kMadeShape.layers; ++layer) {
      for (int32_t i = 0; i < plan.layer_parts[static_cast<size_t>(layer)]; ++i, ++part)
        std::memcpy(part->to, part->from, static_cast<size_t>(part->bytes));
      for (const TwinArray& array : arrays) EXPECT_EQ(same(array), array.layer <= layer) << "layer " << array.layer;
    }
    EXPECT_TRUE(part == plan.parts.end());
    arrays_seen += std::ssize(arrays);
  }
  EXPECT_GT(arrays_seen, 300 * 20);
}

TEST(AdapterCopy, ATiedHeadIsTheEmbeddingOnce) {
  Prng random(12);
  AdapterMaker maker(random);
  int seen = 0;
  for (uint64_t version = 1; version <= 60; ++version) {
    const auto source = maker.any(version);
    const SavedTensors& saved = source->saved;
    if (saved.embed.empty() || saved.lm_head.empty()) continue;
    const bool tied = saved.embed.panels[0].data == saved.lm_head.panels[0].data;
    std::vector<std::byte> memory(static_cast<size_t>(copy_bytes(*source, kMadeShape)));
    const CopyPlan plan = plan_copy(*source, kMadeShape, memory.data());
    const SavedTensors& copy = plan.copy->adapter.saved;
    EXPECT_EQ(copy.embed.panels[0].data == copy.lm_head.panels[0].data, tied);
    const auto brings = std::count_if(plan.parts.begin(), plan.parts.end(),
                                      [&](const LinkPart& part) { return part.from == saved.lm_head.panels[0].data; });
    EXPECT_EQ(brings, 1);
    seen += tied ? 1 : 0;
  }
  EXPECT_GT(seen, 5);
}

}  // namespace
}  // namespace loralei
