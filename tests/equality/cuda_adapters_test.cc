// SPDX-License-Identifier: Apache-2.0
// The device's tier of adapters: CudaAdapters alone, and an engine whose adapters come to the device while others
// compute. On the emulated GPU (cuda_adapters_emulated_test), where an upload takes as long as a test wants, or a real
// one (cuda_adapters_test, which skips without). Activations are f32, so texts are those of the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"
#include "support/engine_texts.h"
#include "support/made_files.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

uint64_t seed_of_run() {
  const char* given = std::getenv("CUDA_ADAPTERS_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 2024;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

void until(const std::function<bool()>& done) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), patience);
    std::this_thread::yield();
  }
}

// --- CudaAdapters alone

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
    const CudaAdapters::Entry* entry = adapters.find(adapter.pairs[1], adapter.version);
    ASSERT_NE(entry, nullptr);
    const auto half = static_cast<int64_t>(adapter.bytes->size() / 2);
    CudaStream stream = CudaStream::create().value();
    PinnedBuffer back = PinnedBuffer::allocate(2 * half).value();
    ASSERT_TRUE(copy_to_host(back.data(), entry->lora.a, half, stream).ok());
    ASSERT_TRUE(copy_to_host(back.data() + half, entry->lora.b_t, half, stream).ok());
    ASSERT_TRUE(stream.synchronize().ok());
    EXPECT_EQ(std::memcmp(back.data(), adapter.bytes->data(), adapter.bytes->size()), 0);
  }

  Prng random_{3};
  uint64_t versions_ = 0;
};

TEST_F(CudaAdaptersTest, RandomHoldsNeverMixAdapters) {
  random_ = Prng(seed_of_run());
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
  EXPECT_NE(adapters.find(a.pairs[1], a.version), nullptr);
  EXPECT_EQ(adapters.find(b.pairs[1], b.version), nullptr);
  EXPECT_NE(adapters.find(c.pairs[1], c.version), nullptr);
  // What does not fit whatever goes makes nobody go.
  const Made e = made(3);
  ASSERT_TRUE(hold(adapters, {&a}).value());
  EXPECT_FALSE(hold(adapters, {&e}).value());
  EXPECT_NE(adapters.find(c.pairs[1], c.version), nullptr);
  EXPECT_NE(adapters.find(d.pairs[1], d.version), nullptr);
}

