// SPDX-License-Identifier: Apache-2.0
#include "adapters/load_pool.h"

#include <gtest/gtest.h>

#include <map>

#include "adapters/registry_world.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(LoadPool, ResultsComeBackAsValuesAndStopWaits) {
  RegistryWorld world;
  world.put("/a", 10);
  world.put("/b", 20);
  BoundedQueue<LoadDone> done(8);
  LoadPool pool(2, world.source(), [&](LoadDone&& value) { (void)done.try_push(std::move(value)); });
  for (uint64_t id = 1; id <= 2; ++id) {
    LoadJob job{.id = id, .path = id == 1 ? "/a" : "/b", .read = true};
    ASSERT_TRUE(pool.start(std::move(job)));
  }
  std::map<uint64_t, int64_t> bytes;
  for (int i = 0; i < 2; ++i) {
    auto value = done.pop();
    ASSERT_TRUE(value && value->adapter.ok());
    bytes[value->id] = (*value->adapter)->bytes;
  }
  EXPECT_EQ(bytes[1], 10);
  EXPECT_EQ(bytes[2], 20);
  pool.stop();
  EXPECT_FALSE(pool.start({}));
}

}  // namespace
}  // namespace loralei
