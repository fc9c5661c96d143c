// SPDX-License-Identifier: Apache-2.0
// Steps of a CudaModel with adapters that are on their way, on the emulated GPU, whose
// streams run by themselves and rest at random: logits are those of a model that has all
// adapters, bit for bit; what is late or does not come ends its step and no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/prng.h"
#include "device/cuda/emulated/emulator.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/step_graphs.h"
#include "support/made_files.h"
#include "support/model_harness.h"
#include "support/patience.h"

namespace loralei::test {
namespace {

constexpr const char* kSeed = "CUDA_ARRIVING_TEST_SEED";
constexpr int64_t kLong = 60'000'000'000;
const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

struct Subject {
  const char* name;
  const char* model;
  std::vector<std::string> adapters;
};
const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"tied",
       "llama-gqa",
       {"gqa-all-r16", "gqa-embed-tied", "gqa-rank-pattern", "gqa-save-head-tied", "gqa-tokens-tied",
        "gqa-resized-tied", "gqa-save-norms", "gqa-lora-bias"}},
      {"untied", "llama2", {"llama2-r64", "llama2-embed-head", "llama2-save-all", "llama2-tokens-both", "llama2-r1"}},
      {"head_norms", "qwen3", {"qwen3-all-r4", "qwen3-save-qk-norm"}},
  };
  return all;
}
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

// A model that begins with what is on its way, and one that has everything.
class CudaArriving : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    HarnessOptions options;
    options.tokens_max = 64;
    options.sequences_max = 4;
    auto opened = ModelHarness::open(kGolden + "models/" + GetParam().model, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    for (const std::string& name : GetParam().adapters) load(kGolden + "adapters/" + name);
    load(write_uneven_adapter(), false);
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
    make(there_, there_kv_, false);
    make(model_, kv_, true);
  }
  void TearDown() override {
    cuda_emulated::refuse_copies_of(-1);
    cuda_emulated::hold_copies_of(-1);
  }
  void load(const std::string& path, bool strict = true) {
    const auto adapter = harness_->load(path, strict);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    adapters_.push_back(*adapter);
  }
  // No layer has as many pairs as the one before.
  std::string write_uneven_adapter() {
    const MadeAdapter made{.rank = 6, .deviation = 0.2f, .seed = 9};
    std::vector<MadeTensor> tensors = adapter_tensors(harness_->config(), made);
    std::erase_if(tensors, [](const MadeTensor& tensor) {
      return tensor.name.find("layers.1.") != std::string::npos && tensor.name.find("k_proj") != std::string::npos;
    });
    return write_adapter(folder_.path() + "/uneven", made, tensors);
  }
  void make(std::unique_ptr<CudaModel>& model, CudaKv& kv, bool layered) {
    CudaModelOptions options;
    options.limits.rows_max = 64;
    options.limits.logits_rows_max = 16;
    options.limits.rank_max = 64;
    options.activation = DType::kF32;
    options.layered_adapters = layered;
    auto made = CudaModel::create(harness_->config(), harness_->weights(), options);
    ASSERT_TRUE(made.ok()) << made.error().message;
    model = std::move(*made);
    auto cache = CudaKv::create(harness_->config(), DType::kF32, harness_->total_blocks());
    ASSERT_TRUE(cache.ok()) << cache.error().message;
    kv = std::move(*cache);
  }
  CudaAdapters& adapters() { return model_->adapters(); }
  static AdapterFactors factors_of(const Adapter& adapter) {
    return {adapter.version, adapter.pairs, adapter.storage, adapter.saved.any() ? &adapter.saved : nullptr};
  }
  void hold(const Adapter& adapter) {
    const AdapterFactors factors = factors_of(adapter);
    ASSERT_TRUE(adapters().hold({&factors, 1}).value());
  }
  void leave(const Adapter& adapter) {
    adapters().release(adapter.version);
    adapters().forget(adapter.version);
    until([&] { return adapters().hold({}).ok() && !adapters().has(adapter.version); });
  }
  Span span(int sequence, const Adapter* adapter, int rows) {
    Span made{.sequence = sequence, .position = 0, .tokens = {}, .adapters = {}, .logits_at = {rows - 1}};
    for (int i = 0; i < rows; ++i)
      made.tokens.push_back(static_cast<TokenId>(random_.below(static_cast<uint64_t>(harness_->config().vocab))));
    if (adapter != nullptr) made.adapters = {{adapter, 0.75f}};
    return made;
  }
  Result<StepOutput> run(const std::vector<Span>& spans, int64_t wait_at_most_ns) {
    harness_->set_forward([&](const ModelBatch& batch) { return model_->forward(batch, kv_, wait_at_most_ns); });
    auto output = harness_->run(spans);
    harness_->set_forward({});
    return output;
  }
  StepOutput where_all_is_there(const std::vector<Span>& spans) {
    harness_->set_forward([&](const ModelBatch& batch) { return there_->forward(batch, there_kv_); });
    auto output = harness_->run(spans);
    harness_->set_forward({});
    return output.value();
  }
  // The bytes of each piece of what is on its way.
  std::vector<int64_t> pieces_of(const Adapter& adapter) {
    const auto way = adapters().on_its_way(adapter.version);
    EXPECT_TRUE(way && way->gate != nullptr);
    std::vector<int64_t> bytes(way->bytes_through.begin(), way->bytes_through.end());
    for (size_t i = bytes.size() - 1; i > 0; --i) bytes[i] -= bytes[i - 1];
    return bytes;
  }
  // The bytes of its last layer, which no other piece has.
  int64_t bytes_to_stop(const Adapter& adapter) {
    hold(adapter);
    const std::vector<int64_t> pieces = pieces_of(adapter);
    until([&] { return adapters().arrived(adapter.version).value(); });
    leave(adapter);
    const int64_t bytes = pieces[pieces.size() - 2];
    EXPECT_EQ(std::count(pieces.begin(), pieces.end(), bytes), 1);
    return bytes;
  }

  const uint64_t seed_ = seed_of_run(kSeed);
  Prng random_{seed_};
  TempFolder folder_;
  std::unique_ptr<ModelHarness> harness_;
  std::vector<const Adapter*> adapters_;
  std::unique_ptr<CudaModel> there_, model_;
  CudaKv there_kv_, kv_;
};
INSTANTIATE_TEST_SUITE_P(Subjects, CudaArriving, testing::ValuesIn(subjects()),
                         [](const auto& info) { return info.param.name; });