#ifdef LORALEI_CUDA_EMULATION
TEST_F(CudaAdaptersTest, OnItsWayItIsNotThereAndNotGivenUp) {
  CudaAdapters adapters = with_units(8);
  const Made a = made(5), b = made(5), c = made(3);
  cuda_emulated::hold_event_waits(true);
  ASSERT_TRUE(hold(adapters, {&a}).value());
  EXPECT_EQ(adapters.bytes(), 5 * kUnit) << "counts from the start";
  EXPECT_FALSE(adapters.arrived(a.version).value());
  EXPECT_EQ(adapters.find(a.pairs[1], a.version), nullptr);
  adapters.release(a.version);
  EXPECT_FALSE(hold(adapters, {&b}).value()) << "the copy writes there";
  ASSERT_TRUE(hold(adapters, {&c}).value()) << "two at a time";
  // The host's copy goes, the device's with the end of the upload, which keeps what it reads until then.
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

// --- an engine

class CudaAdaptersEngine : public testing::Test {
 protected:
  static constexpr int kAdapters = 6;

  void SetUp() override {
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
    auto opened = ModelHarness::open(kRoot + "models/llama-gqa");
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    limits_ = step_limits(EngineTexts::options(harness_->config()), harness_->config());
    auto model = harness_->make_model(limits_);
    ASSERT_TRUE(model.ok()) << model.error().message;
    host_model_ = std::move(*model);
    host_ = std::make_unique<EngineTexts>(*harness_, make_host_executor(*host_model_, limits_));
    for (int i = 0; i <= kAdapters; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      paths_[name] = write_adapter(folder_.path() + "/" + name, harness_->config(),
                                   {.rank = 6, .deviation = 0.2f, .seed = 50 + static_cast<uint64_t>(i)});
      ASSERT_NO_FATAL_FAILURE(host_->load(name, paths_[name]));
    }
    auto adapter = harness_->load(paths_["a"]);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    bytes_ = CudaAdapters::adapter_bytes((*adapter)->pairs);
  }
  void TearDown() override {
#ifdef LORALEI_CUDA_EMULATION
    cuda_emulated::hold_event_waits(false);
    cuda_emulated::refuse_copies_of(-1);
#endif
  }

  // An engine on a device with room for so many adapters, of which `loaded` are in host memory.
  void open(int room, int loaded) {
    CudaModelOptions options;
    options.limits = limits_;
    options.activation = DType::kF32;
    options.adapter_bytes_max = room * bytes_;
    auto model = CudaModel::create(harness_->config(), harness_->weights(), options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
    auto kv = CudaKv::create(harness_->config(), DType::kF32, EngineTexts::kBlocks);
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    kv_ = std::move(*kv);
    device_ = std::make_unique<EngineTexts>(*harness_, make_cuda_executor(*model_, kv_));
    for (int i = 0; i < loaded; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      ASSERT_NO_FATAL_FAILURE(device_->load(name, paths_[name]));
    }
  }
  struct Asked {
    RequestId id;
    int prompt = 0, salt = 0;
    std::vector<AdapterUse> uses;
  };
  Asked ask(int prompt, int salt, std::vector<AdapterUse> uses) {
    return {device_->submit(prompt, salt, uses), prompt, salt, uses};
  }
  // The text of the request alone on the host.
  void expect_text(const Asked& asked) {
    std::string key = std::to_string(asked.prompt) + "/" + std::to_string(asked.salt);
    for (const AdapterUse& use : asked.uses) key += "/" + use.name + "*" + std::to_string(use.scale);
    if (alone_.count(key) == 0) {
      const RequestId id = host_->submit(asked.prompt, asked.salt, asked.uses);
      ASSERT_NO_FATAL_FAILURE(host_->finish());
      alone_[key] = host_->tokens[id.value];
    }
    EXPECT_EQ(device_->tokens[asked.id.value], alone_[key]) << "request " << asked.id.value << ": " << key;
  }
  // After the engine: every version was forgotten, and no step has waited.
  void close() {
    device_.reset();
    model_->adapters().check();
    until([&] { return model_->adapters().hold({}).ok() && model_->adapters().bytes() == 0; });  // sees what has ended
    EXPECT_EQ(model_->adapters().waits(), 0);
  }

  TempFolder folder_;
  std::unique_ptr<ModelHarness> harness_;
  ModelLimits limits_;
  std::unique_ptr<Model> host_model_;
  std::unique_ptr<EngineTexts> host_;
  std::map<std::string, std::string> paths_;
  std::map<std::string, std::vector<TokenId>> alone_;
  int64_t bytes_ = 0;  // of an adapter on the device
  std::unique_ptr<CudaModel> model_;
  CudaKv kv_;
  std::unique_ptr<EngineTexts> device_;
};

// Six adapters in rotation over a device that holds two; sums of two; cancels; replaced versions; uploads that stand
// still now and then.
TEST_F(CudaAdaptersEngine, RandomTrafficOverTwoPlaces) {
  Prng random(seed_of_run());
  ASSERT_NO_FATAL_FAILURE(open(2, kAdapters));
  const auto name_of = [&] { return std::string(1, static_cast<char>('a' + random.below(kAdapters))); };
  std::vector<Asked> asked;
  std::set<uint64_t> cancelled;
  const auto one = [&] {
    std::vector<AdapterUse> uses;
    const uint64_t count = random.below(4) == 0 ? random.below(3) : 1;
    for (uint64_t i = 0; i < count; ++i) uses.push_back({name_of(), random.below(2) == 0 ? 1.0f : 0.5f});
    return ask(4 + static_cast<int>(random.below(2)) * 13, static_cast<int>(random.below(2)), uses);
  };
  asked.push_back(one());
  ASSERT_NO_FATAL_FAILURE(device_->finish());
#ifdef LORALEI_CUDA_EMULATION
  const int64_t allocations = cuda_emulated::allocations();
#endif
  while (asked.size() < 45 && !HasFailure()) {
    if (device_->open() < 7) asked.push_back(one());
    if (random.below(9) == 0) {
      cancelled.insert(asked.back().id.value);
      device_->engine().cancel(asked.back().id);
    }
    const std::string name = name_of();
    if (random.below(12) == 0) device_->load(name, paths_[name], true);
#ifdef LORALEI_CUDA_EMULATION
    cuda_emulated::hold_event_waits(random.below(3) == 0);
#endif
    if (device_->open() >= 4) device_->take(2'000'000);
  }
#ifdef LORALEI_CUDA_EMULATION
  cuda_emulated::hold_event_waits(false);
#endif
  ASSERT_NO_FATAL_FAILURE(device_->finish());
#ifdef LORALEI_CUDA_EMULATION
  EXPECT_EQ(cuda_emulated::allocations(), allocations) << "the device's memory is taken at the start";
#endif
  for (const Asked& request : asked) {
    if (device_->ends[request.id.value] == EndReason::kCancelled) {
      EXPECT_EQ(cancelled.count(request.id.value), 1u);
    } else {
      ASSERT_NO_FATAL_FAILURE(expect_text(request));
    }
  }
  EXPECT_TRUE(device_->errors.empty()) << device_->errors.begin()->second;
  device_->until([](const EngineStats& stats) { return stats.adapter_uploads > 6; });
  const EngineStats stats = device_->engine().stats();
  EXPECT_EQ(stats.adapter_upload_bytes, static_cast<int64_t>(stats.adapter_uploads) * bytes_);
  EXPECT_GT(stats.adapter_upload_s, 0);
  std::printf("%llu uploads\n", static_cast<unsigned long long>(stats.adapter_uploads));
  close();
}

#ifdef LORALEI_CUDA_EMULATION
bool waits_for_adapter(const EngineStats& stats) { return stats.waiting_for_adapter == 1; }

TEST_F(CudaAdaptersEngine, StepsGoOnWhileAnotherAdapterIsUploaded) {
  ASSERT_NO_FATAL_FAILURE(open(3, 2));
  std::vector<Asked> asked = {ask(20, 1, {{"a", 1.0f}})};
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  cuda_emulated::hold_event_waits(true);
  asked.push_back(ask(20, 1, {{"b", 1.0f}}));
  ASSERT_NO_FATAL_FAILURE(device_->until(waits_for_adapter));
  asked.push_back(ask(20, 2, {{"a", 1.0f}}));
  asked.push_back(ask(7, 3, {{"a", 0.5f}}));
  asked.push_back(ask(20, 4, {}));
  ASSERT_NO_FATAL_FAILURE(device_->finish(1));
  EXPECT_TRUE(device_->tokens[asked[1].id.value].empty());
  EXPECT_EQ(device_->engine().stats().adapter_uploads, 1u);
  cuda_emulated::hold_event_waits(false);
  ASSERT_NO_FATAL_FAILURE(device_->finish());  // the engine slept: the upload's end has woken it
  for (const Asked& request : asked) ASSERT_NO_FATAL_FAILURE(expect_text(request));
  EXPECT_NE(device_->tokens[1], device_->tokens[2]);
  close();
}

TEST_F(CudaAdaptersEngine, CancelUnloadAndReplaceDuringAnUpload) {
  ASSERT_NO_FATAL_FAILURE(open(4, 3));
  cuda_emulated::hold_event_waits(true);
  const Asked cancelled = ask(20, 1, {{"a", 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until(waits_for_adapter));
  device_->engine().cancel(cancelled.id);
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  ASSERT_NO_FATAL_FAILURE(device_->unload("a"));  // answers while the upload still reads what it had
  Asked old_one = ask(20, 1, {{"b", 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until(waits_for_adapter));
  ASSERT_NO_FATAL_FAILURE(device_->load("b", paths_["c"], true));
  Asked new_one = ask(20, 1, {{"b", 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until([](const EngineStats& stats) { return stats.waiting_for_adapter == 2; }));
  cuda_emulated::hold_event_waits(false);
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  EXPECT_EQ(device_->ends[cancelled.id.value], EndReason::kCancelled);
  ASSERT_NO_FATAL_FAILURE(expect_text(old_one));
  new_one.uses[0].name = "c";
  ASSERT_NO_FATAL_FAILURE(expect_text(new_one));
  EXPECT_NE(device_->tokens[old_one.id.value], device_->tokens[new_one.id.value]);
  close();
}

TEST_F(CudaAdaptersEngine, AFailedUploadEndsItsRequestsAlone) {
  ASSERT_NO_FATAL_FAILURE(open(3, 2));
  ASSERT_NO_FATAL_FAILURE(
      device_->load("x", write_adapter(folder_.path() + "/x", harness_->config(), {.rank = 5, .targets = {"q_proj"}})));
  const auto x = harness_->load(folder_.path() + "/x");
  ASSERT_TRUE(x.ok()) << x.error().message;
  cuda_emulated::refuse_copies_of(CudaAdapters::adapter_bytes((*x)->pairs));
  const Asked fine = ask(20, 1, {{"a", 1.0f}});
  const RequestId first = device_->submit(20, 1, {{"x", 1.0f}});
  const RequestId second = device_->submit(9, 2, {{"b", 1.0f}, {"x", 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  for (const RequestId id : {first, second}) {
    EXPECT_EQ(device_->ends[id.value], EndReason::kError);
    EXPECT_NE(
        device_->errors[id.value].find("adapter \"x\" could not be brought to the device: The GPU could not copy"),
        std::string::npos)
        << device_->errors[id.value];
  }
  ASSERT_NO_FATAL_FAILURE(expect_text(fine));
  cuda_emulated::refuse_copies_of(-1);
  const RequestId again = device_->submit(20, 1, {{"x", 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  EXPECT_EQ(device_->tokens[again.value].size(), 8u);
  EXPECT_NE(device_->tokens[again.value], device_->tokens[fine.id.value]);
  close();
}

TEST_F(CudaAdaptersEngine, StopsWithUploadsInFlight) {
  ASSERT_NO_FATAL_FAILURE(open(2, 3));
  cuda_emulated::hold_event_waits(true);
  const Asked first = ask(20, 1, {{"a", 1.0f}}), second = ask(20, 1, {{"b", 1.0f}}), third = ask(20, 1, {{"c", 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until([](const EngineStats& stats) { return stats.waiting_for_adapter == 3; }));
  device_->engine().stop();  // waits for no upload
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  for (const Asked* request : {&first, &second, &third}) {
    EXPECT_EQ(device_->ends[request->id.value], EndReason::kCancelled);
  }
  device_.reset();
  EXPECT_EQ(model_->adapters().bytes(), 2 * bytes_);
  cuda_emulated::hold_event_waits(false);
  close();
}
#endif

}  // namespace
}  // namespace loralei::test
