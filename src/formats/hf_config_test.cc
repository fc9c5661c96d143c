// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/limits.h"
#include "formats/json_util.h"

namespace loralei {
namespace {

Json llama() {
  return Json{{"architectures", {"LlamaForCausalLM"}},
              {"hidden_size", 32},
              {"num_hidden_layers", 3},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"intermediate_size", 48},
              {"vocab_size", 96}};
}
Json with(Json json, const Json& changes) {
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json;
}
Json of(const char* architecture, const Json& changes = Json::object()) {
  return with(with(llama(), {{"architectures", {architecture}}}), changes);
}

ModelConfig read(const Json& json) {
  auto parsed = parse_hf_config(json.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << json << ": " << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? parsed->config : ModelConfig{};
}
std::string refusal(const Json& json) {
  auto parsed = parse_hf_config(json.dump(), "config.json");
  EXPECT_FALSE(parsed.ok()) << json;
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(HfConfig, DefaultsAreThoseOfTheClass) {
  const ModelConfig llama_config = read(llama());
  EXPECT_EQ(llama_config.head_dim, 8);
  EXPECT_EQ(llama_config.rms_eps, 1e-6);
  EXPECT_EQ(llama_config.rope_theta, 10000.0);
  EXPECT_EQ(llama_config.max_position, 2048);
  EXPECT_FALSE(llama_config.tied_head || llama_config.qkv_bias || llama_config.o_bias || llama_config.mlp_bias ||
               has_norm(llama_config, LayerNorm::kQ));
  EXPECT_EQ(llama_config.sliding, (std::vector<int32_t>{0, 0, 0}));

  Json no_kv = llama();
  no_kv.erase("num_key_value_heads");
  EXPECT_EQ(read(no_kv).kv_heads, 4);
  no_kv["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read(no_kv).kv_heads, 4);

  EXPECT_EQ(read(of("MistralForCausalLM")).sliding, (std::vector<int32_t>{4096, 4096, 4096}));
  EXPECT_EQ(read(of("MistralForCausalLM", {{"sliding_window", nullptr}})).sliding, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(read(of("MistralForCausalLM")).max_position, 131072);
  const ModelConfig qwen2 = read(of("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !has_norm(qwen2, LayerNorm::kQ));
  const ModelConfig qwen3 = read(of("Qwen3ForCausalLM"));
  EXPECT_TRUE(!qwen3.qkv_bias && has_norm(qwen3, LayerNorm::kQ));
  EXPECT_EQ(qwen3.head_dim, 128);
  const ModelConfig biased = read(of("Qwen3ForCausalLM", {{"attention_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias);
  const ModelConfig biased_llama = read(with(llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased_llama.qkv_bias && biased_llama.o_bias && biased_llama.mlp_bias);
}

TEST(HfConfig, Windows) {
  const Json window = {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 1}};
  EXPECT_EQ(read(of("Qwen2ForCausalLM", window)).sliding, (std::vector<int32_t>{0, 16, 16}));
  EXPECT_EQ(read(of("Qwen3ForCausalLM", window)).sliding, (std::vector<int32_t>{0, 16, 16}));
  EXPECT_EQ(read(of("Qwen2ForCausalLM", with(window, {{"use_sliding_window", false}}))).sliding,
            (std::vector<int32_t>{0, 0, 0}));
  const Json types = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read(of("Qwen2ForCausalLM", with(window, {{"layer_types", types}}))).sliding,
            (std::vector<int32_t>{16, 0, 16}));
  EXPECT_NE(refusal(of("Qwen2ForCausalLM", {{"layer_types", types}})).find("layer_types"), std::string::npos);
  EXPECT_NE(refusal(of("Qwen2ForCausalLM", {{"layer_types", {"full_attention"}}})).find("layer_types"),
            std::string::npos);
  EXPECT_NE(refusal(of("Qwen2ForCausalLM", {{"layer_types", {"full_attention", "linear_attention", "full_attention"}}}))
                .find("linear_attention"),
            std::string::npos);
  EXPECT_NE(refusal(of("MistralForCausalLM", {{"sliding_window", 8}, {"layer_types", types}})).find("layer_types"),
            std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"sliding_window", 8}})).find("sliding_window"), std::string::npos);
}

TEST(HfConfig, DynamicRopeNeedsAnExponent) {
  const Json tiny = with(llama(), {{"head_dim", 2}});
  EXPECT_EQ(read(tiny).head_dim, 2);
  EXPECT_NE(refusal(with(tiny, {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}})).find("head_dim 2"),
            std::string::npos);
}

TEST(HfConfig, PositionsReachAsFarAsTheirScaling) {
  const auto reached = [](int64_t stated, const Json& rope) {
    return positions_reached(read(with(llama(), {{"max_position_embeddings", stated}, {"rope_scaling", rope}})));
  };
  const Json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(reached(32768, yarn), 131072);   // as Qwen2.5 says to write it
  EXPECT_EQ(reached(131072, yarn), 131072);  // counted already
  EXPECT_EQ(reached(8192, {{"type", "yarn"}, {"factor", 2.0}}), 16384);
  EXPECT_EQ(reached(4096, {{"type", "linear"}, {"factor", 2.5}}), 10240);
  EXPECT_EQ(reached(4096, {{"type", "linear"}, {"factor", 1e300}}), kMaxModelLen);
  EXPECT_EQ(reached(4096, {{"type", "dynamic"}, {"factor", 2.0}}), kMaxModelLen);
  EXPECT_EQ(reached(4096, {{"type", "default"}}), 4096);
  EXPECT_EQ(reached(131072, {{"rope_type", "llama3"},
                             {"factor", 8},
                             {"low_freq_factor", 1},
                             {"high_freq_factor", 4},
                             {"original_max_position_embeddings", 8192}}),
            131072);
}

TEST(HfConfig, RopeOldAndNewForm) {
  const auto scaled = [](const Json& rope, const char* key = "rope_scaling") {
    return read(with(llama(), {{key, rope}})).rope_scaling;
  };
  EXPECT_EQ(scaled({{"type", "linear"}, {"factor", 4}}).kind, RopeScalingKind::kLinear);
  EXPECT_EQ(scaled({{"rope_type", "dynamic"}, {"factor", 2.0}}).kind, RopeScalingKind::kDynamic);
  EXPECT_EQ(scaled({{"rope_type", "default"}}).kind, RopeScalingKind::kNone);
  EXPECT_EQ(scaled(Json::object()).kind, RopeScalingKind::kNone);
  const RopeScaling llama3 = scaled({{"rope_type", "llama3"},
                                     {"factor", 8},
                                     {"low_freq_factor", 1},
                                     {"high_freq_factor", 4},
                                     {"original_max_position_embeddings", 8192}});
  EXPECT_EQ(llama3.kind, RopeScalingKind::kLlama3);
  EXPECT_EQ(llama3.original_max_position, 8192);
  const RopeScaling yarn = scaled({{"type", "yarn"},
                                   {"factor", 4},
                                   {"beta_fast", 16},
                                   {"mscale", 1.5},
                                   {"mscale_all_dim", 0.5},
                                   {"truncate", false}});
  EXPECT_EQ(yarn.kind, RopeScalingKind::kYarn);
  EXPECT_EQ(yarn.beta_fast, 16);
  EXPECT_EQ(yarn.beta_slow, 1);
  EXPECT_EQ(yarn.mscale, 1.5);
  EXPECT_FALSE(yarn.truncate);
  EXPECT_FALSE(yarn.attention_factor.has_value());
  // The new form holds theta too.
  const ModelConfig config =
      read(with(llama(), {{"rope_theta", 3.0},
                          {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 500}}}}));
  EXPECT_EQ(config.rope_theta, 500.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScalingKind::kLinear);

  for (const Json& rope :
       {Json{{"type", "longrope"}, {"factor", 2}}, Json{{"type", "su"}}, Json{{"type", "linear"}},
        Json{{"type", "linear"}, {"factor", 0}}, Json{{"type", "linear"}, {"factor", 2}, {"short_factor", {1}}},
        Json{{"type", 3}}, Json{{"type", "yarn"}, {"factor", "x"}},
        Json{{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, Json{{"rope_type", "default"}, {"factor", 8}},
        Json{{"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
        Json{{"full_attention", {{"rope_type", "default"}}}}, Json(4)}) {
    refusal(with(llama(), {{"rope_scaling", rope}}));
  }
  EXPECT_NE(refusal(with(llama(), {{"rope_scaling", {{"type", "longrope"}, {"factor", 2}}}})).find("longrope"),
            std::string::npos);
}

TEST(HfConfig, RefusesByNameWhatChangesTheResult) {
  const Json cases = {{"partial_rotary_factor", 0.5},
                      {"attention_multiplier", 0.1},
                      {"logits_scaling", 8.0},
                      {"logit_scale", 2},
                      {"embedding_multiplier", 12},
                      {"residual_multiplier", 0.2},
                      {"final_logit_softcapping", 30.0},
                      {"num_local_experts", 8},
                      {"clip_qkv", 8.0},
                      {"use_qk_norm", true},
                      {"hidden_act", "gelu"},
                      {"no_rope_layers", {1, 0}},
                      {"quantization_config", {{"quant_method", "bitsandbytes"}}}};
  for (const auto& [key, value] : cases.items()) {
    EXPECT_NE(refusal(with(llama(), {{key, value}})).find("\"" + key + "\""), std::string::npos) << key;
  }
  const Json harmless = {{"partial_rotary_factor", 1.0},   {"attention_multiplier", 1}, {"clip_qkv", nullptr},
                         {"quantization_config", nullptr}, {"use_qk_norm", false},      {"num_local_experts", 0}};
  for (const auto& [key, value] : harmless.items()) {
    read(with(llama(), {{key, value}}));
  }
  auto noted = parse_hf_config(with(llama(), {{"brand_new_key", 3}}).dump(), "config.json");
  ASSERT_TRUE(noted.ok());
  ASSERT_EQ(noted->notes.size(), 1u);
  EXPECT_NE(noted->notes[0].find("brand_new_key"), std::string::npos);
}

TEST(HfConfig, GraniteSaysWhatItMultiplies) {
  const ModelConfig none = read(of("GraniteForCausalLM"));
  EXPECT_EQ(none.attention_scale, 1) << "as its class has it";
  EXPECT_EQ(attention_scale_of(read(llama())), 1 / std::sqrt(8.0));
  const ModelConfig granite = read(of("GraniteForCausalLM", {{"embedding_multiplier", 12},
                                                             {"residual_multiplier", 0.22},
                                                             {"attention_multiplier", 0.0078125},
                                                             {"logits_scaling", 8.0}}));
  EXPECT_EQ(granite.embed_scale, 12);
  EXPECT_EQ(granite.residual_scale, 0.22);
  EXPECT_EQ(attention_scale_of(granite), 0.0078125);
  EXPECT_EQ(granite.logits_divisor, 8);
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1e300), Json("1"), Json::array({1}), Json(1e-300)})
      refusal(of("GraniteForCausalLM", {{key, value}}));
  }
  refusal(of("GraniteForCausalLM", {{"logit_scale", 2}}));
}

TEST(HfConfig, SmolLM3SaysWhichLayersAreNotTurned) {
  using Layers = std::vector<uint8_t>;
  EXPECT_EQ(read(of("SmolLM3ForCausalLM", {{"num_hidden_layers", 5}})).unturned, (Layers{0, 0, 0, 1, 0}));
  EXPECT_EQ(read(of("SmolLM3ForCausalLM", {{"no_rope_layer_interval", 2}})).unturned, (Layers{0, 1, 0}));
  EXPECT_EQ(read(of("SmolLM3ForCausalLM", {{"no_rope_layers", {0, 1, 1}}})).unturned, (Layers{1, 0, 0}));
  EXPECT_TRUE(read(llama()).unturned.empty());
  for (const Json& value : {Json::array({0, 1}), Json::array({0, 1, 2}), Json::array({0, 1, -1}), Json("x"), Json(1)})
    refusal(of("SmolLM3ForCausalLM", {{"no_rope_layers", value}}));
  for (const Json& value : {Json(0), Json(-4), Json(1.5)})
    refusal(of("SmolLM3ForCausalLM", {{"no_rope_layer_interval", value}}));
}

TEST(HfConfig, Olmo2HasItsNormsElsewhere) {
  const ModelConfig olmo2 = read(of("Olmo2ForCausalLM"));
  EXPECT_EQ(olmo2.rms_eps, 1e-5);
  EXPECT_FALSE(has_norm(olmo2, LayerNorm::kInput) || has_norm(olmo2, LayerNorm::kFfnInput));
  EXPECT_TRUE(has_norm(olmo2, LayerNorm::kAttentionOut) && has_norm(olmo2, LayerNorm::kFfnOut));
  EXPECT_EQ(norm_width(olmo2, LayerNorm::kQ), 32) << "all heads together";
  EXPECT_EQ(norm_width(olmo2, LayerNorm::kK), 16);
  EXPECT_EQ(norm_width(read(of("Qwen3ForCausalLM", {{"head_dim", 8}})), LayerNorm::kQ), 8);
  EXPECT_EQ(norm_width(read(llama()), LayerNorm::kAttentionOut), 0);
}

TEST(HfConfig, Phi3TurnsPartsOfHeadsByFactorsForShortAndForLongTexts) {
  const Json factors = {1.0, 1.5, 2.0};
  const Json rope = {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
  const auto phi3 = [&](const Json& more) {
    return with(of("Phi3ForCausalLM", {{"partial_rotary_factor", 0.75}, {"rope_scaling", rope}}), more);
  };
  const ModelConfig config = read(phi3({{"max_position_embeddings", 131072}}));
  EXPECT_EQ(config.rotary_dim, 6);
  EXPECT_EQ(config.rope_scaling.kind, RopeScalingKind::kLongRope);
  EXPECT_EQ(config.rope_scaling.original_max_position, 4096) << "as its class has it";
  EXPECT_EQ(positions_reached(config), 131072);
  EXPECT_EQ(read(phi3({{"original_max_position_embeddings", 512}})).rope_scaling.original_max_position, 512);
  EXPECT_EQ(config.sliding, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(read(phi3({{"sliding_window", 2047}})).sliding, (std::vector<int32_t>{2047, 2047, 2047}));
  for (const char* old : {"su", "yarn"}) {
    Json named = rope;
    named["type"] = old;
    EXPECT_EQ(read(phi3({{"rope_scaling", named}})).rope_scaling.kind, RopeScalingKind::kLongRope);
  }
  const auto with_rope = [&](const char* key, const Json& value) {
    Json changed = rope;
    changed[key] = value;
    return phi3({{"rope_scaling", changed}});
  };
  for (const char* list : {"short_factor", "long_factor"}) {
    for (const Json& value : {Json(), Json(1), Json("x"), Json::array(), Json{1, 1}, Json{1, 1, 0}, Json{1, 1, -1},
                              Json{1, 1, "1"}, Json{1, 1, 1e300}, Json{1, 1, 1, 1}, Json{{"a", 1}}})
      EXPECT_NE(refusal(with_rope(list, value)).find("factor"), std::string::npos) << value.dump();
  }
  for (const Json& value : {Json(0), Json(-1), Json("x"), Json(1e300)}) refusal(with_rope("attention_factor", value));
  refusal(with_rope("factor", -2));
  refusal(with_rope("short_mscale", 1.2));
  refusal(phi3({{"original_max_position_embeddings", 1}}));
  for (const Json& value : {Json(0), Json(-0.5), Json(1.25), Json("1"), Json(0.1), Json(0.4), Json(1e-300)})
    refusal(of("Phi3ForCausalLM", {{"partial_rotary_factor", value}}));
  EXPECT_EQ(read(of("Phi3ForCausalLM", {{"partial_rotary_factor", 1}})).rotary_dim, 0);
}

TEST(HfConfig, GlmTurnsHalfOfEachHeadAndMayHaveNormsBehind) {
  const ModelConfig glm = read(of("GlmForCausalLM", {{"head_dim", 16}}));
  EXPECT_EQ(glm.rotary_dim, 8);
  EXPECT_TRUE(glm.qkv_bias);
  EXPECT_FALSE(glm.o_bias);
  EXPECT_FALSE(has_norm(glm, LayerNorm::kAttentionOut));
  EXPECT_FALSE(read(of("GlmForCausalLM", {{"attention_bias", false}})).qkv_bias);
  const ModelConfig glm4 = read(of("Glm4ForCausalLM", {{"head_dim", 16}, {"partial_rotary_factor", 0.25}}));
  EXPECT_EQ(glm4.rotary_dim, 4);
  for (const LayerNorm norm : {LayerNorm::kInput, LayerNorm::kAttentionOut, LayerNorm::kFfnInput, LayerNorm::kFfnOut})
    EXPECT_TRUE(has_norm(glm4, norm));
}

TEST(HfConfig, Starcoder2HasCentredNormsAndNoGate) {
  const ModelConfig config = read(of("Starcoder2ForCausalLM", {{"norm_epsilon", 1e-3}}));
  EXPECT_TRUE(config.centred_norms && config.tied_head && config.qkv_bias && config.o_bias && config.mlp_bias);
  EXPECT_FALSE(config.gated);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.rms_eps, 1e-3);
  EXPECT_EQ(config.sliding, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_FALSE(read(of("Starcoder2ForCausalLM", {{"use_bias", false}})).mlp_bias);
  for (const Json& value : {Json(0), Json(-1), Json(2), Json("x")})
    refusal(of("Starcoder2ForCausalLM", {{"norm_epsilon", value}}));
  refusal(of("Starcoder2ForCausalLM", {{"hidden_act", "relu"}}));
}

TEST(HfConfig, WrappersHaveATextModelInside) {
  Json text = llama();
  text.erase("architectures");
  text["model_type"] = "mistral";
  text["sliding_window"] = nullptr;
  const Json mistral3 = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                         {"text_config", text},
                         {"vision_config", {{"model_type", "pixtral"}}},
                         {"eos_token_id", 5}};
  const auto parsed = parse_hf_config(mistral3.dump(), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->config.architecture, "mistral3");
  EXPECT_EQ(parsed->config.eos, (std::vector<TokenId>{5}));
  ASSERT_EQ(parsed->notes.size(), 1u);
  EXPECT_NE(parsed->notes[0].find("images"), std::string::npos);
  const auto inside = [&](const char* key, const Json& value) {
    Json changed = mistral3;
    changed["text_config"][key] = value;
    return changed;
  };
  EXPECT_NE(refusal(inside("model_type", "ministral3")).find("ministral3"), std::string::npos);
  refusal(inside("clip_qkv", 3));
  refusal(inside("hidden_size", 0));
  for (const Json& value : {Json(1), Json("x"), Json::array()}) refusal(with(mistral3, {{"text_config", value}}));
  refusal(with(mistral3, {{"quantization_config", {{"quant_method", "awq"}}}}));
  // All keys in one object, as files of Qwen have it.
  const Json flat =
      of("Qwen2_5_VLForConditionalGeneration", {{"vision_config", {{"depth", 2}}},
                                                {"image_token_id", 9},
                                                {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}}}});
  const ModelConfig qwen = read(flat);
  EXPECT_EQ(qwen.rope_scaling.kind, RopeScalingKind::kNone);
  EXPECT_TRUE(qwen.qkv_bias);
  refusal(with(llama(), {{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 1, 2}}}}}));
  Json nested = {{"architectures", {"Qwen3VLForConditionalGeneration"}}, {"text_config", llama()}};
  nested["text_config"]["model_type"] = "qwen3_vl_text";
  nested["text_config"]["rope_scaling"] = {{"rope_type", "default"}, {"mrope_interleaved", true}};
  EXPECT_TRUE(has_norm(read(nested), LayerNorm::kQ));
}

