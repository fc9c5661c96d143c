// SPDX-License-Identifier: Apache-2.0
// What the host adds for rows of a device has the bits of the op table's own products,
// whether helpers compute it, are killed over it, or have no room for it.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/prng.h"
#include "engine/host_sums.h"
#include "model/layer_program.h"
#include "support/model_harness.h"
#include "support/patience.h"

namespace loralei::test {
namespace {

constexpr const char* kSeed = "HOST_SUMS_TEST_SEED";
const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
const std::array<std::vector<Module>, 4> kInputs = {std::vector<Module>{Module::kQ, Module::kK, Module::kV},
                                                    {Module::kO},
                                                    {Module::kGate, Module::kUp},
                                                    {Module::kDown}};

class HostSumsTest : public testing::Test {
 protected:
  void SetUp() override {
    harness_ = ModelHarness::open(kGolden + "models/llama-gqa").value();
    ops_ = select_op_table("").value();
    AdapterBase base;
    base.config = harness_->config();
    AdapterLoadOptions options;
    options.shared = true;
    for (const char* name : {"gqa-all-r16", "gqa-rank-pattern", "gqa-lora-bias"}) {
      const AdapterVersionId version{adapters_.size() + 1};
      auto load = load_adapter(kGolden + "adapters/" + name, base, options, version);
      ASSERT_TRUE(load.ok()) << load.error().message;
      adapters_.push_back(load->adapter);
    }
    const AssistSetup setup{.helpers = 2, .program = LORALEI_ASSIST_HELPER, .args = {}};
    assist_ = LayerAssist::create(setup, harness_->config(), 64, *ops_, ledger_, clock_, log_).value();
    sums_ = HostSums::create(*assist_, harness_->config(), 64, *ops_, pool_, ledger_).value();
    for (const auto& adapter : adapters_) {
      ASSERT_GT(assist_->offer(*adapter).rows, 0);
      sums_->know(*adapter);
    }
    OpLimits limits{.rows_max = kRowsMost, .in_max = 128, .heads = 1, .kv_heads = 1, .head_dim = 1};
    limits.rank_max = 64;
    limits.segments_max = 1;
    scratch_ = HostBuffer::allocate(ops_->scratch_bytes(limits)).value();
    own_.pool = &own_pool_;
    own_.scratch = scratch_.bytes();
  }

  // Rows of one adapter, with room for two results.
  struct Rows {
    const Adapter* adapter = nullptr;
    int32_t layer = 0, rows = 0, in = 0;
    std::vector<Module> modules;
    std::vector<float> x;
    std::vector<std::vector<float>> got, want;
    std::vector<LoraTarget> targets;
    LoraSegment segment;
    LayerSumsPart part() const {
      LayerInput input{layer, modules, x.data(), in, in, {&segment, 1}};
      return {adapter->version, input, targets};
    }
  };
  Rows some_rows() {
    Rows made;
    made.adapter = adapters_[random_.below(adapters_.size())].get();
    made.layer = static_cast<int32_t>(random_.below(static_cast<uint64_t>(harness_->config().layers)));
    made.modules = kInputs[random_.below(kInputs.size())];
    made.rows = static_cast<int32_t>(1 + random_.below(random_.below(4) == 0 ? kRowsMost : 20));
    made.in = module_in(harness_->config(), made.layer, made.modules.front());
    made.segment = {0, made.rows, 0, 0.75f};
    made.x.resize(static_cast<size_t>(made.rows) * static_cast<size_t>(made.in));
    for (float& number : made.x) number = static_cast<float>(random_.uniform() - 0.5);
    for (const Module module : made.modules) {
      const int32_t out = module_out(harness_->config(), made.layer, module);
      made.got.emplace_back(static_cast<size_t>(made.rows) * static_cast<size_t>(out), 0.25f);
      made.want.push_back(made.got.back());
      made.targets.push_back({nullptr, out, nullptr, out});
    }
    return made;
  }
  void compute_here(Rows& rows) {
    std::vector<LoraSource> sources;
    for (const Module module : rows.modules) sources.push_back({&rows.adapter->pair(rows.layer, module)});
    std::vector<LoraTarget> targets = rows.targets;
    for (size_t i = 0; i < targets.size(); ++i) {
      targets[i].y = rows.want[i].data();
      targets[i].sources = &sources[i];
    }
    ops_->lora(own_, {rows.x.data(), rows.in, rows.in, {&rows.segment, 1}, targets});
  }

  static constexpr int32_t kRowsMost = 400;  // more than two helpers take
  const uint64_t seed_ = seed_of_run(kSeed);
  Prng random_{seed_};
  std::unique_ptr<ModelHarness> harness_;
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  const OpTable* ops_ = nullptr;
  SteadyClock clock_;
  NullLogSink log_;
  Ledger ledger_{int64_t{256} << 20};
  ThreadPool pool_{1}, own_pool_{1};
  HostBuffer scratch_;
  OpContext own_;
  std::unique_ptr<LayerAssist> assist_;
  std::unique_ptr<HostSums> sums_;
};

TEST_F(HostSumsTest, AreTheOpTablesWhoeverComputesThem) {
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    if (random_.below(12) == 0) {
      const std::vector<int> pids = assist_->helper_pids();
      if (!pids.empty()) ::kill(pids[random_.below(pids.size())], SIGKILL);
    }
    std::vector<Rows> all(1 + random_.below(4));
    for (Rows& rows : all) rows = some_rows();
    std::vector<LayerSumsPart> parts;
    for (Rows& rows : all) {
      for (size_t i = 0; i < rows.targets.size(); ++i) rows.targets[i].y = rows.got[i].data();
      parts.push_back(rows.part());
    }
    sums_->add(parts);
    for (Rows& rows : all) {
      compute_here(rows);
      ASSERT_EQ(rows.got, rows.want) << "round " << round;
    }
  }
  EXPECT_GT(assist_->stats().messages, 0u);  // how many depends on how soon a helper is replaced
  EXPECT_GT(sums_->parts_here(), 0);
}

}  // namespace
}  // namespace loralei::test
