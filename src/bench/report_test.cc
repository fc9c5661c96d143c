// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/generate.h"
#include "bench/report_page.h"
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

TEST(BenchReport, JsonIsReadBack) {
  BenchReport report = example();
  report.args["--rounds"] = "5";
  report.command = "loralei bench decode";
  Chart chart{.title = "a", .x = "x", .y = "y", .is_distribution = true, .x_scale = ChartScale::kAuto};
  chart.categories = {"c"};
  chart.series.push_back({.name = "s", .points = {{0, 1}}, .ranges = {{0.5, 2}}, .is_bound = true});
  chart.rules.push_back({.at = 3, .name = "r", .upright = true});
  report.plots.push_back(chart);
  report.plots.push_back({.title = "none", .x = "", .y = ""});
  const std::string text = report_json(report);
  const auto read = parse_report(text, "a.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(report_json(*read), text);
  EXPECT_EQ(report_html(*read), report_html(report));
}

TEST(BenchReport, CurvesAreThinnedInJson) {
  BenchReport report = example();
  Chart chart{.title = "a", .x = "x", .y = "y"};
  chart.series.push_back({.name = "s", .points = {}, .ranges = {}});
  for (int i = 0; i < 1'000'000; ++i) chart.series[0].points.emplace_back(i, i % 9);
  report.plots.push_back(chart);
  EXPECT_LT(report_json(report).size(), 20'000u);
}

TEST(BenchReport, WhatIsNoReportIsRefusedWithASentence) {
  for (const char* text : {"", "[]", "{}", "{\"scenario\": \"x\"}", "{\"scenario\": 3, \"rows\": []}",
                           "{\"scenario\": \"x\", \"rows\": 3}", "{\"scenario\": \"x\", \"rows\": [3]}",
                           "{\"scenario\": \"x\", \"rows\": [{\"value\": \"a\"}]}",
                           "{\"scenario\": \"x\", \"rows\": [], \"charts\": [{\"series\": [{\"points\": [[1]]}]}]}"}) {
    const auto read = parse_report(text, "a.json");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.error().message.find("a.json"), std::string::npos) << read.error().message;
  }
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