TEST(HfConfig, GemmaDefaultsAreThoseOfTheClass) {
  const ModelConfig gemma = read(of("GemmaForCausalLM", {{"hidden_act", "gelu"}}));
  EXPECT_TRUE(gemma.norm_plus_one && gemma.tied_head);
  EXPECT_EQ(gemma.activation, Activation::kGeluTanh) << "whatever the oldest files call it";
  EXPECT_EQ(gemma.embed_scale, 5.65625) << "32^1/2 in bf16";
  EXPECT_EQ(read(of("GemmaForCausalLM", {{"torch_dtype", "float32"}})).embed_scale,
            static_cast<double>(std::sqrt(32.0f)));
  EXPECT_EQ(gemma.head_dim, 256);
  EXPECT_EQ(attention_scale_of(gemma), 1 / 16.0);
  EXPECT_EQ(gemma.attention_cap, 0);
  EXPECT_FALSE(read(of("GemmaForCausalLM", {{"tie_word_embeddings", false}})).tied_head);
  EXPECT_EQ(read(of("GemmaForCausalLM")).sliding, (std::vector<int32_t>{0, 0, 0}));

  const ModelConfig gemma2 = read(of("Gemma2ForCausalLM"));
  EXPECT_EQ(gemma2.attention_cap, 50);
  EXPECT_EQ(gemma2.logits_cap, 30);
  EXPECT_EQ(gemma2.attention_scale, 1 / 16.0) << "query_pre_attn_scalar is 256";
  EXPECT_EQ(gemma2.sliding, (std::vector<int32_t>{4096, 0, 4096}));
  for (const LayerNorm norm : {LayerNorm::kInput, LayerNorm::kAttentionOut, LayerNorm::kFfnInput, LayerNorm::kFfnOut})
    EXPECT_EQ(norm_width(gemma2, norm), 32);
  EXPECT_FALSE(has_norm(gemma2, LayerNorm::kQ) || gemma2.sliding_rope.has_value());
  const ModelConfig uncapped =
      read(of("Gemma2ForCausalLM", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}}));
  EXPECT_TRUE(uncapped.attention_cap == 0 && uncapped.logits_cap == 0);
  EXPECT_EQ(read(of("Gemma2ForCausalLM", {{"query_pre_attn_scalar", 144}})).attention_scale, 1 / 12.0);

  const ModelConfig gemma3 = read(of("Gemma3ForCausalLM", {{"num_hidden_layers", 7}}));
  EXPECT_EQ(gemma3.sliding, (std::vector<int32_t>{4096, 4096, 4096, 4096, 4096, 0, 4096}));
  EXPECT_TRUE(gemma3.attention_cap == 0 && gemma3.logits_cap == 0 && has_norm(gemma3, LayerNorm::kQ));
  EXPECT_EQ(gemma3.rope_theta, 1e6);
  EXPECT_EQ(gemma3.sliding_rope, (LayerRope{10000.0, {}}));
  EXPECT_TRUE(has_sliding_rope(gemma3, 0) && !has_sliding_rope(gemma3, 5));
  EXPECT_EQ(with_sliding_rope(gemma3).rope_theta, 10000.0);
}

