// SPDX-License-Identifier: Apache-2.0
// Adapters that must not be served: every fixture of tests/golden/refused with the
// words its refusal must contain, damaged numbers and shapes, and every adapter on
// every base model it was not made for: refused by a sentence, or fitting in every
// shape, never a crash.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/layer_program.h"
#include "support/made_files.h"
#include "support/model_harness.h"

namespace loralei::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
const std::string kRoot = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

std::unique_ptr<ModelHarness> open(const std::string& path) {
  HarnessOptions options;
  options.threads = 1;
  options.sequences_max = 1;
  options.tokens_max = 32;
  auto opened = ModelHarness::open(path, options);
  if (!opened.ok()) {
    ADD_FAILURE() << opened.error().message;
    return nullptr;
  }
  return std::move(*opened);
}

std::vector<std::string> children(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() || entry.path().extension() == ".gguf") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// A sentence for a person: not empty, one line, names the file, and begins and ends like
// the others (no full stop, no code).
void expect_sentence(const Error& error, const std::string& path) {
  EXPECT_NE(error.message.find(path), std::string::npos) << error.message;
  EXPECT_GT(error.message.size(), path.size() + 10) << error.message;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
  EXPECT_NE(error.code, ErrorCode::kInternal) << error.message;
}

TEST(Refused, EveryFixtureWithItsWords) {
  std::ifstream file(kRoot + "refused/refused.json");
  const json all = json::parse(file, nullptr, false);
  ASSERT_TRUE(all.is_array()) << "tests/golden/refused/refused.json is missing or damaged";
  EXPECT_GE(all.size(), 40u);
  for (const json& fixture : all) {
    SCOPED_TRACE(fixture["name"].get<std::string>());
    const auto harness = open(kRoot + fixture["base"].get<std::string>());
    ASSERT_NE(harness, nullptr);
    const std::string path = kRoot + fixture["path"].get<std::string>();
    const auto loaded = harness->load(path);
    ASSERT_FALSE(loaded.ok()) << "loads";
    expect_sentence(loaded.error(), path);
    const std::string message = loaded.error().message.substr(
        std::min(loaded.error().message.size(), loaded.error().message.find(path) + path.size()));
    for (const json& word : fixture["words"]) {
      EXPECT_NE(loaded.error().message.find(word.get<std::string>()), std::string::npos)
          << word << " is missing in: " << message;
    }
  }
}

class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    harness_ = open(kRoot + "models/llama-gqa");
    ASSERT_NE(harness_, nullptr);
    tensors_ = adapter_tensors(harness_->config(), made_);
  }

  void expect_refused(const std::string& word) {
    const std::string path = write_adapter(folder_.path() + "/" + std::to_string(++count_), made_, tensors_);
    for (const bool strict : {true, false}) {
      const auto loaded = harness_->load(path, strict);
      ASSERT_FALSE(loaded.ok()) << "loads, strict " << strict;
      expect_sentence(loaded.error(), path);
      EXPECT_NE(loaded.error().message.find(word), std::string::npos) << loaded.error().message;
    }
  }

  std::unique_ptr<ModelHarness> harness_;
  MadeAdapter made_;
  std::vector<MadeTensor> tensors_;
  TempFolder folder_;
  int count_ = 0;
};

TEST_F(Damaged, TheUndamagedOneLoads) {
  EXPECT_TRUE(harness_->load(write_adapter(folder_.path() + "/good", made_, tensors_)).ok());
}

TEST_F(Damaged, NumbersThatAreNotFiniteInAnyTensor) {
  const auto good = tensors_;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    for (size_t i = 0; i < good.size(); i += 5) {
      SCOPED_TRACE(good[i].name);
      tensors_ = good;
      tensors_[i].values[tensors_[i].values.size() - 1 - i % 7] = bad;
      expect_refused(good[i].name);
    }
  }
}

