// SPDX-License-Identifier: Apache-2.0
// The GPU suite on the emulated GPU: its rows, bounds and targets. Whatever lies between
// two events takes a millisecond there, so the ceilings are known and the bounds can
// be computed here.
#include "bench/gpu_suite.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "bench/rig.h"
#include "engine/cuda/cuda_backend.h"

namespace loralei {
namespace {

constexpr cuda::CudaProbeSizes kProbe{
    .read_bytes = 1 << 16, .product = 64, .upload_bytes = 1 << 15, .calls = 2, .rounds = 1};
constexpr double kReadS = 2e9 * (1 << 16) * 1e-6;  // bytes a second, few enough to bound every step
constexpr double kUploadS = 2e9 * (1 << 15) * 1e-6;
constexpr double kProductS = 2 * 2e9 * 64 * 64 * 64 * 1e-6;  // operations a second

// llama-nano: 2 layers of 64 with 2 heads of 32, feed-forward 128, vocabulary 512;
// rank 8 on q, k and v.
constexpr double kMatmulWeights = 2 * (4 * 64 * 64 + 3 * 64 * 128), kHeadWeights = 512 * 64;
constexpr double kKvBytesToken = 2 * 2 * 64 * 2;
constexpr double kAdapterBytes = 2 * 3 * 2 * 8 * 64 * 2;

class GpuSuite : public testing::Test {
 protected:
  GpuSuite() {
    suite_.device = [this](bool batch_invariant) {
      asked_.push_back(batch_invariant);
      return cuda_factory({.batch_invariant = batch_invariant, .probe = kProbe});
    };
    suite_.shape = "llama-nano";
    suite_.cache_dir = testing::TempDir() + "loralei-gpu-suite";
    suite_.batches = {1, 8};
    suite_.context = 16;
    suite_.new_tokens = 4;
    suite_.prompt = 48;
    suite_.adapters = 4;
    suite_.rank = 8;
    suite_.few = 2;
    suite_.many = 40;  // more than there are files
    suite_.resident = 6;
    suite_.rounds = 1;
    suite_.pairs = 2;
    suite_.threads = 1;
    suite_.memory_budget_bytes = int64_t{512} << 20;
  }
  void TearDown() override { std::filesystem::remove_all(suite_.cache_dir); }

