// SPDX-License-Identifier: Apache-2.0
// Lengths from every kind of file, and their means.
#include "workload/lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "workload/workload_test_util.h"

namespace loralei {
namespace {

class LengthsTest : public WorkloadFiles {
 protected:
  static std::vector<WorkloadLength> drawn(const LengthOptions& options, int count,
                                           const WorkloadArrival& arrival = {}) {
    auto lengths = WorkloadLengths::open(options);
    EXPECT_TRUE(lengths.ok()) << (lengths.ok() ? "" : lengths.error().message);
    std::vector<WorkloadLength> list;
    for (int i = 0; lengths.ok() && i < count; ++i) list.push_back(lengths->next(arrival));
    return list;
  }
  static std::string refusal(const std::string& spec) {
    const auto lengths = WorkloadLengths::open({.spec = spec});
    return lengths.ok() ? "" : lengths.error().message;
  }
  static double mean(const std::vector<WorkloadLength>& lengths, int32_t WorkloadLength::*which) {
    double sum = 0;
    for (const WorkloadLength& one : lengths) sum += one.*which;
    return sum / static_cast<double>(lengths.size());
  }
  static std::vector<std::pair<int, int>> pairs(const std::vector<WorkloadLength>& lengths) {
    std::vector<std::pair<int, int>> list;
    for (const WorkloadLength& one : lengths) list.emplace_back(one.prompt, one.output);
    return list;
  }
};
using Pairs = std::vector<std::pair<int, int>>;

TEST_F(LengthsTest, FixedLengthsAreScaledAndKeptWithinTheirLimits) {
  EXPECT_EQ(pairs(drawn({.spec = "fixed:100:20"}, 2)), (Pairs{{100, 20}, {100, 20}}));
  EXPECT_EQ(pairs(drawn({.spec = "fixed:100:20", .scale = 0.5}, 1)), (Pairs{{50, 10}}));
  EXPECT_EQ(pairs(drawn({.spec = "fixed:100:20", .scale = 0.001}, 1)), (Pairs{{1, 1}}));
  EXPECT_EQ(pairs(drawn({.spec = "fixed:100:20", .scale = 2, .prompt_max = 150, .output_max = 7}, 1)),
            (Pairs{{150, 7}}));
}

TEST_F(LengthsTest, EveryKindOfFileIsKnownByItsColumns) {
  const auto of = [this](const std::string& text) { return pairs(drawn({.spec = "order:" + file("l.csv", text)}, 3)); };
  const Pairs expected = {{374, 44}, {1, 1}, {374, 44}};
  EXPECT_EQ(of("TIMESTAMP,ContextTokens,GeneratedTokens\r\nx,374,44\r\nx,0,0\r\n"), expected);
  EXPECT_EQ(of("timestamp_ms,prompt_tokens,output_tokens\n1,374,44\n2,0,1\n"), expected);
  EXPECT_EQ(of("idx,input_chars,input_tokens_llama2,output_chars,output_tokens_llama2\n0,9,374,9,44\n1,9,1,9,1\n"),
            expected);
  EXPECT_EQ(of("agent,input_chars,output_chars\nplan,1496,176\nplan,4,4\n"), expected);
}

TEST_F(LengthsTest, DrawsAreRowsOfTheFileBySeed) {
  const std::string spec = "draw:" + file("l.csv", "prompt_tokens,output_tokens\n1,10\n2,20\n3,30\n4,40\n");
  const auto first = drawn({.spec = spec, .seed = 5}, 4000);
  EXPECT_EQ(pairs(first), pairs(drawn({.spec = spec, .seed = 5}, 4000)));
  EXPECT_NE(pairs(first), pairs(drawn({.spec = spec, .seed = 6}, 4000)));
  std::map<int, int> counts;
  for (const WorkloadLength& one : first) {
    EXPECT_EQ(one.output, 10 * one.prompt);
    ++counts[one.prompt];
  }
  for (int row = 1; row <= 4; ++row) EXPECT_NEAR(counts[row], 1000, 130) << row;
}

constexpr const char* kQuantiles =
    "client,start_s,input_mean,input_p10,input_p25,input_p50,input_p75,input_p90,input_p99,"
    "output_mean,output_p10,output_p25,output_p50,output_p75,output_p90,output_p99\n"
    "2,0,2100,1000,1500,2000,2500,3000,4000,20,10,10,20,25,30,35\n"
    "2,21600,110,100,100,100,100,100,100,5,5,5,5,5,5,5\n"
    "4,0,9000,9000,9000,9000,9000,9000,9000,9,9,9,9,9,9,9\n";

TEST_F(LengthsTest, QuantilesAreDrawnAsStatedWithTheirMean) {
  const std::string spec = "draw:" + file("q.csv", kQuantiles);
  auto lengths = drawn({.spec = spec, .seed = 2}, 100'000, {.client = 2, .source_s = 21'599});
  EXPECT_NEAR(mean(lengths, &WorkloadLength::prompt), 2100, 25);
  EXPECT_NEAR(mean(lengths, &WorkloadLength::output), 20, 0.6);
  std::sort(lengths.begin(), lengths.end(), [](auto& a, auto& b) { return a.prompt < b.prompt; });
  EXPECT_EQ(lengths.front().prompt, 1000);
  EXPECT_NEAR(lengths[25'000].prompt, 1500, 15);
  EXPECT_NEAR(lengths[50'000].prompt, 2000, 15);
  EXPECT_NEAR(lengths[90'000].prompt, 3000, 25);
  EXPECT_NEAR(lengths[98'000].prompt, 3889, 30);
  // The ten tokens that these quantiles lack to the mean lie above the highest one.
  const auto later = drawn({.spec = spec, .seed = 2}, 100'000, {.client = 2, .source_s = 30'000});
  EXPECT_NEAR(mean(later, &WorkloadLength::prompt), 110, 2);
}

TEST_F(LengthsTest, AClientTakesItsRowAndOthersAnyRow) {
  const std::string spec = "draw:" + file("q.csv", kQuantiles);
  EXPECT_EQ(drawn({.spec = spec}, 1, {.client = 4, .source_s = 1e6}).front().prompt, 9000);
  for (const int32_t client : {-1, 3}) {
    int of_four = 0;
    for (const WorkloadLength& one : drawn({.spec = spec}, 3000, {.client = client}))
      of_four += one.prompt == 9000 ? 1 : 0;
    EXPECT_NEAR(of_four, 1000, 120) << client;
  }
}

TEST_F(LengthsTest, WrongLengthsHaveTheirSentence) {
  EXPECT_TRUE(holds(refusal("fixed:5"), "lengths 'fixed:5': the number OUT is missing"));
  EXPECT_TRUE(holds(refusal("fixed:5:0"), "OUT is 0; it must be from 1 to"));
  EXPECT_TRUE(holds(refusal("fixed:5:1.5"), "OUT is 1.5; it must be a whole number"));
  EXPECT_TRUE(holds(refusal("fixed:5:1:x"), "write fixed:IN:OUT."));
  EXPECT_TRUE(holds(refusal("file.csv"), "write fixed:IN:OUT, draw:FILE or order:FILE."));
  EXPECT_TRUE(holds(refusal("draw:"), "write fixed:IN:OUT, draw:FILE or order:FILE."));
  EXPECT_TRUE(holds(refusal("draw:" + file("a.csv", "x,y\n1,2\n")), "a.csv:1: no two columns are known as lengths"));
  EXPECT_TRUE(holds(refusal("draw:" + file("a.csv", "prompt_tokens,output_tokens\n1,-2\n")),
                    "a.csv:2: the column output_tokens holds '-2', which is not a number from 0 to"));
  EXPECT_TRUE(holds(refusal("order:" + file("q.csv", kQuantiles)), "Write draw:FILE."));
  std::string falling = kQuantiles;
  falling.replace(falling.find("1500"), 4, "900");
  EXPECT_TRUE(holds(refusal("draw:" + file("q.csv", falling)), "q.csv:2: the column input_p25 holds '900'"));
  std::string twice = kQuantiles;
  twice.replace(twice.find("21600"), 5, "0");
  EXPECT_TRUE(holds(refusal("draw:" + file("q.csv", twice)), "q.csv:3: the column start_s holds '0'"));
}

TEST_F(LengthsTest, RealFilesHaveTheMeansOfTheirReadme) {
  const struct {
    const char* name;
    int rows;
    double prompt, output, tolerance;
  } kFiles[] = {
      {"traces/azure_llm_2023_conv.csv", 19'366, 1154.7, 211.1, 0.05},
      {"lengths/alpaca_random2000_lengths.csv", 2000, 20, 66, 0.5},
      {"traces/lragent_trajectories_lengths.csv", 3130, 3258.0 / 4, -1, 0.5},
      {"lengths/alpaca_eval805_gpt4_lengths.csv", 805, -1, 525, 0.5},
  };
  if (shared("traces").empty()) GTEST_SKIP() << "no shared data: neither LORALEI_SHARED_DATA nor ../shared/data";
  for (const auto& one : kFiles) {
    SCOPED_TRACE(one.name);
    const auto lengths = drawn({.spec = "order:" + shared(one.name)}, one.rows + 1);
    EXPECT_EQ(pairs({lengths.back()}), pairs({lengths.front()}));  // begins again behind its last row
    const std::vector<WorkloadLength> once(lengths.begin(), lengths.end() - 1);
    if (one.prompt > 0) {
      EXPECT_NEAR(mean(once, &WorkloadLength::prompt), one.prompt, one.tolerance);
    }
    if (one.output > 0) {
      EXPECT_NEAR(mean(once, &WorkloadLength::output), one.output, one.tolerance);
    }
  }
  const auto servegen = drawn({.spec = "draw:" + shared("traces/servegen_m_small_lengths.csv")}, 100'000,
                              {.client = 0, .source_s = 129'600});
  EXPECT_NEAR(mean(servegen, &WorkloadLength::prompt), 206.5, 4);
  EXPECT_NEAR(mean(servegen, &WorkloadLength::output), 15.4, 0.7);
}

}  // namespace
}  // namespace loralei
