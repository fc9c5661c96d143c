// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_client.h"

#include <gtest/gtest.h>

#include <future>

#include "store/etcd_election.h"
#include "store/fake_etcd_test_util.h"
#include "store/real_etcd_test_util.h"

namespace loralei {
namespace {

using namespace test;  // NOLINT

class EtcdClientTest : public testing::Test {
 protected:
  std::unique_ptr<EtcdClient> client_of(EtcdOptions options) {
    auto client = EtcdClient::start(options, log_);
    EXPECT_TRUE(client.ok()) << client.error().message;
    return std::move(*client);
  }
  CollectingLog log_;
};

// The same calls to the fake and to a real one, so that the fake is none of another kind.
template <typename Etcd>
void expect_calls_to_work() {
  Etcd etcd;
  CollectingLog log;
  auto options = etcd.options();
  options.page_keys = 2;
  options.attempt_ms = 2000;
  const auto started = EtcdClient::start(options, log);
  ASSERT_TRUE(started.ok());
  EtcdClient& client = **started;
  EXPECT_EQ(client.get("a")->mod_revision, 0) << "it is not there";
  const int64_t first = client.put({"a/1", "one"})->revision;
  EXPECT_EQ(client.get("a/1").value(), (EtcdKeyValue{"a/1", "one", first, first, 0}));
  for (const char* key : {"a/2", "a/3", "a/4", "a/5", "b/1"}) ASSERT_TRUE(client.put({key, key}).ok());
  const auto all = client.list("a/");
  ASSERT_TRUE(all.ok()) << all.error().message;
  ASSERT_EQ(all->keys.size(), 5u) << "in pages of two";
  EXPECT_EQ(all->keys[4].value, "a/5");
  EXPECT_EQ(all->header.revision, first + 5);
  ASSERT_TRUE(client.remove("a/5").ok());
  EXPECT_EQ(client.list("a/")->keys.size(), 4u);
  EXPECT_TRUE(client.list("nothing/")->keys.empty());

  EtcdTxn txn;
  txn.compares = {{.key = "a/1", .revision = first}};
  txn.puts = {{"a/1", "two"}, {"c", "three"}};
  txn.removals = {"a/2"};
  txn.reads = {"a/1"};
  const auto done = client.txn(txn);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_TRUE(done->succeeded);
  EXPECT_FALSE(done->repeated);
  EXPECT_EQ(client.get("c")->mod_revision, done->header.revision);
  EXPECT_EQ(client.get("a/2")->mod_revision, 0);
  const auto again = client.txn(txn);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->succeeded);
  ASSERT_EQ(again->found.size(), 1u);
  EXPECT_EQ(again->found[0].value, "two");
  txn.compares = {{.key = "a/1", .what = EtcdCompare::What::kValue, .value = "two"},
                  {.key = "d", .what = EtcdCompare::What::kCreateRevision}};
  txn.puts = {{"d", "four"}};
  txn.removals = {};
  EXPECT_TRUE(client.txn(txn)->succeeded);
  EXPECT_FALSE(client.txn(txn)->succeeded) << "d is there now";

