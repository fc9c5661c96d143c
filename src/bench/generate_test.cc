// SPDX-License-Identifier: Apache-2.0
// Generated models with experts are what their shapes say, as the readers see them.
#include "bench/generate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "formats/base_model.h"

namespace loralei {
namespace {

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
