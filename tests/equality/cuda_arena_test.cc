// SPDX-License-Identifier: Apache-2.0
// CudaAdapters alone: who holds what, what gives way, what lies in the arena. On the
// emulated GPU (cuda_adapters_emulated_test), where an upload takes as long as a test
// wants, or a real one (cuda_adapters_test, which skips without).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_adapters.h"
#include "support/patience.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::test {
namespace {

constexpr const char* kSeed = "CUDA_ADAPTERS_TEST_SEED";

// An adapter of one or two pairs of random numbers, so many bytes in the arena.
struct Made {
  std::shared_ptr<std::vector<std::byte>> bytes;
  std::vector<LoraPair> pairs;
  AdapterVersionId version;
  AdapterFactors factors() const { return {version, pairs, bytes}; }
};

class CudaAdaptersTest : public testing::Test {
 protected:
  static constexpr int64_t kUnit = RangeAllocator::kAlign;

  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  }
  CudaAdapters with_units(int64_t units) {
    return CudaAdapters::create({.bytes_max = units * kUnit, .staging_bytes = 8 * kUnit}).value();
  }
  Made made(int64_t units) {
    Made adapter;
    adapter.version = AdapterVersionId{++versions_};
    adapter.bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(units * kUnit));
    for (std::byte& byte : *adapter.bytes) byte = static_cast<std::byte>(random_.below(256));
    LoraPair pair;
    pair.rank = 1;
    pair.in = static_cast<int32_t>(units * kUnit / 8);
    pair.out = pair.in;  // f32: half of the bytes each
    pair.a = adapter.bytes->data();
    pair.b_t = adapter.bytes->data() + units * kUnit / 2;
    adapter.pairs = {LoraPair(), pair};
    return adapter;
  }
  static Result<bool> hold(CudaAdapters& adapters, const std::vector<const Made*>& wanted) {
    std::vector<AdapterFactors> factors;
    for (const Made* adapter : wanted) factors.push_back(adapter->factors());
    return adapters.hold(factors);
  }
  static void wait_for(CudaAdapters& adapters, const Made& adapter) {
    until([&] {
      const Result<bool> there = adapters.arrived(adapter.version);
      EXPECT_TRUE(there.ok()) << there.error().message;
      return !there.ok() || *there;
    });
  }
  // What the device would read is what the host has.
  static void expect_there(CudaAdapters& adapters, const Made& adapter) {
    const cuda::DeviceLora* const lora = adapters.find(adapter.version, 1);
    ASSERT_NE(lora, nullptr);
    const auto half = static_cast<int64_t>(adapter.bytes->size() / 2);
    CudaStream stream = CudaStream::create().value();
    PinnedBuffer back = PinnedBuffer::allocate(2 * half).value();
    ASSERT_TRUE(copy_to_host(back.data(), lora->a, half, stream).ok());
    ASSERT_TRUE(copy_to_host(back.data() + half, lora->b_t, half, stream).ok());
    ASSERT_TRUE(stream.synchronize().ok());
    EXPECT_EQ(std::memcmp(back.data(), adapter.bytes->data(), adapter.bytes->size()), 0);
  }

  Prng random_{3};
  uint64_t versions_ = 0;
};

