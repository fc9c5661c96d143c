// SPDX-License-Identifier: Apache-2.0
// What is so of a registry in etcd alone; registry_test.cc has what is so of all.
#include "store/etcd_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "store/fake_etcd_test_util.h"
#include "store/patience_test_util.h"
#include "store/registry_test_util.h"
#include "store/registry_value.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

class EtcdRegistryTest : public testing::Test {
 protected:
  EtcdRegistryOptions options() const {
    EtcdRegistryOptions made;
    made.etcd = etcd.options();
    made.keep_versions = keep;
    made.deadline_ms = deadline_ms;
    return made;
  }
  std::unique_ptr<Registry> open() {
    auto opened = open_etcd_registry(options(), log);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  std::string refusal() {
    const auto opened = open_etcd_registry(options(), log);
    return opened.ok() ? "" : opened.error().message;
  }
  static std::string key(const std::string& name) { return EtcdRegistryOptions().prefix + name; }

  FakeEtcd etcd{2};
  CollectingLog log;
  int64_t keep = 3, deadline_ms = 60'000;
};

TEST_F(EtcdRegistryTest, EachReadsWhatTheOthersWrote) {
  const auto one = open(), two = open();
  ASSERT_EQ(put(*one, record("a", "first")).value(), 1);
  until([&] { return two->find("a").has_value(); });
  ASSERT_EQ(put(*two, record("a", "second")).value(), 2);
  until([&] { return one->versions("a").size() == 2; });
  EXPECT_EQ(one->list(), two->list());
  ASSERT_EQ(remove(*one, "a").value(), 2);
  until([&] { return two->list().empty(); });
  EXPECT_EQ(remove(*two, "a").value(), 0);
  EXPECT_EQ(put(*two, record("a", "third")).value(), 3) << "numbers are never given again";
}

TEST_F(EtcdRegistryTest, WhoComesSecondDoesItToWhatIsThereThen) {
  const auto one = open(), two = open();
  etcd.before_txn([&] { EXPECT_EQ(put(*two, record("a", "of two")).value(), 1); });
  EXPECT_EQ(put(*one, record("a", "of one")).value(), 2);
  until([&] { return two->versions("a").size() == 2; });
  EXPECT_EQ(two->find("a")->digest, "of one");
  // What the other removed meanwhile is not there to be removed.
  etcd.before_txn([&] { EXPECT_EQ(remove(*two, "a").value(), 2); });
  EXPECT_EQ(remove(*one, "a", 2).value(), 0);
}

// A router has all servers of a fleet load the same.
TEST_F(EtcdRegistryTest, ServersThatLoadTheSameHaveOneVersion) {
  const auto one = open(), two = open();
  EXPECT_EQ(put(*one, record("a", "d1"), 0).value(), 1);
  EXPECT_EQ(put(*two, record("a", "d1"), 0).value(), 1) << "whether or not it has heard of it";
  EXPECT_EQ(put(*two, record("a", "d1"), 1).value(), 2) << "its own again: another version, as ever";
  EXPECT_EQ(put(*one, record("a", "d1"), 1).value(), 2);
  EXPECT_EQ(put(*one, record("a", "d2"), 2).value(), 3);
  EXPECT_EQ(put(*two, record("a", "d1"), 2).value(), 4) << "others files";
  AdapterRecord elsewhere = record("a", "d1");
  elsewhere.path = "/adapters/b";
  EXPECT_EQ(put(*two, elsewhere, 2).value(), 5);
  // At once.
  etcd.before_txn([&] { EXPECT_EQ(put(*two, record("b", "d"), 0).value(), 1); });
  EXPECT_EQ(put(*one, record("b", "d"), 0).value(), 1);
  // What was heard of and is gone is no version any more.
  until([&] { return one->find("b").has_value(); });
  ASSERT_EQ(remove(*two, "b").value(), 1);
  EXPECT_EQ(put(*one, record("b", "d"), 0).value(), 2);
  until([&] { return two->find("b").has_value(); });
  EXPECT_EQ(two->find("b")->number, 2);
}

// Random writes of two at once. Who answers first did not do it first, so that what the
// two answered is put in the order of the numbers: nobody has one twice, none is left
// out, and what is there in the end are the newest that were not removed.
TEST_F(EtcdRegistryTest, OfTwoWritersNoneIsLost) {
  for (const uint64_t seed : {31, 32}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::unique_ptr<Registry> registries[2] = {open(), open()};
    const std::string names[3] = {"a" + std::to_string(seed), "b" + std::to_string(seed), "c" + std::to_string(seed)};
    std::mutex mutex;
    std::map<std::string, std::map<int64_t, std::string>> given;  // names to numbers to digests
    std::map<std::string, std::set<int64_t>> removed;
    std::vector<std::pair<std::string, int64_t>> unseen;  // by who had written them a moment ago
    const auto work = [&](size_t who) {
      Prng prng(seed * 2 + who);
      for (int i = 0; i < 60; ++i) {
        const std::string& name = names[prng.below(3)];
        if (prng.below(4) == 0) {
          const std::vector<AdapterRecord> there = registries[who]->versions(name);
          if (there.empty()) continue;
          const int64_t wanted = there[prng.below(there.size())].number;
          const auto number = remove(*registries[who], name, wanted);
          ASSERT_TRUE(number.ok()) << number.error().message;
          const std::lock_guard lock(mutex);
          if (*number != 0) {
            EXPECT_EQ(*number, wanted);
            EXPECT_TRUE(removed[name].insert(*number).second) << "removed twice";
          }
        } else {
          const std::string digest = std::to_string(who) + "." + std::to_string(i);
          const auto number = put(*registries[who], record(name, digest));
          ASSERT_TRUE(number.ok()) << number.error().message;
          const bool found = registries[who]->find(name).has_value();
          const std::lock_guard lock(mutex);
          if (!found) unseen.emplace_back(name, *number);
          EXPECT_TRUE(given[name].emplace(*number, digest).second) << "given twice";
        }
      }
    };
    std::thread other([&] { work(1); });
    work(0);
    other.join();
    for (const auto& [name, number] : unseen) EXPECT_TRUE(removed[name].contains(number)) << "by the other";
    const std::unique_ptr<Registry> now = open();  // as it is in etcd, of which the two are still told
    for (const std::string& name : names) {
      EXPECT_EQ(given[name].rbegin()->first, static_cast<int64_t>(given[name].size())) << "none is left out";
      for (const auto& registry : registries) {
        until([&] { return registry->versions(name) == now->versions(name); });
        for (const AdapterRecord& one : registry->versions(name)) {
          EXPECT_EQ(given[name][one.number], one.digest);
          EXPECT_FALSE(removed[name].contains(one.number));
        }
      }
    }
    EXPECT_EQ(registries[0]->list(), now->list());
  }
}

// One at a time, on either: the same as a naive registry.
TEST_F(EtcdRegistryTest, TwoInTurnAgreeWithANaiveOne) {
  const uint64_t seed = 41;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  Naive naive{keep, {}, {}};
  std::unique_ptr<Registry> registries[2] = {open(), open()};
  for (int i = 0; i < 300; ++i) {
    Registry& registry = *registries[prng.below(2)];
    const std::string name = "n" + std::to_string(prng.below(4));
    // What may have been done already when etcd does not say so; a fault now and then.
    if (prng.below(5) == 0) etcd.fail_behind("/v3/kv/txn", 1);
    if (prng.below(5) == 0) etcd.fail_before("/v3/kv/txn", 1, "etcdserver: leader changed");
    if (prng.below(9) == 0) etcd.end_watches(prng.below(2), "");
    if (prng.below(20) == 0) etcd.compact();
    if (const uint64_t what = prng.below(6); what == 0) {
      ASSERT_EQ(remove(registry, name).value(), naive.remove(name));
    } else if (what == 1) {
      const int64_t number = std::max<int64_t>(1, naive.last[name] - static_cast<int64_t>(prng.below(4)));
      ASSERT_EQ(remove(registry, name, number).value(), naive.remove(name, number));
    } else {
      const AdapterRecord one = record(name, std::to_string(i));
      ASSERT_EQ(put(registry, one).value(), naive.put(one));
    }
    ASSERT_EQ(registry.versions(name),
              naive.kept.contains(name) ? std::vector<AdapterRecord>(naive.kept[name].begin(), naive.kept[name].end())
                                        : std::vector<AdapterRecord>());
    if (prng.below(10) == 0)
      for (const auto& each : registries) until([&] { return each->list() == naive.list(); });
    if (prng.below(50) == 0) {
      registries[0].reset();
      registries[0] = open();
    }
  }
  for (const auto& each : registries) until([&] { return each->list() == naive.list(); });
}

TEST_F(EtcdRegistryTest, EtcdThatIsAwayAtTheStartIsSaidSo) {
  etcd.stop(0);
  etcd.stop(1);
  deadline_ms = 100;
  const auto why = refusal();
  EXPECT_NE(why.find("does not answer"), std::string::npos) << why;
  EXPECT_NE(why.find("127.0.0.1:"), std::string::npos) << why;
}

TEST_F(EtcdRegistryTest, WhileEtcdIsAwayReadsGoOnAndWritesAreRefused) {
  const auto other = open();
  deadline_ms = 500;
  std::unique_ptr<Registry> registry;
  until([&] {
    auto opened = open_etcd_registry(options(), log);
    if (opened.ok()) registry = std::move(*opened);
    return opened.ok();
  });
  ASSERT_EQ(put(*other, record("a", "first")).value(), 1);
  until([&] { return registry->find("a").has_value(); });
  etcd.stop(0);
  etcd.stop(1);
  const auto refused = put(*registry, record("b"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  EXPECT_EQ(remove(*registry, "a").error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(remove(*registry, "never").error().code, ErrorCode::kUnavailable) << "another may have put it";
  EXPECT_EQ(registry->find("a")->digest, "first");
  EXPECT_FALSE(registry->find("b"));
  etcd.start(0);
  etcd.start(1);
  until([&] { return put(*other, record("c")).ok(); });
  until([&] { return registry->find("c").has_value(); });
  until([&] { return put(*registry, record("a", "second")).ok(); });
}

TEST_F(EtcdRegistryTest, AStopAnswersWhatWasTakenThoughEtcdIsAway) {
  deadline_ms = 1'000;
  const auto registry = open();
  etcd.stop(0);
  etcd.stop(1);
  std::atomic<int> refused = 0;
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(registry->put(record("a"), [&](const Result<int64_t>& one) { refused += !one.ok(); }).ok());
  registry->stop();
  EXPECT_EQ(refused, 20);
}

TEST_F(EtcdRegistryTest, WhatEtcdDoesNotAnswerIsDoneOnce) {
  const auto registry = open();
  for (int i = 1; i <= 5; ++i) {
    etcd.fail_behind("/v3/kv/txn", 1 + i % 2);
    EXPECT_EQ(put(*registry, record("a", std::to_string(i))).value(), i);
  }
  EXPECT_EQ(registry->versions("a").size(), 3u);
  etcd.fail_behind("/v3/kv/txn", 1);
  EXPECT_EQ(remove(*registry, "a", 4).value(), 4);
  etcd.fail_behind("/v3/kv/txn", 1);
  EXPECT_EQ(remove(*registry, "a").value(), 5);
  EXPECT_EQ(put(*registry, record("a")).value(), 6);
}

// The first is done and not answered, another writes over it, the second finds that.
TEST_F(EtcdRegistryTest, WhatWasDoneIsKnownAgainUnderWhatOthersWrote) {
  const auto one = open(), two = open();
  etcd.fail_behind("/v3/kv/txn", 1);
  etcd.before_txn([&] { etcd.before_txn([&] { ASSERT_EQ(put(*two, record("a", "of two")).value(), 2); }); });
  EXPECT_EQ(put(*one, record("a", "of one")).value(), 1);
  until([&] { return one->versions("a").size() == 2; });
  EXPECT_EQ(one->find("a")->digest, "of two");
}

TEST_F(EtcdRegistryTest, WhatIsNoRegistryIsRefusedWithItsName) {
  etcd.put(key("odd"), "not ours");
  EXPECT_NE(refusal().find("'odd'"), std::string::npos) << refusal();
  etcd.put(key("odd"), R"({"format":2})");
  EXPECT_NE(refusal().find("newer version"), std::string::npos) << refusal();
  etcd.remove(key("odd"));
  const auto registry = open();
  ASSERT_TRUE(put(*registry, record("a")).ok());
  etcd.put(key("a"), "broken later");
  until([&] { return log.text().find("'a'") != std::string::npos; });
  EXPECT_TRUE(registry->find("a")) << "what was known of it";
  EXPECT_EQ(put(*registry, record("a")).error().code, ErrorCode::kCorrupt) << "nobody writes over what he cannot read";
  etcd.remove(key("a"));
  until([&] { return !registry->find("a"); });
}

TEST_F(EtcdRegistryTest, TextThatIsNotUtf8IsRefused) {
  const auto registry = open();
  AdapterRecord one = record("a");
  one.path = "/\xff";
  EXPECT_EQ(put(*registry, one).error().code, ErrorCode::kInvalidArgument);
  one = record("\xff\x01/@");
  one.path = "/odd";
  EXPECT_TRUE(put(*registry, one).ok()) << "names may be anything";
  until([&] { return open()->list() == registry->list(); });
}

TEST_F(EtcdRegistryTest, AnEmptyEtcdInItsPlaceIsSeen) {
  const auto registry = open();
  ASSERT_TRUE(put(*registry, record("a")).ok());
  for (const size_t member : {0, 1}) etcd.stop(member);
  etcd.begin_anew("77");
  for (const size_t member : {0, 1}) etcd.start(member);
  until([&] { return registry->list().empty(); });
  EXPECT_EQ(put(*registry, record("b")).value(), 1);
}

TEST(RegistryValue, IsReadAsItWasWritten) {
  RegistryValue value;
  for (int i = 0; i < 4; ++i) put_version(value, record("a", std::to_string(i)), 3);
  add_done(value, {"w", 4});
  const auto read = parse_registry_value("a", *registry_value_text(value));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, value);
  for (const char* text : {"", "{}", R"({"format":1})", R"({"format":1,"versions":[],"done":[{"number":-1}]})",
                           R"({"format":1,"last":1,"done":[],"versions":[{"number":2,"origin":"http"}]})",
                           R"({"format":1,"last":2,"done":[],"versions":[{"number":0,"origin":"http"}]})",
                           R"({"format":1,"last":2,"done":[],"versions":[{"number":1,"origin":"x"}]})",
                           R"({"format":1,"last":"2","done":[],"versions":[]})"})
    EXPECT_FALSE(parse_registry_value("a", text).ok()) << text;
}

}  // namespace
}  // namespace loralei
