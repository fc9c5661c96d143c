// SPDX-License-Identifier: Apache-2.0
// The real engine while its memory budget comes and goes under traffic and the disk
// fails: ten thousand steps with requests of all kinds on several adapters, budgets
// from the whole model down to nearly nothing, reads that fail, come short and finish
// in any order. No wrong token, no lost request; an answer that ends in an error was
// right until then.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/prng.h"
#include "base/units.h"
#include "support/engine_driver.h"
#include "support/patience.h"
#include "sys/faulty_block_reader.h"
#include "sys/no_threads.h"
#include "sys/process.h"
#include "weights/pack.h"

namespace loralei::test {
namespace {

namespace fs = std::filesystem;
const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
const std::vector<std::string> kAdapters = {"gqa-qv-r8", "gqa-all-r16", "gqa-rslora"};
constexpr int kRequests = 40;  // different ones
constexpr uint64_t kSteps = 10000;
constexpr size_t kCrowd = 12;  // in flight at most

class StreamedEngine : public testing::Test {
 protected:
  void SetUp() override {
    // A copy: the packed file is made beside it.
    folder_ = fs::path(testing::TempDir()) / ("loralei-streamed-engine-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::copy(kGolden + "models/llama-gqa", folder_ / "model", fs::copy_options::recursive);
    options_.model_path = (folder_ / "model").string();
    options_.threads = 2;
    options_.engine.memory_budget_bytes = kGiB;
    options_.engine.max_sequences = 8;
    options_.engine.step_tokens = 32;
    options_.engine.kv_dtype = DType::kF32;
    options_.engine.max_model_len = 96;
    options_.engine.kv_cache_bytes = int64_t{30} * 2 * 2 * 2 * 16 * 16 * 4;  // thirty blocks of 16 tokens
    options_.engine.adapter_bytes = 250'000;
    make_requests();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void make_requests() {
    for (int i = 0; i < kRequests; ++i) {
      Submit submit;
      const auto count = 1 + random_.below(50);
      for (uint64_t j = 0; j < count; ++j) submit.prompt.push_back(static_cast<TokenId>(3 + random_.below(90)));
      submit.max_tokens = static_cast<int32_t>(1 + random_.below(30));
      submit.ignore_eos = true;
      submit.sampling.temperature = random_.below(3) == 0 ? 0.8f : 0.0f;
      submit.sampling.seed = random_();
      if (random_.below(3) != 0)
        submit.adapters.push_back({source_of(kAdapters[random_.below(kAdapters.size())]), 1.0f});
      requests_.push_back(std::move(submit));
    }
  }
  static void register_adapters(EngineDriver& driver) {
    for (const std::string& name : kAdapters) driver.command(AdapterAction::kAdd, name, kGolden + "adapters/" + name);
    driver.collect();
  }
  void compare(const Answer& answer, size_t number) {
    const std::vector<TokenId>& want = expected_[number];
    ASSERT_LE(answer.tokens.size(), want.size());
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), want.begin())) << "request " << number;
    if (answer.end == EndReason::kError) {
      EXPECT_NE(answer.error.message.find("injected"), std::string::npos) << answer.error.message;
      EXPECT_EQ(answer.error.code, ErrorCode::kInternal);
      ++failed_;
    } else {
      EXPECT_EQ(answer.tokens.size(), want.size());
      ++finished_;
    }
  }
  // Until the packed file has been made again and an answer is whole; one that is not is
  // right until its error.
  void ask_until_mended(EngineDriver& driver, const Submit& request) {
    for (int tries = 0;; ++tries) {
      ASSERT_LT(tries, 3000) << "it is not made again";
      const Answer answer = driver.ask(request);
      ASSERT_LE(answer.tokens.size(), expected_[0].size());
      ASSERT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), expected_[0].begin()));
      if (answer.end != EndReason::kError) return;
      const std::string& why = answer.error.message;
      if (answer.error.code == ErrorCode::kUnavailable) {
        ++refused_;
        EXPECT_NE(why.find("is being made again"), std::string::npos) << why;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      } else {
        ++failed_;
        EXPECT_EQ(answer.error.code, ErrorCode::kInternal) << why;
        EXPECT_NE(why.find("has been removed"), std::string::npos) << why;
      }
    }
  }
  // Another budget, with room for most of the weights.
  void stream_most(EngineDriver& driver) {
    const EngineStats begun = driver.stats();
    const uint64_t ticket =
        driver.set_memory(begun.kv_bytes + begun.scratch_bytes + begun.request_bytes + begun.other_bytes +
                          options_.engine.adapter_bytes + begun.weights_bytes * 7 / 10);
    driver.collect();
    ASSERT_TRUE(driver.replies[ticket].status.ok()) << driver.replies[ticket].status.error().message;
    ASSERT_GT(driver.stats().streamed_bytes, 0);
  }
  // What has ended, compared and forgotten.
  void compare_ended(EngineDriver& driver, std::map<uint64_t, size_t>& running) {
    for (auto it = running.begin(); it != running.end();) {
      const auto answer = driver.answers.find({it->first, 0});
      if (answer == driver.answers.end() || answer->second.end == EndReason::kNone) {
        ++it;
        continue;
      }
      compare(answer->second, it->second);
      driver.answers.erase(answer);
      it = running.erase(it);
    }
  }

  fs::path folder_;
  EngineHostOptions options_;
  static constexpr uint64_t kSeed = 77;
  Prng random_{kSeed};
  std::vector<Submit> requests_;
  std::vector<std::vector<TokenId>> expected_;
  int failed_ = 0, finished_ = 0, refused_ = 0;
};

