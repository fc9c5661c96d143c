// SPDX-License-Identifier: Apache-2.0
// What every registry is, wherever it is kept.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "base/log_test_util.h"
#include "base/prng.h"
#include "store/etcd_registry.h"
#include "store/fake_etcd_test_util.h"
#include "store/real_etcd_test_util.h"
#include "store/registry_test_util.h"
#include "store/sqlite_registry.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT
namespace fs = std::filesystem;

// Somewhere that a registry is kept, also while none is open.
class Place {
 public:
  virtual ~Place() = default;
  virtual Result<std::unique_ptr<Registry>> open(int64_t keep, size_t queue) = 0;
};

class FilePlace final : public Place {
 public:
  FilePlace() {
    std::string folder =
        (fs::is_directory("/dev/shm") ? "/dev/shm/" : testing::TempDir()) + std::string("place-XXXXXX");
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  ~FilePlace() override { fs::remove_all(folder_); }
  Result<std::unique_ptr<Registry>> open(int64_t keep, size_t queue) override {
    return open_sqlite_registry((folder_ / "adapters.db").string(), {.keep_versions = keep, .queue_limit = queue});
  }

 private:
  fs::path folder_;
};

template <typename Etcd>
class EtcdPlace final : public Place {
 public:
  Result<std::unique_ptr<Registry>> open(int64_t keep, size_t queue) override {
    EtcdRegistryOptions options;
    options.etcd = etcd_.options();
    options.keep_versions = keep;
    options.queue_limit = queue;
    return open_etcd_registry(options, log_);
  }

 private:
  Etcd etcd_;
  CollectingLog log_;
};

class RegistryTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "Sqlite") place_ = std::make_unique<FilePlace>();
    if (kind == "FakeEtcd") place_ = std::make_unique<EtcdPlace<FakeEtcd>>();
    if (kind == "RealEtcd") {
      if (etcd_binary().empty()) GTEST_SKIP() << kNoEtcd;
      place_ = std::make_unique<EtcdPlace<RealEtcd>>();
    }
  }
  std::unique_ptr<Registry> open(int64_t keep = 1, size_t queue = 1024) {
    auto opened = place_->open(keep, queue);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return opened.ok() ? std::move(*opened) : nullptr;
  }

 private:
  std::unique_ptr<Place> place_;
};

INSTANTIATE_TEST_SUITE_P(Kept, RegistryTest, testing::Values("Sqlite", "FakeEtcd", "RealEtcd"),
                         [](const auto& info) { return info.param; });

TEST_P(RegistryTest, KeepsWhatWasPutAndNumbersIt) {
  auto registry = open();
  AdapterRecord one = record("a", "first");
  EXPECT_EQ(put(*registry, one).value(), 1);
  one.number = 1;
  EXPECT_EQ(registry->find("a"), one);
  EXPECT_EQ(put(*registry, record("a", "second")).value(), 2);
  EXPECT_EQ(registry->find("a")->digest, "second");
  registry.reset();
  registry = open();
  ASSERT_EQ(registry->list().size(), 1u);
  EXPECT_EQ(registry->list()[0].number, 2);
  EXPECT_EQ(remove(*registry, "a").value(), 2);
  EXPECT_EQ(remove(*registry, "a").value(), 0);
  EXPECT_EQ(remove(*registry, "never").value(), 0);
  registry.reset();
  registry = open();
  EXPECT_TRUE(registry->list().empty());
  EXPECT_EQ(put(*registry, record("a", "third")).value(), 3) << "numbers are never given again";
}

TEST_P(RegistryTest, OneVersionIsRemovedAndPutAgain) {
  auto registry = open(3);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(put(*registry, record("a", "d" + std::to_string(i + 1))).ok());
  const auto numbers = [&] {
    std::string text;
    for (const AdapterRecord& one : registry->list()) text += std::to_string(one.number) + one.digest + " ";
    return text;
  };
  const std::vector<AdapterRecord> all = registry->list();
  EXPECT_EQ(numbers(), "3d3 4d4 5d5 ");
  EXPECT_EQ(remove(*registry, "a", 4).value(), 4);
  EXPECT_EQ(remove(*registry, "a", 4).value(), 0);
  EXPECT_EQ(remove(*registry, "a", 2).value(), 0) << "it was too old";
  EXPECT_EQ(remove(*registry, "b", 1).value(), 0);
  EXPECT_EQ(remove(*registry, "a", 5).value(), 5) << "the newest";
  EXPECT_EQ(registry->find("a")->number, 3);
  registry.reset();
  registry = open(3);
  EXPECT_EQ(numbers(), "3d3 ");
  EXPECT_EQ(put(*registry, all[2]).value(), 5) << "again";
  EXPECT_EQ(put(*registry, all[1]).value(), 4);
  EXPECT_EQ(registry->list(), all);
  EXPECT_EQ(registry->versions("a"), all);
  EXPECT_TRUE(registry->versions("b").empty());
  EXPECT_EQ(remove(*registry, "a", 4).value(), 4);
  EXPECT_EQ(put(*registry, record("a", "d6")).value(), 6);
  EXPECT_EQ(numbers(), "3d3 5d5 6d6 ") << "the newest three that there are";
  for (const int64_t number : {3, 5, 6}) EXPECT_EQ(remove(*registry, "a", number).value(), number);
  EXPECT_FALSE(registry->find("a"));
  EXPECT_EQ(remove(*registry, "a").value(), 0);
  registry.reset();
  registry = open(3);
  EXPECT_TRUE(registry->list().empty());
  EXPECT_EQ(put(*registry, record("a", "d7")).value(), 7) << "numbers are never given again";
}

