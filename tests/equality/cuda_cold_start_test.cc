// SPDX-License-Identifier: Apache-2.0
// Whatever way a request starts whose adapter is not on the GPU, its answer is that of
// adapters that are there, on the emulated GPU, whose streams run by themselves and rest
// at random: steps wait for layers on their way, which come late, fail or stand still.
// Activations are f32, so rows have the same bits in any company.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/log_test_util.h"
#include "device/cuda/emulated/emulator.h"
#include "engine/cuda/cuda_backend.h"
#include "model/cuda/device_adapter.h"
#include "support/emulated_subjects.h"
#include "support/engine_driver.h"
#include "support/model_harness.h"
#include "support/patience.h"

namespace loralei::test {
namespace {

constexpr const char* kSeed = "CUDA_COLD_START_TEST_SEED";

EngineHostOptions gpu_options(const Subject& subject, ColdStart way, int32_t helpers = 0) {
  EngineHostOptions options = options_of(subject);
  options.threads = 1;
  options.engine.max_model_len = 72;
  options.engine.kv_dtype = DType::kF32;
  options.engine.cold_start = way;
  options.engine.cold_start_stated = true;
  options.engine.adapter_keeping = AdapterKeeping::none();  // so that they come again and again
  options.engine.assist_helpers = helpers;
  options.assist = {.program = LORALEI_ASSIST_HELPER, .args = {}};
  options.device = cuda_factory({.activation = DType::kF32});
  return options;
}

uint64_t requests_by(const ColdStarts& starts, ColdStart way) { return starts.requests[static_cast<size_t>(way)]; }

// A kernel takes a thousand times as long as on a GPU: few and short ones, greedy.
std::vector<Submit> few_requests(Prng& random, const Subject& subject, size_t count) {
  std::vector<Submit> requests = some_requests(random, subject, count);
  for (Submit& request : requests) {
    if (request.prompt.size() > 20) request.prompt.erase(request.prompt.begin(), request.prompt.end() - 20);
    request.max_tokens = 1 + request.max_tokens % 3;
    request.sampling.temperature = 0;
  }
  return requests;
}

// By the same sums in another order, of which the texts must be the same.
void expect_near(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].end, EndReason::kLength) << got[i].error.message;
    EXPECT_EQ(got[i].tokens, want[i].tokens) << "request " << i;
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
    for (size_t j = 0; j < want[i].logprobs.size(); ++j)
      EXPECT_NEAR(got[i].logprobs[j], want[i].logprobs[j], 2e-4f) << "request " << i;
  }
}

std::vector<Answer> where_all_is_there(const Subject& subject, const std::vector<Submit>& requests) {
  const auto device = start(gpu_options(subject, ColdStart::kOndemand), subject);
  if (device == nullptr) return {};
  const std::vector<Answer> answers = at_once(*device, requests);
  EXPECT_EQ(requests_by(device->stats().cold_starts, ColdStart::kLayered), 0u);
  std::vector<Submit> plain = requests;
  for (Submit& request : plain) request.adapters.clear();
  const std::vector<Answer> without = at_once(*device, plain);
  int with_adapters = 0, changed = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    with_adapters += requests[i].adapters.empty() ? 0 : 1;
    changed += without[i].logprobs != answers[i].logprobs ? 1 : 0;
  }
  EXPECT_GT(2 * changed, with_adapters) << "adapters that change nothing";
  return answers;
}

// Never answers that are not the model's.
TEST(CudaFamilies, WhatItsProgramHasNotIsRefused) {
  for (const char* model : {"models/granite", "models/smollm3", "models/olmo2", "models/olmo3", "models/gemma",
                            "models/gemma2", "models/gemma3", "models/gpt-oss"}) {
    const Subject subject{model, model, {}, {}};
    CollectingLog log;
    const auto host = EngineHost::start(gpu_options(subject, ColdStart::kOndemand), log, {});
    ASSERT_FALSE(host.ok()) << model;
    EXPECT_NE(host.error().message.find("cannot be computed on a GPU yet"), std::string::npos) << host.error().message;
  }
}

TEST(CudaFamilies, FormatsWithoutKernelsAreRefusedByName) {
  for (const auto& [model, format] :
       {std::pair("gguf-llama-q2_k_m", "q2_k"), std::pair("gguf-llama-q3_k_m", "q3_k"),
        std::pair("gguf-llama-iq4_nl", "iq4_nl"), std::pair("gguf-qwen2-iq4_xs_m", "iq4_xs"),
        std::pair("gguf-llama-mxfp4", "mxfp4")}) {
    const std::string path = std::string("models/") + model + ".gguf";
    const Subject subject{model, path.c_str(), {}, {}};
    CollectingLog log;
    const auto host = EngineHost::start(gpu_options(subject, ColdStart::kOndemand), log, {});
    ASSERT_FALSE(host.ok()) << model;
    EXPECT_NE(host.error().message.find(std::string("Weights in ") + format + " cannot be computed on a GPU"),
              std::string::npos)
        << host.error().message;
  }
}

