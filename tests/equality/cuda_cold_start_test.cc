// SPDX-License-Identifier: Apache-2.0
// Whatever way a request starts whose adapter is not on the GPU, its answer is that of
// adapters that are there, on the emulated GPU, whose streams run by themselves and rest
// at random: steps wait for layers on their way, which come late, fail or stand still.
// Activations are f32, so rows have the same bits in any company.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/cuda/emulated/emulator.h"
#include "engine/cuda/cuda_backend.h"
#include "support/emulated_subjects.h"
#include "support/engine_driver.h"
#include "support/model_harness.h"
#include "support/patience.h"

namespace loralei::test {
namespace {

constexpr const char* kSeed = "CUDA_COLD_START_TEST_SEED";

EngineHostOptions gpu_options(const Subject& subject, ColdStart way) {
  EngineHostOptions options = options_of(subject);
  options.threads = 1;
  options.engine.max_model_len = 72;
  options.engine.kv_dtype = DType::kF32;
  options.engine.cold_start = way;
  options.engine.cold_start_stated = true;
  options.engine.adapter_keeping = AdapterKeeping::none();  // so that they come again and again
  options.engine.assist_helpers = 0;
  options.device = cuda_factory({.activation = DType::kF32});
  return options;
}

uint64_t requests_by(const ColdStarts& starts, ColdStart way) { return starts.requests[static_cast<size_t>(way)]; }

// A kernel takes a thousand times as long as on a GPU: few and short ones.
std::vector<Submit> few_requests(Prng& random, const Subject& subject, size_t count) {
  std::vector<Submit> requests = some_requests(random, subject, count);
  for (Submit& request : requests) {
    if (request.prompt.size() > 24) request.prompt.erase(request.prompt.begin(), request.prompt.end() - 24);
    request.max_tokens = std::min(request.max_tokens, 4);
  }
  return requests;
}

class CudaColdStart : public testing::Test {
 protected:
  void TearDown() override {
    cuda_emulated::refuse_copies_of(-1);
    cuda_emulated::hold_copies_of(-1);
  }
};

class CudaColdStartEquality : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Subjects, CudaColdStartEquality, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return subjects()[info.param].name; });

TEST_P(CudaColdStartEquality, LayeredAnswersHaveTheBitsOfAdaptersThatAreThere) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = subjects()[GetParam()];
  const std::vector<Submit> requests = few_requests(random, subject, 16);
  std::vector<Answer> want;
  {
    const auto there = start(gpu_options(subject, ColdStart::kOndemand), subject);
    ASSERT_NE(there, nullptr);
    want = at_once(*there, requests);
    EXPECT_EQ(requests_by(there->stats().cold_starts, ColdStart::kLayered), 0u);
  }
  uint64_t early = 0;
  for (const int64_t rest_us : {0, 400}) {
    SCOPED_TRACE(testing::Message() << "streams rest for up to " << rest_us << " us");
    const auto device = start(gpu_options(subject, ColdStart::kLayered), subject);
    ASSERT_NE(device, nullptr);
    const cuda_emulated::RunningStreams running(random(), rest_us);
    expect_same(one_by_one(*device, requests), want);
    expect_same(at_once(*device, requests), want);
    early += requests_by(device->stats().cold_starts, ColdStart::kLayered);
  }
  std::printf("%llu began early\n", static_cast<unsigned long long>(early));
  EXPECT_GT(early, 0u);
}

}  // namespace
}  // namespace loralei::test
