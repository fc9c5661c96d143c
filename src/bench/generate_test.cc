// SPDX-License-Identifier: Apache-2.0
#include "bench/generate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "bench/generated_file.h"
#include "formats/base_model.h"
#include "formats/gguf.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr DType kFilled[] = {DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                             DType::kQ5_0, DType::kQ5_1,   DType::kQ4_K,   DType::kQ5_K, DType::kQ6_K, DType::kQ2_K,
                             DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};

TEST(Generate, EveryFormatDecodesToTameNumbers) {
  for (const DType dtype : kFilled) {
    SCOPED_TRACE(dtype_info(dtype).name);
    constexpr int64_t kCount = 4096;
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(dtype, kCount)));
    WeightSource(7).fill(dtype, bytes.data(), bytes.size());
    std::vector<float> values(kCount);
    decode_row(dtype, bytes.data(), values.data(), kCount);
    double sum = 0, squares = 0;
    for (const float value : values) {
      ASSERT_LT(std::fabs(value), 0.2f);
      sum += value;
      squares += value * value;
    }
    EXPECT_LT(std::fabs(sum / kCount), 0.01);
    EXPECT_GT(std::sqrt(squares / kCount), 0.01);
    EXPECT_LT(std::sqrt(squares / kCount), 0.05);
  }
}

DType dtype_of(const BaseModelFile& file, const std::string& name) {
  for (const TensorInfo& tensor : file.index.tensors) {
    if (tensor.name == name) return tensor.dtype;
  }
  ADD_FAILURE() << "no tensor " << name;
  return DType::kF32;
}

TEST(Generate, WhatFailsLeavesNothing) {
  const std::string folder = testing::TempDir() + "loralei-make-once", path = folder + "/deep/file";
  std::filesystem::remove_all(folder);
  int made = 0;
  const auto write = [&](bool good) {
    return make_once(path, [&](const std::string& unfinished) -> Status {
      ++made;
      Writer out(unfinished);
      out.text("half");
      EXPECT_TRUE(out.close());
      if (!good) return io_error("the disk is full");
      return {};
    });
  };
  EXPECT_FALSE(write(false).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder + "/deep"));
  EXPECT_EQ(write(true).value(), path);
  EXPECT_EQ(write(true).value(), path);
  EXPECT_EQ(made, 2);
  std::filesystem::remove_all(folder);
}

// What a mixture keeps some layers in.
DType finer_than(const std::string& quant, DType most) {
  return quant == "q4_k_m" ? DType::kQ6_K : quant == "q3_k_m" ? DType::kQ4_K : quant == "q2_k" ? DType::kQ3_K : most;
}

TEST(Generate, EveryQuantOpensAndIsMixedAsTheFieldsToolsDo) {
  const std::string folder = testing::TempDir() + "loralei-generate";
  std::filesystem::remove_all(folder);
  for (const char* quant : {"f32", "f16", "f16_of_bf16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m",
                            "q5_k", "q6_k", "q2_k", "q3_k_m", "iq4_nl", "iq4_xs", "mxfp4"}) {
    SCOPED_TRACE(quant);
    const auto path = generated_model(folder, "llama-tiny", quant, nullptr);
    ASSERT_TRUE(path.ok()) << path.error().message;
    const auto file = open_base_model(*path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    const DType most = dtype_of(*file, "model.layers.1.self_attn.q_proj.weight");
    const bool whole = !is_quantised(most) || most == DType::kQ8_0;
    const DType below_8_bits = most == DType::kMXFP4 ? DType::kQ8_0 : DType::kQ6_K;
    EXPECT_EQ(dtype_of(*file, "lm_head.weight"), whole ? most : below_8_bits);
    EXPECT_EQ(dtype_of(*file, "model.embed_tokens.weight"), most);
    EXPECT_EQ(generated_model(folder, "llama-tiny", quant, nullptr).value(), *path);
    // Of 8 layers llama-quantize keeps 0, 3, 6 and 7 finer.
    for (int layer = 0; layer < 8; ++layer) {
      const DType finer = layer == 0 || layer == 3 || layer >= 6 ? finer_than(quant, most) : most;
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      EXPECT_EQ(dtype_of(*file, prefix + "mlp.down_proj.weight"), finer);
      EXPECT_EQ(dtype_of(*file, prefix + "self_attn.v_proj.weight"), finer);
      EXPECT_EQ(dtype_of(*file, prefix + "mlp.up_proj.weight"), most);
    }
  }
  EXPECT_FALSE(generated_model(folder, "llama-tiny", "q3_k", nullptr).ok());
  EXPECT_FALSE(generated_model(folder, "llama-9b", "q4_0", nullptr).ok());
  std::filesystem::remove_all(folder);
}

TEST(Generate, AMixtureOfExpertsIsOne) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("loralei-generate-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  for (const char* quant : {"q8_0", "bf16"}) {
    const auto path = generated_model(folder.string(), "moe-tiny", quant, {});
    ASSERT_TRUE(path.ok()) << path.error().message;
    const auto model = open_base_model(*path);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const auto shape = bench_shape("moe-tiny");
    ASSERT_TRUE(shape.ok());
    const ExpertConfig& want = shape->experts;
    const ExpertConfig& got = model->config.experts;
    EXPECT_GT(want.count, want.used);
    EXPECT_EQ(got.count, want.count);
    EXPECT_EQ(got.used, want.used);
    EXPECT_EQ(got.width, want.width);
    EXPECT_EQ(got.normed, want.normed);
    EXPECT_EQ(model->config.architecture, shape->architecture);
    EXPECT_EQ(model->config.head_dim, shape->head_dim);
    EXPECT_NE(model->index.find(expert_module(0, want.count - 1, 2) + ".weight"), nullptr);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace loralei
