// SPDX-License-Identifier: Apache-2.0
// The first look at a GPU, on the emulated one: whole, and with one layer
// refused at a time.
#include "bench/cuda/gpu_smoke.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "base/units.h"
#include "device/cuda/emulated/device_memory.h"
#include "device/cuda/emulated/emulator.h"

namespace loralei {
namespace {

class GpuSmoke : public testing::Test {
 protected:
  GpuSmoke() { options_.cache_dir = testing::TempDir() + "loralei-gpu-smoke"; }
  void TearDown() override {
    std::filesystem::remove_all(options_.cache_dir);
    cuda_emulated::refuse_captures(false);
    cuda_emulated::refuse_copies_of(-1);
    cuda_emulated::set_memory(cuda_emulated::kDefaultMemoryBytes, 0);
    cuda_emulated::take_failure();
  }
  // The layers that failed, one behind the other.
  std::string failed() {
    std::string names;
    tried_ = 0;
    const bool all = run_gpu_smoke(options_, [&](const GpuSmokeLayer& layer) {
      ++tried_;
      EXPECT_FALSE(layer.found.ok() && layer.found->empty());
      if (!layer.found.ok()) names += std::string(names.empty() ? "" : ", ") + layer.name;
    });
    EXPECT_EQ(all, names.empty());
    return names;
  }
  GpuSmokeOptions options_;
  int tried_ = 0;
};

TEST_F(GpuSmoke, EveryLayerHolds) {
  EXPECT_EQ(failed(), "");
  EXPECT_EQ(tried_, 8);
}

TEST_F(GpuSmoke, TheLayerThatIsBrokenIsNamed) {
  options_.device = 99;
  EXPECT_EQ(failed(), "device");
  EXPECT_EQ(tried_, 1);
  options_.device = 0;
  cuda_emulated::refuse_captures(true);
  EXPECT_EQ(failed(), "graph, recorded step");
  cuda_emulated::refuse_captures(false);
  cuda_emulated::refuse_copies_of(2 * 128 * (48 + 64));
  EXPECT_EQ(failed(), "product");
  cuda_emulated::refuse_copies_of(-1);
  cuda_emulated::set_memory(int64_t{40} << 20, 0);  // the workspace of products fits, a model beside it does not
  EXPECT_EQ(failed(), "upload");
  EXPECT_EQ(tried_, 6);
}

}  // namespace
}  // namespace loralei