TEST(HfConfig, GemmaRefusesWhatIsImpossible) {
  for (const char* name : {"Gemma2ForCausalLM", "Gemma3ForCausalLM"}) {
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}) {
      for (const Json& value : {Json(0), Json(-1), Json(1e300), Json("1"), Json::array({1}), Json(1e-300)})
        refusal(of(name, {{key, value}}));
    }
    refusal(of(name, {{"hidden_activation", "gelu"}}));  // not the tanh form
    refusal(of(name, {{"use_bidirectional_attention", true}}));
    refusal(of(name, {{"sliding_window", nullptr}}));
    refusal(of(name, {{"sliding_window", 0}}));
    refusal(of(name, {{"layer_types", {"full_attention"}}}));
    refusal(of(name, {{"layer_types", {"full_attention", "chunked_attention", "full_attention"}}}));
  }
  for (const Json& value : {Json(0), Json(-1), Json("6"), Json(1e9)})
    refusal(of("Gemma3ForCausalLM", {{"sliding_window_pattern", value}}));
  for (const Json& value : {Json(0), Json(-1), Json("x")})
    refusal(of("Gemma3ForCausalLM", {{"rope_local_base_freq", value}}));
  refusal(of("GemmaForCausalLM", {{"hidden_activation", "relu"}}));
  refusal(with(llama(), {{"attn_logit_softcapping", 50}}));
  refusal(with(llama(), {{"query_pre_attn_scalar", 256}}));
}

