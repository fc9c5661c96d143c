// SPDX-License-Identifier: Apache-2.0
// The file of calibrate-kv: written, read back, and refused.
#include "codec/kv_steps.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "codec/codec_test_util.h"
#include "codec/kv_spread.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

KvSteps some_steps(uint64_t seed) {
  Prng prng(seed);
  const KvGridShape shape = random_shape(prng, DType::kF16);
  KvSteps steps;
  steps.fingerprint = "0123456789abcdef";
  steps.name = "a \"model\" of \xC3\xBC";
  steps.layers = shape.layers, steps.kv_heads = shape.kv_heads, steps.head_dim = shape.head_dim;
  steps.text_tokens = 4096;
  steps.agreement_asked = 0.995;
  steps.held_out_tokens = static_cast<int64_t>(seed % 2) * 2000;
  steps.quality = {.agreement = 0.9967,
                   .mean_kl = 1.0 / 3e4,
                   .positions = 1024,
                   .answers = 100,
                   .answers_same = 97,
                   .answers_exact_right = 95,
                   .answers_right = 94,
                   .answers_lost = 1.0 / 300};
  steps.bits = 3.1415926535897931;
  for (int32_t i = 0; i < 2 * shape.layers; ++i)
    steps.factors.push_back(static_cast<float>(std::exp2(0.5 * static_cast<double>(prng.below(11)) - 4)));
  const auto grid = kv_steps_from(shape, random_scales(prng, shape), steps.factors);
  CHECK(grid.ok());
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t v = 0; v < 2; ++v) {
      const auto row = grid->steps(layer, v);
      steps.steps.insert(steps.steps.end(), row.begin(), row.end());
    }
  }
  for (uint64_t i = 0; i < seed % 3; ++i) {
    KvAdapterSteps& adapter = steps.adapters.emplace_back();
    adapter.name = "adapter " + std::to_string(i);
    adapter.digest = std::string(64, static_cast<char>('a' + i));
    adapter.quality = {.agreement = prng.uniform(), .mean_kl = prng.uniform(), .positions = 77};
    adapter.bits = 3 * prng.uniform();
    adapter.bits_delta = prng.uniform();
    adapter.borrow_layers = static_cast<int32_t>(prng.below(static_cast<uint64_t>(shape.layers) + 1));
    adapter.borrow_agreement = prng.uniform();
  }
  return steps;
}

std::string text_of(const KvSteps& steps) {
  auto text = kv_steps_text(steps);
  CHECK(text.ok());
  return *std::move(text);
}

void expect_refused(const std::string& text) {
  const auto steps = parse_kv_steps(text, "here");
  ASSERT_FALSE(steps.ok()) << text.substr(0, 200);
  EXPECT_TRUE(steps.error().message.starts_with("here")) << steps.error().message;
  EXPECT_GT(steps.error().message.size(), 30u);
}

TEST(KvSteps, AreReadBackBitForBit) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const KvSteps steps = some_steps(seed);
    const std::string text = text_of(steps);
    const auto read = parse_kv_steps(text, "here");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, steps);
    EXPECT_EQ(text_of(*read), text);
  }
}

TEST(KvSteps, OlderFilesWithoutAnswersAreRead) {
  KvSteps steps = some_steps(2);
  Json json = Json::parse(text_of(steps));
  json["text"].erase("held_out_tokens");
  json["base"].erase("answers");
  for (Json& adapter : json["adapters"]) adapter.erase("answers");
  json["checksum"] = kv_steps_checksum(json.dump());
  const auto read = parse_kv_steps(json.dump(), "here");
  ASSERT_TRUE(read.ok()) << read.error().message;
  steps.held_out_tokens = 0;
  steps.quality.answers = steps.quality.answers_same = 0;
  steps.quality.answers_exact_right = steps.quality.answers_right = 0;
  steps.quality.answers_lost = 0;
  EXPECT_EQ(*read, steps);
}

TEST(KvSteps, TheFarthestIsOfTheBaseAndAllAdapters) {
  KvSteps steps = some_steps(2);
  steps.adapters[0].quality = {.agreement = 0.98, .mean_kl = 0, .positions = 5};
  steps.adapters[1].quality = {.agreement = 1, .mean_kl = 0.5, .positions = 5, .answers = 1, .answers_lost = 0.25};
  EXPECT_EQ(steps.farthest().agreement, 0.98);
  EXPECT_EQ(steps.farthest().mean_kl, 0.5);
  EXPECT_EQ(steps.farthest().answers_lost, 0.25);
  steps.adapters.clear();
  EXPECT_EQ(steps.farthest(), steps.quality);
}

TEST(KvSteps, MakeGridsOfEveryCache) {
  const KvSteps steps = some_steps(1);
  for (const DType dtype : kCacheTypes) {
    const auto grid = steps.grid(dtype);
    ASSERT_TRUE(grid.ok());
    EXPECT_EQ(grid->shape().dtype, dtype);
    if (has_vector_scale(dtype)) continue;
    EXPECT_EQ(grid->steps(0, 1)[2], steps.steps[static_cast<size_t>(steps.kv_heads * steps.head_dim) + 2]);
  }
}

TEST(KvSteps, CutAnywhereTheyAreRefused) {
  const std::string text = text_of(some_steps(2));
  for (size_t size = 0; size + 2 < text.size(); size += 1 + size / 64) expect_refused(text.substr(0, size));
}