TEST_F(CudaAdaptersTest, RandomHoldsNeverMixAdapters) {
  random_ = Prng(seed_of_run(kSeed));
  constexpr int64_t kUnits = 24;
  CudaAdapters adapters = with_units(kUnits);
  std::vector<std::unique_ptr<Made>> all;
  for (int i = 0; i < 9; ++i) all.push_back(std::make_unique<Made>(made(1 + static_cast<int64_t>(random_.below(9)))));
  std::vector<std::vector<const Made*>> holders;
  std::map<uint64_t, int> holds;
  int refused = 0;
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    const uint64_t what = random_.below(10);
    if (what < 4) {
      std::vector<const Made*> wanted;
      int64_t bytes = 0;
      for (auto count = 1 + random_.below(3); count > 0; --count) {
        const Made* adapter = all[random_.below(all.size())].get();
        if (std::find(wanted.begin(), wanted.end(), adapter) == wanted.end()) wanted.push_back(adapter);
      }
      for (const Made* adapter : wanted) bytes += std::ssize(*adapter->bytes);
      const Result<bool> held = hold(adapters, wanted);
      ASSERT_EQ(held.ok(), bytes <= kUnits * kUnit);
      if (held.ok() && *held) {
        for (const Made* adapter : wanted) ++holds[adapter->version.value];
        holders.push_back(wanted);
      }
      refused += held.ok() && !*held ? 1 : 0;
    } else if (what < 8 && !holders.empty()) {
      const size_t index = random_.below(holders.size());
      for (const Made* adapter : holders[index]) {
        if (random_.below(2) == 0) wait_for(adapters, *adapter);
        adapters.release(adapter->version);
        --holds[adapter->version.value];
      }
      holders.erase(holders.begin() + static_cast<int64_t>(index));
    } else if (what == 8) {  // another version in its place
      auto& adapter = all[random_.below(all.size())];
      if (holds[adapter->version.value] > 0) continue;
      adapters.forget(adapter->version);
      adapter = std::make_unique<Made>(made(1 + static_cast<int64_t>(random_.below(9))));
    } else if (!holders.empty()) {
      adapters.begin_step();
      for (const Made* adapter : holders[random_.below(holders.size())]) {
        wait_for(adapters, *adapter);
        expect_there(adapters, *adapter);
      }
    }
    adapters.check();
  }
  std::printf("%d times no room, %lld uploads\n", refused, static_cast<long long>(adapters.uploads()));
  EXPECT_GT(refused, 20);
  EXPECT_EQ(adapters.waits(), 0);
  for (const auto& holder : holders) {
    for (const Made* adapter : holder) adapters.release(adapter->version);
  }
  for (const auto& adapter : all) {
    until([&] { return hold(adapters, {adapter.get()}).value(); });  // others are on their way
    wait_for(adapters, *adapter);
    expect_there(adapters, *adapter);
    adapters.release(adapter->version);
  }
  for (const auto& adapter : all) adapters.forget(adapter->version);
  EXPECT_EQ(adapters.bytes(), 0);
  for (const auto& adapter : all) EXPECT_EQ(adapter->bytes.use_count(), 1) << "nothing of the host's is kept";
}

// Enough is free, but in two pieces with one's own adapter between them.
TEST_F(CudaAdaptersTest, OnesOwnAdaptersDoNotStandInTheWay) {
  CudaAdapters adapters = with_units(10);
  const Made a = made(3), b = made(4), c = made(3), d = made(6);
  for (const Made* adapter : {&a, &b, &c}) {
    ASSERT_TRUE(hold(adapters, {adapter}).value());
    wait_for(adapters, *adapter);
  }
  EXPECT_EQ(adapters.bytes(), adapters.bytes_max());
  EXPECT_FALSE(hold(adapters, {&d}).value());
  adapters.release(a.version);
  adapters.release(c.version);
  EXPECT_FALSE(hold(adapters, {&b, &d}).value()) << "another one holds b where it is";
  adapters.release(b.version);
  ASSERT_TRUE(hold(adapters, {&b, &d}).value());
  wait_for(adapters, b);
  wait_for(adapters, d);
  adapters.begin_step();
  expect_there(adapters, b);
  expect_there(adapters, d);
  EXPECT_EQ(adapters.uploads(), 5);
  adapters.check();
  const Made e = made(11);
  const Result<bool> never = hold(adapters, {&e});
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().code, ErrorCode::kTooLarge);
}

TEST_F(CudaAdaptersTest, TheLeastRecentlyUsedGoesFirst) {
  CudaAdapters adapters = with_units(3);
  const Made a = made(1), b = made(1), c = made(1), d = made(1);
  const auto use = [&](const Made& adapter) {
    ASSERT_TRUE(hold(adapters, {&adapter}).value());
    wait_for(adapters, adapter);
    adapters.begin_step();
    expect_there(adapters, adapter);
    adapters.release(adapter.version);
  };
  for (const Made* adapter : {&a, &b, &c, &a, &d}) use(*adapter);
  EXPECT_EQ(adapters.uploads(), 4);
  EXPECT_NE(adapters.find(a.version, 1), nullptr);
  EXPECT_EQ(adapters.find(b.version, 1), nullptr);
  EXPECT_NE(adapters.find(c.version, 1), nullptr);
  // What does not fit whatever goes makes nobody go.
  const Made e = made(3);
  ASSERT_TRUE(hold(adapters, {&a}).value());
  EXPECT_FALSE(hold(adapters, {&e}).value());
  EXPECT_NE(adapters.find(c.version, 1), nullptr);
  EXPECT_NE(adapters.find(d.version, 1), nullptr);
}

