// SPDX-License-Identifier: Apache-2.0
// Walks the golden adapters: every one loads, every refused one is refused with the words
// that its table demands.
#include <gtest/gtest.h>

#include "adapters/adapter.h"
#include "adapters/layers_test_util.h"
#include "formats/base_model.h"
#include "formats/json_util.h"
#include "ops/lora_factors.h"

namespace loralei {
namespace {

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

// Zero biases: what the deltas are is checked by load_test; here only that
// everything is accepted.
struct Base {
  BaseModelFile file;
  std::vector<float> zeros = std::vector<float>(4096, 0.0f);
  AdapterBase base;

  explicit Base(BaseModelFile opened) : file(std::move(opened)) {
    base.config = file.config;
    base.bias_context = this;
    base.bias = [](const void* context, int, Module module) -> const float* {
      const Base& self = *static_cast<const Base*>(context);
      const ModelConfig& config = self.file.config;
      const bool qkv = module == Module::kQ || module == Module::kK || module == Module::kV;
      const bool has = qkv ? config.qkv_bias : module == Module::kO ? config.o_bias : config.mlp_bias;
      return has ? self.zeros.data() : nullptr;
    };
  }
};

std::unique_ptr<Base> open_base(const std::string& path) {
  auto model = open_base_model(path);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::make_unique<Base>(std::move(model).value()) : nullptr;
}

// Every number of int8 factors within half a step of what it is without.
void expect_near(const LoraPair& int8, const LoraPair& plain) {
  ASSERT_EQ(int8.rank, plain.rank);
  if (int8.a_scale == nullptr) return;
  const auto in = static_cast<size_t>(plain.in), out = static_cast<size_t>(plain.out);
  std::vector<float> a(in), want_a(in), b(out), want_b(out);
  for (int32_t r = 0; r < plain.rank; ++r) {
    decode_lora_a(int8, r, a.data());
    decode_lora_a(plain, r, want_a.data());
    decode_lora_b(int8, r, 0, plain.out, b.data());
    decode_lora_b(plain, r, 0, plain.out, want_b.data());
    for (size_t i = 0; i < in; ++i) {
      const float step = int8.a_scale[r * lora_quant_groups(plain.in) + static_cast<int64_t>(i) / kLoraQuantGroup];
      ASSERT_NEAR(a[i], want_a[i], 0.5001f * step);
    }
    for (size_t i = 0; i < out; ++i)
      ASSERT_NEAR(b[i], want_b[i], 0.5001f * int8.b_scale[static_cast<int64_t>(i) / kLoraQuantGroup * plain.rank + r]);
  }
}

TEST(GoldenAdapters, EveryCaseLoads) {
  const PosixFileSystem files;
  auto text = files.read_all(kGolden + "cases.json", 64 << 20);
  ASSERT_TRUE(text.ok()) << "the committed golden cases are missing: " << text.error().message;
  const auto cases = Json::parse(*text);
  std::map<std::pair<std::string, std::string>, int> done;
  for (const auto& item : cases) {
    for (const auto& adapter : item["adapters"]) {
      const std::string model = item["model"], path = adapter["path"];
      if (done[{model, path}]++) continue;
      auto base = open_base(kGolden + model);
      ASSERT_TRUE(base);
      auto loaded = load_adapter(kGolden + path, base->base, {}, AdapterVersionId{1});
      EXPECT_TRUE(loaded.ok()) << path << ": " << (loaded.ok() ? "" : loaded.error().message);
      if (loaded.ok()) {
        const Adapter& adapter = *loaded->adapter;
        EXPECT_EQ(adapter.vocab, item["vocab"].get<int>()) << path;
        EXPECT_TRUE(adapter.rank_max > 0 || adapter.saved.any()) << path;
        auto int8 = load_adapter(kGolden + path, base->base, {.int8 = true}, AdapterVersionId{1});
        ASSERT_TRUE(int8.ok()) << path << ": " << int8.error().message;
        SCOPED_TRACE(path);
        for (size_t i = 0; i < adapter.pairs.size(); ++i) expect_near(int8->adapter->pairs[i], adapter.pairs[i]);
      }
    }
  }
  EXPECT_GT(done.size(), 10u);
}

// Both kinds of file.
TEST(GoldenAdapters, EveryCaseArrivesLayerByLayer) {
  const PosixFileSystem files;
  auto text = files.read_all(kGolden + "cases.json", 64 << 20);
  ASSERT_TRUE(text.ok()) << "the committed golden cases are missing: " << text.error().message;
  std::map<std::pair<std::string, std::string>, int> done;
  int gguf = 0, looks = 0;
  for (const auto& item : Json::parse(*text)) {
    for (const auto& adapter : item["adapters"]) {
      const std::string model = item["model"], path = adapter["path"];
      if (done[{model, path}]++) continue;
      auto base = open_base(kGolden + model);
      ASSERT_TRUE(base);
      for (const bool int8 : {false, true}) {
        SCOPED_TRACE(path);
        testing_support::ArrivalCheck check(files, kGolden + path, base->base, {.int8 = int8});
        check.run();
        looks += check.looks_within();
      }
      gguf += path.ends_with(".gguf");
    }
  }
  EXPECT_GT(done.size(), 10u);
  EXPECT_GT(gguf, 0);
  EXPECT_GT(looks, 100);
}

TEST(GoldenAdapters, EveryRefusedOneIsRefusedByName) {
  const PosixFileSystem files;
  auto text = files.read_all(kGolden + "refused/refused.json", 64 << 20);
  ASSERT_TRUE(text.ok()) << "the committed refused adapters are missing: " << text.error().message;
  const auto table = Json::parse(*text);
  for (const auto& item : table) {
    auto base = open_base(kGolden + item["base"].get<std::string>());
    ASSERT_TRUE(base);
    auto loaded = load_adapter(kGolden + item["path"].get<std::string>(), base->base, {}, AdapterVersionId{1});
    ASSERT_FALSE(loaded.ok()) << item["name"];
    for (const auto& word : item["words"]) {
      EXPECT_NE(loaded.error().message.find(word.get<std::string>()), std::string::npos)
          << item["name"] << ": \"" << loaded.error().message << "\" lacks " << word;
    }
  }
}

}  // namespace
}  // namespace loralei
