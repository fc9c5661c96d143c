// SPDX-License-Identifier: Apache-2.0
// Quantised checkpoints: what is put together, and what is refused with which words. What
// the numbers are, tests/golden says.
#include "formats/stored_tensors.h"

#include <gtest/gtest.h>

#include <functional>

#include "formats/base_model.h"
#include "formats/checkpoint_test_util.h"
#include "sys/memory_file_system.h"

namespace loralei {
namespace {

using testing_support::Checkpoint;
using testing_support::StoredTensor;

Result<BaseModelFile> open(const Checkpoint& checkpoint) {
  MemoryFileSystem files;
  files.put("/m/config.json", checkpoint.config.dump());
  files.put("/m/model.safetensors", checkpoint.file());
  return open_base_model(files, "/m");
}

// What is said of a golden checkpoint after a change.
std::string refusal(const std::string& name, const std::function<void(Checkpoint&)>& change) {
  Checkpoint checkpoint(name);
  change(checkpoint);
  const auto model = open(checkpoint);
  EXPECT_FALSE(model.ok()) << name;
  return model.ok() ? "" : model.error().message;
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << message << "\nlacks " << word;
}

bool notes_say(const BaseModelFile& model, const std::string& words) {
  for (const std::string& note : model.notes) {
    if (note.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST(StoredTensors, AMatrixInPartsIsOneTensor) {
  const std::pair<const char*, DType> cases[] = {{"gptq-sym", DType::kQ4_0},       {"gptq-asym", DType::kInt4G},
                                                 {"gptq-v2", DType::kInt4G},       {"gptq-8bit", DType::kQ8_0},
                                                 {"awq", DType::kInt4G},           {"ct-int4", DType::kQ4_0},
                                                 {"fp8-block", DType::kF8G},       {"ct-int4-asym", DType::kInt4G},
                                                 {"ct-int8-packed", DType::kQ8_0}, {"fp8-tensor", DType::kF8G}};
  for (const auto& [name, dtype] : cases) {
    const auto model = open(Checkpoint(name));
    ASSERT_TRUE(model.ok()) << name << ": " << model.error().message;
    const TensorInfo* down = model->index.find("model.layers.0.mlp.down_proj.weight");
    ASSERT_NE(down, nullptr);
    EXPECT_NE(down->stored, nullptr);
    EXPECT_EQ(down->dtype, dtype) << name;
    EXPECT_EQ(down->shape, (std::vector<int64_t>{model->config.hidden, model->config.ffn}));
    EXPECT_EQ(down->bytes, down->shape[0] * row_bytes(dtype, down->shape[1]));
    const TensorInfo* embedding = model->index.find("model.embed_tokens.weight");
    EXPECT_EQ(embedding->dtype, DType::kBF16);
    EXPECT_EQ(embedding->stored, nullptr);
    EXPECT_FALSE(model->quantised.empty());
  }
}

TEST(StoredTensors, ExpertsInMxfp4AreTensorsOfTheirOwn) {
  const auto model = open(Checkpoint("gpt-oss-mxfp4"));
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    const TensorInfo* info = model->index.find("model.layers.1.mlp.experts.3." + std::string(part) + ".weight");
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->dtype, DType::kMXFP4);
    EXPECT_EQ(info->bytes, info->shape[0] * row_bytes(DType::kMXFP4, info->shape[1]));
    EXPECT_EQ(info->stored->kind, StoredKind::kMxfp4);
  }
  EXPECT_EQ(model->index.find("model.layers.0.self_attn.q_proj.weight")->dtype, DType::kBF16);
  EXPECT_EQ(model->quantised, "mxfp4");
  const auto lacks = [](const char* name) {
    return [name](Checkpoint& of) { of.tensors.erase("model.layers.0.mlp.experts." + std::string(name)); };
  };
  expect_words(refusal("gpt-oss-mxfp4", lacks("gate_up_proj_scales")), {"gate_up_proj_scales"});
  expect_words(refusal("gpt-oss-mxfp4", lacks("down_proj_blocks")), {"lacks", "down_proj"});
  for (const char* name : {"gate_up_proj_blocks", "down_proj_scales"}) {
    expect_words(refusal("gpt-oss-mxfp4",
                         [&](Checkpoint& of) {
                           StoredTensor& tensor = of.at("mlp.experts." + std::string(name));
                           tensor.shape[0] *= 2;
                           tensor.shape[1] /= 2;
                         }),
                 {name, "the config needs"});
  }
  expect_words(refusal("gpt-oss-mxfp4", [](Checkpoint& of) { of.config["hidden_size"] = 48; }),
               {"48 inputs", "multiples of 32"});
}

TEST(StoredTensors, WhatIsNotDoneIsNoted) {
  const auto biases = open(Checkpoint("gptq-asym"));
  EXPECT_TRUE(notes_say(biases.value(), "14 biases of zeros"));
  const auto scheme = open(Checkpoint("fp8-tensor"));
  EXPECT_TRUE(notes_say(scheme.value(), "activation_scheme static"));
  EXPECT_TRUE(notes_say(scheme.value(), "7 scales of inputs"));
  EXPECT_TRUE(open(Checkpoint("gptq-sym"))->notes.empty());
  Checkpoint plain("llama2");
  plain.quant() = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  const auto none = open(plain);
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_TRUE(notes_say(none.value(), "none of its matrices is"));
  EXPECT_TRUE(none->quantised.empty());
}

TEST(StoredTensors, APartThatIsMissingIsNamed) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {{"gptq-sym", {"qzeros", "scales"}},
                                                                    {"awq", {"qzeros", "scales"}},
                                                                    {"ct-int4-asym", {"weight_scale"}},
                                                                    {"fp8-block", {"weight_scale_inv"}}};
  for (const auto& [name, parts] : cases) {
    for (const char* part : parts) {
      const std::string tensor = std::string("model.layers.0.mlp.up_proj.") + part;
      const std::string message = refusal(name, [&](Checkpoint& of) { of.tensors.erase(tensor); });
      // Without the scale_inv of a matrix its weight_scale is looked for.
      expect_words(message, {tensor.substr(0, tensor.size() - (tensor.ends_with("_inv") ? 4 : 0)), "lacks"});
    }
    // Without any the matrix itself is missing.
  }
  const std::string whole = refusal("gptq-sym", [](Checkpoint& of) {
    for (const char* part : {"qweight", "qzeros", "scales", "g_idx"})
      of.tensors.erase(std::string("model.layers.0.mlp.up_proj.") + part);
  });
  expect_words(whole, {"lacks 1 of the tensors", "model.layers.0.mlp.up_proj.weight"});
}

TEST(StoredTensors, ShapesAndFormatsAreThoseOfTheConfig) {
  for (const char* name : {"gptq-sym", "awq"}) {
    for (const char* part : {"qweight", "qzeros", "scales"}) {
      const std::string tensor = std::string("self_attn.q_proj.") + part;
      const std::string message = refusal(name, [&](Checkpoint& of) {
        std::vector<int64_t>& shape = of.at(tensor).shape;
        shape = {shape[0] * shape[1], 1};
      });
      expect_words(message, {tensor, "shape"});
    }
  }
  expect_words(refusal("gptq-sym", [](Checkpoint& of) { of.at("self_attn.q_proj.qweight").dtype = "F32"; }),
               {"q_proj.qweight", "F32", "I32"});
  expect_words(refusal("gptq-sym", [](Checkpoint& of) { of.at("self_attn.q_proj.scales").dtype = "I16"; }),
               {"q_proj.scales", "I16"});
  expect_words(refusal("gptq-sym", [](Checkpoint& of) { of.quant()["group_size"] = 64; }), {"qzeros", "shape"});
  expect_words(refusal("ct-int4", [](Checkpoint& of) { of.set<int64_t>("self_attn.q_proj.weight_shape", 1, 128); }),
               {"q_proj.weight_shape", "[64, 128]"});
  expect_words(refusal("ct-int4",
                       [](Checkpoint& of) {
                         of.at("self_attn.q_proj.weight_scale").shape = {2, 64};
                       }),
               {"q_proj", "scales of shape [2, 64]"});
  expect_words(refusal("fp8-block",
                       [](Checkpoint& of) {
                         of.quant()["weight_block_size"] = {64, 128};
                       }),
               {"scales of shape"});
  expect_words(refusal("fp8-block", [](Checkpoint& of) { of.at("mlp.up_proj.weight").dtype = "F8_E5M2"; }),
               {"mlp.up_proj.weight", "F8_E5M2"});
}

TEST(StoredTensors, GroupsInAnOrderOfTheirOwnAreRefused) {
  const auto change = [](Checkpoint& of) {
    of.quant()["desc_act"] = true;
    of.set<int32_t>("self_attn.q_proj.g_idx", 0, 1);
    of.set<int32_t>("self_attn.q_proj.g_idx", 40, 0);
  };
  expect_words(refusal("gptq-sym", change), {"q_proj", "desc_act"});
  EXPECT_TRUE(open(Checkpoint("gptq-8bit")).ok()) << "desc_act whose order is the trivial one";
  Checkpoint without("gptq-sym");
  std::erase_if(without.tensors, [](const auto& tensor) { return tensor.first.ends_with("g_idx"); });
  EXPECT_TRUE(open(without).ok()) << "with desc_act false the order is known";
  expect_words(refusal("gptq-sym",
                       [](Checkpoint& of) {
                         of.quant()["desc_act"] = true;
                         of.tensors.erase("model.layers.0.self_attn.q_proj.g_idx");
                       }),
               {"q_proj.g_idx", "lacks"});
}

TEST(StoredTensors, ABiasThatIsNotZeroIsNotDropped) {
  expect_words(refusal("gptq-asym", [](Checkpoint& of) { of.set<uint16_t>("mlp.up_proj.bias", 3, 0x3C00); }),
               {"mlp.up_proj.bias"});
}

TEST(StoredTensors, WhatCannotBeHeldIsRefused) {
  expect_words(refusal("ct-int4-asym",
                       [](Checkpoint& of) {
                         auto& packed = of.at("mlp.up_proj.weight_packed");
                         packed.shape[1] *= 2;  // as of 8 bits
                         packed.bytes += packed.bytes;
                       }),
               {"mlp.up_proj", "8 bits with zero points"});
  expect_words(refusal("fp8-block",
                       [](Checkpoint& of) {
                         of.quant().erase("weight_block_size");
                         auto& scales = of.at("mlp.down_proj.weight_scale_inv");
                         scales.shape = {128, 4};
                         scales.bytes.resize(128 * 4 * 4);
                         of.at("mlp.up_proj.weight_scale_inv").shape = {2};
                       }),
               {"mlp."});
}

// Rows of q and k that change places are read one by one, which those in several parts
// cannot be.
TEST(StoredTensors, ThoseOfAModelThatTurnsNeighboursAreRefused) {
  const auto change = [](Checkpoint& of) {
    of.config["architectures"] = {"GlmForCausalLM"};
    of.config["model_type"] = "glm";
    of.config["head_dim"] = 16;
  };
  expect_words(refusal("gptq-sym", change), {"GlmForCausalLM", "cannot be read yet", "GGUF"});
}

// One change of the config each, and what must be said.
TEST(QuantConfig, EverythingThatIsNotUnderstoodIsRefused) {
  struct Case {
    const char* name;
    Json patch;  // merged into "quantization_config"
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {"gptq-sym", {{"quant_method", "bitsandbytes"}}, {"\"bitsandbytes\"", "gptq, awq"}},
      {"gptq-sym", {{"quant_method", 7}}, {"quant_method"}},
      {"gptq-sym", {{"bits", 3}}, {"3 bits"}},
      {"gptq-sym", {{"bits", nullptr}}, {"lacks \"bits\""}},
      {"gptq-sym", {{"bits", "4"}}, {"bits"}},
      {"gptq-sym", {{"group_size", 48}}, {"48", "multiples of 32"}},
      {"gptq-sym", {{"group_size", 16}}, {"16", "multiples of 32"}},
      {"gptq-sym", {{"group_size", 0}}, {"0", "multiples of 32"}},
      {"gptq-sym", {{"group_size", int64_t{1} << 60}}, {"group_size"}},
      {"gptq-sym", {{"checkpoint_format", "marlin"}}, {"\"marlin\""}},
      {"gptq-sym", {{"is_marlin_format", true}}, {"\"marlin\""}},
      {"gptq-8bit", {{"sym", false}}, {"8 bits with zero points"}},
      {"awq", {{"version", "gemv"}}, {"gemv"}},
      {"awq", {{"bits", 8}}, {"8 bits"}},
      {"fp8-block", {{"fmt", "e5m2"}}, {"e5m2"}},
      {"fp8-block", {{"weight_block_size", {128, 64}}}, {"[128,64]", "multiples of 128"}},
      {"fp8-block", {{"weight_block_size", {128}}}, {"two numbers"}},
      {"fp8-block", {{"weight_block_size", {128, 0}}}, {"weight_block_size"}},
      {"ct-int4", {{"format", "nvfp4-pack-quantized"}}, {"nvfp4-pack-quantized"}},
      {"ct-int4", {{"format", "marlin-24"}}, {"marlin-24"}},
      {"ct-int4", {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}, {"sparse"}},
      {"ct-int4", {{"transform_config", {{"config_groups", {{"R1", 1}}}}}}, {"transform_config"}},
      {"ct-int4", {{"config_groups", nullptr}}, {"config_groups"}},
      {"ct-int4", {{"config_groups", {{"group_0", 3}}}}, {"config_groups"}},
      {"ct-int4", {{"config_groups", {{"group_0", {{"weights", {{"num_bits", 3}}}}}}}}, {"3 bits"}},
      {"ct-int4", {{"config_groups", {{"group_0", {{"weights", {{"type", "float"}, {"num_bits", 4}}}}}}}}, {"4 bits"}},
  };
  for (const Case& one : cases) {
    const std::string message = refusal(one.name, [&](Checkpoint& of) { of.quant().merge_patch(one.patch); });
    SCOPED_TRACE(one.patch.dump());
    expect_words(message, one.words);
    expect_words(message, {"quantization_config"});
  }
  expect_words(refusal("gptq-sym", [](Checkpoint& of) { of.quant() = 4; }), {"must be an object"});
}

}  // namespace
}  // namespace loralei