TEST_F(StreamedEngine, BudgetsChangeAndReadsFailUnderTraffic) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  {
    EngineDriver resident(options_);
    ASSERT_TRUE(resident.running());
    register_adapters(resident);
    for (const Submit& request : requests_) expected_.push_back(resident.ask(request).tokens);
  }
  std::atomic<bool> faults{true};
  std::atomic<uint64_t> opened{0};
  options_.open_stream = [&](const std::string& path, const BlockReaderOptions& options) {
    const uint64_t seed = opened.fetch_add(1);
    BlockReaderOptions short_reads = options;
    short_reads.largest_read_bytes = kDirectAlign * static_cast<int64_t>(1 + seed % 8);
    short_reads.allow_ring = seed % 4 != 0;
    auto reader = open_block_reader(path, short_reads);
    if (!reader.ok()) return reader;
    return Result<std::unique_ptr<BlockReader>>(
        std::make_unique<FaultyBlockReader>(std::move(reader).value(), seed, faults ? 0.002 : 0.0));
  };
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  register_adapters(driver);
  const EngineStats begun = driver.stats();
  const int64_t fixed = begun.scratch_bytes + begun.request_bytes + begun.other_bytes + options_.engine.adapter_bytes;
  const int64_t whole = begun.weights_bytes, most = whole + begun.kv_bytes;

  std::map<uint64_t, size_t> running;
  std::vector<uint64_t> tickets;
  while (driver.stats().steps < kSteps) {
    ASSERT_FALSE(HasFailure());
    if (driver.open() < kCrowd) {
      const size_t number = random_.below(kRequests);
      const uint64_t id = driver.submit(requests_[number]);
      if (id != 0) running[id] = number;
    }
    if (random_.below(60) == 0) {
      const int64_t shared = random_.below(6) == 0 ? 2 * most : static_cast<int64_t>(random_.below(most));
      if (const uint64_t ticket = driver.set_memory(fixed + shared)) tickets.push_back(ticket);
    }
    while (driver.take(driver.open() < kCrowd ? 0 : 100'000'000)) {
    }
    compare_ended(driver, running);
  }
  driver.collect();
  compare_ended(driver, running);
  EXPECT_TRUE(running.empty());
  int changed = 0, refused = 0;
  for (const uint64_t ticket : tickets) {
    const Status& status = driver.replies[ticket].status;
    ++(status.ok() ? changed : refused);
    EXPECT_TRUE(status.ok() || status.error().code == ErrorCode::kTooLarge) << status.error().message;
  }
  EXPECT_GT(changed, 20);
  EXPECT_GT(refused, 0);
  EXPECT_GT(failed_, 5);
  EXPECT_GT(finished_, 300);
  EXPECT_GT(opened.load(), 10u);

  // The disk recovers, everything comes back into memory.
  faults = false;
  const uint64_t last = driver.set_memory(kGiB);
  ASSERT_NE(last, 0u);
  driver.collect();
  ASSERT_TRUE(driver.replies[last].status.ok()) << driver.replies[last].status.error().message;
  EXPECT_EQ(driver.stats().streamed_bytes, 0);
  EXPECT_EQ(driver.stats().memory_budget_bytes, kGiB);
  failed_ = 0;
  for (size_t number = 0; number < requests_.size(); ++number) compare(driver.ask(requests_[number]), number);
  EXPECT_EQ(failed_, 0);
  EngineStats ended = driver.stats();
  for (int i = 0; i < 2000 && ended.running > 0; ++i) {  // the snapshot follows the last token
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ended = driver.stats();
  }
  EXPECT_EQ(ended.running + ended.waiting, 0);
  EXPECT_EQ(ended.kv_blocks_used, 0);
  EXPECT_EQ(ended.weights_bytes, whole);
  EXPECT_EQ(ended.kv_bytes, begun.kv_bytes);
}

