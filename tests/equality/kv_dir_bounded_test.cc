// SPDX-License-Identifier: Apache-2.0
// Prefixes that rest encoded by steps that nobody measured (--kv-sharing bounded,
// --kv-dir), through the real engine: what is encoded is found after a restart, with the
// steps that the first process found, and never with others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "base/prng.h"
#include "engine/kv_found_steps.h"
#include "engine/kv_steps_file.h"
#include "kv/kv_disk_test_util.h"
#include "support/engine_driver.h"

namespace loralei::test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
constexpr int kVocab = 96, kTexts = 3, kBlocksOfText = 5;
const char* const kAdapters[] = {"gqa-qv-r8", "gqa-all-r16"};
constexpr int kHeld = kTexts * kBlocksOfText * 3;  // of the base and two adapters
constexpr int kMany = kHeld / 3;

class Warnings final : public LogSink {
 public:
  void log(LogLevel level, std::string_view message) override {
    if (level >= LogLevel::kWarning) lines_.log(level, message);
  }
  std::vector<std::string> lines() const { return lines_.lines(); }

 private:
  CollectingLog lines_;
};

class KvDirBounded : public testing::Test {
 protected:
  EngineHostOptions options() const {
    EngineHostOptions options;
    options.model_path = kGolden + "models/llama-gqa";
    options.threads = 2;
    options.engine.memory_budget_bytes = int64_t{1} << 30;
    options.engine.max_sequences = 6;
    options.engine.step_tokens = 24;
    options.engine.kv_dtype = DType::kF32;
    options.engine.kv_sharing = KvSharing::kBounded;
    options.engine.kv_cache_bytes = int64_t{200} * 2 * 2 * 2 * 16 * 16 * 4;
    options.engine.max_model_len = 96;
    options.engine.kv_dir = folder_.path();
    options.engine.kv_dir_bytes = int64_t{64} << 20;
    return options;
  }

  // Every text, asked by the base and by both adapters.
  static std::vector<Submit> requests() {
    Prng random(41);
    std::vector<Submit> requests;
    for (int text = 0; text < kTexts; ++text) {
      std::vector<TokenId> tokens(kBlocksOfText * kKvBlockTokens + 1);
      for (TokenId& token : tokens) token = static_cast<TokenId>(3 + random.below(kVocab - 3));
      for (int by = 0; by < 3; ++by) {
        Submit& request = requests.emplace_back();
        request.prompt = tokens;
        if (by > 0) request.adapters = {{source_of(kAdapters[by - 1]), 1.0f}};
        request.max_tokens = 8;
        request.ignore_eos = true;
        request.sampling.logprobs = 0;
      }
    }
    return requests;
  }

  struct Life {
    std::vector<Answer> answers;
    EngineStats stats;
    KvDiskStats disk;
    std::string banner;
  };
  // A server from start to stop, of which all that is asked rests encoded at its end.
  Life live(const EngineHostOptions& options) {
    EngineDriver driver(options, &log_);
    Life life;
    if (!driver.running()) return life;
    for (const char* const name : kAdapters) driver.command(AdapterAction::kAdd, name, kGolden + "adapters/" + name);
    driver.collect();
    life.banner = driver.host().banner();
    life.answers = one_by_one(driver, requests());
    constexpr int kPatience = 60'000;
    for (int waits = 0; driver.stats().kv_coded.blobs < kHeld && waits < kPatience; ++waits)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    life.stats = driver.stats();
    EXPECT_EQ(life.stats.kv_coded.blobs, kHeld);
    life.disk = life.stats.kv_disk.value_or(KvDiskStats{});
    return life;
  }
  Life live() { return live(options()); }

  // Of all that were read from disk: whether that pays is for the times that it takes to
  // say, and what is computed anew is another, exact answer.
  static void expect_same(const Life& got, const Life& want, bool exact = false) {
    ASSERT_EQ(got.answers.size(), want.answers.size());
    int compared = 0;
    for (size_t i = 0; i < want.answers.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      EXPECT_EQ(got.answers[i].end, EndReason::kLength) << got.answers[i].error.message;
      const int whole = kBlocksOfText * kKvBlockTokens;
      if (!exact && (got.answers[i].cached_tokens < whole || want.answers[i].cached_tokens < whole)) continue;
      ++compared;
      EXPECT_EQ(got.answers[i].tokens, want.answers[i].tokens);
      EXPECT_EQ(got.answers[i].logprobs, want.answers[i].logprobs);
    }
    EXPECT_GE(compared, kTexts);
  }
  fs::path steps_file() const {
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      if (entry.path().extension() == ".kv-grid") return entry.path();
    return {};
  }
  int told(const std::string& part) const {
    int count = 0;
    for (const std::string& line : log_.lines()) count += line.find(part) != std::string::npos ? 1 : 0;
    return count;
  }

  const DiskFolder folder_;
  Warnings log_;
};