  void run(const std::string& part) {
    NullLogSink log;
    const Status status = run_gpu_part(suite_, part, log, report_);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  const BenchRow& row(const std::string& name) {
    for (const BenchRow& each : report_.rows) {
      if (each.name == name) return each;
    }
    ADD_FAILURE() << "no row " << name << " in\n" << report_table(report_);
    static const BenchRow none;
    return none;
  }
  double bound(const std::string& name) { return row(name).bound.value_or(-1); }
  std::vector<std::string> targets() const {
    std::vector<std::string> names;
    for (const BenchTarget& target : report_.targets) names.push_back(target.name + " " + target.op);
    return names;
  }
  double step_s(int rows, double context, double adapters = 0) const {
    const double bytes =
        2 * (kMatmulWeights + kHeadWeights) + rows * context * kKvBytesToken + adapters * kAdapterBytes;
    EXPECT_GT(bytes / kReadS, 2 * (kMatmulWeights + kHeadWeights) * rows / kProductS);
    return bytes / kReadS;
  }

  GpuSuiteOptions suite_;
  BenchReport report_;
  std::vector<bool> asked_;  // for devices that are batch invariant
};

TEST_F(GpuSuite, DecodeIsHeldAgainstItsBytes) {
  ASSERT_NO_FATAL_FAILURE(run("decode"));
  EXPECT_DOUBLE_EQ(row("device.read_gb_s").value, kReadS * 1e-9);
  EXPECT_DOUBLE_EQ(row("device.product_tflop_s").value, kProductS * 1e-12);
  EXPECT_DOUBLE_EQ(row("device.upload_gb_s").value, kUploadS * 1e-9);
  EXPECT_EQ(row("device.context_mb").value, 0);  // nobody else holds any of it
  EXPECT_EQ(row("device.driver_mb").value, 0);
  EXPECT_NE(row("device.driver_mb").note.find("set aside: "), std::string::npos);
  EXPECT_NEAR(bound("decode.llama-nano.bf16.c16.b1.tok_s") * step_s(1, 18), 1, 1e-9);
  EXPECT_NEAR(bound("decode.llama-nano.bf16.c16.b8.tok_s") * step_s(8, 18) / 8, 1, 1e-9);
  EXPECT_GT(row("decode.llama-nano.bf16.c16.b8.tok_s").value, 0);
  EXPECT_EQ(targets(), (std::vector<std::string>{"decode.llama-nano.bf16.c16.b1.tok_s / bound >=",
                                                 "decode.llama-nano.bf16.c16.b8.tok_s / bound >="}));
  for (const BenchRow& each : report_.rows) EXPECT_FALSE(each.name.ends_with("rest_share"));
}

TEST_F(GpuSuite, PrefillCountsAttention) {
  ASSERT_NO_FATAL_FAILURE(run("prefill"));
  const double operations = 2 * (kMatmulWeights * 48 + kHeadWeights) + 4 * 0.5 * 48 * 49 * 2 * 64;
  EXPECT_NEAR(bound("prefill.llama-nano.bf16.p48.tok_s") * operations / (48 * kProductS), 1, 1e-9);
  EXPECT_EQ(targets(), std::vector<std::string>{"prefill.llama-nano.bf16.p48.tok_s / bound >="});
}

TEST_F(GpuSuite, MixedTellsTheTaxOfAdapters) {
  ASSERT_NO_FATAL_FAILURE(run("mixed"));
  const BenchRow& tax = row("mixed.llama-nano.bf16.qkv.n4.lora_tax");
  EXPECT_EQ(tax.samples, 2);
  EXPECT_GT(tax.value, 0);
  char alone[64];
  std::snprintf(alone, sizeof alone, "the bounds alone %.4f", step_s(4, 18, 4) / step_s(4, 18));
  EXPECT_NE(tax.note.find(alone), std::string::npos) << tax.note << " has not " << alone;
  EXPECT_EQ(targets().back(), "mixed.llama-nano.bf16.qkv.n4.lora_tax <=");
}

TEST_F(GpuSuite, FlatnessUploadsNothingWhereEverythingIsThere) {
  ASSERT_NO_FATAL_FAILURE(run("flatness"));
  const std::string prefix = "flatness.llama-nano.bf16.qkv.r8.n";
  const double few = row(prefix + "2.distinct").value, many = row(prefix + "40.distinct").value;
  EXPECT_LE(few, 2);
  EXPECT_GT(many, 2);
  EXPECT_NEAR(bound(prefix + "40.ratio"), step_s(4, 18, few) / step_s(4, 18, many), 1e-9);
  EXPECT_NEAR(bound(prefix + "40.tok_s") * step_s(4, 18, many) / 4, 1, 1e-9);
  EXPECT_FALSE(row(prefix + "40.wall_tok_s").bound);
  EXPECT_EQ(targets(), std::vector<std::string>{prefix + "40.ratio / bound >="});
}

TEST_F(GpuSuite, OverflowIsHeldAgainstTheLink) {
  ASSERT_NO_FATAL_FAILURE(run("overflow"));
  const std::string name = "flatness.llama-nano.bf16.qkv.r8.fit6.n40.";
  const double uploaded = row(name + "uploaded_mb").value * 1e6;
  EXPECT_GT(uploaded, 0);
  EXPECT_LE(uploaded, 4.01 * kAdapterBytes);
  EXPECT_NEAR(bound(name + "wall_tok_s"), 4 * 4 / (uploaded / kUploadS), 1e-6 * bound(name + "wall_tok_s"));
  EXPECT_GT(bound(name + "wall_ratio"), 0);
  EXPECT_TRUE(targets().empty());
  for (const BenchRow& each : report_.rows) {
    EXPECT_FALSE(each.name.ends_with("left_host_memory")) << each.value << " of " << suite_.many;
    EXPECT_FALSE(each.name.ends_with("n40.tok_s"));
  }
}

TEST_F(GpuSuite, InvariantHasBothAndTheirRatio) {
  ASSERT_NO_FATAL_FAILURE(run("invariant"));
  EXPECT_EQ(asked_, (std::vector<bool>{false, false, true, true}));
  for (const std::string figure : {"decode.llama-nano.bf16.c16.b8.tok_s", "prefill.llama-nano.bf16.p48.tok_s"}) {
    EXPECT_DOUBLE_EQ(row(figure + ".invariant_ratio").value, row(figure + ".invariant").value / row(figure).value);
  }
}

TEST_F(GpuSuite, AnUnknownPartIsRefusedWithTheNames) {
  NullLogSink log;
  const Status status = run_gpu_part(suite_, "speed", log, report_);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("decode, prefill, mixed, flatness, overflow, invariant"), std::string::npos);
}

// What the figures of thousands of adapters stand on: a name is a copy of its own,
// whatever its file.
TEST_F(GpuSuite, AdaptersOfOneFileAreCopiesOfTheirOwn) {
  BenchOptions options;
  options.shape = suite_.shape;
  options.cache_dir = suite_.cache_dir;
  options.targets = "qkv";
  options.rank = suite_.rank;
  options.batches = {4};
  options.adapters = 0;
  options.host.threads = 1;
  options.host.device = suite_.device(false);
  options.host.engine.memory_budget_bytes = suite_.memory_budget_bytes;
  options.host.engine.speculate = Speculation::kOff;
  NullLogSink log;
  Rig rig;
  const Status opened = open_rig(options, 8, log, rig);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto adapters = load_adapters(options, 4, 2, rig);
  ASSERT_TRUE(adapters.ok()) << adapters.error().message;
  EXPECT_EQ(adapters->paths[0], adapters->paths[2]);
  EXPECT_GE(adapters->bytes_each, kAdapterBytes);
  BatchSpec spec = batch_spec(options, rig, 4);
  spec.prompt_tokens = 4;
  spec.new_tokens = 2;
  spec.adapters = adapters->names;
  ASSERT_TRUE(rig.runner->run(spec).ok());
  const EngineStats stats = rig.host->engine().stats();
  EXPECT_DOUBLE_EQ(adapters->bytes_each, static_cast<double>(stats.adapter_bytes) / 4);
  EXPECT_EQ(stats.adapter_uploads, 4u);
  EXPECT_GE(static_cast<double>(stats.adapter_bytes), 4 * kAdapterBytes);
  EXPECT_GE(static_cast<double>(stats.device_memory.adapter_bytes), 4 * kAdapterBytes);
}

}  // namespace
}  // namespace loralei
