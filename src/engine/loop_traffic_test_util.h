// SPDX-License-Identifier: Apache-2.0
// For soaks of cold starts: random requests with adapters "a" to "f" in a world, of which
// some are cancelled, held and let go, and what has to have become of each at the end.
// One thread; owns its world.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/prng.h"
#include "engine/loop_test_world.h"

namespace loralei::testing_support {

class RandomTraffic {
 public:
  // The world's numbers are drawn by whoever makes it.
  RandomTraffic(Prng random, const WorldOptions& setup, int64_t adapter_bytes)
      : world(setup), random_(random), adapter_bytes_(adapter_bytes) {
    for (char name = 'a'; name <= 'f'; ++name) {
      world.files.put(path_of(name), ++content_, adapter_bytes_);
      world.command(AdapterAction::kAdd, std::string(1, name), path_of(name));
    }
  }

  uint64_t below(uint64_t bound) { return random_.below(bound); }

  void submit() {
    Submit submit =
        simple(1 + static_cast<int>(below(80)), 1 + static_cast<int>(below(20)), static_cast<int>(below(3)));
    submit.choices = 1 + static_cast<int32_t>(below(3) * below(2));
    submit.prompt_logprobs = below(8) == 0;
    for (auto count = below(3); count > 0; --count)
      submit.adapters.push_back({source_of(std::string(1, name_of())), below(2) ? 1.0f : 0.5f});
    world.submit(submit);
  }
  void disturb() {
    if (world.last_id == 0) return;
    const RequestId id{1 + below(world.last_id)};
    if (below(2) == 0) return world.hold(id, below(3) == 0);
    cancelled_[id] = true;
    world.cancel(id);
  }
  void replace_one() {
    const char name = name_of();
    world.files.put(path_of(name), ++content_, adapter_bytes_);
    world.command(AdapterAction::kLoad, std::string(1, name), path_of(name), true);
  }
  void add_one_anew() {
    const char name = name_of();
    world.command(AdapterAction::kDrop, std::string(1, name));
    world.command(AdapterAction::kAdd, std::string(1, name), path_of(name));
  }

  // All is let go and ends; nothing is held then.
  void finish() {
    for (uint64_t id = 1; id <= world.last_id; ++id) world.hold(RequestId{id}, false);
    world.run(20000);
    int compared = 0;
    for (const auto& [id, submit] : world.submits)
      for (int32_t choice = 0; choice < submit.choices; ++choice) compared += expect_end(id, choice, submit) ? 1 : 0;
    EXPECT_GT(compared, 10);
    EXPECT_TRUE(world.loop->health().ok());
    world.expect_nothing_held();
    for (char name = 'a'; name <= 'f'; ++name) world.command(AdapterAction::kDrop, std::string(1, name));
    world.run();
    EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
  }
  uint64_t began(ColdStart way) const { return world.stats().cold_starts.requests[static_cast<size_t>(way)]; }

  World world;

 private:
  static std::string path_of(char name) { return std::string("/") + name; }
  char name_of() { return static_cast<char>('a' + below(6)); }
  // True: it ended well, with what it should say.
  bool expect_end(RequestId id, int32_t choice, const Submit& submit) {
    const World::Record& record = world.record(id, choice);
    EXPECT_NE(record.end, EndReason::kNone) << "request " << id.value << " never ended";
    if (record.end == EndReason::kStop || record.end == EndReason::kLength) {
      world.expect_oracle(id, choice);
      return true;
    }
    EXPECT_TRUE(record.end == EndReason::kError ? !submit.adapters.empty() : cancelled_.count(id) == 1);
    return false;
  }

  Prng random_;
  const int64_t adapter_bytes_;
  uint64_t content_ = 1000;
  std::map<RequestId, bool> cancelled_;
};

}  // namespace loralei::testing_support
