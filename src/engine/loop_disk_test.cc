// SPDX-License-Identifier: Apache-2.0
// Prefixes on disk, as the loop waits for them.
#include <gtest/gtest.h>

#include "engine/loop_test_world.h"
#include "kv/kv_disk_test_util.h"

namespace loralei {
namespace {

using namespace testing_support;

// What is computed in one world lies on disk for the next.
void keep(const std::string& folder, const std::vector<Submit>& requests) {
  World world({.kv_dir = folder});
  world.submit_all(requests);
  world.run();
  for (int i = 0; i < 40; ++i) world.turn();
  ASSERT_GT(world.disk->stats().written_blocks, 2);
  ASSERT_TRUE(world.disk->flush(0) || [&] {
    while (world.disk->run_one_job()) {
    }
    return true;
  }());
}

TEST(EngineLoopDisk, ARequestWaitsForItsPrefixAndFindsIt) {
  const DiskFolder folder;
  const Submit request = simple(70, 5, 1);
  keep(folder.path(), {request});
  World world({.kv_dir = folder.path()});
  world.disk_is_stuck = true;
  const RequestId id = world.submit(request);
  for (int i = 0; i < 5; ++i) world.turn();
  EXPECT_EQ(world.record(id).events, 0) << "its prefix is being read";
  EXPECT_EQ(world.stats().steps, 0u);
  world.disk_is_stuck = false;
  world.run();
  world.expect_oracle(id);
  EXPECT_EQ(world.record(id).first.cached_tokens, 64);
  EXPECT_EQ(world.stats().kv_restored_blocks, 4);
  world.expect_nothing_held();
}

TEST(EngineLoopDisk, WhoWaitsForADiskThatIsStuckIsComputed) {
  const DiskFolder folder;
  const std::vector<Submit> requests = {simple(70, 5, 1), simple(60, 5, 2), simple(50, 5, 3), simple(70, 8, 1)};
  keep(folder.path(), requests);
  World world({.kv_dir = folder.path()});
  world.disk_is_stuck = true;
  std::vector<RequestId> ids = world.submit_all(requests);
  for (int i = 0; i < 5; ++i) world.turn();
  EXPECT_EQ(world.stats().steps, 0u);
  world.cancel(ids.back());
  world.clock.advance_ns(5'000'000'000);
  world.run();
  for (size_t i = 0; i < 3; ++i) {
    world.expect_oracle(ids[i]);
    EXPECT_EQ(world.record(ids[i]).first.cached_tokens, 0);
  }
  EXPECT_EQ(world.record(ids[3]).end, EndReason::kCancelled);
  // Nobody begins to wait for it.
  const RequestId later = world.submit(simple(70, 3, 3));
  world.run();
  world.expect_oracle(later);
  // What it answers at last is nobody's; then it is asked again.
  world.disk_is_stuck = false;
  world.run();
  EXPECT_EQ(world.stats().kv_restored_blocks, 0);
  world.expect_nothing_held();
}

}  // namespace
}  // namespace loralei
