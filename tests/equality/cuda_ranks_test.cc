// SPDX-License-Identifier: Apache-2.0
// A model that ranks on several GPUs compute against the model that one computes: on
// emulated GPUs (cuda_ranks_emulated_test), or on as many real ones as there are, which
// ranks share where they are too few (cuda_ranks_test).
//
// The ranks' sums have another order, so a product's relative error e is that of
// cuda_model_test.cc, and so is what follows for logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/prng.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/staged_device_group.h"
#include "model/cuda/step_graphs.h"
#include "support/cuda_ranks.h"
#include "support/made_files.h"
#include "support/nccl_group.h"

#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/device_memory.h"
#endif

namespace loralei::test {
namespace {

const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

struct Subject {
  const char* name;
  const char* model;  // empty: made here
  int ranks = 2;
  std::vector<std::string> adapters;
  std::optional<DType> quantise;
  DType activation = DType::kF32;
  bool tiles = false;
  bool int8_adapters = false;
};

// Those of ranks_test.cc.
const std::vector<Subject>& subjects() {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  static const std::vector<Subject> all = {
      {"llama_gqa",
       "models/llama-gqa",
       2,
       {"gqa-qv-r8", "gqa-all-r16", "gqa-rank-pattern", "gqa-rslora", "gqa-lora-bias", "gqa-embed-tied",
        "gqa-head-tied", "gqa-save-embed-tied", "gqa-save-head-tied", "gqa-save-norms", "gqa-tokens-tied",
        "gqa-resized-tied"}},
      {"llama_gqa_bf16", "models/llama-gqa", 2, {"gqa-all-r16", "gqa-lora-bias"}, {}, kBF16},
      {"llama2_of_4", "models/llama2", 4, {"llama2-save-all", "llama2-r64", "llama2-embed-head", "llama2-r1"}},
      {"all_biases", "models/llama-bias", 2, {"llama-bias-all", "llama-bias-lora-bias", "llama-bias-lora-only"}},
      {"qwen2", "models/qwen2", 2, {"qwen2-bias-all", "qwen2-fused", "qwen2-qv-r8"}},
      {"qwen3", "models/qwen3", 2, {"qwen3-all-r4", "qwen3-save-qk-norm"}},
      {"mistral_window", "models/mistral-window", 2, {"mistral-window-r8"}},
      {"gguf_f16", "models/gguf-llama-f16.gguf", 2, {"gguf-lora-f32.gguf", "gguf-lora-norms.gguf"}},
      {"gguf_q8_0", "models/gguf-qwen3-q8_0.gguf", 2, {"qwen3-all-r4"}, {}, kF32, true},
      {"quant_q8_0_bf16", "models/qwen3", 2, {"qwen3-all-r4"}, DType::kQ8_0, kBF16, true},
      {"wide", "", 4, {"wide-r40", "wide-r3", "wide-vocab"}},
      {"wide_int8_adapters", "", 2, {"wide-r40", "wide-r3"}, {}, kF32, false, true},
      {"wide_q4_0", "", 4, {"wide-r40", "wide-r3"}, DType::kQ4_0, kF32, true},
  };
  return all;
}

// A spy: what a rank's sums were, by a number for all of their bits.
class Watched final : public Collective {
 public:
  explicit Watched(Collective& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Status all_reduce_sum(std::span<float> values) override {
    if (sums_.size() == fail_at) return Error{ErrorCode::kIo, "rank 1 met a broken core"};
    TRY(group_.all_reduce_sum(values));
    uint64_t bits = 1469598103934665603u;
    for (const std::byte byte : std::as_bytes(values)) bits = (bits ^ static_cast<uint64_t>(byte)) * 1099511628211u;
    sums_.push_back(bits);
    return {};
  }
  Status broadcast(std::span<std::byte> bytes) override { return group_.broadcast(bytes); }
  Status gather(std::span<const float> part, std::span<float> all) override { return group_.gather(part, all); }
  Status barrier() override { return group_.barrier(); }
  void fail(Error why) override { group_.fail(std::move(why)); }
  Status health() const override { return group_.health(); }
  CollectiveTotals totals() const override { return group_.totals(); }
  const std::vector<uint64_t>& sums() const { return sums_; }

  size_t fail_at = SIZE_MAX;

 private:
  Collective& group_;
  std::vector<uint64_t> sums_;
};

class CudaRanksTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
#ifdef LORALEI_CUDA_EMULATION
    cuda_emulated::set_device_count(4);
#endif
    const CudaDevices devices = cuda_devices();
    if (devices.list.empty()) GTEST_SKIP() << devices.reason;
  }
  const Subject& subject() const { return subjects()[GetParam()]; }

