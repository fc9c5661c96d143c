// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/generate.h"
#include "formats/base_model.h"

namespace loralei {
namespace {

BenchReport example() {
  BenchReport report;
  report.scenario = "decode";
  BenchRow row = summarise("decode.llama-1b.bf16.b8.tok_s", "tok/s", {3, 1, 2, 5});
  row.bound = 5;
  row.note = "a <note>";
  report.rows.push_back(row);
  report.targets.push_back({"ratio", ">=", 0.9, 0.5});
  return report;
}

TEST(BenchReport, MedianOfEvenAndOddCounts) {
  EXPECT_EQ(summarise("", "", {3, 1, 2, 5}).value, 2.5);
  const BenchRow odd = summarise("", "", {9, 1, 4});
  EXPECT_EQ(odd.value, 4);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 9);
}

TEST(BenchReport, JsonHoldsRowsAndTargets) {
  const auto json = nlohmann::json::parse(report_json(example()));
  EXPECT_EQ(json["rows"][0]["name"], "decode.llama-1b.bf16.b8.tok_s");
  EXPECT_EQ(json["rows"][0]["fraction"], 0.5);
  EXPECT_EQ(json["rows"][0]["n"], 4);
  EXPECT_EQ(json["targets"][0]["ok"], false);
}

TEST(BenchReport, TableSaysMissedAndHtmlIsEscaped) {
  EXPECT_NE(report_table(example()).find("MISSED"), std::string::npos);
  const std::string page = report_html(example());
  EXPECT_NE(page.find("a &lt;note&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<note>"), std::string::npos);
}

TEST(BenchReport, MarkdownHoldsFiguresAndTargets) {
  EXPECT_EQ(report_markdown(example()),
            "| decode | median | min .. max | n | bound | fraction | |\n|---|---|---|---|---|---|---|\n"
            "| decode.llama-1b.bf16.b8.tok_s | 2.50 tok/s | 1.00 .. 5.00 | 4 | 5.00 | 0.5000 | a <note> |\n"
            "\n| number | value | target | met |\n|---|---|---|---|\n| ratio | 0.5000 | >= 0.9000 | NO |\n");
}

TEST(Generate, UnknownNamesAreRefused) {
  EXPECT_FALSE(bench_shape("llama-9000b").ok());
  EXPECT_FALSE(generated_model(testing::TempDir(), "llama-1b", "q3_k", nullptr).ok());
  EXPECT_FALSE(generated_adapter(testing::TempDir(), "llama-1b", "qv", 16, 0).ok());
  EXPECT_FALSE(generated_adapter(testing::TempDir(), "llama-1b", "all", 0, 0).ok());
}

}  // namespace
}  // namespace loralei
