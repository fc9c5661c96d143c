// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_watch.h"

#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <set>

#include "base/prng.h"
#include "store/fake_etcd_test_util.h"
#include "store/real_etcd_test_util.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

// What a watch told, put together; and whether that can be.
class Kept {
 public:
  explicit Kept(EtcdOptions etcd) {
    client = EtcdClient::start(etcd, log).value();
    options.prefix = "k/";
    options.patience.silence_ms = 100;
    options.patience.back_first_ms = options.patience.back_most_ms = 5;
    options.on_news = [this](const EtcdNews& news) { take(news); };
    options.on_state = [this](const Status& status) {
      const std::lock_guard lock(mutex);
      states.push_back(status.ok() ? "up" : status.error().message);
    };
  }
  ~Kept() {
    client->stop();
    watch.reset();
  }
  void start() { watch = EtcdWatch::start(options, *client).value(); }
  std::map<std::string, std::string> all() {
    const std::lock_guard lock(mutex);
    return values;
  }
  int64_t told() {
    const std::lock_guard lock(mutex);
    return revision;
  }
  size_t count_states() {
    const std::lock_guard lock(mutex);
    return states.size();
  }

  CollectingLog log;
  std::unique_ptr<EtcdClient> client;
  EtcdWatchOptions options;
  std::unique_ptr<EtcdWatch> watch;
  std::mutex mutex;
  std::map<std::string, std::string> values;
  std::vector<std::string> states;
  std::vector<EtcdEvent> events;
  int64_t revision = 0, lists = 0, anews = 0, batches = 0;

 private:
  void take(const EtcdNews& news) {
    const std::lock_guard lock(mutex);
    lists += news.listed, anews += news.anew, batches += !news.listed;
    if (news.anew) values.clear(), revision = 0;
    for (const EtcdEvent& event : news.events) {
      events.push_back(event);
      EXPECT_TRUE(event.kv.key.starts_with("k/"));
      // Told once, whole revisions, in their order.
      EXPECT_GT(event.kv.mod_revision, revision);
      EXPECT_LE(event.kv.mod_revision, news.revision);
      if (event.removed) {
        EXPECT_EQ(values.erase(event.kv.key), 1u) << event.kv.key << " was not there";
      } else {
        values[event.kv.key] = event.kv.value;
      }
    }
    revision = news.revision;
  }
};

std::map<std::string, std::string> under_k(const FakeEtcd& etcd) {
  std::map<std::string, std::string> found;
  for (const auto& [key, value] : etcd.all())
    if (key.starts_with("k/")) found[key] = value;
  return found;
}