  // Four heads and a width that divides by four into whole blocks, tiles and groups of
  // int8 factors; a vocabulary that does not.
  void make_wide(int vocab) {
    write_small_model(folder_.path(), {.hidden = 128, .heads = 4, .kv_heads = 4, .ffn = 512, .vocab = vocab});
    const ModelConfig config = open_base_model(folder_.path())->config;
    write_adapter(folder_.path() + "/adapters/wide-r40", config, {.rank = 40, .seed = 6});
    write_adapter(folder_.path() + "/adapters/wide-r3", config,
                  {.rank = 3, .seed = 5, .targets = {"q_proj", "down_proj"}});
    write_wide_adapter(folder_.path() + "/adapters/wide-vocab", config, 7);
  }

  void open(const Subject& subject, int vocab = 403) {
    const bool made = *subject.model == 0;
    if (made) make_wide(vocab);
    const std::string root = made ? folder_.path() + "/" : kRoot;
    HarnessOptions& options = options_;
    options.quantise = subject.quantise;
    options.tokens_max = 128;
    auto opened = ModelHarness::open(root + subject.model, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    harness_ = std::move(*opened);
    CudaModelOptions& cuda = cuda_;
    cuda.limits.rows_max = 100;
    cuda.limits.logits_rows_max = 100;
    cuda.limits.rank_max = 64;
    cuda.activation = subject.activation;
    cuda.adapters_max = 16;
    auto whole = CudaModel::create(harness_->config(), harness_->weights(), cuda);
    ASSERT_TRUE(whole.ok()) << whole.error().message;
    whole_ = std::move(*whole);
    kv_ = std::move(CudaKv::create(harness_->config(), options.kv_dtype, harness_->total_blocks()).value());
    watched_.resize(static_cast<size_t>(subject.ranks));
    auto ranks =
        CudaRanks::open(*harness_, options,
                        {subject.ranks, cuda, [&](int rank, Collective& hosts) -> Result<std::unique_ptr<DeviceGroup>> {
                           auto& watched = watched_[static_cast<size_t>(rank)];
                           watched = std::make_unique<Watched>(hosts);
                           TRY_ASSIGN(auto group, StagedDeviceGroup::create(*watched, {.chunk_floats = 5000}));
                           return std::unique_ptr<DeviceGroup>(std::move(group));
                         }});
    ASSERT_TRUE(ranks.ok()) << ranks.error().message;
    ranks_ = std::move(*ranks);
    for (const std::string& name : subject.adapters) {
      auto adapter = harness_->load(root + "adapters/" + name, true, subject.int8_adapters);
      ASSERT_TRUE(adapter.ok()) << adapter.error().message;
      adapters_.push_back(*adapter);
    }
  }

  void by_whole() {
    harness_->set_forward([this](const ModelBatch& batch) { return whole_->forward(batch, kv_); });
  }
  void by_ranks() {
    harness_->set_forward([this](const ModelBatch& batch) { return ranks_->forward(batch); });
  }
  StepOutput run(const std::vector<Span>& spans) {
    auto output = harness_->run(spans);
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? *output : StepOutput{};
  }

  std::vector<TokenId> tokens(int count) {
    std::vector<TokenId> list;
    for (int i = 0; i < count; ++i)
      list.push_back(static_cast<TokenId>(random_.below(static_cast<uint64_t>(harness_->config().vocab))));
    return list;
  }
  Span span(int sequence, int position, int count, std::vector<AdapterRef> adapters, bool hidden = false) {
    Span made;
    made.sequence = sequence;
    made.position = position;
    made.tokens = tokens(count);
    made.adapters = std::move(adapters);
    made.logits_at = {count - 1};
    made.hidden = hidden;
    return made;
  }
  AdapterRef use(size_t i, float scale = 1.0f) const { return {adapters_[i % adapters_.size()], scale, 0}; }

  double tolerance() const {
    const ModelConfig& config = harness_->config();
    const double in = std::max({config.hidden, config.ffn, config.heads * config.head_dim});
    double e = 0x1p-24 * std::sqrt(in);
    if (subject().activation == DType::kBF16) e = 0x1p-9;
    if (subject().tiles) e = subject().activation == DType::kBF16 ? 3 * 0x1p-8 : 6 * 0x1p-7 / std::sqrt(in);
    return 4 * e * std::sqrt(7.0 * config.layers + 1);
  }
  // The largest difference, relative to the largest number.
  static double difference(const StepOutput& got, const StepOutput& want) {
    double most = 0, largest = 1;
    EXPECT_EQ(got.logits.size(), want.logits.size());
    EXPECT_EQ(got.hidden.size(), want.hidden.size());
    const auto rows = [&](const auto& a, const auto& b) {
      for (size_t row = 0; row < std::min(a.size(), b.size()); ++row) {
        EXPECT_EQ(a[row].size(), b[row].size());
        for (size_t i = 0; i < b[row].size(); ++i) {
          if (std::isfinite(b[row][i])) largest = std::max(largest, std::fabs(static_cast<double>(b[row][i])));
          if (a[row][i] == b[row][i]) continue;
          const double apart = std::fabs(static_cast<double>(a[row][i]) - static_cast<double>(b[row][i]));
          most = std::isnan(apart) ? INFINITY : std::max(most, apart);
        }
      }
    };
    rows(got.logits, want.logits);
    rows(got.hidden, want.hidden);
    return most / largest;
  }
  void expect_same_sums() const {
    EXPECT_FALSE(watched_[0]->sums().empty());
    for (const auto& watched : watched_) EXPECT_EQ(watched->sums(), watched_[0]->sums());
  }
  static std::string words_of(const Status& status) { return status.ok() ? "" : status.error().message; }

  TempFolder folder_;
  HarnessOptions options_;
  CudaModelOptions cuda_;
  std::unique_ptr<ModelHarness> harness_;
  std::unique_ptr<CudaModel> whole_;
  CudaKv kv_;
  std::vector<std::unique_ptr<Watched>> watched_;
  std::unique_ptr<CudaRanks> ranks_;
  std::vector<const Adapter*> adapters_;
  Prng random_{411};
};

// Prompts of several sequences together, then decode steps beside a further prompt, with
// the base and every adapter, and sums of two.
TEST_P(CudaRanksTest, AnswerAsOneDoes) {
  SCOPED_TRACE("seed 411");
  open(subject());
  ASSERT_FALSE(HasFatalFailure());
  const double allowed = tolerance();
  double worst = 0;
  const auto compare = [&](const std::vector<Span>& spans, const char* what) {
    by_whole();
    const StepOutput want = run(spans);
    by_ranks();
    const StepOutput got = run(spans);
    const double apart = difference(got, want);
    worst = std::max(worst, apart);
    EXPECT_LE(apart, allowed) << what;
    return want;
  };
  const size_t count = adapters_.size();
  for (size_t first = 0; first < count; first += 4) {
    std::vector<Span> prompts = {span(0, 0, 5, {}, true)};
    for (size_t i = 0; i < 4; ++i) prompts.push_back(span(static_cast<int>(i) + 1, 0, 7, {use(first + i)}, i == 1));
    std::vector<Span> without = prompts;
    for (Span& plain : without) plain.adapters.clear();
    by_whole();
    const StepOutput base = run(without);
    EXPECT_GT(difference(compare(prompts, "prompts"), base), 3 * allowed)
        << "the adapters change too little to be seen";
    std::vector<Span> mixed;
    for (const Span& prompt : prompts)
      mixed.push_back(span(prompt.sequence, static_cast<int>(prompt.tokens.size()), 1, prompt.adapters));
    mixed.push_back(span(6, 0, 18, {use(first)}));
    compare(mixed, "decode beside a prompt");
  }
  expect_same_sums();
  RecordProperty("worst", std::to_string(worst / allowed));
  if (std::getenv("CUDA_MODEL_TEST_SHOW") != nullptr) std::printf("%s: %g of %g\n", subject().name, worst, allowed);
}

TEST_P(CudaRanksTest, GreedyTextsAreThoseOfOne) {
  SCOPED_TRACE("seed 411");
  open(subject());
  ASSERT_FALSE(HasFatalFailure());
  std::vector<std::vector<AdapterRef>> uses = {{}};
  for (size_t i = 0; i < std::min<size_t>(adapters_.size(), 4); ++i) uses.push_back({use(i)});
  const bool sums = !adapters_[0]->saved.any() && !adapters_[1 % adapters_.size()]->saved.any();
  if (sums) uses.push_back({use(0, 0.5f), use(1, 0.75f)});
  for (size_t i = 0; i < uses.size(); ++i) {
    const std::vector<TokenId> prompt = tokens(9);
    by_whole();
    const auto want = harness_->greedy(prompt, uses[i], 6);
    by_ranks();
    const auto got = harness_->greedy(prompt, uses[i], 6);
    ASSERT_TRUE(want.ok() && got.ok());
    EXPECT_EQ(*got, *want) << "text " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaRanksTest, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return std::string(subjects()[info.param].name); });

class CudaRanksOnce : public CudaRanksTest {};

// Logits that take more than one gather, and rows that choose their token where the
// logits are, which is at rank 0 alone.
TEST_P(CudaRanksOnce, ManyRowsOfLogits) {
  Subject two = subject();
  two.ranks = 2;
  open(two, 3003);
  ASSERT_FALSE(HasFatalFailure());
  Span prompt = span(0, 0, 95, {});
  for (int i = 0; i < 94; ++i) prompt.logits_at.insert(prompt.logits_at.end() - 1, i);
  by_whole();
  StepOutput want = run({prompt});
  std::vector<RowChoice> choices(95);
  std::vector<TokenId> chosen(95, -7);
  for (size_t i = 0; i < choices.size(); i += 2) choices[i] = {.vocab = 3003};
  harness_->set_forward([&](const ModelBatch& batch) {
    ModelBatch choosing = batch;
    choosing.choices = choices;
    choosing.chosen = chosen.data();
    return ranks_->forward(choosing);
  });
  const StepOutput got = run({prompt});
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(chosen[i], i % 2 == 0 ? arg_max(std::span(want.logits[i]).first(3003)) : -7);
    if (i % 2 == 0) want.logits[i] = got.logits[i];  // untouched
  }
  EXPECT_LE(difference(got, want), tolerance());
}

TEST_P(CudaRanksOnce, OverNcclTheBitsAreThoseOfPinnedMemory) {
  Subject two = subject();
  two.ranks = 2;
  open(two, 203);
  ASSERT_FALSE(HasFatalFailure());
  if (!has_nccl(2)) GTEST_SKIP() << "NCCL needs a GPU for every rank.";
  auto options = nccl_options();
  options.chunk_floats = 5000;
  const auto over_nccl = CudaRanks::open(
      *harness_, options_, {2, cuda_, [&](int, Collective& hosts) { return nccl_group(hosts, options); }});
  ASSERT_TRUE(over_nccl.ok()) << over_nccl.error().message;
  std::vector<std::vector<Span>> steps = {
      {span(0, 0, 17, {use(0)}, true), span(1, 0, 4, {}), span(2, 0, 9, {use(2), use(1, 0.5f)})}};
  for (int step = 0; step < 3; ++step)
    steps.push_back({span(0, 17 + step, 1, {use(0)}), span(2, 9 + step, 1, {use(2), use(1, 0.5f)})});
  for (const std::vector<Span>& spans : steps) {
    by_ranks();
    const StepOutput want = run(spans);
    harness_->set_forward([&](const ModelBatch& batch) { return (*over_nccl)->forward(batch); });
    const StepOutput got = run(spans);
    EXPECT_EQ(got.logits, want.logits);
    EXPECT_EQ(got.hidden, want.hidden);
    EXPECT_FALSE(want.logits.empty());
  }
}

TEST_P(CudaRanksOnce, NothingIsRecordedAndBytesAreThosePlanned) {
  open(subject());
  ASSERT_FALSE(HasFatalFailure());
  by_ranks();
  (void)run({span(0, 0, 4, {use(0)})});
  for (int step = 0; step < 4; ++step) (void)run({span(0, 4 + step, 1, {use(0)})});
  const ModelConfig config = config_of_rank(harness_->config(), subject().ranks);
  const CudaModelOptions& options = cuda_;
  int64_t first = 0;
  for (int rank = 0; rank < subject().ranks; ++rank) {
    EXPECT_EQ(ranks_->model(rank).graphs().recorded(), 0);
    const auto planned =
        CudaModel::device_bytes(config, ranks_->weights(rank), options, {rank, subject().ranks}).value();
    EXPECT_EQ(ranks_->model(rank).device_bytes(), planned.weights + planned.scratch);
    EXPECT_LT(planned.weights, CudaModel::device_bytes(harness_->config(), harness_->weights(), options)->weights);
    if (rank == 0) first = planned.scratch;
    if (rank > 0) {
      EXPECT_LT(planned.scratch, first) << "logits of all are rank 0's";
    }
  }
}

TEST_P(CudaRanksOnce, ARankThatFailsEndsTheGroupWithItsSentence) {
  open(subject());
  ASSERT_FALSE(HasFatalFailure());
  by_ranks();
  EXPECT_TRUE(harness_->run({span(0, 0, 6, {use(0)})}).ok());
  watched_[1]->fail_at = watched_[1]->sums().size() + 1;  // within the next step
  for (int again = 0; again < 2; ++again) {
    const auto output = harness_->run({span(1, 0, 6, {use(0)})});
    ASSERT_FALSE(output.ok());
    for (const Status& status : ranks_->statuses()) EXPECT_EQ(words_of(status), "rank 1 met a broken core");
  }
  EXPECT_EQ(words_of(ranks_->group(0).health()), "rank 1 met a broken core");
}

// What one rank alone refuses, before it has met the others.
TEST_P(CudaRanksOnce, AnAdapterThatOneRankCannotTakeEndsTheGroup) {
  open(subject());
  ASSERT_FALSE(HasFatalFailure());
  harness_->set_forward([&](const ModelBatch& batch) { return ranks_->forward(batch); });
  auto high = harness_->load(write_adapter(folder_.path() + "/high", harness_->config(), {.rank = 70}));
  ASSERT_TRUE(high.ok());
  const auto output = harness_->run({span(0, 0, 4, {{*high, 1.0f, 0}})});
  ASSERT_FALSE(output.ok());
  for (const Status& status : ranks_->statuses())
    EXPECT_NE(words_of(status).find("has rank 70"), std::string::npos) << words_of(status);
}

TEST_P(CudaRanksOnce, AdaptersOnTheirWayAreRefused) {
  open(subject());
  ASSERT_FALSE(HasFatalFailure());
  CudaModelOptions options;
  options.layered_adapters = true;
  const auto made = CudaModel::create(config_of_rank(harness_->config(), subject().ranks), ranks_->weights(0), options,
                                      &ranks_->group(0));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("Ranks on GPUs wait for all of an adapter"), std::string::npos)
      << made.error().message;
}

INSTANTIATE_TEST_SUITE_P(Wide, CudaRanksOnce, testing::Values(size_t{10}), [](const auto&) { return "of_4"; });

}  // namespace
}  // namespace loralei::test