class CudaColdStartEquality : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Subjects, CudaColdStartEquality, testing::Range(size_t{0}, gpu_subjects().size()),
                         [](const auto& info) { return gpu_subjects()[info.param].name; });

TEST_P(CudaColdStartEquality, AnswersAreThoseOfAdaptersThatAreThere) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = gpu_subjects()[GetParam()];
  const std::vector<Submit> requests = few_requests(random, subject, 10);
  const std::vector<Answer> want = where_all_is_there(subject, requests);
  for (const ColdStart way : {ColdStart::kLayered, ColdStart::kAssisted, ColdStart::kAuto}) {
    SCOPED_TRACE(kColdStartNames[static_cast<size_t>(way)]);
    const int32_t helpers = way == ColdStart::kLayered ? 0 : 1 + static_cast<int32_t>(random.below(2));
    const auto device = start(gpu_options(subject, way, helpers), subject);
    ASSERT_NE(device, nullptr);
    const cuda_emulated::RunningStreams running(random(), 20'000);
    const auto expect = helpers == 0 ? expect_same : expect_near;
    const auto begun = [&] {
      const ColdStarts starts = device->stats().cold_starts;
      return way == ColdStart::kAssisted
                 ? starts.assisted_layers
                 : requests_by(starts, ColdStart::kLayered) + requests_by(starts, ColdStart::kAssisted);
    };
    // Again where all came in no time.
    for (int round = 0; round < 8 && (round == 0 || begun() == 0) && !HasFailure(); ++round) {
      expect(one_by_one(*device, requests), want);
      expect(at_once(*device, requests), want);
    }
    EXPECT_GT(begun(), 0u);
    const ColdStarts starts = device->stats().cold_starts;
    std::printf("%s: %llu layered, %llu assisted in %llu layers, %llu layers waited for, %llu given up\n",
                kColdStartNames[static_cast<size_t>(way)],
                static_cast<unsigned long long>(requests_by(starts, ColdStart::kLayered)),
                static_cast<unsigned long long>(requests_by(starts, ColdStart::kAssisted)),
                static_cast<unsigned long long>(starts.assisted_layers),
                static_cast<unsigned long long>(starts.layers_waited),
                static_cast<unsigned long long>(starts.given_up));
    if (way == ColdStart::kLayered) {
      EXPECT_EQ(starts.assisted_layers, 0u);
    }
  }
}

// Who has not asked for it has no request that begins early, and no helpers.
TEST(CudaColdStart, NobodyBeginsEarlyUnlessToldTo) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = gpu_subjects()[0];
  EngineHostOptions options = gpu_options(subject, ColdStart::kAuto, 2);
  options.engine.cold_start_stated = false;
  const auto device = start(options, subject);
  ASSERT_NE(device, nullptr);
  const cuda_emulated::RunningStreams running(random(), 5'000);
  one_by_one(*device, few_requests(random, subject, 6));
  const ColdStarts starts = device->stats().cold_starts;
  EXPECT_EQ(requests_by(starts, ColdStart::kLayered) + requests_by(starts, ColdStart::kAssisted), 0u);
  EXPECT_GT(requests_by(starts, ColdStart::kOndemand), 0u);
  EXPECT_EQ(starts.helpers, 0);
  const std::vector<std::string> notes = device->host().notes();
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("--assist-helpers changes nothing here") != std::string::npos;
  }));
}

// --- faults

std::vector<int> children() {
  std::vector<int> pids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(task.path() / "children");
    for (int pid; list >> pid;) pids.push_back(pid);
  }
  return pids;
}

TEST(CudaColdStartFaults, HelpersAreKilledAndStoppedAndNobodyNotices) {
  Prng random(seed_of_run(kSeed)), faults(random());
  const Subject subject = gpu_subjects()[0];
  const std::vector<Submit> requests = few_requests(random, subject, 16);
  const std::vector<Answer> want = where_all_is_there(subject, requests);
  const auto before = children();
  uint64_t restarts = 0, assisted = 0;
  {
    const auto device = start(gpu_options(subject, ColdStart::kAssisted, 2), subject);
    ASSERT_NE(device, nullptr);
    const cuda_emulated::RunningStreams running(random(), 20'000);
    std::atomic<bool> over = false;
    std::thread kills([&] {
      while (!over) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20 + faults.below(150)));
        const std::vector<int> pids = children();
        if (!pids.empty()) ::kill(pids[faults.below(pids.size())], faults.below(2) == 0 ? SIGKILL : SIGSTOP);
      }
    });
    for (int round = 0; round < 2 && !testing::Test::HasFailure(); ++round)
      expect_near(round == 0 ? one_by_one(*device, requests) : at_once(*device, requests), want);
    over = true;
    kills.join();
    restarts = device->stats().cold_starts.helper_restarts;
    assisted = device->stats().cold_starts.assisted_layers;
  }
  EXPECT_GT(restarts, 0u);
  EXPECT_GT(assisted, 0u);
  EXPECT_EQ(children(), before) << "no helper is left";
}

