// SPDX-License-Identifier: Apache-2.0
// Whatever way a request starts whose adapter is not on the device, its answer is that of
// the cores, bit for bit: steps wait for layers that come late, or have helper processes
// compute them, which are killed and stopped at random.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/log_test_util.h"
#include "engine/emulated/emulated_backend.h"
#include "support/emulated_subjects.h"
#include "support/engine_driver.h"
#include "support/model_harness.h"
#include "support/patience.h"
#include "sys/cpu.h"

namespace loralei::test {
namespace {

constexpr const char* kSeed = "COLD_START_TEST_SEED";

EngineHostOptions cold_options(const Subject& subject, ColdStart way, int32_t helpers,
                               std::function<std::unique_ptr<Link>(const Clock&)> link) {
  EngineHostOptions options = options_of(subject);
  options.threads = 1;
  options.engine.cold_start = way;
  options.engine.assist_helpers = helpers;
  options.engine.adapter_keeping = AdapterKeeping::none();  // so that they come again and again
  options.assist = {.program = LORALEI_ASSIST_HELPER, .args = {}};
  options.device = emulated_factory({.make_link = std::move(link), .poison = true});
  return options;
}

uint64_t requests_by(const ColdStarts& starts, ColdStart way) { return starts.requests[static_cast<size_t>(way)]; }

class ColdStartEquality : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Subjects, ColdStartEquality, testing::Range(size_t{0}, subjects().size()),
                         [](const auto& info) { return subjects()[info.param].name; });

TEST_P(ColdStartEquality, AnswersAreThoseOfTheCoresInEveryWay) {
  Prng random(seed_of_run(kSeed));
  const Subject subject = subjects()[GetParam()];
  const std::vector<Submit> requests = some_requests(random, subject, 40);
  const auto on_cores = start(options_of(subject), subject);
  ASSERT_NE(on_cores, nullptr);
  const std::vector<Answer> want = one_by_one(*on_cores, requests);
  uint64_t early = 0, assisted = 0;
  for (const ColdStart way : {ColdStart::kAuto, ColdStart::kLayered, ColdStart::kAssisted, ColdStart::kOndemand}) {
    for (const uint64_t most_us : {50, 1000, 20000}) {
      SCOPED_TRACE(testing::Message() << kColdStartNames[static_cast<size_t>(way)] << " " << most_us << " us");
      const int32_t helpers = 1 + static_cast<int32_t>(random.below(3));
      const auto device =
          start(cold_options(subject, way, helpers,
                             [&, seed = random()](const Clock&) { return std::make_unique<SlowLink>(seed, most_us); }),
                subject);
      ASSERT_NE(device, nullptr);
      expect_same(at_once(*device, requests), want);
      expect_same(one_by_one(*device, requests), want);
      const ColdStarts starts = device->stats().cold_starts;
      EXPECT_TRUE(way != ColdStart::kOndemand || requests_by(starts, ColdStart::kLayered) == 0);
      EXPECT_TRUE(way == ColdStart::kAuto || way == ColdStart::kAssisted ||
                  (requests_by(starts, ColdStart::kAssisted) == 0 && starts.assisted_layers == 0));
      if (way == ColdStart::kAssisted) assisted += starts.assisted_layers;
      early += requests_by(starts, ColdStart::kLayered) + requests_by(starts, ColdStart::kAssisted);
    }
  }
  EXPECT_GT(early, 0u);
  EXPECT_GT(assisted, 0u);
}

// What helpers cannot do is waited for: they are not asked about whole tensors.
TEST(ColdStartWays, CachedBringsEverythingBeforeAnybodyAsks) {
  const Subject subject = subjects()[0];
  const auto device = start(
      cold_options(subject, ColdStart::kCached, 0, [](const Clock&) { return std::make_unique<SlowLink>(7, 200); }),
      subject);
  ASSERT_NE(device, nullptr);
  until([&] {
    device->take(1'000'000);
    const AdapterList adapters = device->adapters();
    return std::all_of(adapters.begin(), adapters.end(), [](const auto& adapter) { return adapter->on_device; });
  });
  Prng random(5);
  at_once(*device, some_requests(random, subject, 30));
  const EngineStats stats = device->stats();
  EXPECT_EQ(stats.adapter_uploads, subject.adapters.size());
  EXPECT_EQ(requests_by(stats.cold_starts, ColdStart::kLayered) + requests_by(stats.cold_starts, ColdStart::kOndemand),
            0u);
}

// --- helpers that do not start

std::unique_ptr<EngineHost> start_without_helpers(const std::string& program, int32_t stated, LogSink& log,
                                                  std::string& refusal) {
  EngineHostOptions options = cold_options(subjects()[0], ColdStart::kAuto, stated,
                                           [](const Clock&) { return std::make_unique<SlowLink>(7, 200); });
  options.assist.program = program;
  auto host = EngineHost::start(options, log, {});
  if (host.ok()) return *std::move(host);
  refusal = host.error().message;
  return nullptr;
}

// One is missing, one ends at once, one speaks another language.
TEST(ColdStartWays, HelpersThatNobodyAskedForAreDoneWithoutWhereTheyDoNotStart) {
  if (usable_cpus() < 2) GTEST_SKIP() << "with one core there are no helpers unless they are asked for";
  for (const char* program : {"/does/not/exist", "/bin/false", "/bin/echo"}) {
    SCOPED_TRACE(program);
    CollectingLog log;
    std::string refusal;
    const auto host = start_without_helpers(program, -1, log, refusal);
    ASSERT_NE(host, nullptr) << refusal;
    EXPECT_NE(log.text().find("cold requests wait for layers instead"), std::string::npos) << log.text();
    EXPECT_EQ(host->engine().stats().cold_starts.helpers, 0);
  }
}

TEST(ColdStartWays, HelpersThatWereAskedForAreStartedOrNothingIs) {
  CollectingLog log;
  std::string refusal;
  EXPECT_EQ(start_without_helpers("/does/not/exist", 1, log, refusal), nullptr);
  EXPECT_NE(refusal.find("/does/not/exist"), std::string::npos) << refusal;
  EXPECT_NE(start_without_helpers("/does/not/exist", 0, log, refusal), nullptr) << refusal;
  EXPECT_EQ(log.text().find("wait for layers instead"), std::string::npos) << log.text();
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

// Stalls for a while now and then.
class TornLink final : public Link {
 public:
  explicit TornLink(uint64_t seed) : random_(seed) {}
  Status copy(std::span<const LinkPart> parts, int64_t, const std::stop_token& stop) override {
    const uint64_t kind = random_.below(400);
    const int64_t us = kind == 0 ? 2'000'000 : static_cast<int64_t>(random_.below(2000));
    for (int64_t slept = 0; slept < us && !stop.stop_requested(); slept += 1000)
      std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(1000, us)));
    for (const LinkPart& part : parts) std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
    return {};
  }