TEST_F(KvDirBounded, WhatIsEncodedByStepsThatWereFoundIsFoundAfterARestart) {
  const Life first = live();
  EXPECT_EQ(first.disk.read_blocks, 0);
  EXPECT_FALSE(steps_file().empty());
  const std::string steps = read_whole(steps_file());
  const Life second = live();
  EXPECT_GE(second.stats.kv_restored_blocks, kMany);
  EXPECT_EQ(second.disk.read_coded, second.disk.read_blocks) << "all of it was encoded";
  expect_same(live(), second);
  EXPECT_EQ(read_whole(steps_file()), steps) << "they stay";
  // Nobody has measured them, and nobody says so.
  for (const Life* const life : {&first, &second}) {
    EXPECT_EQ(life->stats.kv_coded.agreement, 0);
    EXPECT_NE(life->banner.find("nobody measured"), std::string::npos) << life->banner;
    EXPECT_EQ(life->banner.find("as exact"), std::string::npos) << life->banner;
  }
  EXPECT_NE(second.banner.find(steps_file().string()), std::string::npos) << second.banner;
  EXPECT_TRUE(log_.lines().empty()) << log_.lines()[0];
  // What comes back is near what was computed: another's would be nats away.
  double sum = 0, compared = 0;
  for (size_t i = 0; i < first.answers.size(); ++i) {
    if (first.answers[i].tokens[0] != second.answers[i].tokens[0]) continue;
    sum += std::abs(first.answers[i].logprobs[0] - second.answers[i].logprobs[0]);
    ++compared;
  }
  EXPECT_GE(compared, kTexts);
  EXPECT_LT(sum / compared, 0.3);
}

TEST_F(KvDirBounded, AStepsFileThatIsHarmedOrOfAnotherModelIsToldAndReplaced) {
  live();
  const std::string whole = read_whole(steps_file()), path = steps_file();
  std::string changed = whole;
  changed[whole.size() / 2] = static_cast<char>(changed[whole.size() / 2] ^ 1);
  const KvGridShape shape{.layers = 2, .kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};
  ASSERT_TRUE(write_kv_found_steps(KvGrid::create(shape, std::vector<float>(128, 4.0f)).value(), "another", path).ok());
  const std::string anothers = read_whole(path);
  int harmed = 0;
  for (const std::string& bytes : {whole.substr(0, whole.size() - 7), changed, anothers, std::string()}) {
    SCOPED_TRACE("harm " + std::to_string(harmed));
    write_whole(path, bytes);
    const Life life = live();
    EXPECT_EQ(told("'" + path + "' are not used"), ++harmed);
    EXPECT_EQ(life.disk.read_coded, 0) << "nothing is read by steps that may be others";
    EXPECT_NE(read_whole(path), bytes) << "its own have taken their place";
    EXPECT_GT(live().disk.read_coded, 0);
  }
  EXPECT_EQ(std::ssize(log_.lines()), harmed);
}

TEST_F(KvDirBounded, WhatWasMeasuredComesFirstAndOtherBlobsAreOfNoUse) {
  live();
  const std::string found = read_whole(steps_file());
  const fs::path cache = fs::path(folder_.path()) / "cache";
  EngineHostOptions calibrated = options();
  calibrated.cache_dir = cache;
  KvSteps steps;
  {
    const EngineDriver driver(options());
    steps.fingerprint = driver.host().weights().fingerprint();
  }
  steps.layers = 2, steps.kv_heads = 2, steps.head_dim = 16;
  steps.quality.agreement = 0.75;
  steps.factors.assign(4, 0.25f);
  steps.steps.assign(128, 0.0625f);
  ASSERT_TRUE(
      write_kv_steps(steps, kv_steps_paths(PosixFileSystem(), calibrated.model_path, cache, steps.fingerprint).back())
          .ok());
  const Life measured = live(calibrated);
  EXPECT_EQ(measured.stats.kv_coded.agreement, 0.75);
  EXPECT_EQ(measured.disk.read_coded, 0);
  EXPECT_GE(live(calibrated).disk.read_coded, kMany);
  EXPECT_EQ(read_whole(steps_file()), found);
}

TEST_F(KvDirBounded, WhereStepsCannotBeKeptBlocksAreWrittenRaw) {
  {
    const EngineDriver driver(options());
    const std::string path = kv_found_steps_path(folder_.path(), driver.host().weights().fingerprint(), DType::kF32);
    fs::create_directories(path + ".part");
  }
  const Life first = live();
  EXPECT_TRUE(steps_file().empty());
  EXPECT_EQ(told("could not be kept"), 1);
  const Life second = live();
  EXPECT_EQ(second.disk.read_coded, 0);
  EXPECT_GE(second.stats.kv_restored_blocks, kMany);
  expect_same(second, first, true);
}

// Of another format, so that both have the folder.
TEST_F(KvDirBounded, TwoServersInOneFolderHaveStepsOfTheirOwn) {
  EngineHostOptions other = options();
  other.quantise = DType::kQ8_0;
  const auto both = [&] {
    std::vector<Life> lives(2);
    std::thread beside([&] { lives[1] = live(other); });
    lives[0] = live();
    beside.join();
    return lives;
  };
  // Whoever was too late to keep his, or has others the next time, computes once more.
  both();
  ASSERT_FALSE(steps_file().empty());
  for (const auto& entry : fs::directory_iterator(folder_.path())) EXPECT_NE(entry.path().extension(), ".part");
  both();
  const std::vector<Life> third = both(), fourth = both();
  for (size_t i = 0; i < third.size(); ++i) {
    EXPECT_GE(third[i].stats.kv_restored_blocks, kMany);
    expect_same(fourth[i], third[i]);
  }
  EXPECT_EQ(told("are not used"), 0);
}

}  // namespace
}  // namespace loralei::test