// The KV cache gives way and comes back while more sequences run than the
// small one holds.
TEST_F(StreamedEngine, TheKvCacheFollowsTheBudgetUnderTraffic) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  options_.engine.max_sequences = 32;
  const int64_t block = int64_t{2} * 2 * 2 * 16 * 16 * 4, smallest = 6 * block;
  options_.engine.kv_cache_bytes = 32 * smallest;  // what 32 sequences of 96 tokens need
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  register_adapters(driver);
  for (const Submit& request : requests_) expected_.push_back(driver.ask(request).tokens);
  const EngineStats begun = driver.stats();
  ASSERT_EQ(begun.kv_bytes, 32 * smallest);
  const auto change = [&](int64_t budget) {
    const uint64_t ticket = driver.set_memory(budget);
    EXPECT_NE(ticket, 0u);
    while (!driver.replies.contains(ticket)) driver.take(1'000'000'000);
    return driver.replies[ticket].status;
  };
  // The least is named, and it is the least.
  const std::string refusal = change(kMiB).error().message;
  const size_t number = refusal.find('(', refusal.find("The least this server can do with"));
  ASSERT_NE(number, std::string::npos) << refusal;
  const int64_t least = std::stoll(refusal.substr(number + 1));
  EXPECT_EQ(change(least - 1).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(driver.stats().kv_bytes, begun.kv_bytes);
  EXPECT_EQ(driver.stats().memory_budget_bytes, begun.memory_budget_bytes);
  EXPECT_TRUE(change(least).ok());
  EXPECT_EQ(driver.stats().kv_bytes, smallest);

  std::map<uint64_t, size_t> running;
  std::set<int64_t> sizes;
  const int64_t most = begun.kv_bytes + begun.weights_bytes;
  int64_t cached = 0;
  for (int changes = 0; changes < 200; ++changes) {
    ASSERT_FALSE(HasFailure());
    while (driver.open() < 30) {
      const size_t request = random_.below(kRequests);
      running[driver.submit(requests_[request])] = request;
    }
    for (auto steps = random_.below(12); steps > 0; --steps) driver.take(1'000'000'000);
    const int64_t budget = least + static_cast<int64_t>(random_.below(static_cast<uint64_t>(most)));
    const Status status = change(budget);
    ASSERT_TRUE(status.ok()) << status.error().message;
    const EngineStats now = driver.stats();
    EXPECT_EQ(now.memory_budget_bytes, budget);
    EXPECT_LE(now.kv_bytes + now.weights_bytes + now.scratch_bytes + now.other_bytes + now.adapter_bytes, budget);
    EXPECT_GE(now.kv_bytes, smallest);
    driver.ledger().check();
    sizes.insert(now.kv_bytes);
    for (const auto& [key, answer] : driver.answers) cached += answer.cached_tokens;
    compare_ended(driver, running);
  }
  EXPECT_TRUE(change(kGiB).ok());
  driver.collect();
  compare_ended(driver, running);
  EXPECT_TRUE(running.empty());
  EXPECT_EQ(failed_, 0);
  EXPECT_GT(finished_, 200);
  EXPECT_GT(sizes.size(), 50u);
  EXPECT_GT(cached, 1000);
  const EngineStats ended = driver.stats();
  EXPECT_GT(ended.preemptions, 20u);
  EXPECT_EQ(ended.kv_bytes, begun.kv_bytes);
  EXPECT_EQ(ended.streamed_bytes, 0);
}

TEST_F(StreamedEngine, IdleAdaptersGoBeforeWeightsDo) {
  options_.engine.adapter_bytes = 0;
  options_.engine.adapter_keeping.policy = KeepPolicy::kLru;  // by worth their measured loads would decide
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  register_adapters(driver);
  std::vector<Submit> requests;
  for (const std::string& name : kAdapters) {
    Submit request = requests_[0];
    request.adapters = {{source_of(name), 1.0f}};
    requests.push_back(request);
    expected_.push_back(driver.ask(request).tokens);
  }
  driver.command(AdapterAction::kPin, kAdapters[0]);
  driver.collect();
  const auto idle_bytes = [&] {
    int64_t bytes = 0;
    for (const auto& adapter : driver.adapters()) bytes += adapter->users == 0 && !adapter->pinned ? adapter->bytes : 0;
    return bytes;
  };
  const EngineStats begun = driver.stats();
  int64_t pinned = 0;
  for (const auto& adapter : driver.adapters()) pinned += adapter->pinned ? adapter->bytes : 0;
  for (int i = 0; i < 2000 && idle_bytes() + pinned < begun.adapter_bytes; ++i)  // the list follows the last token
    driver.take(1'000'000);
  ASSERT_GT(pinned, 0);
  ASSERT_EQ(idle_bytes() + pinned, begun.adapter_bytes);
  const auto change = [&](int64_t budget) {
    const uint64_t ticket = driver.set_memory(budget);
    driver.collect();
    return driver.replies[ticket].status;
  };
  // Room for one of the two that are idle: the one used longest ago goes.
  const auto bytes_of = [&](const std::string& name) {
    for (const auto& adapter : driver.adapters()) {
      if (adapter->source.label == name) return adapter->bytes;
    }
    return int64_t{-1};
  };
  const int64_t newest = bytes_of(kAdapters[2]), beside = driver.ledger().used_bytes() - begun.adapter_bytes;
  ASSERT_TRUE(change(beside + pinned + newest).ok());
  EXPECT_EQ(driver.stats().adapter_bytes, pinned + newest);
  EXPECT_EQ(bytes_of(kAdapters[2]), newest);
  EXPECT_EQ(bytes_of(kAdapters[1]), 0);
  ASSERT_TRUE(change(beside + pinned).ok());
  const EngineStats tight = driver.stats();
  EXPECT_EQ(tight.streamed_bytes, 0);
  EXPECT_EQ(tight.weights_bytes, begun.weights_bytes);
  EXPECT_EQ(tight.kv_bytes, begun.kv_bytes);
  EXPECT_EQ(tight.adapter_bytes, pinned);
  EXPECT_EQ(tight.adapter_evictions, 2u);
  EXPECT_FALSE(fs::exists(folder_ / "model" / "loralei.pack"));  // nor was anything laid out for it
  EXPECT_EQ(bytes_of(kAdapters[0]), pinned);
  EXPECT_EQ(driver.ask(requests[0]).tokens, expected_[0]);
  ASSERT_TRUE(change(kGiB).ok());
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(driver.ask(requests[i]).tokens, expected_[i]) << kAdapters[i];
}

// Holds packing up at its first line of progress.
class HeldUpLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) override {
    std::unique_lock lock(mutex_);
    if (!message.starts_with("packing ")) return;
    ++lines;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
  }
  void wait_for_a_line() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lines > 0; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  std::atomic<int> lines{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
};

TEST_F(StreamedEngine, PackingBesideStepsHasAGrantAndSaysHowFarItIs) {
  HeldUpLog log;
  EngineDriver driver(options_, &log);
  ASSERT_TRUE(driver.running());
  const EngineStats begun = driver.stats();
  const int64_t half = begun.kv_bytes + begun.scratch_bytes + begun.request_bytes + begun.other_bytes +
                       options_.engine.adapter_bytes + begun.weights_bytes * 3 / 4;
  const uint64_t ticket = driver.set_memory(half);
  ASSERT_NE(ticket, 0u);
  log.wait_for_a_line();
  EXPECT_GT(driver.ledger().used_bytes(MemoryUse::kOther), begun.other_bytes);
  EXPECT_EQ(driver.set_memory(kGiB), 0u);  // one change at a time
  Submit request = requests_[0];
  request.adapters.clear();
  const uint64_t beside = driver.submit(request);
  while (driver.open() > 0) driver.take(1'000'000'000);
  EXPECT_EQ((driver.answers[{beside, 0}].end), EndReason::kLength);  // steps go on meanwhile
  log.release();
  driver.collect();
  ASSERT_TRUE(driver.replies[ticket].status.ok()) << driver.replies[ticket].status.error().message;
  EXPECT_GE(log.lines, 5);
  EXPECT_LE(log.lines, 10);
  EXPECT_EQ(driver.ledger().used_bytes(MemoryUse::kOther), begun.other_bytes);
  EXPECT_GT(driver.stats().streamed_bytes, 0);
  EXPECT_EQ(driver.ask(request).tokens, (driver.answers[{beside, 0}].tokens));
}

// Overwrites a file with zeros; it stays the same file, of the same time.
class DamagedFile {
 public:
  explicit DamagedFile(const fs::path& path) : file_(path, std::ios::binary | std::ios::in | std::ios::out) {
    const fs::file_time_type time = fs::last_write_time(path);
    file_ << std::string(fs::file_size(path), '\0') << std::flush;
    fs::last_write_time(path, time);
  }

 private:
  std::fstream file_;
};

// Turns a bit of a tile in the middle of each matrix whose name holds `name`, and leaves
// the file its time.
void turn_bits(const fs::path& path, const std::string& name) {
  const fs::file_time_type time = fs::last_write_time(path);
  const PackedIndex index = parse_packed(**PosixFileSystem().open(path.string())).value();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (const PackedMatrix& matrix : index.matrices) {
    if (matrix.name.find(name) == std::string::npos) continue;
    for (int64_t tile = 0; tile < matrix.tiles(); ++tile) {
      const int64_t at = matrix.at + tile * matrix.tile_bytes() + 65;  // the high byte of a number
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 64));
    }
  }
  file.close();
  fs::last_write_time(path, time);
}