TEST_P(RegistryTest, FewerVersionsAreKeptAfterARestartWithLess) {
  auto registry = open(3);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(put(*registry, record("a")).ok());
  EXPECT_EQ(registry->list().size(), 3u);
  registry.reset();
  registry = open(2);
  ASSERT_EQ(registry->list().size(), 2u);
  EXPECT_EQ(registry->list()[0].number, 4);
  EXPECT_EQ(put(*registry, record("a")).value(), 6);
  registry.reset();
  EXPECT_EQ(open(10)->list().size(), 2u);
}

TEST_P(RegistryTest, WritesThatFindNoRoomInTheQueueAreRefusedAndTheOthersAnswered) {
  const std::unique_ptr<Registry> opened = open(1, 2);
  Registry& registry = *opened;
  std::promise<void> begun, release;
  ASSERT_TRUE(registry
                  .put(record("a"),
                       [&](const Result<int64_t>&) {
                         begun.set_value();
                         release.get_future().wait();
                       })
                  .ok());
  begun.get_future().wait();
  int answers = 0;
  const auto count = [&](const Result<int64_t>& number) { answers += number.ok(); };
  EXPECT_TRUE(registry.put(record("b"), count).ok());
  EXPECT_TRUE(registry.remove("a", count).ok());
  const Status refused = registry.put(record("c"), count);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  release.set_value();
  registry.stop();
  EXPECT_EQ(answers, 2) << "what was taken is written and answered";
  EXPECT_EQ(registry.put(record("d"), count).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(registry.find("b"));
}

TEST_P(RegistryTest, WhatIsTooLongIsRefused) {
  auto registry = open();
  AdapterRecord one = record("a");
  one.path = std::string(1 << 20, 'x');
  EXPECT_EQ(put(*registry, one).error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(registry->list().empty());
}

// Random writes, several under way at once, with restarts.
TEST_P(RegistryTest, AgreesWithANaiveOne) {
  for (const int64_t keep : {1, 3}) {
    const uint64_t seed = 17 + static_cast<uint64_t>(keep);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    Naive naive{keep, {}, {}};
    SetUp();
    auto registry = open(keep);
    for (int round = 0; round < 30; ++round) {
      std::vector<int64_t> expected, answered;
      std::promise<void> all;
      const size_t count = 1 + prng.below(20);
      for (size_t i = 0; i < count; ++i) {
        const std::string name = "n" + std::to_string(prng.below(6));
        const auto done = [&, count](const Result<int64_t>& number) {
          answered.push_back(number.ok() ? *number : -1);
          if (answered.size() == count) all.set_value();
        };
        if (const uint64_t what = prng.below(6); what == 0) {
          expected.push_back(naive.remove(name));
          ASSERT_TRUE(registry->remove(name, done).ok());
        } else if (what == 1) {  // one that is there, or not
          const int64_t number = std::max<int64_t>(1, naive.last[name] - static_cast<int64_t>(prng.below(4)));
          expected.push_back(naive.remove(name, number));
          ASSERT_TRUE(registry->remove_version(name, number, done).ok());
        } else {
          AdapterRecord one = record(name, "digest " + std::to_string(prng.below(1000)));
          one.origin = static_cast<AdapterOrigin>(prng.below(3));
          expected.push_back(naive.put(one));
          ASSERT_TRUE(registry->put(one, done).ok());
        }
      }
      all.get_future().wait();
      ASSERT_EQ(answered, expected);
      ASSERT_EQ(registry->list(), naive.list());
      if (prng.below(4) == 0) {
        registry.reset();
        registry = open(keep);
        ASSERT_EQ(registry->list(), naive.list());
      }
    }
  }
}

}  // namespace
}  // namespace loralei