TEST(KvSteps, WithAnotherCharacterTheyAreRefusedOrTheSame) {
  const KvSteps steps = some_steps(5);
  const std::string text = text_of(steps);
  Prng prng(3);
  for (int i = 0; i < 600; ++i) {
    std::string changed = text;
    const size_t at = prng.below(text.size());
    changed[at] = static_cast<char>(changed[at] ^ (1 << prng.below(8)));
    const auto read = parse_kv_steps(changed, "here");
    if (read.ok()) {  // a space, or how a number is written
      EXPECT_EQ(*read, steps);
    } else {
      EXPECT_GT(read.error().message.size(), 30u);
    }
  }
}

TEST(KvSteps, UnsoundOnesAreRefusedUnderARightChecksum) {
  const std::string text = text_of(some_steps(2));
  const auto with = [&](const std::function<void(Json&)>& change) {
    Json json = Json::parse(text);
    change(json);
    json["checksum"] = kv_steps_checksum(json.dump());
    return json.dump();
  };
  ASSERT_TRUE(parse_kv_steps(with([](Json&) {}), "here").ok());
  const std::function<void(Json&)> changes[] = {
      [](Json& json) { json["format"] = "another"; },
      [](Json& json) { json["version"] = 2; },
      [](Json& json) { json.erase("model"); },
      [](Json& json) { json["model"]["fingerprint"] = "0123456789abcdeF"; },
      [](Json& json) { json["model"]["layers"] = json["model"]["layers"].get<int>() + 1; },
      [](Json& json) { json["model"]["kv_heads"] = 1024; },
      [](Json& json) { json["model"]["head_dim"] = int64_t{1} << 40; },
      [](Json& json) { json["base"]["agreement"] = 1.01; },
      [](Json& json) { json["base"]["bits"] = -1; },
      [](Json& json) { json["text"]["tokens"] = "many"; },
      [](Json& json) { json["text"]["held_out_tokens"] = 4097; },
      [](Json& json) { json["base"]["answers"] = 100; },
      [](Json& json) { json["base"]["answers"]["same"] = 101; },
      [](Json& json) { json["base"]["answers"]["right"] = -1; },
      [](Json& json) { json["base"]["answers"].erase("right_exact"); },
      [](Json& json) { json["base"]["answers"]["lost"] = 1.5; },
      [](Json& json) { json["factors"][0] = 1; },
      [](Json& json) { json["factors"][0][1] = 0; },
      [](Json& json) { json["factors"][0][1] = 1e300; },
      [](Json& json) {
        json["factors"].push_back({1, 1});
      },
      [](Json& json) { json["steps"][0][0] = json["steps"][0][0].get<std::string>() + "3f80"; },
      [](Json& json) { json["steps"][0][0].get_ref<std::string&>()[5] = 'g'; },
      [](Json& json) { json["steps"][0][1].get_ref<std::string&>().replace(0, 4, "0000"); },
      [](Json& json) { json["steps"][0][1].get_ref<std::string&>().replace(0, 4, "7fc0"); },
      [](Json& json) { json["steps"].erase(0); },
      [](Json& json) { json["adapters"] = Json::object(); },
      [](Json& json) { json["adapters"][0]["digest"] = "ab"; },
      [](Json& json) { json["adapters"][0]["borrow"]["layers"] = 1000; },
      [](Json& json) { json["adapters"][0]["borrow"]["agreement"] = -0.5; },
  };
  for (const auto& change : changes) expect_refused(with(change));
}

TEST(KvSteps, WhatCannotBeReadIsNotWritten) {
  const std::function<void(KvSteps&)> changes[] = {
      [](KvSteps& steps) { steps.steps.pop_back(); },
      [](KvSteps& steps) { steps.steps[1] = 1.00390625f; },  // nine bits
      [](KvSteps& steps) { steps.steps[1] = std::numeric_limits<float>::quiet_NaN(); },
      [](KvSteps& steps) { steps.factors.push_back(1); },
      [](KvSteps& steps) { steps.fingerprint = ""; },
      [](KvSteps& steps) { steps.layers = 0; },
      [](KvSteps& steps) { steps.name = "\xFF"; },
      [](KvSteps& steps) { steps.quality.mean_kl = std::numeric_limits<double>::infinity(); },
      [](KvSteps& steps) { steps.adapters[0].bits = std::numeric_limits<double>::quiet_NaN(); },
      [](KvSteps& steps) { steps.adapters[0].name = "\xC3"; },
      [](KvSteps& steps) { steps.held_out_tokens = steps.text_tokens + 1; },
      [](KvSteps& steps) { steps.quality.answers_right = steps.quality.answers + 1; },
      [](KvSteps& steps) { steps.quality.answers_lost = std::numeric_limits<double>::quiet_NaN(); },
  };
  for (const auto& change : changes) {
    KvSteps steps = some_steps(2);
    change(steps);
    EXPECT_FALSE(kv_steps_text(steps).ok());
  }
}

TEST(KvSteps, OfAnotherModelOrShapeTheyAreRefused) {
  const KvSteps steps = some_steps(4);
  KvGridShape shape{.layers = steps.layers, .kv_heads = steps.kv_heads, .head_dim = steps.head_dim};
  EXPECT_TRUE(check_kv_steps(steps, steps.fingerprint, shape, "here").ok());
  EXPECT_FALSE(check_kv_steps(steps, "0123456789abcdee", shape, "here").ok());
  for (int32_t KvGridShape::*field : {&KvGridShape::layers, &KvGridShape::kv_heads, &KvGridShape::head_dim}) {
    shape = {.layers = steps.layers, .kv_heads = steps.kv_heads, .head_dim = steps.head_dim};
    shape.*field += 1;
    EXPECT_FALSE(check_kv_steps(steps, steps.fingerprint, shape, "here").ok());
  }
}

}  // namespace
}  // namespace loralei
