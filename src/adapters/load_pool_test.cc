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
    ASSERT_TRUE(value && value->load.ok());
    bytes[value->id] = value->load->adapter->bytes;
  }
  EXPECT_EQ(bytes[1], 10);
  EXPECT_EQ(bytes[2], 20);
  pool.stop();
  EXPECT_FALSE(pool.start({}));
}

// What the loader says of half a file is no word about the whole one.
TEST(LoadPool, AFileThatChangedWhileItWasReadIsNotJudgedByWhatWasRead) {
  int stamps = 0;
  const AdapterSource source{[&](const std::string&) -> Result<FileStamp> {
                               return FileStamp{1, 10, ++stamps};
                             },
                             [](const std::string&, const AdapterLoadOptions&,
                                AdapterVersionId) -> Result<AdapterLoad> { return corrupt("a tensor is cut off"); }};
  const LoadDone done = run_load_job(source, {.id = 1, .path = "/a", .read = true});
  ASSERT_FALSE(done.load.ok());
  EXPECT_EQ(done.load.error().code, ErrorCode::kUnavailable) << done.load.error().message;
}

// Not even whether it changed is known then: the reason is the system's.
TEST(LoadPool, AStampThatCannotBeTakenAgainSaysWhy) {
  int stamps = 0;
  const AdapterSource source{
      [&](const std::string&) -> Result<FileStamp> {
        if (++stamps > 1) return io_error("cannot inspect");
        return FileStamp{};
      },
      [](const std::string&, const AdapterLoadOptions&, AdapterVersionId) -> Result<AdapterLoad> {
        return AdapterLoad{.adapter = std::make_shared<const Adapter>()};
      }};
  const LoadDone done = run_load_job(source, {.id = 1, .path = "/a", .read = true});
  ASSERT_FALSE(done.load.ok());
  EXPECT_EQ(done.load.error().code, ErrorCode::kIo) << done.load.error().message;
}

}  // namespace
}  // namespace loralei