TEST_F(StreamedEngine, APackedFileChangedInPlaceIsMadeAgainWhileTheServerRuns) {
  const fs::path packed = folder_ / "model" / "loralei.pack";
  for (const StreamShrink shrink : {StreamShrink::kOff, StreamShrink::kOn}) {
    options_.stream_shrink = shrink;
    EngineDriver driver(options_);
    ASSERT_TRUE(driver.running());
    const EngineStats begun = driver.stats();
    const int64_t fixed =
        begun.kv_bytes + begun.scratch_bytes + begun.request_bytes + begun.other_bytes + options_.engine.adapter_bytes;
    Submit request = requests_[0];
    request.adapters.clear();
    request.max_tokens = 20;
    expected_ = {driver.ask(request).tokens};
    const uint64_t ticket = driver.set_memory(fixed + begun.weights_bytes * 7 / 10);
    driver.collect();
    ASSERT_TRUE(driver.replies[ticket].status.ok()) << driver.replies[ticket].status.error().message;
    ASSERT_GT(driver.stats().streamed_bytes, 0);
    for (const char* place : {"layers.0.", "layers.1.", "lm_head", "embed_tokens", ""}) {
      SCOPED_TRACE(std::string(place) + (shrink == StreamShrink::kOn ? ", shrunk" : ""));
      EXPECT_EQ(driver.ask(request).tokens, expected_[0]);
      turn_bits(packed, place);
      for (int i = 0; i < 3; ++i) ask_until_mended(driver, request);
      EXPECT_TRUE(fs::exists(packed));
      EXPECT_GT(driver.stats().streamed_bytes, 0);
    }
    fs::remove(packed);
  }
  EXPECT_GE(failed_, 4);  // what is locked is not read again
}

