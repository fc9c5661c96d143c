// SPDX-License-Identifier: Apache-2.0
// An adapter meets the inputs of its layer as they are, also where the products with
// quantised weights round them: it was trained so. The scales of a quantised checkpoint
// are set to zero, so that all that is left of its layers is the adapter: then it cannot
// matter whether its products would round their inputs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "formats/checkpoint_test_util.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

namespace fs = std::filesystem;
const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

class LoraInputs : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("loralei-lora-inputs-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Logits of one prompt with inputs rounded to int8 (kTile16) or not (kPlain).
  static std::vector<float> logits(const std::string& model, LayoutId layout, const char* adapter) {
    HarnessOptions options;
    options.quantised_layout = layout;
    auto harness = ModelHarness::open(model, options);
    EXPECT_TRUE(harness.ok()) << harness.error().message;
    Span span;
    for (int i = 0; i < 20; ++i) span.tokens.push_back(static_cast<TokenId>(3 + i * 7 % 90));
    span.logits_at = {0, 9, 19};
    if (adapter != nullptr) {
      auto loaded = (*harness)->load(kGolden + "adapters/" + adapter);
      EXPECT_TRUE(loaded.ok()) << loaded.error().message;
      span.adapters = {AdapterRef{*loaded}};
    }
    auto output = (*harness)->run({span});
    EXPECT_TRUE(output.ok());
    std::vector<float> all;
    for (const auto& row : output->logits) all.insert(all.end(), row.begin(), row.end());
    return all;
  }

  fs::path folder_;
};

TEST_F(LoraInputs, AreNotRoundedWithThoseOfQuantisedWeights) {
  for (const char* name : {"gptq-sym", "gptq-asym", "awq", "gptq-8bit"}) {
    testing_support::Checkpoint checkpoint(name);
    for (auto& [tensor, stored] : checkpoint.tensors) {
      if (tensor.ends_with(".scales")) std::fill(stored.bytes.begin(), stored.bytes.end(), '\0');
    }
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    checkpoint.write(folder.string());
    const std::vector<float> rounded = logits(folder.string(), LayoutId::kTile16, "gqa-all-r16");
    EXPECT_EQ(rounded, logits(folder.string(), LayoutId::kPlain, "gqa-all-r16")) << name;
    EXPECT_NE(rounded, logits(folder.string(), LayoutId::kTile16, nullptr)) << name << ": the adapter does something";
    const std::string whole = kGolden + "models/" + name;
    EXPECT_NE(logits(whole, LayoutId::kTile16, "gqa-all-r16"), logits(whole, LayoutId::kPlain, "gqa-all-r16"))
        << name << ": rounding inputs shows";
  }
}

}  // namespace
}  // namespace loralei::test
