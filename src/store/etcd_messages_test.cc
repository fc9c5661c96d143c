// SPDX-License-Identifier: Apache-2.0
#include "store/etcd_messages.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

template <typename T>
std::string why(const Result<T>& result) {
  return result.ok() ? "" : result.error().message;
}

TEST(EtcdMessages, RequestsAreSpelledAsTheGatewayHasThem) {
  EXPECT_EQ(etcd_range_body({.key = "a", .end = "b", .limit = 3, .revision = 9}),
            R"({"key":"YQ==","limit":"3","range_end":"Yg==","revision":"9"})");
  EXPECT_EQ(etcd_range_body({.key = "a", .count_only = true, .order = EtcdOrder::kByCreation}),
            R"({"count_only":true,"key":"YQ==","sort_order":"ASCEND","sort_target":"CREATE"})");
  EXPECT_EQ(etcd_put_body({"a", "v", 5}), R"({"key":"YQ==","lease":"5","value":"dg=="})");
  EXPECT_EQ(etcd_delete_body("a"), R"({"key":"YQ=="})");
  EXPECT_EQ(etcd_grant_body(7, 10), R"({"ID":"7","TTL":"10"})");
  EXPECT_EQ(etcd_lease_body(7), R"({"ID":"7"})");
  EXPECT_EQ(
      etcd_watch_body("a", "b", 4),
      R"({"create_request":{"fragment":true,"key":"YQ==","progress_notify":true,"range_end":"Yg==","start_revision":"4"}})");
  EtcdTxn txn;
  txn.compares = {{.key = "a", .revision = 3}, {.key = "a", .what = EtcdCompare::What::kValue, .value = "v"}};
  txn.puts = {{"a", "w"}};
  txn.removals = {"b"};
  txn.reads = {"a"};
  EXPECT_EQ(etcd_txn_body(txn),
            R"({"compare":[{"key":"YQ==","mod_revision":"3","result":"EQUAL","target":"MOD"},)"
            R"({"key":"YQ==","result":"EQUAL","target":"VALUE","value":"dg=="}],)"
            R"("failure":[{"requestRange":{"key":"YQ=="}}],)"
            R"("success":[{"requestPut":{"key":"YQ==","value":"dw=="}},{"requestDeleteRange":{"key":"Yg=="}}]})");
}

TEST(EtcdMessages, APrefixEndsBehindAllThatBeginSo) {
  EXPECT_EQ(etcd_prefix_end("a/"), "a0");
  EXPECT_EQ(etcd_prefix_end("a\xff"), "b");
  EXPECT_EQ(etcd_prefix_end("\xff\xff"), std::string(1, '\0'));
}

TEST(EtcdMessages, AnswersOfEtcdAreRead) {
  const auto range = parse_etcd_range(
      R"({"header":{"cluster_id":"14841639068965178418","revision":"9"},"kvs":[{"key":"YQ==","create_revision":"2",)"
      R"("mod_revision":"3","version":"2","value":"dw==","lease":"-4"}],"more":true,"count":"2"})");
  ASSERT_TRUE(range.ok()) << range.error().message;
  EXPECT_EQ(range->header.revision, 9);
  EXPECT_EQ(range->header.cluster, "\"14841639068965178418\"");
  ASSERT_EQ(range->keys.size(), 1u);
  EXPECT_EQ(range->keys[0], (EtcdKeyValue{"a", "w", 2, 3, -4}));
  EXPECT_TRUE(range->more);
  const auto txn = parse_etcd_txn(
      R"({"header":{"revision":"3"},"responses":[{"response_range":{"kvs":[{"key":"YQ=="}]}},{"response_put":{}}]})");
  ASSERT_TRUE(txn.ok());
  EXPECT_FALSE(txn->succeeded);
  EXPECT_EQ(txn->found.size(), 1u);
  const auto watch =
      parse_etcd_watch(R"({"result":{"header":{"revision":"3"},"events":[{"kv":{"key":"YQ==","mod_revision":"2"}},)"
                       R"({"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}}],"fragment":true}})");
  ASSERT_TRUE(watch.ok()) << watch.error().message;
  ASSERT_EQ(watch->events.size(), 2u);
  EXPECT_FALSE(watch->events[0].removed);
  EXPECT_TRUE(watch->events[1].removed);
  EXPECT_TRUE(watch->fragment);
  EXPECT_EQ(parse_etcd_watch(R"({"result":{"canceled":true,"compact_revision":"3"}})")->compact_revision, 3);
  EXPECT_EQ(parse_etcd_keep_alive(R"({"result":{"ID":"5"}})")->ttl_s, 0) << "it is over";
  EXPECT_EQ(parse_etcd_grant(R"({"ID":"5","TTL":"10"})")->ttl_s, 10);
}

TEST(EtcdMessages, RefusalsOfOldAndNewOnesAreRead) {
  for (const char* body :
       {R"({"error":"no","message":"no","code":11})", R"({"code":11,"message":"no","details":[]})",
        R"({"error":{"grpc_code":11,"http_code":400,"message":"no","http_status":"Bad Request"}})"}) {
    const EtcdRefusal refusal = parse_etcd_refusal(body);
    EXPECT_EQ(refusal.code, 11) << body;
    EXPECT_EQ(refusal.message, "no") << body;
  }
  EXPECT_EQ(parse_etcd_refusal("<html>").message, "<html>");
}

TEST(EtcdMessages, OfAStrangerNothingIsTaken) {
  for (const char* body : {"", "[]", "{", R"({"header":[]})", R"({"header":{"revision":"x"}})",
                           R"({"header":{"revision":"-1"}})", R"({"header":{"revision":"99999999999999999999"}})",
                           R"({"header":{"revision":1.5}})", R"({"kvs":{}})", R"({"kvs":[1]})", R"({"kvs":[{}]})",
                           R"({"kvs":[{"key":"Y"}]})", R"({"kvs":[{"key":5}]})", R"({"more":"yes"})"}) {
    const auto range = parse_etcd_range(body);
    ASSERT_FALSE(range.ok()) << body;
    EXPECT_EQ(range.error().code, ErrorCode::kCorrupt) << body;
  }
  EXPECT_NE(why(parse_etcd_watch(R"({"result":{"events":[{"type":"MOVE","kv":{"key":"YQ=="}}]}})")), "");
  EXPECT_NE(why(parse_etcd_watch(R"({"error":{"message":"gone"}})")).find("gone"), std::string::npos);
  EXPECT_NE(why(parse_etcd_watch("{}")), "");
  EXPECT_NE(why(parse_etcd_grant(R"({"ID":"5"})")), "");
  EXPECT_NE(why(parse_etcd_range(std::string(static_cast<size_t>(kEtcdAnswerBytes) + 1, ' '))), "");
  EXPECT_NE(why(parse_etcd_range(R"({"a":)" + std::string(5000, '['))), "");
}

}  // namespace
}  // namespace loralei