TEST_F(StreamedEngine, APackedFileChangedInPlaceIsMadeAgainThoughNobodyAsks) {
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  Submit request = requests_[0];
  request.adapters.clear();
  expected_ = {driver.ask(request).tokens};
  stream_most(driver);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(driver.stats().ready.ok());
    turn_bits(folder_ / "model" / "loralei.pack", "");
    const Answer failed = driver.ask(request);
    ASSERT_EQ(failed.end, EndReason::kError);
    EXPECT_EQ(failed.error.code, ErrorCode::kInternal) << failed.error.message;
    const Status told = driver.stats().ready;
    ASSERT_FALSE(told.ok());
    EXPECT_NE(told.error().message.find("is being made again"), std::string::npos) << told.error().message;
    until([&] { return driver.stats().ready.ok(); });
    EXPECT_EQ(driver.ask(request).tokens, expected_[0]);
  }
}

// The sentence is there for who looks, without requests, and is true of what is tried.
TEST_F(StreamedEngine, APackedFileIsNotMadeAgainOfAModelThatHasChanged) {
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  stream_most(driver);
  const fs::path source = folder_ / "model" / "model.safetensors";
  fs::last_write_time(source, fs::last_write_time(source) + std::chrono::seconds(5));
  turn_bits(folder_ / "model" / "loralei.pack", "");
  Submit request = requests_[0];
  request.adapters.clear();
  EXPECT_EQ(driver.ask(request).end, EndReason::kError);
  const auto why_not = [&] {
    const Status ready = driver.stats().ready;
    return ready.ok() ? "" : ready.error().message;
  };
  until([&] { return why_not().find("changed") != std::string::npos; });
  const std::string why = driver.ask(request).error.message;
  EXPECT_EQ(why, why_not());
  EXPECT_NE(why.find("could not be made again"), std::string::npos) << why;
  EXPECT_NE(why.find("changed"), std::string::npos) << why;
}