TEST_F(Damaged, ShapesThatDoNotFit) {
  const auto good = tensors_;
  const auto reshape = [&](size_t i, std::vector<int64_t> shape) {
    tensors_ = good;
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    tensors_[i].shape = std::move(shape);
    tensors_[i].values.resize(count);
  };
  for (size_t i = 0; i < good.size(); ++i) {
    SCOPED_TRACE(good[i].name);
    const int64_t rows = good[i].shape[0], cols = good[i].shape[1];
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{rows + 1, cols},
                                                                               {rows, cols + 1},
                                                                               {rows, cols - 1},
                                                                               {rows * cols},
                                                                               {1, rows, cols},
                                                                               {rows, 0},
                                                                               {0, cols},
                                                                               {}}) {
      reshape(i, shape);
      expect_refused(good[i].name);
      if (HasFailure()) return;
    }
  }
}

TEST_F(Damaged, FilesCutShort) {
  const std::string path = write_adapter(folder_.path() + "/cut", made_, tensors_);
  const std::string weights = path + "/adapter_model.safetensors", config = path + "/adapter_config.json";
  for (const std::string& file : {weights, config}) {
    const auto whole = fs::file_size(file);
    for (const uintmax_t left : {whole - 1, whole / 2, uintmax_t{9}, uintmax_t{7}, uintmax_t{0}}) {
      SCOPED_TRACE(file + " cut to " + std::to_string(left));
      fs::resize_file(file, left);
      const auto loaded = harness_->load(path);
      ASSERT_FALSE(loaded.ok());
      expect_sentence(loaded.error(), path);
    }
    write_adapter(path, made_, tensors_);
  }
}

// What a loaded adapter promises to kernels, checked against the config alone.
void expect_fits(const Adapter& adapter, const ModelConfig& config) {
  ASSERT_EQ(adapter.pairs.size(), static_cast<size_t>(config.layers) * kLayerModules + 2);
  for (size_t i = 0; i + 2 < adapter.pairs.size(); ++i) {
    const LoraPair& pair = adapter.pairs[i];
    const auto module = static_cast<Module>(i % kLayerModules);
    const int layer = static_cast<int>(i) / kLayerModules;
    if (pair.rank == 0) continue;
    EXPECT_EQ(pair.in, module_in(config, layer, module));
    EXPECT_EQ(pair.out, module_out(config, layer, module));
    EXPECT_TRUE(pair.a != nullptr && pair.b_t != nullptr);
  }
  if (adapter.head_pair().rank > 0) {
    EXPECT_EQ(adapter.head_pair().in, config.hidden);
    EXPECT_EQ(adapter.head_pair().out, adapter.vocab);
  }
  if (adapter.embed_pair().rank > 0) {
    EXPECT_EQ(adapter.embed_pair().out, config.hidden);
  }
  for (const WeightView* saved : {&adapter.saved.embed, &adapter.saved.lm_head}) {
    if (!saved->empty()) {
      EXPECT_EQ(saved->cols, config.hidden);
      EXPECT_EQ(saved->rows, adapter.vocab);
    }
  }
}

TEST(EveryAdapterOnEveryBase, FitsInEveryShapeOrIsRefused) {
  std::vector<std::string> adapters = children(kRoot + "adapters");
  for (const std::string& path : children(kRoot + "refused")) adapters.push_back(path);
  ASSERT_GE(adapters.size(), 90u);
  int fitting = 0, refused = 0;
  for (const std::string& base : children(kRoot + "models")) {
    const auto harness = open(base);
    ASSERT_NE(harness, nullptr);
    for (const std::string& path : adapters) {
      for (const bool strict : {true, false}) {
        SCOPED_TRACE(path + " on " + base + (strict ? "" : ", not strict"));
        const auto loaded = harness->load(path, strict);
        if (!loaded.ok()) {
          ++refused;
          expect_sentence(loaded.error(), path);
          continue;
        }
        ++fitting;
        expect_fits(**loaded, harness->config());
        Span span;
        span.tokens = {3, 5, 7};
        span.adapters = {{*loaded, 1.0f, 0}};
        span.logits_at = {2};
        const auto output = harness->run({span});
        ASSERT_TRUE(output.ok()) << output.error().message;
        for (int id = 0; id < (*loaded)->vocab; ++id)
          ASSERT_TRUE(std::isfinite(output->logits[0][static_cast<size_t>(id)]));
      }
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace loralei::test
