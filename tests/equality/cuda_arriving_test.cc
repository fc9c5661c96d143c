// SPDX-License-Identifier: Apache-2.0
// Steps of a CudaModel with adapters that are on their way, on the emulated GPU, whose
// streams run by themselves and rest at random: logits are those of a model that has all
// adapters, bit for bit, or within the tolerances of cuda_model_test.cc where the host
// computes some layers; what is late or does not come ends its step and no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "base/prng.h"
#include "device/cuda/emulated/emulator.h"
#include "device/host/arena.h"
#include "device/host/thread_pool.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/step_graphs.h"
#include "model/layer_sums.h"
#include "ops/op_table.h"
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
  DType activation = DType::kF32;
};
const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = {
      {"tied",
       "llama-gqa",
       {"gqa-all-r16", "gqa-embed-tied", "gqa-rank-pattern", "gqa-save-head-tied", "gqa-tokens-tied",
        "gqa-resized-tied", "gqa-save-norms", "gqa-lora-bias"}},
      {"untied", "llama2", {"llama2-r64", "llama2-embed-head", "llama2-save-all", "llama2-tokens-both", "llama2-r1"}},
      {"head_norms", "qwen3", {"qwen3-all-r4", "qwen3-save-qk-norm"}},
      {"tied_bf16", "llama-gqa", {"gqa-all-r16", "gqa-embed-tied", "gqa-tokens-tied"}, DType::kBF16},
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
    options.activation = GetParam().activation;
    options.layered_adapters = layered;
    options.host_rows_max = layered ? kHostRows : 0;
    auto made = CudaModel::create(harness_->config(), harness_->weights(), options);
    ASSERT_TRUE(made.ok()) << made.error().message;
    model = std::move(*made);
    auto cache = CudaKv::create(harness_->config(), DType::kF32, harness_->total_blocks());
    ASSERT_TRUE(cache.ok()) << cache.error().message;
    kv = std::move(*cache);
  }
  static constexpr int32_t kHostRows = 12;
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
  Result<StepOutput> run(const std::vector<Span>& spans, int64_t wait_at_most_ns, LayerSums* sums = nullptr) {
    harness_->set_forward([&](const ModelBatch& batch) { return model_->forward(batch, kv_, wait_at_most_ns, sums); });
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
      // Streams that run late, by themselves, or with rests.
      std::optional<cuda_emulated::RunningStreams> running;
      const uint64_t how = random_.below(4);
      if (how > 0) running.emplace(random_(), how == 1 ? 0 : 20'000);
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
    EXPECT_GE(model_->waits().layers, 1);
    EXPECT_TRUE(time == 0 || model_->waits().layers == 1) << "what has come by then is not waited for";
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

// --- with layers that the host computes

// The reference kernels on the calling thread, which take their time.
class SlowSums final : public LayerSums {
 public:
  explicit SlowSums(uint64_t seed) : random_(seed) {
    context_.pool = &pool_;
    OpLimits limits{.rows_max = 64, .in_max = 128, .heads = 1, .kv_heads = 1, .head_dim = 1};
    limits.rank_max = 64;
    limits.segments_max = 1;
    scratch_ = HostBuffer::allocate((*available_op_tables().front()).scratch_bytes(limits)).value();
    context_.scratch = scratch_.bytes();
  }
  bool computes(AdapterVersionId version) const override { return known.count(version.value) != 0; }
  void add(std::span<const LayerSumsPart> parts) override {
    if (on_add) on_add(calls);
    ++calls;
    for (const LayerSumsPart& part : parts) {
      ASSERT_EQ(part.input.segments.size(), 1u);
      rows += part.input.segments.front().row_count;
      std::vector<LoraTarget> targets(part.targets.begin(), part.targets.end());
      std::vector<LoraSource> sources;
      for (const Module module : part.input.modules)
        sources.push_back({&known.at(part.version.value)->pair(part.input.layer, module)});
      for (size_t i = 0; i < targets.size(); ++i) targets[i].sources = &sources[i];
      (*available_op_tables().front())
          .lora(context_, {part.input.x, part.input.x_stride, part.input.in, part.input.segments, targets});
    }
    if (random_.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_.below(2000)));
  }

  std::map<uint64_t, const Adapter*> known;
  std::function<void(int call)> on_add;
  int calls = 0, rows = 0;

 private:
  ThreadPool pool_{1};
  HostBuffer scratch_;
  OpContext context_;
  Prng random_;
};

// Relative to max(1, max|logit|).
double tolerance(const ModelConfig& config, DType activation) {
  const double in = std::max({config.hidden, config.ffn, config.heads * config.head_dim});
  const double e = activation == DType::kBF16 ? 2 * 0x1p-9 : 0x1p-24 * std::sqrt(in);
  return 4 * e * std::sqrt(7.0 * config.layers + 1);
}

void expect_near(const StepOutput& got, const StepOutput& want, double allowed) {
  ASSERT_EQ(got.logits.size(), want.logits.size());
  double most = 1;
  for (const std::vector<float>& row : want.logits)
    for (const float logit : row)
      if (std::isfinite(logit)) most = std::max(most, std::abs(static_cast<double>(logit)));
  for (size_t row = 0; row < want.logits.size(); ++row) {
    ASSERT_EQ(got.logits[row].size(), want.logits[row].size());
    for (size_t i = 0; i < want.logits[row].size(); ++i) {
      if (got.logits[row][i] == want.logits[row][i]) continue;  // -inf beyond a row's vocabulary
      ASSERT_NEAR(got.logits[row][i], want.logits[row][i], allowed * most) << "row " << row << " logit " << i;
    }
  }
}
double apart(const StepOutput& a, const StepOutput& b) {
  double most = 0;
  for (size_t row = 0; row < a.logits.size(); ++row)
    for (size_t i = 0; i < a.logits[row].size(); ++i)
      if (std::isfinite(a.logits[row][i]))
        most = std::max(most, std::abs(static_cast<double>(a.logits[row][i]) - b.logits[row][i]));
  return most;
}

// Nothing arrives: every layer is the host's, beside rows whose adapters are there.
TEST_P(CudaArriving, AStepNeedsNothingOfWhatTheHostComputes) {
  SlowSums sums(random_());
  const Adapter* const adapter = adapters_.back();  // of layers alone
  const Adapter* const other = adapters_.front();
  hold(*adapter);
  const int64_t first_piece = pieces_of(*adapter).front();
  until([&] { return adapters().arrived(adapter->version).value(); });
  leave(*adapter);
  hold(*other);
  until([&] { return adapters().arrived(other->version).value(); });
  const cuda_emulated::RunningStreams running(random_(), 500);
  cuda_emulated::hold_copies_of(first_piece);
  hold(*adapter);
  sums.known = {{adapter->version.value, adapter}};
  for (int round = 0; round < 6 && !HasFailure(); ++round) {
    std::vector<Span> spans = {span(0, adapter, 1 + static_cast<int>(random_.below(5))), span(1, other, 3),
                               span(2, adapter, 2 + static_cast<int>(random_.below(4)))};
    spans[2].adapters = {{adapter, 0.5f}, {other, 1.0f}};  // a sum, of which one is there
    const StepOutput want = where_all_is_there(spans);
    const int rows_before = sums.rows;
    const auto got = run(spans, 0, &sums);
    ASSERT_TRUE(got.ok()) << got.error().message;
    expect_near(*got, want, tolerance(harness_->config(), GetParam().activation));
    EXPECT_EQ(model_->waits().layers, 0);
    EXPECT_EQ(model_->waits().assisted_layers, harness_->config().layers);
    EXPECT_EQ(model_->waits().handover_layer, -1);
    // Inputs of q k v, o, gate up, down in every layer; but for k alone in one of them.
    EXPECT_EQ(sums.rows - rows_before,
              static_cast<int>(spans[0].tokens.size() + spans[2].tokens.size()) * 4 * harness_->config().layers);
    for (Span& without : spans)
      std::erase_if(without.adapters, [&](const auto& use) { return use.adapter == adapter; });
    EXPECT_GT(apart(where_all_is_there(spans), want), 2 * tolerance(harness_->config(), GetParam().activation))
        << "an adapter that changes nothing";
  }
  cuda_emulated::hold_copies_of(-1);
  leave(*other);
  until([&] { return adapters().arrived(adapter->version).value(); });
  leave(*adapter);
}

// The device goes on from the layer that is there when its input is, and the host no
// more.
TEST_P(CudaArriving, TheDeviceTakesOverWhereALayerIsThere) {
  SlowSums sums(random_());
  const Adapter* const adapter = adapters_.back();
  hold(*adapter);
  const int64_t first_piece = pieces_of(*adapter).front();
  until([&] { return adapters().arrived(adapter->version).value(); });
  leave(*adapter);
  sums.known = {{adapter->version.value, adapter}};
  const int inputs = 4 * harness_->config().layers;
  const cuda_emulated::RunningStreams running(random_(), 0);
  for (int last = 0; last + 5 < inputs; ++last) {
    cuda_emulated::hold_copies_of(first_piece);
    hold(*adapter);
    sums.calls = 0;
    sums.on_add = [&](int call) {
      if (call != last) return;
      cuda_emulated::hold_copies_of(-1);
      until([&] { return adapters().on_its_way(adapter->version)->arrivals->whole(); });
    };
    const std::vector<Span> spans = {span(0, adapter, 4)};
    const StepOutput want = where_all_is_there(spans);
    const auto got = run(spans, 0, &sums);
    ASSERT_TRUE(got.ok()) << got.error().message;
    expect_near(*got, want, tolerance(harness_->config(), GetParam().activation));
    EXPECT_EQ(sums.calls, last + 2) << "what was sent already, and no more";
    EXPECT_EQ(model_->waits().layers, 0);
    EXPECT_EQ(model_->waits().handover_layer, (last + 1) / 4 + 1);
    leave(*adapter);
  }
}

// More rows than the host may have wait for layers.
TEST_P(CudaArriving, RowsThatTheHostHasNoRoomForWait) {
  SlowSums sums(random_());
  const Adapter* const adapter = adapters_.back();
  sums.known = {{adapter->version.value, adapter}};
  const std::vector<Span> spans = {span(0, adapter, kHostRows + 1)};
  const StepOutput want = where_all_is_there(spans);
  const cuda_emulated::RunningStreams running(random_(), 3000);
  hold(*adapter);
  const auto got = run(spans, kLong, &sums);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->logits, want.logits);
  EXPECT_EQ(sums.calls, 0);
  leave(*adapter);
}

// What the host computes of one does not keep the step from ending with another's layer.
TEST_P(CudaArriving, ALateLayerOfAnotherEndsAStepThatTheHostHelps) {
  SlowSums sums(random_());
  const Adapter* const late = adapters_.back();
  const Adapter* const helped = adapters_.front();
  const int64_t bytes = bytes_to_stop(*late);
  sums.known = {{helped->version.value, helped}};
  const std::vector<Span> spans = {span(0, helped, 3), span(1, late, 3)};
  const StepOutput want = where_all_is_there(spans);
  const cuda_emulated::RunningStreams running(random_(), 0);
  cuda_emulated::hold_copies_of(bytes);
  hold(*late);
  hold(*helped);  // comes behind it
  const auto ended = run(spans, 20'000'000, &sums);
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(model_->waits().ended_by, late->version);
  EXPECT_GT(sums.calls, 0);
  cuda_emulated::hold_copies_of(-1);
  const auto got = run(spans, kLong, &sums);
  ASSERT_TRUE(got.ok()) << got.error().message;
  expect_near(*got, want, tolerance(harness_->config(), GetParam().activation));
  leave(*late);
  leave(*helped);
}

}  // namespace
}  // namespace loralei::test
