// SPDX-License-Identifier: Apache-2.0
// A steady-state step of the real engine (real models, adapters, two threads) allocates
// nothing on the heap.
//
// Counted: operator new on every thread but this one, between two decode steps well after
// the warm-up, with no request coming, going or being loaded. Not counted: the consumer's
// side, which is this thread (wait_output hands it vectors of its own); the engine's end
// of that queue keeps its memory and has room for a consumer that is 4,096 events late.
// News of adapters come at most kAdapterNewsNs after adapters were taken or given back; a
// window into which they fell is measured again.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/emulated/emulated_backend.h"
#include "support/engine_driver.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
thread_local bool is_consumer = false;

[[maybe_unused]] void* counted(size_t bytes, size_t alignment) {
  if (counting.load(std::memory_order_relaxed) && !is_consumer) allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory = alignment == 0 ? std::malloc(bytes)
                                      : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

#if !defined(LORALEI_THREAD_SANITIZER)  // clang's lets nobody else have it
void* operator new(size_t bytes) { return counted(bytes == 0 ? 1 : bytes, 0); }
// Sanitizers bring one of their own, whose memory std::free would not take.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes == 0 ? 1 : bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(bytes == 0 ? 1 : bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace loralei {
namespace {

using test::EngineDriver;
using test::source_of;

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

struct Subject {
  const char* model;
  std::vector<std::string> adapters;
  bool on_device = false;
  int ranks = 1;
};

constexpr int kTokens = 100, kSequences = 6;

Submit request(const Subject& subject, int i) {
  Submit request;
  for (int t = 0; t < 5 + i; ++t) request.prompt.push_back(static_cast<TokenId>(3 + i + t));
  if (i < 4 && !subject.adapters.empty())
    request.adapters = {{source_of(subject.adapters[static_cast<size_t>(i % 2)]), 0.5f}};
  if (i == 3 && !subject.adapters.empty()) request.adapters.push_back({source_of(subject.adapters[0]), 0.25f});
  request.sampling.temperature = i % 2 ? 1.0f : 0.0f;
  request.sampling.top_k = i == 1 ? 5 : 0;
  request.sampling.top_p = i == 5 ? 0.9f : 1.0f;
  request.sampling.seed = static_cast<uint64_t>(i);
  request.max_tokens = kTokens;
  request.ignore_eos = true;
  return request;
}

// Tokens of the sequence that has the fewest, of the requests from `first` on.
int least_tokens(EngineDriver& driver, uint64_t first) {
  int least = kTokens;
  for (uint64_t id = first; id < first + kSequences; ++id)
    least = std::min(least, static_cast<int>(driver.answers[{id, 0}].tokens.size()));
  return least;
}

class SteadyState : public testing::TestWithParam<Subject> {};

TEST_P(SteadyState, ADecodeStepAllocatesNothing) {
#if defined(LORALEI_THREAD_SANITIZER)
  GTEST_SKIP() << "the thread sanitizer has operator new for itself; every other build counts";
#endif
  is_consumer = true;
  EngineHostOptions options;
  options.model_path = kGolden + "models/" + GetParam().model;
  options.threads = 2;
  options.engine.max_sequences = 8;
  options.engine.memory_budget_bytes = int64_t{512} << 20;
  options.tensor_parallel = GetParam().ranks;
  if (GetParam().on_device) options.device = emulated_factory({});
  EngineDriver driver(options);
  ASSERT_TRUE(driver.running());
  for (const std::string& name : GetParam().adapters)
    driver.command(AdapterAction::kLoad, name, kGolden + "adapters/" + name);
  driver.collect();
  // These models are so small that all may be over before this thread wakes up: try until
  // a window was caught whole.
  constexpr int kWindows = 3;
  int windows = 0;
  bool clean = false;
  for (int attempt = 0; attempt < 200 && windows < kWindows && !clean; ++attempt) {
    uint64_t first = 0;
    for (int i = 0; i < kSequences; ++i) {
      const uint64_t id = driver.submit(request(GetParam(), i));
      ASSERT_NE(id, 0u);
      first = i == 0 ? id : first;
    }
    while (least_tokens(driver, first) < 30) {
      ASSERT_TRUE(driver.take(20'000'000'000));
      for (const auto& [key, answer] : driver.answers) ASSERT_NE(answer.end, EndReason::kError) << answer.error.message;
    }
    const int begin = least_tokens(driver, first);
    allocations = 0;
    counting = true;
    while (least_tokens(driver, first) < begin + 10 && driver.open() == kSequences)
      ASSERT_TRUE(driver.take(20'000'000'000));
    counting = false;
    const bool caught = driver.open() == kSequences && least_tokens(driver, first) >= begin + 10;
    driver.collect();
    windows += caught ? 1 : 0;
    clean = caught && allocations.load() == 0;
  }
  ASSERT_GT(windows, 0) << "no ten steps were seen between which nobody ended";
  EXPECT_TRUE(clean) << allocations.load() << " allocations in ten steps";
}

INSTANTIATE_TEST_SUITE_P(
    Models, SteadyState,
    testing::Values(Subject{"../../../demo/model", {"../../../demo/adapters/count", "../../../demo/adapters/shout"}},
                    Subject{"llama2", {"llama2-r1", "llama2-r64"}}, Subject{"llama-gqa", {"gqa-qv-r8", "gqa-all-r16"}},
                    Subject{"gguf-llama-q8_0.gguf", {"gguf-lora-f32.gguf", "gqa-all-r16"}},
                    Subject{"mistral-window", {}}, Subject{"qwen2-window", {}},
                    Subject{"llama-gqa", {"gqa-qv-r8", "gqa-all-r16"}, true}, Subject{"gguf-llama-q4_k_m.gguf", {}},
                    Subject{"qwen3_5", {"qwen3_5-all-r4", "qwen3_5-linear"}},
                    Subject{"qwen3-moe", {"qwen3-moe-experts", "qwen3-moe-router"}},
                    Subject{"gpt-oss", {"gpt-oss-experts", "gpt-oss-router"}},
                    Subject{"mixtral", {"mixtral-single", "mixtral-single"}}, Subject{"gguf-llama-q4_0.gguf", {}},
                    Subject{"llama-gqa", {"gqa-qv-r8", "gqa-all-r16"}, false, 2}));

}  // namespace
}  // namespace loralei