TEST_F(StreamedEngine, ARaiseOfTheBudgetThatFailsHalfWayChangesNothing) {
  Submit request = requests_[0];
  request.adapters.clear();  // they are not registered
  for (const bool to_whole : {true, false}) {
    EngineDriver driver(options_);
    ASSERT_TRUE(driver.running());
    const EngineStats begun = driver.stats();
    const auto change = [&](int64_t weights) {
      const uint64_t ticket = driver.set_memory(begun.kv_bytes + begun.scratch_bytes + begun.request_bytes +
                                                begun.other_bytes + options_.engine.adapter_bytes + weights);
      driver.collect();
      return driver.replies[ticket].status;
    };
    expected_ = {driver.ask(request).tokens};
    ASSERT_TRUE(change(begun.weights_bytes / 2).ok());
    const EngineStats before = driver.stats();
    ASSERT_GT(before.streamed_bytes, 0);
    const DamagedFile packed(folder_ / "model" / "loralei.pack");
    const Status failed = change(to_whole ? begun.weights_bytes : begun.weights_bytes - 8 * kKiB);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kInternal);
    EXPECT_NE(failed.error().message.find("stays at"), std::string::npos) << failed.error().message;
    EXPECT_NE(failed.error().message.find("is damaged"), std::string::npos) << failed.error().message;
    const EngineStats after = driver.stats();
    EXPECT_EQ(after.memory_budget_bytes, before.memory_budget_bytes);
    EXPECT_EQ(after.weights_bytes, before.weights_bytes);
    EXPECT_EQ(after.streamed_bytes, before.streamed_bytes);
    EXPECT_EQ(after.kv_bytes, before.kv_bytes);
    EXPECT_EQ(driver.ledger().used_bytes(MemoryUse::kWeights), before.weights_bytes);
    ask_until_mended(driver, request);
    EXPECT_TRUE(change(begun.weights_bytes).ok());
    EXPECT_EQ(driver.stats().streamed_bytes, 0);
    EXPECT_EQ(driver.ask(request).tokens, expected_[0]);
  }
}