  const auto lease = client.grant(60);
  ASSERT_TRUE(lease.ok()) << lease.error().message;
  ASSERT_TRUE(client.put({"l", "bound", lease->id}).ok());
  EXPECT_EQ(client.get("l")->lease, lease->id);
  EXPECT_GT(client.keep_alive(lease->id)->ttl_s, 0);
  EXPECT_TRUE(client.revoke(lease->id).ok());
  EXPECT_TRUE(client.revoke(lease->id).ok()) << "it is over";
  EXPECT_EQ(client.keep_alive(lease->id)->ttl_s, 0);
  EXPECT_EQ(client.get("l")->mod_revision, 0) << "gone with its lease";
  EXPECT_EQ(client.put({"l", "bound", lease->id}).error().code, ErrorCode::kNotFound);
}

TEST_F(EtcdClientTest, CallsWork) { expect_calls_to_work<FakeEtcd>(); }
TEST_F(EtcdClientTest, CallsWorkOnARealOne) {
  if (etcd_binary().empty()) GTEST_SKIP() << kNoEtcd;
  expect_calls_to_work<RealEtcd>();
}

template <typename Etcd>
void expect_one_leader() {
  Etcd etcd;
  CollectingLog log;
  const auto started = EtcdClient::start(etcd.options(), log);
  ASSERT_TRUE(started.ok());
  EtcdClient& client = **started;
  EtcdElection election(client, "e/");
  EXPECT_FALSE(election.leader()->has_value());
  const int64_t first = client.grant(60)->id, second = client.grant(60)->id;
  const auto one = election.stand(first, "first");
  const auto two = election.stand(second, "second");
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(election.leader().value()->value, "first");
  EXPECT_EQ(election.stand(first, "again").value(), *one) << "the place of the first time";
  EtcdTxn write;
  write.compares = {EtcdElection::is_leader(*one)};
  write.puts = {{"w", "by the first"}};
  EXPECT_TRUE(client.txn(write)->succeeded);
  ASSERT_TRUE(client.revoke(first).ok());
  EXPECT_EQ(election.leader().value()->value, "second");
  EXPECT_FALSE(client.txn(write)->succeeded) << "it may not know yet";
  ASSERT_TRUE(election.withdraw(*two).ok());
  EXPECT_FALSE(election.leader()->has_value());
}

TEST_F(EtcdClientTest, TheFirstCandidateLeads) { expect_one_leader<FakeEtcd>(); }
TEST_F(EtcdClientTest, TheFirstCandidateLeadsInARealOne) {
  if (etcd_binary().empty()) GTEST_SKIP() << kNoEtcd;
  expect_one_leader<RealEtcd>();
}

TEST_F(EtcdClientTest, TheNextEndpointIsAskedWhenOneFails) {
  FakeEtcd etcd(3);
  EtcdOptions options = etcd.options();
  options.attempt_ms = 300;
  const auto client = client_of(options);
  ASSERT_TRUE(client->put({"a", "v"}).ok());
  etcd.stop(0);
  EXPECT_EQ(client->get("a")->value, "v");
  etcd.mute(1, true);
  EXPECT_EQ(client->get("a")->value, "v");
  etcd.start(0);
  etcd.stop(2);
  EXPECT_EQ(client->get("a")->value, "v") << "round after round";
}

TEST_F(EtcdClientTest, WhenNobodyAnswersThatIsSaidInTime) {
  FakeEtcd etcd(2);
  EtcdOptions options = etcd.options();
  options.attempt_ms = 20;
  options.deadline_ms = 100;
  const auto client = client_of(options);
  etcd.stop(0);
  etcd.mute(1, true);
  const auto answer = client->get("a");
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(answer.error().message.find("does not answer"), std::string::npos) << answer.error().message;
}

TEST_F(EtcdClientTest, StopEndsACallThatWaits) {
  FakeEtcd etcd;
  etcd.mute(0, true);
  EtcdOptions options = etcd.options();
  options.attempt_ms = options.deadline_ms = 600'000;
  const auto client = client_of(options);
  auto waiting = std::async(std::launch::async, [&] { return client->get("a"); });
  until([&] { return etcd.requests("/v3/kv/range") == 1; });
  client->stop();
  EXPECT_EQ(waiting.get().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(client->get("a").error().code, ErrorCode::kCancelled);
}

TEST_F(EtcdClientTest, WhatMayHaveBeenDoneIsRepeatedWhereTwiceIsAsGoodAsOnce) {
  FakeEtcd etcd;
  const auto client = client_of(etcd.options());
  etcd.fail_behind("/v3/kv/put", 1);
  const auto put = client->put({"a", "v"});
  ASSERT_FALSE(put.ok());
  EXPECT_NE(put.error().message.find("did not say whether"), std::string::npos) << put.error().message;
  EXPECT_EQ(etcd.requests("/v3/kv/put"), 1);
  etcd.fail_behind("/v3/kv/deleterange", 1);
  EXPECT_FALSE(client->remove("a").ok());
  EXPECT_EQ(etcd.requests("/v3/kv/deleterange"), 1);

  EtcdTxn txn;
  txn.compares = {{.key = "b"}};
  txn.puts = {{"b", "mine"}};
  txn.reads = {"b"};
  etcd.fail_behind("/v3/kv/txn", 1);
  const auto answer = client->txn(txn);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_FALSE(answer->succeeded) << "the first did it";
  EXPECT_TRUE(answer->repeated);
  EXPECT_EQ(answer->found.at(0).value, "mine");
  txn.compares = {};
  etcd.fail_behind("/v3/kv/txn", 1);
  EXPECT_FALSE(client->txn(txn).ok()) << "it compares nothing";
  EXPECT_EQ(etcd.requests("/v3/kv/txn"), 3);
  etcd.fail_behind("/v3/lease/grant", 1);
  EXPECT_TRUE(client->grant(10).ok());
  EXPECT_EQ(etcd.leases().size(), 1u) << "no second one";
}

TEST_F(EtcdClientTest, WhatEtcdRefusesIsNotAskedTwice) {
  FakeEtcd etcd;
  const auto client = client_of(etcd.options());
  const std::pair<int, ErrorCode> kCodes[] = {{3, ErrorCode::kInvalidArgument},
                                              {7, ErrorCode::kForbidden},
                                              {8, ErrorCode::kOverloaded},
                                              {12, ErrorCode::kUnsupported},
                                              {16, ErrorCode::kUnauthenticated}};
  int asked = 0;
  for (const auto& [code, expected] : kCodes) {
    etcd.fail_before("/v3/kv/range", 1, "no", code);
    const auto answer = client->get("a");
    ASSERT_FALSE(answer.ok()) << code;
    EXPECT_EQ(answer.error().code, expected);
    EXPECT_EQ(etcd.requests("/v3/kv/range"), ++asked);
  }
  etcd.fail_before("/v3/kv/range", 2, "etcdserver: no leader");
  EXPECT_TRUE(client->get("a").ok()) << "that passes";
}

TEST_F(EtcdClientTest, AListBeginsAgainWhenItsRevisionIsCompacted) {
  FakeEtcd etcd;
  EtcdOptions options = etcd.options();
  options.page_keys = 1;
  const auto client = client_of(options);
  for (const char* key : {"a/1", "a/2", "a/3"}) etcd.put(key, "v");
  etcd.after_page([&] {
    etcd.put("a/0", "new");
    etcd.compact();
  });
  const auto all = client->list("a/");
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all->keys.size(), 4u) << "as it was at one revision";
  EXPECT_EQ(all->header.revision, etcd.revision());
}

TEST_F(EtcdClientTest, PagesAreSmallerWhereValuesAreLarge) {
  FakeEtcd etcd;
  const auto client = client_of(etcd.options());
  for (int i = 0; i < 12; ++i) etcd.put("a/" + std::to_string(i), std::string(1 << 20, 'x'));
  const auto all = client->list("a/");
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all->keys.size(), 12u);
  EtcdOptions options = etcd.options();
  options.list_bytes_most = 5 << 20;
  EXPECT_EQ(client_of(options)->list("a/").error().code, ErrorCode::kTooLarge);
}

TEST(EtcdEndpoints, AreReadAsTheyAreTyped) {
  const auto text_of = [](const char* text) {
    const auto read = parse_etcd_endpoints(text);
    if (!read.ok()) return "no: " + read.error().message;
    std::string all;
    for (const UpstreamAddress& one : *read) all += address_text(one) + " ";
    return all;
  };
  EXPECT_EQ(text_of("etcd://a:1,b,http://[::1]:3/"), "a:1 b:2379 [::1]:3 ");
  EXPECT_EQ(text_of("[::1]"), "[::1]:2379 ");
  for (const char* wrong :
       {"", "a,,b", "https://a", "a:b", "a:0", "a:70000", "a/b", "[::1", "[::1]x", ":5", "a,a:2379", "etcd://"})
    EXPECT_TRUE(text_of(wrong).starts_with("no: ")) << wrong << " " << text_of(wrong);
}

}  // namespace
}  // namespace loralei
