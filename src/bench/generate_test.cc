// SPDX-License-Identifier: Apache-2.0
#include "bench/generate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

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

// What the file says is what the shape says.
TEST(Generate, ShapesOfOtherFamiliesAreTheirs) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("loralei-shapes-" + std::to_string(::getpid()));
  for (const char* shape : {"gemma3-tiny", "phi3-tiny"}) {
    for (const char* quant : {"q8_0", "q4_0", "q4_k_m"}) {
      SCOPED_TRACE(std::string(shape) + " " + quant);
      const auto path = generated_model(folder.string(), shape, quant, {});
      ASSERT_TRUE(path.ok()) << path.error().message;
      const auto model = open_base_model(*path);
      ASSERT_TRUE(model.ok()) << model.error().message;
      const ModelConfig want = bench_shape(shape).value();
      const ModelConfig& got = model->config;
      EXPECT_EQ(got.architecture, want.architecture);
      EXPECT_EQ(got.head_dim, want.head_dim);
      EXPECT_EQ(got.sliding, want.sliding);
      EXPECT_EQ(got.tied_head, want.tied_head);
      EXPECT_EQ(got.activation, want.activation);
      EXPECT_EQ(got.norm_names, want.norm_names);
      EXPECT_EQ(got.sliding_rope, want.sliding_rope);
      EXPECT_NEAR(got.embed_scale, want.embed_scale, 1e-6);
      EXPECT_EQ(attention_scale_of(got), attention_scale_of(want));
      if (std::string_view(quant) != "q4_k_m") continue;
      // llama-quantize: rows of 288 are no blocks of 256; fused q, k and v are finer.
      const bool gemma = got.architecture == "gemma3_text";
      EXPECT_EQ(dtype_of(*model, "model.layers.1.self_attn.q_proj.weight"), gemma ? DType::kQ5_0 : DType::kQ5_K);
      EXPECT_EQ(dtype_of(*model, "model.embed_tokens.weight"), gemma ? DType::kQ8_0 : DType::kQ4_K);
    }
  }
  std::filesystem::remove_all(folder);
}

// Router rows of a layer differ in length by what their expert's place says, in an order
// of each layer's own; all else is the same file.
TEST(Generate, ASkewedMixturePrefersSomeExperts) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("loralei-skewed-" + std::to_string(::getpid()));
  const auto norms_of = [&](const char* shape, int layer) {
    const auto path = generated_model(folder.string(), shape, "q8_0", {});
    EXPECT_TRUE(path.ok());
    const auto model = open_base_model(path.value());
    EXPECT_TRUE(model.ok());
    const TensorInfo* const router = model->index.find("model.layers." + std::to_string(layer) + ".mlp.gate.weight");
    EXPECT_NE(router, nullptr);
    std::vector<float> rows(static_cast<size_t>(router->bytes) / sizeof(float));
    std::FILE* const file = std::fopen(path.value().c_str(), "rb");
    EXPECT_EQ(std::fseek(file, static_cast<long>(router->offset), SEEK_SET), 0);
    EXPECT_EQ(std::fread(rows.data(), sizeof(float), rows.size(), file), rows.size());
    std::fclose(file);
    std::vector<double> norms;
    for (size_t row = 0; row < rows.size(); row += 256) {
      double squares = 0;
      for (size_t i = row; i < row + 256; ++i) squares += static_cast<double>(rows[i]) * static_cast<double>(rows[i]);
      norms.push_back(std::sqrt(squares));
    }
    return norms;
  };
  std::vector<std::vector<size_t>> orders;
  for (int layer : {0, 1}) {
    const std::vector<double> plain = norms_of("moe-tiny", layer), skewed = norms_of("moe-tiny-skewed", layer);
    ASSERT_EQ(plain.size(), 16u);
    std::vector<double> factors;
    for (size_t i = 0; i < plain.size(); ++i) factors.push_back(skewed[i] / plain[i]);
    std::vector<size_t>& order = orders.emplace_back(factors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return factors[a] > factors[b]; });
    for (size_t place = 0; place < order.size(); ++place)
      EXPECT_NEAR(factors[order[place]], std::pow(1.0 + static_cast<double>(place), -0.35), 1e-5);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_FALSE(bench_shape("llama-tiny-skewed").ok());
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
