// SPDX-License-Identifier: Apache-2.0
// Sources that are one version: with other files at their path they are an error, never
// another adapter.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "adapters/registry_world.h"
#include "base/prng.h"

namespace loralei {
namespace {

using namespace testing_support;

// As RegistryWorld makes it of the files' inode.
std::string digest_of(uint64_t inode) {
  Digest digest{};
  digest[0] = static_cast<uint8_t>(inode);
  return digest_hex(digest);
}

AdapterSourceSpec version_of(const std::string& name, const std::string& path, uint64_t inode) {
  AdapterSourceSpec spec = spec_of(name, path);
  spec.expected_digest = digest_of(inode);
  return spec;
}

TEST(RegistryDigest, OtherFilesThanExpectedAreAnErrorUntilTheyAreBack) {
  RegistryWorld world;
  world.put("/a", 1000, 2);
  world.registry->add(1, version_of("v1", "/a", 1));
  world.registry->add(2, version_of("v2", "/a", 2));
  std::vector<AdapterPin> pins;
  Error error;
  ASSERT_EQ(world.use("v1", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  for (const char* part : {"adapter \"v1\" was not loaded", "the files at /a are others than those that were loaded",
                           "now 020000000000, then 010000000000", "bring those back, or load what is there now"})
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
  EXPECT_EQ(world.use("v2", pins, error), AcquireOutcome::kReady) << "of the same path";
  EXPECT_EQ(world.registry->counters().failures, 1u);
  ASSERT_EQ(world.use("v1", pins, error), AcquireOutcome::kFailed);
  EXPECT_EQ(world.registry->counters().failures, 1u) << "not read again while the stamp is the same";
  world.put("/a", 1000, 1);
  EXPECT_EQ(world.use("v1", pins, error), AcquireOutcome::kReady) << error.message;
  pins.clear();
}

TEST(RegistryDigest, OneVersionComesBackAsThatOrNotAtAll) {
  for (const bool one_version : {true, false}) {
    SCOPED_TRACE(one_version);
    RegistryWorld world;
    world.put("/a", 1000, 1);
    AdapterSourceSpec spec = spec_of("a", "/a");
    spec.one_version = one_version;
    world.registry->load(1, spec, false);
    world.settle();
    ASSERT_TRUE(world.replies().at(0).status.ok());
    world.put("/a", 1000, 7);
    std::vector<AdapterPin> pins;
    Error error;
    EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << "it is in memory";
    EXPECT_EQ(pins[0]->digest[0], 1);
    pins.clear();
    world.registry->evict_idle(0);
    ASSERT_EQ(world.registry->bytes_of(spec.id), 0);
    EXPECT_EQ(world.use("a", pins, error), one_version ? AcquireOutcome::kFailed : AcquireOutcome::kReady);
    pins.clear();
    world.registry->evict_idle(0);
    world.put("/a", 1000, 1);
    world.files["/a"].stamp.mtime_ns = 9;
    EXPECT_EQ(world.use("a", pins, error), AcquireOutcome::kReady) << error.message;
    EXPECT_EQ(pins[0]->digest[0], 1);
    pins.clear();
  }
}

TEST(RegistryDigest, ALoadByCommandOfOtherFilesLeavesWhatIsKnown) {
  RegistryWorld world;
  world.put("/a", 1000, 2);
  world.registry->load(1, version_of("new", "/a", 1), false);
  world.settle();
  EXPECT_EQ(world.replies().at(0).status.error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(world.registry->knows(source_of("new"))) << "it came with the command";
  world.registry->add(2, version_of("old", "/a", 1));
  world.registry->load(3, version_of("old", "/a", 1), false);
  world.settle();
  const auto replies = world.replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].status.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(world.registry->knows(source_of("old")));
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

// Beside a naive one: a version is served where it is in memory, or its files are at its
// path.
TEST(RegistryDigest, RandomFilesAndEvictionsNeverServeAnother) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    RegistryWorld world;
    std::map<std::string, uint64_t> at_path;  // inode
    struct Known {
      std::string path;
      uint64_t inode = 0;
    };
    std::map<std::string, Known> versions;
    const auto path_of = [&] { return "/p" + std::to_string(random.below(3)); };
    for (const char* path : {"/p0", "/p1", "/p2"}) world.put(path, 1000, at_path[path] = 1 + random.below(200));
    int64_t time_ns = 0;
    for (int step = 0; step < 300; ++step) {
      const uint64_t what = random.below(10);
      if (what < 2) {  // the next training step, or an earlier one again
        const std::string path = path_of();
        world.put(path, 1000, at_path[path] = 1 + random.below(6));
        world.files[path].stamp.mtime_ns = ++time_ns;
      } else if (what < 4) {
        const std::string path = path_of(), name = "v" + std::to_string(versions.size());
        AdapterSourceSpec spec = spec_of(name, path);
        spec.one_version = true;
        if (random.below(2) == 0) spec.expected_digest = digest_of(at_path[path]);
        world.registry->load(1000 + static_cast<uint64_t>(step), spec, false);
        world.settle();
        versions[name] = {path, at_path[path]};
      } else if (what < 6) {
        world.registry->evict_idle(static_cast<int64_t>(random.below(4)) * 1000);
      } else if (!versions.empty()) {
        const auto known = std::next(versions.begin(), static_cast<int64_t>(random.below(versions.size())));
        const bool in_memory = world.registry->bytes_of(source_of(known->first)) > 0;
        const bool served = in_memory || at_path[known->second.path] == known->second.inode;
        std::vector<AdapterPin> pins;
        Error error;
        ASSERT_EQ(world.use(known->first, pins, error), served ? AcquireOutcome::kReady : AcquireOutcome::kFailed)
            << error.message;
        if (served) {
          ASSERT_EQ(pins[0]->digest[0], known->second.inode);
        }
      }
      world.registry->check();
    }
  }
}

}  // namespace
}  // namespace loralei