// A version leaves host memory and another is loaded to the same address, with
// other numbers in the same shape, while the first one's copy is on the device still
// (nobody has said yet that it left), and once more after that.
TEST_F(CudaAdaptersTest, AnAddressThatIsUsedAgainIsAnotherVersions) {
  CudaAdapters adapters = with_units(4);
  Made adapter = made(2);
  Made first = adapter;
  first.bytes = std::make_shared<std::vector<std::byte>>(*adapter.bytes);
  const auto bring = [&] {
    ASSERT_TRUE(hold(adapters, {&adapter}).value());
    wait_for(adapters, adapter);
    adapters.begin_step();
    expect_there(adapters, adapter);
  };
  const auto load_another = [&] {
    for (std::byte& byte : *adapter.bytes) byte ^= std::byte{0x55};
    adapter.version = AdapterVersionId{++versions_};
    EXPECT_EQ(adapters.find(adapter.version, 1), nullptr);
  };
  bring();
  load_another();
  bring();
  expect_there(adapters, first);
  EXPECT_EQ(adapters.uploads(), 2);
  for (const AdapterVersionId version : {first.version, adapter.version}) {
    adapters.release(version);
    adapters.forget(version);
  }
  load_another();
  bring();
  EXPECT_EQ(adapters.find(first.version, 1), nullptr);
  EXPECT_EQ(adapters.uploads(), 3);
  adapters.release(adapter.version);
  adapters.check();
}

std::vector<const float*>& norms_of(SavedTensors& saved, LayerNorm norm) {
  return saved.norms[static_cast<size_t>(norm)];
}

// An adapter's own tensors lie with its pairs, in their bytes; a head that is its
// embedding lies there once.
TEST_F(CudaAdaptersTest, TensorsComeWithTheAdapter) {
  constexpr int32_t kVocab = 6, kHidden = 12, kHeadDim = 4, kLayers = 2;
  const SavedShape shape{kHidden, kHeadDim, kLayers};
  CudaAdapters adapters =
      CudaAdapters::create({.bytes_max = 16 * kUnit, .staging_bytes = 8 * kUnit, .saved = shape}).value();
  const Made with_pairs = made(1);
  std::vector<float> numbers(400);
  for (float& number : numbers) number = static_cast<float>(random_.uniform());
  const float* next = numbers.data();
  const auto take = [&](int count) { return std::exchange(next, next + count); };
  const WeightPanel embed_panel{reinterpret_cast<const std::byte*>(take(kVocab * kHidden)), 0, kVocab};
  const WeightPanel head_panel = embed_panel;
  SavedTensors saved;
  saved.embed = {DType::kF32, LayoutId::kPlain, kVocab, kHidden, {&embed_panel, 1}};
  saved.lm_head = {DType::kF32, LayoutId::kPlain, kVocab, kHidden, {&head_panel, 1}};
  saved.final_norm = take(kHidden);
  norms_of(saved, LayerNorm::kInput) = {nullptr, take(kHidden)};
  norms_of(saved, LayerNorm::kFfnInput) = {take(kHidden), nullptr};
  norms_of(saved, LayerNorm::kQ) = {take(kHeadDim), take(kHeadDim)};
  norms_of(saved, LayerNorm::kK) = {nullptr, take(kHeadDim)};
  saved.embed_tokens = {1, 4};
  saved.embed_rows = take(2 * kHidden);
  saved.head_tokens = {0, 3, 5};
  saved.head_rows = take(3 * kHidden);
  AdapterFactors factors = with_pairs.factors();
  factors.saved = &saved;
  ASSERT_TRUE(adapters.hold({&factors, 1}).value());
  EXPECT_EQ(adapters.bytes(), adapters.adapter_bytes(factors));
  EXPECT_GT(adapters.bytes(), (kVocab + 5 + 3) * kHidden * 4 + kUnit);
  EXPECT_LT(adapters.bytes(), (2 * kVocab + 5 + 3) * kHidden * 4 + kUnit + kUnit);
  wait_for(adapters, with_pairs);
  adapters.begin_step();
  expect_there(adapters, with_pairs);
  const DeviceSaved* const there = adapters.find_saved(with_pairs.version);
  ASSERT_NE(there, nullptr);

  CudaStream stream = CudaStream::create().value();
  PinnedBuffer back = PinnedBuffer::allocate(4096).value();
  const auto expect_same = [&](const void* device, const void* host, int64_t bytes) {
    ASSERT_NE(device, nullptr);
    ASSERT_TRUE(copy_to_host(back.data(), device, bytes, stream).ok());
    ASSERT_TRUE(stream.synchronize().ok());
    EXPECT_EQ(std::memcmp(back.data(), host, static_cast<size_t>(bytes)), 0);
  };
  EXPECT_EQ(there->embed.data, there->lm_head.data);
  EXPECT_EQ(there->lm_head.rows, kVocab);
  EXPECT_EQ(there->lm_head.cols, kHidden);
  expect_same(there->embed.data, embed_panel.data, kVocab * kHidden * 4);
  expect_same(there->final_norm, saved.final_norm, kHidden * 4);
  EXPECT_EQ(there->embed_rows.rows, 2);
  EXPECT_EQ(there->head_rows.rows, 3);
  expect_same(there->embed_rows.data, saved.embed_rows, 2 * kHidden * 4);
  expect_same(there->head_rows.data, saved.head_rows, 3 * kHidden * 4);
  expect_same(there->head_tokens, saved.head_tokens.data(), 3 * 4);
  const auto expect_vectors = [&](const std::vector<const float*>& device, const std::vector<const float*>& host,
                                  int32_t count) {
    ASSERT_EQ(device.size(), static_cast<size_t>(kLayers));
    for (size_t layer = 0; layer < kLayers; ++layer) {
      if (host[layer] == nullptr) {
        EXPECT_EQ(device[layer], nullptr);
      } else {
        ASSERT_NO_FATAL_FAILURE(expect_same(device[layer], host[layer], count * 4));
      }
    }
  };
  expect_vectors(there->input_norm, norms_of(saved, LayerNorm::kInput), kHidden);
  expect_vectors(there->post_attention_norm, norms_of(saved, LayerNorm::kFfnInput), kHidden);
  expect_vectors(there->q_norm, norms_of(saved, LayerNorm::kQ), kHeadDim);
  expect_vectors(there->k_norm, norms_of(saved, LayerNorm::kK), kHeadDim);

  adapters.check();
  adapters.release(with_pairs.version);
  adapters.forget(with_pairs.version);
  EXPECT_EQ(adapters.find_saved(with_pairs.version), nullptr);
  EXPECT_EQ(adapters.bytes(), 0);
  adapters.check();
}

