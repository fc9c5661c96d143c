// SPDX-License-Identifier: Apache-2.0
#include "wire/replica_report.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

ReplicaReport some_report() {
  ReplicaReport report;
  report.boot = "b00t", report.cursor = 17, report.since = 12, report.more = true, report.ready = false;
  report.models = {"base", "also \"base\""}, report.base = "digest";
  report.sequences_max = 8, report.waiting_max = 256, report.kv_tokens = 4096, report.model_len = 2048,
  report.adapter_bytes = 1 << 30;
  report.running = 3, report.waiting = 1, report.kv_tokens_free = 1024;
  report.cost = R"({"format":"loralei-profile"})";
  report.adapters = {{.name = "sql", .failed = true}, {"x/y", "d1", ReplicaTier::kDevice, 64, 1 << 20, 7}};
  report.gone = {"old"};
  return report;
}

std::string refused(const std::string& body) {
  const auto report = parse_replica_report(body);
  return report.ok() ? "" : report.error().message;
}

TEST(ReplicaReport, IsReadAsItWasWritten) {
  const ReplicaReport report = some_report();
  const auto read = parse_replica_report(replica_report_body(report));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, report);
}

TEST(ReplicaReport, OfAStrangerIsRefusedWithItsField) {
  EXPECT_NE(refused("[]"), "");
  EXPECT_NE(refused(R"({"object": "list", "boot": ""})").find("object"), std::string::npos);
  EXPECT_NE(refused(R"({"object": "replica"})").find("boot"), std::string::npos);
  const std::string begin = R"({"object": "replica", "boot": "1", )";
  EXPECT_EQ(refused(begin + R"("ready": true})"), "");
  EXPECT_NE(refused(begin + R"("cursor": -1})").find("cursor"), std::string::npos);
  EXPECT_NE(refused(begin + R"("cursor": 1e300})").find("cursor"), std::string::npos);
  EXPECT_NE(refused(begin + R"("models": [""]})").find("models"), std::string::npos);
  EXPECT_NE(refused(begin + R"("gone": [3]})").find("gone"), std::string::npos);
  EXPECT_NE(refused(begin + R"("capacity": {"sequences": -8}})").find("capacity.sequences"), std::string::npos);
  EXPECT_NE(refused(begin + R"("load": []})").find("load"), std::string::npos);
  EXPECT_NE(refused(begin + R"("cost": 3})").find("cost"), std::string::npos);
  EXPECT_NE(refused(begin + R"("adapters": [3]})").find("adapters"), std::string::npos);
  EXPECT_NE(refused(begin + R"("adapters": [{"name": "a", "tier": "moon"}]})").find("adapters[0].tier"),
            std::string::npos);
  EXPECT_NE(refused(begin + R"("adapters": [{"name": "", "tier": "disk"}]})").find("adapters[0].name"),
            std::string::npos);
}

TEST(ReplicaReport, HoldsNoMoreThanAPage) {
  ReplicaReport report = some_report();
  report.adapters.assign(kReportAdaptersMost, {.name = "a"});
  EXPECT_TRUE(parse_replica_report(replica_report_body(report)).ok());
  report.adapters.push_back({.name = "one more"});
  EXPECT_FALSE(parse_replica_report(replica_report_body(report)).ok());
}

TEST(ModelList, TellsTheBaseFromItsAdapters) {
  const auto names = parse_model_list(
      R"({"object": "list", "data": [{"id": "base", "parent": null}, {"id": "sql", "parent": "base"}, {"id": "b2"}]})");
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(names->base, (std::vector<std::string>{"base", "b2"}));
  EXPECT_EQ(names->adapters, std::vector<std::string>{"sql"});
  EXPECT_FALSE(parse_model_list(R"({"data": [3]})").ok());
  EXPECT_FALSE(parse_model_list(R"({"data": [{"name": "x"}]})").ok());
}

}  // namespace
}  // namespace loralei