// The bytes of layer 1 of an adapter of pairs alone, as they are copied.
int64_t second_layer_bytes(const Subject& subject, const std::string& name) {
  const auto harness = ModelHarness::open(kGolden + subject.model).value();
  const Adapter& adapter = *harness->load(kGolden + "adapters/" + name).value();
  const ModelConfig& config = harness->config();
  std::vector<ModulePair> pairs;
  for (int32_t module = 0; module < std::ssize(adapter.pairs); ++module) {
    const LoraPair& pair = adapter.pairs[static_cast<size_t>(module)];
    if (present(pair)) pairs.push_back({module, &pair});
  }
  AdapterLayout layout({config.hidden, config.head_dim, config.layers});
  const std::vector<int64_t> ends = layout.put(pairs, nullptr, nullptr).piece_ends;
  return ends[1] - ends[0];
}

// Every other one with an adapter whose second layer has a size of its own.
class CudaColdStartUploads : public testing::Test {
 protected:
  void SetUp() override {
    requests_ = few_requests(random_, subject_, 4);
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].adapters = {{source_of(is_stopped(i) ? "gqa-rank-pattern" : "gqa-all-r16"), 1.0f}};
      if (!is_stopped(i)) requests_[i].max_tokens = 12;  // still under way when the others come
    }
    want_ = where_all_is_there(subject_, requests_);
    bytes_ = second_layer_bytes(subject_, "gqa-rank-pattern");
    device_ = start(gpu_options(subject_, ColdStart::kLayered), subject_);
    ASSERT_NE(device_, nullptr);
  }
  void TearDown() override {
    cuda_emulated::refuse_copies_of(-1);
    cuda_emulated::hold_copies_of(-1);
  }
  static bool is_stopped(size_t request) { return request % 2 == 0; }
  void expect_right(const Answer& got, size_t request) {
    EXPECT_EQ(got.end, EndReason::kLength) << got.error.message;
    EXPECT_EQ(got.tokens, want_[request].tokens) << "request " << request;
    EXPECT_EQ(got.logprobs, want_[request].logprobs) << "request " << request;
  }

  Prng random_{seed_of_run(kSeed)};
  const Subject subject_ = gpu_subjects()[0];
  std::vector<Submit> requests_;
  std::vector<Answer> want_;
  int64_t bytes_ = 0;
  std::unique_ptr<EngineDriver> device_;
};

TEST_F(CudaColdStartUploads, OneThatFailsMidwayEndsItsRequestsAlone) {
  const cuda_emulated::RunningStreams running(random_(), 20'000);
  cuda_emulated::refuse_copies_of(bytes_);
  const std::vector<Answer> answers = at_once(*device_, requests_);
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (!is_stopped(i)) {
      expect_right(answers[i], i);
      continue;
    }
    EXPECT_EQ(answers[i].end, EndReason::kError);
    EXPECT_NE(answers[i].error.message.find("out of resources"), std::string::npos) << answers[i].error.message;
  }
  cuda_emulated::refuse_copies_of(-1);
  expect_same(at_once(*device_, requests_), want_);
}

// Steps that wait for it end, and the others' go on; when it comes all is right.
TEST_F(CudaColdStartUploads, OneThatStandsStillHoldsUpItsRequestsAlone) {
  const cuda_emulated::RunningStreams running(random_(), 2'000);
  cuda_emulated::hold_copies_of(bytes_);
  std::vector<uint64_t> ids(requests_.size());
  const auto submit = [&](bool stopped) {
    for (size_t i = 0; i < requests_.size(); ++i)
      if (is_stopped(i) == stopped) ids[i] = device_->submit(requests_[i]);
  };
  const auto has_begun = [&](uint64_t id) { return !device_->answers[{id, 0}].tokens.empty(); };
  // Uploads come one after the other, and which of two loads ends first is anybody's
  // guess: those that nothing stops have theirs before the others ask.
  submit(false);
  until([&] {
    device_->take(1'000'000);
    return has_begun(ids[1]) && has_begun(ids[3]);
  });
  submit(true);
  until([&] {
    device_->take(1'000'000);
    return device_->open() == requests_.size() / 2 && device_->stats().cold_starts.given_up > 0;
  });
  for (size_t i = 0; i < requests_.size(); ++i) EXPECT_EQ(device_->answers.count({ids[i], 0}) == 0, is_stopped(i));
  cuda_emulated::hold_copies_of(-1);
  device_->collect();
  for (size_t i = 0; i < requests_.size(); ++i) expect_right(device_->answers[{ids[i], 0}], i);
  EXPECT_GT(device_->stats().cold_starts.waited_s, 0.0);
}

}  // namespace
}  // namespace loralei::test