#ifdef LORALEI_CUDA_EMULATION
// What the upload reads of the host is kept until its end, though the adapter
// itself has gone.
TEST_F(CudaAdaptersTest, TensorsOnTheirWayOutliveTheirAdapter) {
  CudaAdapters adapters =
      CudaAdapters::create({.bytes_max = 16 * kUnit, .staging_bytes = 8 * kUnit, .saved = {8, 4}}).value();
  const Made first = made(4);
  cuda_emulated::hold_event_waits(true);
  {
    SavedTensors saved;
    saved.head_tokens = {2, 3};
    saved.head_rows = reinterpret_cast<const float*>(first.bytes->data());
    AdapterFactors factors = first.factors();
    factors.saved = &saved;
    ASSERT_TRUE(adapters.hold({&factors, 1}).value());
    EXPECT_EQ(adapters.find_saved(first.version), nullptr);
    adapters.release(first.version);
    adapters.forget(first.version);
  }
  EXPECT_GT(first.bytes.use_count(), 1);
  cuda_emulated::hold_event_waits(false);
  until([&] { return adapters.hold({}).ok() && adapters.bytes() == 0; });
  EXPECT_EQ(first.bytes.use_count(), 1);
  adapters.check();
}

TEST_F(CudaAdaptersTest, OnItsWayItIsNotThereAndNotGivenUp) {
  CudaAdapters adapters = with_units(8);
  const Made a = made(5), b = made(5), c = made(3);
  cuda_emulated::hold_event_waits(true);
  ASSERT_TRUE(hold(adapters, {&a}).value());
  EXPECT_EQ(adapters.bytes(), 5 * kUnit) << "counts from the start";
  EXPECT_FALSE(adapters.arrived(a.version).value());
  EXPECT_EQ(adapters.find(a.version, 1), nullptr);
  adapters.release(a.version);
  EXPECT_FALSE(hold(adapters, {&b}).value()) << "the copy writes there";
  ASSERT_TRUE(hold(adapters, {&c}).value()) << "two at a time";
  // The host's copy goes, the device's with the end of the upload, which keeps what
  // it reads until then.
  adapters.forget(a.version);
  EXPECT_GT(a.bytes.use_count(), 1);
  EXPECT_EQ(adapters.bytes(), 8 * kUnit);
  EXPECT_FALSE(hold(adapters, {&b}).value());
  cuda_emulated::hold_event_waits(false);
  until([&] { return hold(adapters, {&b}).value(); });
  EXPECT_EQ(a.bytes.use_count(), 1);
  for (const Made* adapter : {&b, &c}) {
    wait_for(adapters, *adapter);
    expect_there(adapters, *adapter);
  }
  adapters.check();
}

