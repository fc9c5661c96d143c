// SPDX-License-Identifier: Apache-2.0
// What GGUF files of models with windows say, and what they leave to the architecture.
#include "formats/gguf_windows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/gguf_model.h"

namespace loralei {
namespace {

GgufFile metadata(const std::string& architecture, int64_t layers = 6) {
  GgufFile file{.path = "f.gguf"};
  file.metadata["general.architecture"] = {.type = GgufType::kString, .text = architecture};
  const auto set = [&](const char* key, int64_t number) {
    file.metadata[architecture + "." + key] = {.number = number};
  };
  set("embedding_length", 64);
  set("block_count", layers);
  set("attention.head_count", 4);
  set("attention.key_length", 8);
  set("feed_forward_length", 16);
  file.metadata[architecture + ".attention.layer_norm_rms_epsilon"] = {.type = GgufType::kFloat, .real = 1e-6};
  file.index.tensors.push_back({.name = "token_embd.weight", .shape = {10, 64}});
  file.index.by_name["token_embd.weight"] = 0;
  return file;
}
void put(GgufFile& file, const std::string& key, GgufValue value) { file.metadata[key] = std::move(value); }
GgufValue real(double number) { return {.type = GgufType::kFloat, .real = number}; }
GgufValue list(std::vector<int64_t> numbers) { return {.type = GgufType::kBoolArray, .numbers = std::move(numbers)}; }

ModelConfig read(const GgufFile& file) {
  std::vector<std::string> notes;
  auto config = gguf_model_config(file, notes);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : ModelConfig{};
}
std::string refusal(const GgufFile& file) {
  std::vector<std::string> notes;
  auto config = gguf_model_config(file, notes);
  EXPECT_FALSE(config.ok());
  return config.ok() ? "" : config.error().message;
}

TEST(GgufWindows, GemmaLeavesMuchToItsArchitecture) {
  const ModelConfig gemma = read(metadata("gemma"));
  EXPECT_EQ(gemma.embed_scale, 8);
  EXPECT_EQ(gemma.activation, Activation::kGeluTanh);
  EXPECT_EQ(gemma.sliding, std::vector<int32_t>(6, 0));

  GgufFile file = metadata("gemma2");
  const ModelConfig gemma2 = read(file);
  EXPECT_EQ(gemma2.sliding, (std::vector<int32_t>{4096, 0, 4096, 0, 4096, 0}));
  EXPECT_EQ(gemma2.attention_cap, 50);
  EXPECT_EQ(gemma2.logits_cap, 30);
  EXPECT_EQ(gemma2.attention_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(read(metadata("gemma2", 46)).attention_scale, 1 / std::sqrt(16.0)) << "27B: hidden / heads";
  EXPECT_EQ(read(metadata("gemma3", 62)).attention_scale, 1 / std::sqrt(16.0));
  put(file, "gemma2.attn_logit_softcapping", real(0));
  put(file, "gemma2.final_logit_softcapping", real(7));
  put(file, "gemma2.attention.sliding_window", {.number = 9});
  const ModelConfig stated = read(file);
  EXPECT_EQ(stated.attention_cap, 0);
  EXPECT_EQ(stated.logits_cap, 7);
  EXPECT_EQ(stated.sliding[2], 9);

  file = metadata("gemma3", 7);
  EXPECT_FALSE(read(file).sliding_rope) << "no windows";
  put(file, "gemma3.attention.sliding_window", {.number = 512});
  put(file, "gemma3.rope.freq_base", real(1e6));
  put(file, "gemma3.rope.scaling.type", {.type = GgufType::kString, .text = "linear"});
  put(file, "gemma3.rope.scaling.factor", real(8));
  const ModelConfig gemma3 = read(file);
  EXPECT_EQ(gemma3.sliding, (std::vector<int32_t>{512, 512, 512, 512, 512, 0, 512}));
  EXPECT_EQ(gemma3.rope_scaling.factor, 8);
  EXPECT_EQ(gemma3.sliding_rope, (LayerRope{10000.0, {}}));
  put(file, "gemma3.rope.freq_base_swa", real(300));
  EXPECT_EQ(read(file).sliding_rope->theta, 300);
}

TEST(GgufWindows, Olmo3IsAnOlmo2WithWindows) {
  GgufFile file = metadata("olmo2");
  EXPECT_EQ(read(file).sliding, std::vector<int32_t>(6, 0));
  put(file, "olmo2.attention.sliding_window", {.number = 32});
  EXPECT_EQ(read(file).sliding, (std::vector<int32_t>{32, 32, 32, 0, 32, 32}));
  EXPECT_FALSE(read(file).sliding_rope) << "all layers are turned alike";
  put(file, "olmo2.attention.sliding_window_pattern", list({0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(read(file).sliding, (std::vector<int32_t>{0, 32, 32, 0, 0, 32}));
  put(file, "olmo2.attention.sliding_window_pattern", {.number = 2});
  EXPECT_EQ(read(file).sliding, (std::vector<int32_t>{32, 0, 32, 0, 32, 0}));
  put(file, "olmo2.rope.freq_base", real(5e5));
  put(file, "olmo2.rope.scaling.type", {.type = GgufType::kString, .text = "yarn"});
  put(file, "olmo2.rope.scaling.factor", real(8));
  put(file, "olmo2.rope.scaling.attn_factor", real(1.2));
  const ModelConfig stretched = read(file);
  EXPECT_EQ(stretched.rope_scaling.attention_factor, 1.2) << "the whole one, as in config.json";
  EXPECT_EQ(stretched.sliding_rope, (LayerRope{5e5, {}}));
}

TEST(GgufWindows, GptOssSlidesInEveryOtherLayer) {
  GgufFile file = metadata("gpt-oss", 4);
  put(file, "gpt-oss.expert_count", {.number = 6});
  put(file, "gpt-oss.expert_used_count", {.number = 2});
  put(file, "gpt-oss.expert_feed_forward_length", {.number = 24});
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = "blk." + std::to_string(layer) + ".ffn_gate_inp.weight";
    file.index.by_name[name] = file.index.tensors.size();
    file.index.tensors.push_back({.name = name, .shape = {6, 64}});
  }
  EXPECT_NE(refusal(file).find("lacks gpt-oss.attention.sliding_window"), std::string::npos);
  put(file, "gpt-oss.attention.sliding_window", {.number = 32});
  put(file, "gpt-oss.rope.scaling.type", {.type = GgufType::kString, .text = "yarn"});
  put(file, "gpt-oss.rope.scaling.factor", real(32));
  const ModelConfig config = read(file);
  EXPECT_EQ(config.sliding, (std::vector<int32_t>{32, 0, 32, 0}));
  EXPECT_EQ(config.experts.width, 24);
  EXPECT_TRUE(config.sinks && config.experts.biased && config.experts.normed);
  EXPECT_EQ(config.clamp, GateClamp());
  EXPECT_FALSE(config.rope_scaling.truncate || config.sliding_rope);
  EXPECT_EQ(canonical_name("blk.2.post_attention_norm.weight", config),
            "model.layers.2.post_attention_layernorm.weight");
  EXPECT_EQ(canonical_name("blk.2.attn_sinks.weight", config), "model.layers.2.self_attn.sinks.weight");
  EXPECT_EQ(canonical_name("blk.2.ffn_gate_exps.bias", config), "model.layers.2.mlp.experts.gate_proj.bias");
  put(file, "gpt-oss.rope.freq_base_swa", real(500));
  EXPECT_EQ(read(file).sliding_rope->theta, 500);
}

TEST(GgufWindows, RefusesWhatIsImpossible) {
  const auto with = [](const char* architecture, const char* key, GgufValue value) {
    GgufFile file = metadata(architecture);
    put(file, std::string(architecture) + ".attention.sliding_window", {.number = 8});
    put(file, std::string(architecture) + "." + key, std::move(value));
    return file;
  };
  for (const char* architecture : {"gemma2", "gemma3", "olmo2"}) {
    EXPECT_NE(refusal(with(architecture, "attention.sliding_window", {.number = -1})).find("sliding_window"),
              std::string::npos);
    refusal(with(architecture, "attention.sliding_window", {.number = int64_t{1} << 40}));
    refusal(with(architecture, "attention.sliding_window_pattern", {.number = 0}));
    EXPECT_NE(refusal(with(architecture, "attention.sliding_window_pattern", list({1, 0}))).find("6 layers"),
              std::string::npos);
    refusal(with(architecture, "attention.sliding_window_pattern", real(0.5)));
  }
  for (const double wrong : {-1.0, 0.0, std::nan("")}) refusal(with("gemma3", "rope.freq_base_swa", real(wrong)));
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const double wrong : {-1.0, 1e-9, 1e9, std::nan("")}) refusal(with("gemma2", key, real(wrong)));
  }
  refusal(with("gemma", "attn_logit_softcapping", real(50)));
  refusal(with("llama", "final_logit_softcapping", real(30)));
}

}  // namespace
}  // namespace loralei
