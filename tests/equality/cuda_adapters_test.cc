// SPDX-License-Identifier: Apache-2.0
// The device's tier of adapters: an engine whose adapters come to the device while others
// compute. On the emulated GPU (cuda_adapters_emulated_test), where an upload takes
// as long as a test wants, or a real one (cuda_adapters_test, which skips without).
// Activations are f32, so texts are those of the host.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"
#include "support/engine_texts.h"
#include "support/made_files.h"
#include "support/patience.h"
#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

constexpr const char* kSeed = "CUDA_ADAPTERS_TEST_SEED";

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
    host_ = std::make_unique<EngineTexts>(
        *harness_, [&](Ledger& ledger) { return make_host_executor(*host_model_, limits_, ledger); });
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

  // An engine on a device with room for so many adapters, of which `loaded`
  // are in host memory.
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
    device_ = std::make_unique<EngineTexts>(*harness_,
                                            [&](Ledger& ledger) { return make_cuda_executor(*model_, kv_, ledger); });
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
    for (const AdapterUse& use : asked.uses)
      key += "/" + std::to_string(use.source.value) + "*" + std::to_string(use.scale);
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

// Six adapters in rotation over a device that holds two; sums of two; cancels; replaced
// versions; uploads that stand still now and then.
TEST_F(CudaAdaptersEngine, RandomTrafficOverTwoPlaces) {
  Prng random(seed_of_run(kSeed));
  ASSERT_NO_FATAL_FAILURE(open(2, kAdapters));
  const auto name_of = [&] { return std::string(1, static_cast<char>('a' + random.below(kAdapters))); };
  std::vector<Asked> asked;
  std::set<uint64_t> cancelled;
  const auto one = [&] {
    std::vector<AdapterUse> uses;
    const uint64_t count = random.below(4) == 0 ? random.below(3) : 1;
    for (uint64_t i = 0; i < count; ++i) uses.push_back({source_of(name_of()), random.below(2) == 0 ? 1.0f : 0.5f});
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

// Adapters that replace full tensors, with room for few of them at a time: each gives way
// and comes again, and rows of one are beside rows of others and of the model.
TEST_F(CudaAdaptersEngine, TensorsOfTheirOwnComeAndGo) {
  Prng random(seed_of_run(kSeed));
  ASSERT_NO_FATAL_FAILURE(open(1, 1));
  const std::vector<std::string> names = {"gqa-save-head-tied", "gqa-tokens-tied", "gqa-resized-tied",
                                          "gqa-save-embed-tied", "a"};
  for (const std::string& name : names) {
    if (name == "a") continue;
    ASSERT_NO_FATAL_FAILURE(host_->load(name, kRoot + "adapters/" + name));
    ASSERT_NO_FATAL_FAILURE(device_->load(name, kRoot + "adapters/" + name));
  }
  std::vector<Asked> asked;
  while (asked.size() < 40 && !HasFailure()) {
    std::vector<AdapterUse> uses;
    if (random.below(5) != 0) uses.push_back({source_of(names[random.below(names.size())]), 1.0f});
    asked.push_back(ask(4 + static_cast<int>(random.below(2)) * 13, static_cast<int>(random.below(2)), uses));
    if (random.below(6) == 0) {
      const std::string& name = names[random.below(4)];
      device_->load(name, kRoot + "adapters/" + name, true);  // another version
    }
    while (device_->open() >= 5) device_->take(2'000'000);
  }
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  for (const Asked& request : asked) ASSERT_NO_FATAL_FAILURE(expect_text(request));
  EXPECT_TRUE(device_->errors.empty()) << device_->errors.begin()->second;
  EXPECT_GT(device_->engine().stats().adapter_uploads, 8u);
  close();
}

#ifdef LORALEI_CUDA_EMULATION
bool waits_for_adapter(const EngineStats& stats) { return stats.waiting_for_adapter == 1; }

TEST_F(CudaAdaptersEngine, StepsGoOnWhileAnotherAdapterIsUploaded) {
  ASSERT_NO_FATAL_FAILURE(open(3, 2));
  std::vector<Asked> asked = {ask(20, 1, {{source_of("a"), 1.0f}})};
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  cuda_emulated::hold_event_waits(true);
  asked.push_back(ask(20, 1, {{source_of("b"), 1.0f}}));
  ASSERT_NO_FATAL_FAILURE(device_->until(waits_for_adapter));
  asked.push_back(ask(20, 2, {{source_of("a"), 1.0f}}));
  asked.push_back(ask(7, 3, {{source_of("a"), 0.5f}}));
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
  const Asked cancelled = ask(20, 1, {{source_of("a"), 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until(waits_for_adapter));
  device_->engine().cancel(cancelled.id);
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  ASSERT_NO_FATAL_FAILURE(device_->unload("a"));  // answers while the upload still reads what it had
  Asked old_one = ask(20, 1, {{source_of("b"), 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until(waits_for_adapter));
  ASSERT_NO_FATAL_FAILURE(device_->replace("b", "new", paths_["c"]));
  Asked new_one = ask(20, 1, {{source_of("new"), 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->until([](const EngineStats& stats) { return stats.waiting_for_adapter == 2; }));
  cuda_emulated::hold_event_waits(false);
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  ASSERT_NO_FATAL_FAILURE(device_->unload("b"));
  EXPECT_EQ(device_->ends[cancelled.id.value], EndReason::kCancelled);
  ASSERT_NO_FATAL_FAILURE(expect_text(old_one));
  new_one.uses[0].source = source_of("c");
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
  const Asked fine = ask(20, 1, {{source_of("a"), 1.0f}});
  const RequestId first = device_->submit(20, 1, {{source_of("x"), 1.0f}});
  const RequestId second = device_->submit(9, 2, {{source_of("b"), 1.0f}, {source_of("x"), 1.0f}});
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
  const RequestId again = device_->submit(20, 1, {{source_of("x"), 1.0f}});
  ASSERT_NO_FATAL_FAILURE(device_->finish());
  EXPECT_EQ(device_->tokens[again.value].size(), 8u);
  EXPECT_NE(device_->tokens[again.value], device_->tokens[fine.id.value]);
  close();
}

TEST_F(CudaAdaptersEngine, StopsWithUploadsInFlight) {
  ASSERT_NO_FATAL_FAILURE(open(2, 3));
  cuda_emulated::hold_event_waits(true);
  const Asked first = ask(20, 1, {{source_of("a"), 1.0f}}), second = ask(20, 1, {{source_of("b"), 1.0f}}),
              third = ask(20, 1, {{source_of("c"), 1.0f}});
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