// Layers lie and come in the order of a pass, are told as they come, and steps find where
// each will be; one that is there has nothing to wait for.
TEST_F(CudaAdaptersTest, LayersComeInTheOrderOfAPassAndAreTold) {
  constexpr int32_t kLayers = 3, kEmbed = kLayers * kLayerModules + 1;
  CudaAdapters adapters =
      CudaAdapters::create(
          {.bytes_max = 64 * kUnit, .staging_bytes = 32 * kUnit, .saved = {8, 4, kLayers}, .layered = true})
          .value();
  // Layer 1 has nothing; each of the others has another size.
  const auto layered = [&](int64_t units) {
    Made adapter = made(units);
    const LoraPair pair = adapter.pairs[1];
    adapter.pairs.assign(static_cast<size_t>(kEmbed) + 1, LoraPair());
    for (const size_t module : {size_t{kEmbed}, size_t{2}, size_t{2 * kLayerModules}, size_t{2 * kLayerModules + 6}})
      adapter.pairs[module] = pair;
    return adapter;
  };
  const Made a = layered(1), b = layered(2);
  cuda_emulated::hold_copies_of(2 * kUnit);  // of a's pieces 0 and 2, and of nothing before
  ASSERT_TRUE(hold(adapters, {&a}).value());
  ASSERT_TRUE(hold(adapters, {&b}).value());
  const auto way = adapters.on_its_way(a.version);
  ASSERT_TRUE(way && way->gate != nullptr);
  EXPECT_EQ(std::vector<int64_t>(way->bytes_through.begin(), way->bytes_through.end()),
            (std::vector<int64_t>{2 * kUnit, 2 * kUnit, 4 * kUnit, 4 * kUnit}));
  EXPECT_EQ(way->bytes_before, 0);
  EXPECT_EQ(adapters.on_its_way(b.version)->bytes_before, 4 * kUnit);
  EXPECT_EQ(way->arrivals->there(), 0);
  EXPECT_FALSE(adapters.arrived(a.version).value());
  const auto place_of = [&](int32_t module) {
    EXPECT_EQ(adapters.find(a.version, module), nullptr) << "it is not there";
    return static_cast<const std::byte*>(adapters.find_arriving(a.version, module)->a);
  };
  const std::byte* const first = place_of(kEmbed);
  EXPECT_EQ(place_of(2), first + kUnit);
  EXPECT_EQ(place_of(2 * kLayerModules), first + 2 * kUnit);
  EXPECT_EQ(place_of(2 * kLayerModules + 6), first + 3 * kUnit);
  EXPECT_EQ(adapters.find_arriving(a.version, 1), nullptr);
  adapters.check();
  cuda_emulated::hold_copies_of(-1);
  for (const Made* adapter : {&a, &b}) {
    wait_for(adapters, *adapter);
    adapters.begin_step();
    EXPECT_EQ(adapters.on_its_way(adapter->version)->gate, nullptr);
    EXPECT_TRUE(adapters.on_its_way(adapter->version)->arrivals->whole());
    EXPECT_EQ(adapters.find_arriving(adapter->version, 2), nullptr);
    ASSERT_NE(adapters.find(adapter->version, 2), nullptr);
  }
  EXPECT_TRUE(way->arrivals->whole());
  EXPECT_EQ(adapters.find(a.version, 2)->a, first + kUnit);
  adapters.check();
}

TEST_F(CudaAdaptersTest, AFailureThatNobodyWaitsForIsForgotten) {
  CudaAdapters adapters = with_units(8);
  const Made a = made(1);
  cuda_emulated::refuse_copies_of(kUnit);
  ASSERT_TRUE(hold(adapters, {&a}).value());
  adapters.release(a.version);
  until([&] { return hold(adapters, {}).ok() && adapters.bytes() == 0; });
  ASSERT_TRUE(hold(adapters, {&a}).value());
  until([&] { return !adapters.arrived(a.version).ok(); });
  adapters.release(a.version);
  EXPECT_EQ(adapters.bytes(), 0);
  cuda_emulated::refuse_copies_of(-1);
  ASSERT_TRUE(hold(adapters, {&a}).value());
  wait_for(adapters, a);
  expect_there(adapters, a);
  EXPECT_EQ(adapters.uploads(), 1);
  adapters.check();
}
#endif

}  // namespace
}  // namespace loralei::test