 private:
  Prng random_;
};

TEST(ColdStartFaults, HelpersAreKilledAndStoppedAndNobodyNotices) {
  const char* const stated = std::getenv("COLD_START_FAULTS_SECONDS");
  const auto seconds = std::chrono::seconds(stated != nullptr ? std::atoi(stated) : 8);
  Prng random(seed_of_run(kSeed)), faults(random());
  const Subject subject = subjects()[0];
  const auto on_cores = start(options_of(subject), subject);
  ASSERT_NE(on_cores, nullptr);
  const auto before = children();
  uint64_t restarts = 0, assisted = 0;
  {
    const auto device =
        start(cold_options(subject, ColdStart::kAssisted, 2,
                           [seed = random()](const Clock&) { return std::make_unique<TornLink>(seed); }),
              subject);
    ASSERT_NE(device, nullptr);
    std::atomic<bool> over = false;
    std::thread kills([&] {
      while (!over) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20 + faults.below(200)));
        const std::vector<int> pids = children();
        if (!pids.empty()) ::kill(pids[faults.below(pids.size())], faults.below(2) == 0 ? SIGKILL : SIGSTOP);
      }
    });
    const auto end = std::chrono::steady_clock::now() + seconds;
    while (std::chrono::steady_clock::now() < end && !testing::Test::HasFailure()) {
      const std::vector<Submit> requests = some_requests(random, subject, 20);
      expect_same(at_once(*device, requests), one_by_one(*on_cores, requests));
    }
    over = true;
    kills.join();
    const EngineStats stats = device->stats();
    restarts = stats.cold_starts.helper_restarts;
    assisted = stats.cold_starts.assisted_layers;
  }
  EXPECT_GT(restarts, 0u);
  EXPECT_GT(assisted, 0u);
  EXPECT_EQ(children(), before) << "no helper is left";
}

}  // namespace
}  // namespace loralei::test