// Rows of adapters on their way beside rows of others and of none, in any places that the
// ones before have left.
TEST_P(CudaArriving, StepsHaveTheBitsOfAdaptersThatAreThere) {
  int waited = 0, changed = 0;
  for (int round = 0; round < 24 && !HasFailure(); ++round) {
    const Adapter* const first = adapters_[random_.below(adapters_.size())];
    const Adapter* const second = adapters_[random_.below(adapters_.size())];
    std::vector<Span> spans = {span(0, first, 1 + static_cast<int>(random_.below(7)))};
    if (second != first) spans.push_back(span(1, second, 1 + static_cast<int>(random_.below(5))));
    if (random_.below(2) == 0) spans.push_back(span(2, nullptr, 3));
    const StepOutput want = where_all_is_there(spans);
    {
      const cuda_emulated::RunningStreams running(random_(), random_.below(2) == 0 ? 0 : 3000);
      hold(*first);
      if (second != first) hold(*second);
      if (random_.below(3) == 0) until([&] { return adapters().arrived(first->version).value(); });
      const auto got = run(spans, kLong);
      ASSERT_TRUE(got.ok()) << got.error().message;
      ASSERT_EQ(got->logits, want.logits) << "round " << round;
    }
    waited += model_->waits().layers;
    EXPECT_EQ(model_->waits().ended_by, AdapterVersionId());
    EXPECT_EQ(model_->waits().ns > 0, model_->waits().layers > 0);
    for (Span& without : spans) without.adapters.clear();
    changed += where_all_is_there(spans).logits != want.logits ? 1 : 0;
    leave(*first);
    if (second != first) leave(*second);
    adapters().check();
  }
  std::printf("%d layers were waited for\n", waited);
  EXPECT_GT(waited, 0);
  EXPECT_GT(changed, 12) << "adapters that change nothing";
  EXPECT_EQ(adapters().waits(), 0) << "the host has waited for an upload";
}