TEST(HfConfig, LayersWithAWindowMayHaveARopeOfTheirOwn) {
  using Windows = std::vector<int32_t>;
  const Json window = {{"sliding_window", 8}, {"sliding_window_pattern", 2}, {"rope_local_base_freq", 77.0}};
  const ModelConfig old =
      read(of("Gemma3ForCausalLM",
              with(window, {{"rope_theta", 5e5}, {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}})));
  EXPECT_EQ(old.sliding, (Windows{8, 0, 8}));
  EXPECT_EQ(old.rope_theta, 5e5);
  EXPECT_EQ(old.rope_scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(old.sliding_rope, (LayerRope{77.0, {}})) << "the scaling is of the other layers alone";
  const Json both = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 3000.0}}},
                     {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 40.0}}}};
  const ModelConfig nested = read(of("Gemma3ForCausalLM", with(window, {{"rope_parameters", both}})));
  EXPECT_EQ(nested.rope_theta, 3000.0);
  EXPECT_EQ(nested.rope_scaling.kind, RopeScalingKind::kNone);
  EXPECT_EQ(nested.sliding_rope->theta, 40.0);
  EXPECT_EQ(nested.sliding_rope->scaling.kind, RopeScalingKind::kLinear);
  const ModelConfig typed =
      read(of("Gemma3ForCausalLM",
              with(window, {{"layer_types", {"full_attention", "sliding_attention", "sliding_attention"}}})));
  EXPECT_EQ(typed.sliding, (Windows{0, 8, 8}));
  EXPECT_EQ(read(of("Gemma3ForCausalLM", {{"_sliding_window_pattern", 1}})).sliding, (Windows{0, 0, 0}));

  const ModelConfig olmo3 = read(of("Olmo3ForCausalLM", {{"num_hidden_layers", 4}}));
  EXPECT_EQ(olmo3.sliding, (Windows{4096, 4096, 4096, 0}));
  EXPECT_EQ(olmo3.rope_theta, 500000.0);
  EXPECT_FALSE(olmo3.sliding_rope) << "all layers are turned alike";
  EXPECT_EQ(norm_width(olmo3, LayerNorm::kQ), 32) << "all heads together";
  const Json yarn = {
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 64}}}};
  const ModelConfig stretched = read(of("Olmo3ForCausalLM", with(yarn, {{"rope_theta", 9000.0}})));
  EXPECT_EQ(stretched.rope_scaling.kind, RopeScalingKind::kYarn);
  EXPECT_EQ(positions_reached(stretched), 2048);
  EXPECT_EQ(stretched.sliding_rope, (LayerRope{9000.0, {}}));

  for (const Json& rope : {Json{{"rope_type", "default"}}, Json{{"full_attention", 3}}, Json("default"),
                           Json{{"sliding_attention", {{"rope_type", "linear"}}}},
                           Json{{"full_attention", {{"full_attention", {{"rope_type", "default"}}}}}},
                           Json{{"chunked_attention", {{"rope_type", "default"}}}}})
    refusal(of("Gemma3ForCausalLM", {{"rope_parameters", rope}}));
  refusal(of("Gemma3ForCausalLM", {{"rope_scaling", both}}));
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    const Json factors = {1.0, 2.0};  // too few
    refusal(of("Gemma3ForCausalLM",
               {{"rope_parameters",
                 {{kind, {{"rope_type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}}}}}}));
    refusal(of("Gemma3ForCausalLM",
               {{"rope_parameters", {{kind, {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}}}));
  }
  refusal(of("Gemma3ForCausalLM", {{"rope_scaling", 4}}));
}

TEST(HfConfig, RefusesImpossibleSizesAndArchitectures) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    for (const Json& value :
         {Json(0), Json(-1), Json(int64_t{1} << 40), Json("4"), Json(nullptr), Json(1e300), Json(UINT64_MAX)})
      refusal(with(llama(), {{key, value}}));
  }
  refusal(with(llama(), {{"num_attention_heads", 5}}));  // hidden is not a multiple
  refusal(with(llama(), {{"num_key_value_heads", 3}}));  // heads are not a multiple
  refusal(with(llama(), {{"head_dim", 7}}));             // odd
  refusal(with(llama(), {{"rms_norm_eps", -1}}));
  EXPECT_NE(refusal(of("FalconForCausalLM")).find("Qwen3ForCausalLM"), std::string::npos);  // says what works
  refusal(with(llama(), {{"architectures", {"LlamaForCausalLM", "X"}}}));
  Json by_type = llama();
  by_type.erase("architectures");
  refusal(by_type);
  by_type["model_type"] = "qwen2";
  EXPECT_EQ(read(by_type).architecture, "qwen2");
  EXPECT_NE(refusal({{"peft_type", "LORA"}}).find("--adapter"), std::string::npos);
}

TEST(HfConfig, TokensAndDtype) {
  const ModelConfig config = read(with(llama(), {{"eos_token_id", {2, 5, 96}}, {"torch_dtype", "float16"}}));
  EXPECT_EQ(config.eos, (std::vector<TokenId>{2, 5}));  // 96 lies beyond the vocabulary
  EXPECT_EQ(config.dtype, DType::kF16);
  EXPECT_EQ(read(with(llama(), {{"dtype", "float32"}})).dtype, DType::kF32);
}

TEST(HfConfig, GenerationDefaults) {
  auto read_generation = [](const char* text) { return parse_generation_config(text, "generation_config.json", 100); };
  auto parsed = read_generation(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05,
                                    "eos_token_id": [7, 8, 200], "max_new_tokens": 5})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->defaults.temperature, 0.6);
  EXPECT_EQ(parsed->defaults.top_k, 20);
  EXPECT_EQ(parsed->defaults.do_sample, true);
  EXPECT_EQ(parsed->eos, (std::vector<TokenId>{7, 8}));
  EXPECT_FALSE(read_generation("{}")->defaults.temperature.has_value());
  EXPECT_FALSE(read_generation(R"({"temperature": "hot"})").ok());
  EXPECT_FALSE(read_generation("[]").ok());
  for (const char* text : {R"({"temperature": -1})", R"({"temperature": 101})", R"({"top_p": 7})", R"({"min_p": -0.1})",
                           R"({"repetition_penalty": 0})", R"({"top_k": -2})"})
    EXPECT_FALSE(read_generation(text).ok()) << text;
  EXPECT_EQ(read_generation(R"({"top_k": -1})")->defaults.top_k, 0);  // all, as in the API
  const auto cut_off = read_generation(("{\"temperature\": \"" + std::string(1 << 20, 'x')).c_str());
  ASSERT_FALSE(cut_off.ok());
  EXPECT_LT(cut_off.error().message.size(), 300u);
}

}  // namespace
}  // namespace loralei
