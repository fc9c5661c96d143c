// SPDX-License-Identifier: Apache-2.0
// Requests that begin while their adapters are being read into memory.
#include <gtest/gtest.h>

#include "base/prng.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

// Random traffic over adapters that are read in pieces, fail, are late, are replaced and
// unloaded; requests are cancelled, held and preempted.
class EarlyTraffic {
 public:
  explicit EarlyTraffic(uint64_t seed)
      : random_(seed),
        world({.blocks = 10 + static_cast<int32_t>(random_.below(20)),
               .max_sequences = 1 + static_cast<int32_t>(random_.below(6)),
               .step_tokens = 8 + static_cast<int32_t>(random_.below(30)),
               .adapter_bytes = 3000,
               .prefix_cache = random_.below(4) != 0,
               .max_model_len = 160,
               .early_loads = true,
               .cold_start = seed % 9 == 0 ? ColdStart::kOndemand : ColdStart::kLayered}) {
    world.executor.clock = &world.clock;
    world.executor.step_ns = 1'000'000;
    world.executor.layers_come = [this](AdapterVersionId version) { return what_becomes_of(version); };
    for (char name = 'a'; name < 'a' + 6; ++name) {
      world.files.put(path_of(name), ++content_);
      world.command(AdapterAction::kAdd, std::string(1, name), path_of(name));
    }
  }

  void turn() {
    switch (random_.below(16)) {
      case 0:
      case 1:
        submit();
        break;
      case 2:
      case 3:
        disturb();
        break;
      case 4:
        change_one();
        break;
      case 5:
        if (random_.below(3) == 0) world.resize(10 + static_cast<int32_t>(random_.below(21)));
        break;
      case 6:
      case 7:
        world.bring_piece();
        break;
      case 8:
        world.end_load(random_.below(5) != 0);
        break;
      case 9:
        world.clock.advance_ns(static_cast<int64_t>(random_.below(3'000'000)));
        break;
      default:
        break;
    }
    const size_t index = world.jobs.empty() ? 0 : random_.below(world.jobs.size());
    if (!world.jobs.empty() && random_.below(2) == 0 && !world.begin_load(index)) world.finish_load(index);
    world.turn();
  }

  void finish() {
    for (uint64_t id = 1; id <= world.last_id; ++id) world.hold(RequestId{id}, false);
    failing_ = false;
    world.run(20000);
    int compared = 0;
    for (const auto& [id, submit] : world.submits)
      for (int32_t choice = 0; choice < submit.choices; ++choice) compared += expect_end(id, choice, submit) ? 1 : 0;
    EXPECT_GT(compared, 10);
    world.expect_nothing_held();
    for (char name = 'a'; name < 'a' + 6; ++name) world.command(AdapterAction::kDrop, std::string(1, name));
    world.run();
    EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
  }
  uint64_t began(ColdStart way) const { return world.stats().cold_starts.requests[static_cast<size_t>(way)]; }

 private:
  Prng random_;
  uint64_t content_ = 1000;
  bool failing_ = true;
  std::map<RequestId, bool> disturbed_;

 public:
  World world;

 private:
  static std::string path_of(char name) { return std::string("/") + name; }
  char name_of() { return static_cast<char>('a' + random_.below(6)); }
  Status what_becomes_of(AdapterVersionId version) {
    const uint64_t kind = failing_ ? random_.below(6) : 2;
    if (kind == 0) return Error{ErrorCode::kUnavailable, "late"};
    if (kind != 1) return world.end_load(true, version) ? Status() : internal_error("nobody reads it");
    world.end_load(false, version);
    return Error{ErrorCode::kIo, "the fake disk was told to fail"};
  }
  void submit() {
    Submit submit = simple(1 + static_cast<int>(random_.below(80)), 1 + static_cast<int>(random_.below(20)),
                           static_cast<int>(random_.below(3)));
    submit.choices = 1 + static_cast<int32_t>(random_.below(3) * random_.below(2));
    submit.prompt_logprobs = random_.below(8) == 0;
    for (auto count = random_.below(3); count > 0; --count)
      submit.adapters.push_back({source_of(std::string(1, name_of())), random_.below(2) ? 1.0f : 0.5f});
    world.submit(submit);
  }
  void disturb() {
    if (world.last_id == 0) return;
    const RequestId id{1 + random_.below(world.last_id)};
    if (random_.below(2) == 0) return world.hold(id, random_.below(3) == 0);
    disturbed_[id] = true;
    world.cancel(id);
  }
  void change_one() {
    const char name = name_of();
    if (random_.below(3) == 0) {
      world.command(AdapterAction::kDrop, std::string(1, name));
      world.command(AdapterAction::kAdd, std::string(1, name), path_of(name));
    } else if (random_.below(2) == 0) {
      world.files.put(path_of(name), ++content_);
      world.command(AdapterAction::kLoad, std::string(1, name), path_of(name), true);
    }
  }
  // True: it ended well, with what it should say.
  bool expect_end(RequestId id, int32_t choice, const Submit& submit) {
    const World::Record& record = world.record(id, choice);
    EXPECT_NE(record.end, EndReason::kNone) << "request " << id.value << " never ended";
    if (record.end == EndReason::kStop || record.end == EndReason::kLength) {
      world.expect_oracle(id, choice);
      return true;
    }
    EXPECT_TRUE(record.end == EndReason::kError ? !submit.adapters.empty() : disturbed_.count(id) == 1);
    return false;
  }
};

TEST(EarlyLoads, RandomTrafficKeepsEveryPromise) {
  uint64_t early = 0, given_up = 0, waited = 0, cached = 0;
  for (uint64_t seed = 1; seed <= 70 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EarlyTraffic traffic(seed);
    for (int turn = 0; turn < 900 && !testing::Test::HasFailure(); ++turn) traffic.turn();
    traffic.finish();
    EXPECT_TRUE(traffic.world.setup_.cold_start == ColdStart::kLayered || traffic.began(ColdStart::kLayered) == 0);
    early += traffic.began(ColdStart::kLayered);
    waited += traffic.began(ColdStart::kOndemand);
    given_up += traffic.world.stats().cold_starts.given_up;
    cached += traffic.world.stats().cached_tokens;
  }
  EXPECT_GT(early, 200u);
  EXPECT_GT(given_up, 20u);
  EXPECT_GT(waited, 200u);
  EXPECT_GT(cached, 1000u);
}

}  // namespace
}  // namespace loralei