TEST_F(StreamedEngine, PackingBesideStepsIsRefusedWhereTheBudgetHasNoRoomForIt) {
  options_.engine.adapter_bytes = 1000;
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const auto change = [&](int64_t budget) {
    const uint64_t ticket = driver.set_memory(budget);
    driver.collect();
    return driver.replies[ticket].status;
  };
  const int64_t tight = driver.ledger().used_bytes() + options_.engine.adapter_bytes;
  ASSERT_TRUE(change(tight).ok());
  const Status refused = change(tight - 40'000);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(refused.error().message.find("'loralei pack'"), std::string::npos) << refused.error().message;
  EXPECT_EQ(driver.stats().memory_budget_bytes, tight);
  EXPECT_EQ(driver.stats().streamed_bytes, 0);
  // A file that is there needs no memory to be made.
  const BaseModelFile model = open_base_model(options_.model_path).value();
  NullLogSink log;
  ASSERT_TRUE(find_or_pack(model, {}, "", log).ok());
  EXPECT_TRUE(change(tight - 40'000).ok());
  EXPECT_GT(driver.stats().streamed_bytes, 0);
}

TEST_F(StreamedEngine, TheProcessHasOfTheBudgetWhatItTakes) {
  constexpr int64_t kTaken = 700 * kMiB;
  std::atomic<int64_t> takes = 0;
  options_.process_bytes = [&takes] { return takes.load(); };
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const int64_t begun = driver.ledger().used_bytes(MemoryUse::kOther);
  ASSERT_LT(driver.ledger().used_bytes(), kTaken);
  takes = kTaken;
  Submit request = requests_[0];
  request.adapters.clear();
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    driver.ask(request);  // a step now and then looks
  } while (driver.ledger().used_bytes() < kTaken && std::chrono::steady_clock::now() < late);
  EXPECT_EQ(driver.ledger().used_bytes(), kTaken);
  EXPECT_GT(driver.ledger().used_bytes(MemoryUse::kOther), begun);
}

TEST_F(StreamedEngine, ABudgetWhoseChangeGetsNoThreadStaysAndCanBeAskedForAgain) {
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  {
    const NoThreads none;
    const Status refused = driver.engine().command(MemoryCommand{1, kGiB / 2});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  }
  const uint64_t ticket = driver.set_memory(kGiB / 2);
  ASSERT_NE(ticket, 0u);
  driver.collect();
  EXPECT_TRUE(driver.replies[ticket].status.ok());
}

TEST_F(StreamedEngine, PackingEndsWhenNobodyWaitsForItAndTheBudgetStays) {
  const std::string path = (folder_ / "model" / "loralei.pack").string();
  HeldUpLog log;
  EngineDriver driver(options_, &log);
  ASSERT_TRUE(driver.running());
  const EngineStats begun = driver.stats();
  const int64_t half = begun.kv_bytes + begun.scratch_bytes + begun.request_bytes + begun.other_bytes +
                       options_.engine.adapter_bytes + begun.weights_bytes / 2;
  const uint64_t ticket = driver.set_memory(half);
  ASSERT_NE(ticket, 0u);
  log.wait_for_a_line();
  driver.engine().cancel_memory(ticket + 1);  // nobody's
  driver.engine().cancel_memory(ticket);
  log.release();
  driver.collect();
  ASSERT_FALSE(driver.replies[ticket].status.ok());
  EXPECT_EQ(driver.replies[ticket].status.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(driver.stats().memory_budget_bytes, kGiB);
  EXPECT_EQ(driver.ledger().used_bytes(MemoryUse::kOther), begun.other_bytes);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(path + ".part"));  // too little to go on from
  const uint64_t again = driver.set_memory(half);
  ASSERT_NE(again, 0u);
  driver.engine().cancel_memory(ticket);  // it has ended: not the one that is under way
  driver.collect();
  EXPECT_TRUE(driver.replies[again].status.ok());
  EXPECT_TRUE(fs::exists(path));
  EXPECT_GT(driver.stats().streamed_bytes, 0);
}

TEST_F(StreamedEngine, AShutdownEndsPackingAndALaterStartMakesTheFile) {
  const std::string path = (folder_ / "model" / "loralei.pack").string();
  const auto lower = [&](EngineDriver& driver) {
    const EngineStats now = driver.stats();
    return driver.set_memory(now.kv_bytes + now.scratch_bytes + now.request_bytes + now.other_bytes +
                             options_.engine.adapter_bytes + now.weights_bytes / 2);
  };
  for (const bool drained : {true, false}) {
    HeldUpLog log;
    EngineDriver driver(options_, &log);
    ASSERT_TRUE(driver.running());
    const int64_t other = driver.stats().other_bytes;
    const uint64_t ticket = lower(driver);
    ASSERT_NE(ticket, 0u);
    log.wait_for_a_line();
    // Lets packing go on once it has been told to stop.
    std::jthread release([&] {
      while (driver.engine().command(MemoryCommand{1, kGiB}).error().code != ErrorCode::kUnavailable)
        std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      log.release();
    });
    const auto begin = std::chrono::steady_clock::now();
    if (drained) {
      driver.engine().drain();
      driver.collect();
      ASSERT_FALSE(driver.replies[ticket].status.ok());
      EXPECT_EQ(driver.replies[ticket].status.error().code, ErrorCode::kUnavailable);
    } else {
      driver.engine().stop();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_EQ(driver.ledger().used_bytes(MemoryUse::kOther), other);
    EXPECT_LE(log.lines, 2);
    EXPECT_FALSE(fs::exists(path + ".part"));  // too little to go on from
    EXPECT_FALSE(fs::exists(path));
  }
  EngineDriver driver(options_);
  const uint64_t ticket = lower(driver);
  driver.collect();
  EXPECT_TRUE(driver.replies[ticket].status.ok());
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(StreamedEngine, OneBudgetThatCannotDoAndOneThatNeedsNothing) {
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const int64_t weights = driver.stats().weights_bytes;
  const uint64_t tiny = driver.set_memory(kMiB);
  ASSERT_NE(tiny, 0u);
  driver.collect();
  ASSERT_FALSE(driver.replies[tiny].status.ok());
  EXPECT_NE(driver.replies[tiny].status.error().message.find("raise --memory-budget by"), std::string::npos)
      << driver.replies[tiny].status.error().message;
  EXPECT_EQ(driver.stats().memory_budget_bytes, kGiB);
  EXPECT_EQ(driver.stats().weights_bytes, weights);
  EXPECT_FALSE(fs::exists(folder_ / "model" / "model.safetensors.pack"));
  const uint64_t half = driver.set_memory(kGiB / 2);
  ASSERT_NE(half, 0u);
  driver.collect();
  EXPECT_TRUE(driver.replies[half].status.ok());
  EXPECT_EQ(driver.stats().memory_budget_bytes, kGiB / 2);
  EXPECT_EQ(driver.stats().streamed_bytes, 0);
  EXPECT_FALSE(driver.engine().command(MemoryCommand{1, 0}).ok());
}

// A model that was replaced on disk cannot be streamed any more, but what is in memory
// can go on under any budget that holds it.
TEST_F(StreamedEngine, BudgetsThatStreamNothingNeedNoFile) {
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const std::vector<TokenId> before = driver.ask(requests_[0]).tokens;
  const fs::path file = folder_ / "model" / "model.safetensors";
  {
    std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
    const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);  // of some matrix
    bytes.seekg(middle);
    const char other = static_cast<char>(bytes.get() ^ 1);
    bytes.seekp(middle);
    bytes.put(other);
  }
  const auto change = [&](int64_t budget) {
    const uint64_t ticket = driver.set_memory(budget);
    driver.collect();
    return driver.replies[ticket].status;
  };
  const EngineStats begun = driver.stats();
  const int64_t streams = begun.kv_bytes + begun.scratch_bytes + begun.request_bytes + begun.other_bytes +
                          options_.engine.adapter_bytes + begun.weights_bytes * 3 / 4;
  const Status refused = change(streams);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("has changed since"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(change(2 * kGiB).ok());
  EXPECT_TRUE(change(kGiB / 2).ok());
  EXPECT_FALSE(change(streams).ok());
  fs::remove(folder_ / "model" / "loralei.pack");
  EXPECT_TRUE(change(kGiB).ok());
  EXPECT_EQ(driver.stats().streamed_bytes, 0);
  EXPECT_EQ(driver.ask(requests_[0]).tokens, before);
}

// The file that is streamed may lose its name: it is read on, but no other
// one is begun with.
TEST_F(StreamedEngine, ABudgetThatNeedsAPackedFileThatIsGoneStays) {
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  const std::vector<TokenId> before = driver.ask(requests_[0]).tokens;
  const EngineStats begun = driver.stats();
  const int64_t beside =
      begun.kv_bytes + begun.scratch_bytes + begun.request_bytes + begun.other_bytes + options_.engine.adapter_bytes;
  const auto change = [&](int64_t budget) {
    const uint64_t ticket = driver.set_memory(budget);
    driver.collect();
    return driver.replies[ticket].status;
  };
  const int64_t streams = beside + begun.weights_bytes / 2;
  ASSERT_TRUE(change(streams).ok());
  ASSERT_GT(driver.stats().streamed_bytes, 0);
  ASSERT_TRUE(fs::remove(folder_ / "model" / "loralei.pack"));
  for (const int64_t other : {beside + begun.weights_bytes * 3 / 4, beside + begun.weights_bytes * 2 / 5}) {
    const Status refused = change(other);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("removed or replaced"), std::string::npos) << refused.error().message;
    EXPECT_EQ(driver.stats().memory_budget_bytes, streams);
    EXPECT_EQ(driver.ask(requests_[0]).tokens, before);
  }
  EXPECT_TRUE(change(kGiB).ok());
  EXPECT_EQ(driver.stats().streamed_bytes, 0);
  EXPECT_EQ(driver.ask(requests_[0]).tokens, before);
}

// What the forecast accepts starts, with large steps, too: everything a step needs has
// its bytes before the weights.
TEST_F(StreamedEngine, ABudgetThatIsForecastToStreamStarts) {
#if defined(LORALEI_THREAD_SANITIZER) || defined(LORALEI_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the sanitizer's own memory grows between a forecast and a start, and is part of the process's share";
#endif
  options_.engine.step_tokens = 16384;
  const auto least_that_streams = [&] {
    for (int64_t next = process_memory()->rss_bytes; next < kGiB; next += 32 * kKiB) {
      options_.engine.memory_budget_bytes = next;
      const auto forecast = forecast_streaming(options_);
      if (forecast.ok() && forecast->streamed_bytes > 0) return next;
    }
    return int64_t{0};
  };
  ASSERT_GT(least_that_streams(), 0);
  {  // what runs for the first time makes the process larger: once before it counts
    options_.engine.memory_budget_bytes += 16 * kMiB;
    EngineDriver warm(options_);
    ASSERT_TRUE(warm.running());
    Submit request = requests_[0];
    request.adapters.clear();
    EXPECT_EQ(warm.ask(request).end, EndReason::kLength);
  }
  const int64_t budget = least_that_streams();
  ASSERT_GT(budget, 0);
  options_.engine.memory_budget_bytes = budget + 2 * kMiB;  // the process grows a little between the two
  options_.engine.kv_cache_bytes += 2 * kMiB;               // and the weights have no more than before
  const auto forecast = forecast_streaming(options_);
  ASSERT_TRUE(forecast.ok()) << forecast.error().message;
  ASSERT_GT(forecast->streamed_bytes, 0) << forecast->text;
  EngineDriver driver(options_);
  ASSERT_TRUE(driver.running());
  EXPECT_GT(driver.stats().streamed_bytes, 0);
  Submit request = requests_[0];
  request.adapters.clear();
  EXPECT_EQ(driver.ask(request).end, EndReason::kLength);
}

}  // namespace
}  // namespace loralei::test
