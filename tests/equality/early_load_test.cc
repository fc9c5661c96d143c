// SPDX-License-Identifier: Apache-2.0
// On the cores, requests begin while their adapters are being read from files: answers
// are those of adapters that are in memory, whatever the disk does.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "adapters/watched_files_test_util.h"
#include "support/emulated_subjects.h"
#include "support/engine_driver.h"
#include "support/patience.h"

namespace loralei::test {
namespace {

using testing_support::WatchedFileSystem;

constexpr const char* kSeed = "EARLY_LOAD_TEST_SEED";

// A disk that takes its time, and fails now and then where that is asked for.
class SlowDisk {
 public:
  SlowDisk(uint64_t seed, uint64_t most_us) : random_(seed), most_us_(most_us), files_(machine_) {
    files_.watch.read = [this](const std::string& path, int64_t, int64_t) -> Status {
      uint64_t us = 0, kind = 0;
      {
        const std::lock_guard lock(mutex_);
        us = random_.below(most_us_);
        kind = random_.below(60);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      if (fails_ && kind == 0) return Error{ErrorCode::kIo, path + ": the disk of the test fails"};
      return {};
    };
  }
  const FileSystem* files() const { return &files_; }
  void let_fail(bool fails) { fails_ = fails; }
  void let_take(uint64_t most_us) { most_us_ = most_us; }

 private:
  std::mutex mutex_;
  Prng random_;
  std::atomic<uint64_t> most_us_;
  std::atomic<bool> fails_ = false;
  const PosixFileSystem machine_;
  WatchedFileSystem files_;
};

EngineHostOptions early_options(const Subject& subject, ColdStart way, const FileSystem* files) {
  EngineHostOptions options = options_of(subject);
  options.engine.cold_start = way;
  options.engine.adapter_keeping = AdapterKeeping::none();  // so that they are read again and again
  options.adapter_files = files;
  return options;
}

class EarlyLoadEquality : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Subjects, EarlyLoadEquality, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return subjects()[info.param].name; });

TEST_P(EarlyLoadEquality, AnswersAreThoseOfAdaptersInMemory) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = subjects()[GetParam()];
  const std::vector<Submit> requests = some_requests(random, subject, 40);
  const auto warm = start(options_of(subject), subject);
  ASSERT_NE(warm, nullptr);
  const std::vector<Answer> want = one_by_one(*warm, requests);
  uint64_t early = 0;
  for (const ColdStart way : {ColdStart::kAuto, ColdStart::kLayered, ColdStart::kOndemand}) {
    for (const uint64_t most_us : {1, 100, 1000}) {
      SCOPED_TRACE(testing::Message() << kColdStartNames[static_cast<size_t>(way)] << " " << most_us << " us");
      const SlowDisk disk(random(), most_us);
      EngineHostOptions options = early_options(subject, way, disk.files());
      options.engine.prefix_cache = random.below(2) == 0;
      const auto cold = start(options, subject);
      ASSERT_NE(cold, nullptr);
      for (int round = 0; round < 2; ++round) {
        const std::vector<Answer> got = round == 0 ? at_once(*cold, requests) : one_by_one(*cold, requests);
        expect_same(got, want);
        for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].version, want[i].version) << "request " << i;
      }
      const uint64_t layered = cold->stats().cold_starts.requests[static_cast<size_t>(ColdStart::kLayered)];
      EXPECT_TRUE(way != ColdStart::kOndemand || layered == 0);
      early += layered;
    }
  }
  EXPECT_GT(early, 0u);
}

// What a request has computed is found by its adapter's own name afterwards.
TEST(EarlyLoad, WhatWasComputedEarlyIsFoundByTheNameOfTheFiles) {
  const Subject subject = subjects()[0];
  Submit request;
  for (int i = 0; i < 70; ++i) request.prompt.push_back(3 + i * 7 % 80);
  request.adapters = {{source_of("gqa-all-r16"), 1.0f}};
  request.max_tokens = 4;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  int found_early = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SlowDisk disk(seed, 1);
    EngineHostOptions options = early_options(subject, ColdStart::kLayered, disk.files());
    options.engine.step_tokens = 96;
    const auto cold = start(options, subject);
    ASSERT_NE(cold, nullptr);
    Submit other = request;  // so that it is known how long steps and loads take
    other.adapters = {{source_of("gqa-qv-r8"), 1.0f}};
    for (int i = 0; i < 3; ++i) cold->ask(other);
    const uint64_t before = cold->stats().cold_starts.requests[static_cast<size_t>(ColdStart::kLayered)];
    disk.let_take(400);  // it is expected sooner than it comes
    const Answer first = cold->ask(request);
    const bool early = cold->stats().cold_starts.requests[static_cast<size_t>(ColdStart::kLayered)] > before;
    const Answer second = cold->ask(request);
    EXPECT_EQ(first.cached_tokens, 0);
    EXPECT_EQ(second.cached_tokens, 64) << (early ? "early" : "not early");
    EXPECT_EQ(second.tokens, first.tokens);
    EXPECT_EQ(second.version, first.version);
    found_early += early ? 1 : 0;
  }
  EXPECT_GT(found_early, 0);
}

TEST(EarlyLoadFaults, AReadThatFailsEndsItsRequestsAndNoOthers) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = subjects()[0];
  const auto warm = start(options_of(subject), subject);
  SlowDisk disk(random(), 300);
  const auto cold = start(early_options(subject, ColdStart::kLayered, disk.files()), subject);
  ASSERT_TRUE(warm != nullptr && cold != nullptr);
  int failed = 0, well = 0;
  for (int round = 0; round < 12; ++round) {
    const std::vector<Submit> requests = some_requests(random, subject, 20);
    const std::vector<Answer> want = one_by_one(*warm, requests);
    disk.let_fail(round < 10);
    const std::vector<Answer> got = at_once(*cold, requests);
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i].end == EndReason::kError && round < 10) {
        EXPECT_NE(got[i].error.message.find("the disk of the test fails"), std::string::npos) << got[i].error.message;
        EXPECT_NE(got[i].error.message.find("was not loaded"), std::string::npos) << got[i].error.message;
        EXPECT_FALSE(requests[i].adapters.empty());
        EXPECT_TRUE(got[i].tokens.empty());
        ++failed;
        continue;
      }
      EXPECT_EQ(got[i].end, EndReason::kLength) << got[i].error.message;
      EXPECT_EQ(got[i].tokens, want[i].tokens);
      EXPECT_EQ(got[i].logprobs, want[i].logprobs);
      ++well;
    }
  }
  EXPECT_GT(failed, 5);
  EXPECT_GT(well, 50);
  EXPECT_EQ(cold->stats().running, 0);
}

}  // namespace
}  // namespace loralei::test