TEST(EtcdWatch, TellsWhatIsThereAndWhatComes) {
  FakeEtcd etcd;
  etcd.put("k/1", "one");
  etcd.put("other", "x");
  Kept kept(etcd.options());
  kept.start();
  ASSERT_TRUE(kept.watch->wait_for_first(60'000).ok());
  EXPECT_EQ(kept.all(), (std::map<std::string, std::string>{{"k/1", "one"}}));
  etcd.put("k/2", "two");
  etcd.put("l", "x");
  etcd.remove("k/1");
  until([&] { return kept.all() == under_k(etcd); });
  EXPECT_EQ(kept.lists, 1);
}

void put_into(Kept& kept, const std::string& key, const std::string& value) {
  until([&] { return kept.client->put({key, value}).ok(); });
}

TEST(EtcdWatch, ARealOneIsFollowedThroughItsEnd) {
  if (etcd_binary().empty()) GTEST_SKIP() << kNoEtcd;
  RealEtcd etcd;
  EtcdOptions options = etcd.options();
  options.attempt_ms = 300;
  Kept kept(options);
  put_into(kept, "k/1", "one");
  kept.start();
  ASSERT_TRUE(kept.watch->wait_for_first(60'000).ok());
  put_into(kept, "k/2", "two");
  until([&] { return kept.all().size() == 2; });
  etcd.kill();
  until([&] { return kept.count_states() >= 2; });
  EXPECT_EQ(kept.all().size(), 2u) << "what was known stays";
  etcd.start();
  put_into(kept, "k/3", "three");
  until([&] { return kept.all().size() == 3; });
  EXPECT_EQ(kept.lists, 1) << "resumed, and not listed again";
  etcd.signal(SIGSTOP);
  until([&] { return kept.count_states() >= 4; });
  etcd.signal(SIGCONT);
  put_into(kept, "k/1", "four");
  until([&] { return kept.all()["k/1"] == "four"; });
}

// Between a stream that ended and the next, things come and go, and are forgotten.
TEST(EtcdWatch, ARealCompactionIsSeen) {
  if (etcd_binary().empty()) GTEST_SKIP() << kNoEtcd;
  RealEtcd etcd;
  Kept kept(etcd.options());
  for (const char* key : {"k/1", "k/2", "k/3"}) put_into(kept, key, "v");
  std::promise<void> ended, go_on;
  bool once = false;  // the watch's thread's
  kept.options.on_state = [&](const Status& status) {
    if (status.ok() || std::exchange(once, true)) return;
    ended.set_value();
    go_on.get_future().wait();
  };
  kept.start();
  ASSERT_TRUE(kept.watch->wait_for_first(60'000).ok());
  put_into(kept, "k/2", "u");
  until([&] { return kept.all()["k/2"] == "u"; });
  etcd.kill();
  ended.get_future().wait();
  etcd.start();
  EXPECT_TRUE(kept.client->remove("k/1").ok());
  EXPECT_TRUE(kept.client->put({"k/4", "w"}).ok());
  EXPECT_TRUE(kept.client->put({"k/2", "w"}).ok());
  EXPECT_TRUE(kept.client->compact(kept.client->get("k/2")->mod_revision).ok());
  go_on.set_value();
  const std::map<std::string, std::string> expected = {{"k/2", "w"}, {"k/3", "v"}, {"k/4", "w"}};
  until([&] { return kept.all() == expected; });
  EXPECT_EQ(kept.lists, 2);
}

TEST(EtcdWatch, GoesOnElsewhereWithoutAGapOrARepetition) {
  FakeEtcd etcd(3);
  EtcdOptions options = etcd.options();
  options.attempt_ms = 300;  // that a member may say nothing
  Kept kept(options);
  kept.start();
  ASSERT_TRUE(kept.watch->wait_for_first(60'000).ok());
  const auto watching = [&]() -> std::optional<size_t> {
    for (size_t i = 0; i < 3; ++i)
      if (etcd.watches(i) > 0) return i;
    return std::nullopt;
  };
  until([&] { return watching().has_value(); });
  etcd.put("k/1", "one");
  etcd.end_watches(*watching(), R"({"result":{"header":{"revi)");  // cut off in a line
  etcd.put("k/2", "two");
  until([&] { return kept.all() == under_k(etcd) && watching(); });
  size_t member = *watching();
  etcd.stop(member);
  etcd.put("k/3", "three");
  until([&] { return kept.all() == under_k(etcd) && watching(); });
  etcd.start(member);
  member = *watching();
  etcd.mute(member, true);  // it says nothing more, and its connection stays
  until([&] { return watching() && etcd.watches((member + 1) % 3) + etcd.watches((member + 2) % 3) > 0; });
  etcd.put("k/1", "four");
  until([&] { return kept.all() == under_k(etcd); });
  EXPECT_EQ(kept.lists, 1);
  EXPECT_EQ(kept.events.size(), 4u);
}

TEST(EtcdWatch, SaysWhatVanishedBehindACompaction) {
  FakeEtcd etcd;
  for (const char* key : {"k/1", "k/2", "k/3"}) etcd.put(key, "v");
  Kept kept(etcd.options());
  kept.start();
  until([&] { return etcd.watches(0) == 1; });
  etcd.stop(0);
  until([&] { return kept.count_states() == 2; });
  etcd.remove("k/1");
  etcd.put("k/2", "w");
  etcd.put("k/4", "x");
  etcd.remove("k/4");
  etcd.compact();
  etcd.start(0);
  until([&] { return kept.all() == under_k(etcd); });
  EXPECT_EQ(kept.lists, 2);
  ASSERT_EQ(kept.events.size(), 5u) << "three, and the difference";
  EXPECT_EQ(kept.events[3].kv.value, "w");
  EXPECT_TRUE(kept.events[4].removed);
  etcd.put("k/5", "y");
  until([&] { return kept.all() == under_k(etcd); });
}

TEST(EtcdWatch, AStoreThatBeganAnewIsTakenForWhatItIs) {
  for (const char* cluster : {"11", "12"}) {
    FakeEtcd etcd;
    for (int i = 0; i < 10; ++i) etcd.put("k/" + std::to_string(i), "v");
    Kept kept(etcd.options());
    kept.start();
    until([&] { return etcd.watches(0) == 1; });
    etcd.stop(0);
    etcd.begin_anew(cluster);
    etcd.put("k/new", "v");
    etcd.start(0);
    until([&] { return kept.all() == under_k(etcd); });
    EXPECT_EQ(kept.anews, 1);
    etcd.put("k/newer", "v");
    until([&] { return kept.all() == under_k(etcd); });
  }
}

TEST(EtcdWatch, ARevisionInPiecesIsToldAsAWhole) {
  FakeEtcd etcd;
  etcd.fragments(true);
  Kept kept(etcd.options());
  kept.start();
  until([&] { return etcd.watches(0) == 1; });
  EtcdTxn txn;
  for (int i = 0; i < 5; ++i) txn.puts.push_back({"k/" + std::to_string(i), "v"});
  txn.compares = {{.key = "k/0"}};
  ASSERT_TRUE(kept.client->txn(txn)->succeeded);
  until([&] { return kept.all().size() == 5; });
  EXPECT_EQ(kept.told(), etcd.revision());
  EXPECT_EQ(kept.batches, 1) << "though it came in five pieces";
}

TEST(EtcdWatch, SaysWhyNothingComes) {
  FakeEtcd etcd;
  const EtcdOptions options = etcd.options();
  etcd.stop(0);
  Kept kept([&] {
    EtcdOptions quick = options;
    quick.deadline_ms = 50;
    return quick;
  }());
  kept.start();
  EXPECT_EQ(kept.watch->wait_for_first(200).error().code, ErrorCode::kUnavailable);
  etcd.start(0);
  EXPECT_TRUE(kept.watch->wait_for_first(60'000).ok());
}

// Random writes while members come and go, streams are cut, and history is compacted.
TEST(EtcdWatch, AgreesWithTheStoreThroughFaults) {
  const uint64_t seed = 23;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  FakeEtcd etcd(2);
  Kept kept(etcd.options());
  kept.start();
  std::set<size_t> down;
  for (int round = 0; round < 150; ++round) {
    const size_t member = prng.below(2);
    switch (prng.below(6)) {
      case 0:
        if (down.empty()) etcd.stop(member), down.insert(member);
        break;
      case 1:
        for (const size_t one : down) etcd.start(one);
        down.clear();
        break;
      case 2:
        etcd.end_watches(member, prng.below(2) == 0 ? "" : "{\"res");
        break;
      case 3:
        if (prng.below(3) == 0) etcd.compact();
        break;
      case 4:
        etcd.fragments(prng.below(2) == 0);
        break;
      default:
        until([&] { return kept.all() == under_k(etcd); });
    }
    for (uint64_t i = prng.below(4); i > 0; --i) {
      const std::string key = "k/" + std::to_string(prng.below(5));
      if (prng.below(3) == 0)
        etcd.remove(key);
      else
        etcd.put(key, std::to_string(round));
    }
  }
  until([&] { return kept.all() == under_k(etcd); });
}

}  // namespace
}  // namespace loralei