TEST_P(CudaArriving, ALayerThatIsLateEndsItsStepAndIsWaitedForAgain) {
  const Adapter* const adapter = adapters_.back();
  const int64_t bytes = bytes_to_stop(*adapter);
  const std::vector<Span> spans = {span(0, adapter, 5)}, others = {span(1, nullptr, 4)};
  const StepOutput want = where_all_is_there(spans), want_others = where_all_is_there(others);
  const cuda_emulated::RunningStreams running(random_(), 0);
  cuda_emulated::hold_copies_of(bytes);
  hold(*adapter);
  // Twice: the first one, ended, must not have left the way open.
  for (int time = 0; time < 2; ++time) {
    const auto late = run(spans, 30'000'000);
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(late.error().message.find("late"), std::string::npos) << late.error().message;
    EXPECT_EQ(model_->waits().ended_by, adapter->version);
    EXPECT_EQ(model_->waits().layers, 1);
    EXPECT_GE(model_->waits().ns, 30'000'000);
    const auto beside = run(others, 0);
    ASSERT_TRUE(beside.ok()) << beside.error().message;
    EXPECT_EQ(beside->logits, want_others.logits);
    EXPECT_EQ(model_->waits().ended_by, AdapterVersionId());
  }
  cuda_emulated::hold_copies_of(-1);
  const auto got = run(spans, kLong);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->logits, want.logits);
  leave(*adapter);
  adapters().check();
}

TEST_P(CudaArriving, AnUploadThatFailsMidwayEndsItsStepWithItsSentence) {
  const Adapter* const adapter = adapters_.back();
  const int64_t bytes = bytes_to_stop(*adapter);
  const std::vector<Span> spans = {span(0, adapter, 5)};
  const StepOutput want = where_all_is_there(spans);
  const cuda_emulated::RunningStreams running(random_(), 0);
  for (const bool before : {true, false}) {  // the stream waits already, or finds the ruin
    cuda_emulated::refuse_copies_of(bytes);
    hold(*adapter);
    if (!before) until([&] { return adapters().on_its_way(adapter->version)->arrivals->failed(); });
    const auto failed = run(spans, kLong);
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().message.find("out of resources"), std::string::npos) << failed.error().message;
    cuda_emulated::refuse_copies_of(-1);
    until([&] { return !adapters().arrived(adapter->version).ok(); });
    leave(*adapter);
  }
  hold(*adapter);
  const auto got = run(spans, kLong);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->logits, want.logits);
  leave(*adapter);
  adapters().check();
}

// Decode steps of adapters that are there are recorded; with one on its way none is.
TEST_P(CudaArriving, StepsThatMayWaitAreNeverRecorded) {
  const Adapter* const adapter = adapters_.front();
  const std::vector<Span> spans = {span(0, adapter, 1)};
  const StepOutput want = where_all_is_there(spans);
  const cuda_emulated::RunningStreams running(random_(), 0);
  hold(*adapter);
  const int64_t first_piece = pieces_of(*adapter).front();
  until([&] { return adapters().arrived(adapter->version).value(); });
  leave(*adapter);
  cuda_emulated::hold_copies_of(first_piece);
  hold(*adapter);
  for (int time = 0; time < 3; ++time) EXPECT_FALSE(run(spans, 5'000'000).ok());
  cuda_emulated::hold_copies_of(-1);
  EXPECT_EQ(run(spans, kLong).value().logits, want.logits);
  EXPECT_EQ(model_->graphs().recorded(), 0);
  until([&] { return adapters().arrived(adapter->version).value(); });
  for (int time = 0; time < 3; ++time) EXPECT_EQ(run(spans, 0).value().logits, want.logits);
  EXPECT_EQ(model_->graphs().recorded(), 1);
  leave(*adapter);
}

}  // namespace
}  // namespace loralei::test
