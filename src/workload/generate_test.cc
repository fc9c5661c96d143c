// SPDX-License-Identifier: Apache-2.0
// Whole workloads: the same bytes from the same seed, streams that leave each other
// alone, shared prefixes, and what a summary says of them.
#include "workload/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "workload/summary.h"
#include "workload/workload_test_util.h"

namespace loralei {
namespace {

class GenerateTest : public WorkloadFiles {
 protected:
  static Workload made(const WorkloadOptions& options) {
    auto requests = make_workload(options);
    EXPECT_TRUE(requests.ok()) << (requests.ok() ? "" : requests.error().message);
    return requests.ok() ? *requests : Workload();
  }
  static std::string refusal(const WorkloadOptions& options) {
    const auto requests = make_workload(options);
    return requests.ok() ? "" : requests.error().message;
  }
  // What each of a workload's streams gave.
  struct Streams {
    std::vector<int64_t> times;
    std::vector<std::pair<int32_t, int32_t>> lengths;
    std::vector<std::string> adapters, documents;
  };
  static Streams streams(const WorkloadOptions& options) {
    Streams found;
    for (const WorkloadRequest& one : made(options)) {
      found.times.push_back(one.at_ns);
      const int32_t document = one.prefixes.empty() ? 0 : one.prefixes[0].tokens;
      found.lengths.emplace_back(one.prompt_tokens - document, one.output_tokens);
      found.adapters.push_back(one.adapter);
      found.documents.push_back(one.prefixes.empty() ? "" : one.prefixes[0].id);
    }
    return found;
  }
  std::string lengths_file() const {
    return file("l.csv", "prompt_tokens,output_tokens\n10,1\n20,2\n30,3\n40,4\n50,5\n60,6\n70,7\n");
  }
};

TEST_F(GenerateTest, TheSameSeedGivesTheSameBytes) {
  WorkloadOptions options{.arrivals = "gamma:10:2",
                          .lengths = "draw:" + lengths_file(),
                          .adapters = "powerlaw:100",
                          .prefixes = "documents:50:300:1",
                          .seconds = 200,
                          .seed = 42};
  ASSERT_TRUE(write_workload(path("a"), made(options)).ok());
  ASSERT_TRUE(write_workload(path("b"), made(options)).ok());
  options.seed = 43;
  ASSERT_TRUE(write_workload(path("c"), made(options)).ok());
  EXPECT_EQ(text_of(path("a")), text_of(path("b")));
  EXPECT_NE(text_of(path("a")), text_of(path("c")));
}

TEST_F(GenerateTest, AStreamLeavesTheOthersAsTheyWere) {
  const WorkloadOptions options{.arrivals = "poisson:10",
                                .lengths = "draw:" + lengths_file(),
                                .adapters = "powerlaw:100",
                                .prefixes = "documents:50:300:1",
                                .count = 500};
  const Streams first = streams(options);
  WorkloadOptions other = options;
  other.lengths = "fixed:5:5";
  Streams second = streams(other);
  EXPECT_EQ(second.times, first.times);
  EXPECT_EQ(second.adapters, first.adapters);
  EXPECT_EQ(second.documents, first.documents);
  other = options;
  other.arrivals = "gamma:3:2";
  second = streams(other);
  EXPECT_NE(second.times, first.times);
  EXPECT_EQ(second.lengths, first.lengths);
  EXPECT_EQ(second.adapters, first.adapters);
  EXPECT_EQ(second.documents, first.documents);
  other = options;
  other.adapters = "uniform:3:8";
  other.prefixes = "";
  second = streams(other);
  EXPECT_EQ(second.times, first.times);
  EXPECT_EQ(second.lengths, first.lengths);
}

TEST_F(GenerateTest, DocumentsStandInFrontAndAreAsPopularAsTheyShould) {
  const Workload requests = made({.arrivals = "poisson:100",
                                  .lengths = "fixed:40:5",
                                  .prefixes = "documents:10:300:1.5",
                                  .count = 20'000,
                                  .prompt_max = 320});
  std::map<std::string, int> counts;
  for (const WorkloadRequest& one : requests) {
    ASSERT_EQ(one.prompt_tokens, 320);
    ASSERT_EQ(one.prefixes.size(), 1u);
    ASSERT_EQ(one.prefixes[0].tokens, 300);
    ++counts[one.prefixes[0].id];
  }
  double sum = 0;
  for (int i = 1; i <= 10; ++i) sum += std::pow(i, -1.5);
  for (int i = 1; i <= 10; ++i) {
    const double share = std::pow(i, -1.5) / sum;
    EXPECT_NEAR(counts["d00" + std::to_string(i - 1)], share * 20'000, 5 * std::sqrt(20'000 * share)) << i;
  }
}

constexpr const char* kSteps =
    "dataset,question,step,agent,input_chars,output_chars,shared_prefix_same_agent_chars,"
    "shared_prefix_any_agent_chars\n"
    "qa,0,0,plan,400,40,0,0\nqa,0,1,action,480,40,0,400\nqa,0,2,plan,600,40,400,440\nqa,0,3,reflect,800,40,0,480\n"
    "qa,1,0,plan,200,40,0,0\n";

TEST_F(GenerateTest, AgentsTellOneContextStepByStep) {
  const Workload requests =
      made({.arrivals = "trace:" + file("t.csv", "t\n0\n1\n100\n"), .prefixes = "agents:2.5:" + file("s.csv", kSteps)});
  std::map<std::string, Workload> by_key;
  for (const WorkloadRequest& one : requests) {
    EXPECT_EQ(one.app, "qa");
    ASSERT_EQ(one.prefixes.size(), 1u);
    EXPECT_EQ(one.prefixes[0].id, one.key);
    by_key[one.key].push_back(one);
  }
  ASSERT_EQ(by_key.size(), 3u);
  const Workload& four = by_key["qa/0"];
  ASSERT_EQ(four.size(), 4u);
  const std::vector<std::string> agents = {"plan", "action", "plan", "reflect"};
  const std::vector<int32_t> prompts = {100, 120, 150, 200}, contexts = {100, 120, 110, 200};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(four[i].at_ns - four[0].at_ns, static_cast<int64_t>(i) * 2'500'000'000);
    EXPECT_EQ(four[i].adapter, agents[i]);
    EXPECT_EQ(four[i].prompt_tokens, prompts[i]);
    EXPECT_EQ(four[i].output_tokens, 10);
    EXPECT_EQ(four[i].prefixes[0].tokens, contexts[i]);
  }
  EXPECT_EQ(by_key["qa/1"].size(), 1u);
  EXPECT_EQ(by_key.count("qa/0#2") + by_key.count("qa/1#2"), 1u);  // the third question begins a second round
  const WorkloadSummary summary = summarise_workload(four);
  EXPECT_EQ(summary.shared_tokens, 100 + 110 + 120);
  EXPECT_EQ(summary.shared_by_adapter_tokens, 100);
}

TEST_F(GenerateTest, AgentsEndAtTheirCountOrTime) {
  const std::string steps = "agents:2.5:" + file("s.csv", kSteps);
  const Workload counted = made({.arrivals = "poisson:1", .prefixes = steps, .count = 30});
  EXPECT_EQ(counted.size(), 30u);
  const Workload timed = made({.arrivals = "poisson:1", .prefixes = steps, .seconds = 30});
  EXPECT_LT(timed.back().at_ns, 30 * kNsPerSecond);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(timed[i], counted[i]) << i;
  ASSERT_TRUE(write_workload(path("w"), timed).ok());
}

TEST_F(GenerateTest, WrongPrefixesHaveTheirSentence) {
  const auto said = [](const std::string& prefixes, const std::string& lengths = "fixed:5:5") {
    return refusal({.arrivals = "poisson:1", .lengths = lengths, .prefixes = prefixes, .count = 2});
  };
  EXPECT_TRUE(holds(said("books:1"), "prefixes 'books:1': write documents:N:TOKENS:ALPHA or agents:THINK:FILE."));
  EXPECT_TRUE(holds(said("documents:1:2"), "write documents:N:TOKENS:ALPHA."));
  EXPECT_TRUE(holds(said("documents:0:2:1"), "N is 0"));
  EXPECT_TRUE(holds(said("agents:1:" + file("s.csv", kSteps)), "state lengths and adapters themselves"));
  EXPECT_TRUE(holds(said("agents:x", ""), "the number THINK is missing"));
  EXPECT_TRUE(holds(said("agents:1:", ""), "no file is named"));
  const auto steps = [&](const std::string& row) { return said("agents:1:" + file("s.csv", kSteps + row), ""); };
  EXPECT_TRUE(holds(steps("qa,1,2,plan,1,1,0,0\n"), "s.csv:7: the column step holds '2', which is not the next step"));
  EXPECT_TRUE(holds(steps("qa,2,1,plan,1,1,0,0\n"), "s.csv:7: the column step holds '1', which is not the next step"));
  EXPECT_TRUE(holds(steps("qa,0,0,plan,1,1,0,0\n"), "holds '0', which is not another question than those before"));
  EXPECT_TRUE(holds(steps("qa,1,1,plan,5,1,0,6\n"), "which is not within the step's input_chars"));
  EXPECT_TRUE(holds(steps("qa,1,1,,5,1,0,0\n"), "which is not the name of an agent"));
  const std::string one = kSteps;
  EXPECT_TRUE(holds(said("agents:1:" + file("s.csv", one.substr(0, one.find('\n') + 1) + "qa,0,0,\x80,5,1,0,0\n"), ""),
                    "request 1: the adapter '\\x80' holds control characters or what is no UTF-8"));
}

TEST_F(GenerateTest, WrongOptionsHaveTheirSentence) {
  const WorkloadOptions good{.arrivals = "poisson:1", .lengths = "fixed:5:5", .count = 2};
  EXPECT_EQ(refusal(good), "");
  WorkloadOptions bad = good;
  bad.rate_scale = 0;
  EXPECT_TRUE(holds(refusal(bad), "the rate scale is 0; it must be from"));
  bad = good;
  bad.length_scale = std::nan("");
  EXPECT_TRUE(holds(refusal(bad), "the length scale is nan"));
  bad = good;
  bad.seconds = 1e9;
  EXPECT_TRUE(holds(refusal(bad), "the seconds are 1e+09; they must be from 0 to 2592000"));
  bad = good;
  bad.count = kWorkloadLinesMax + 1;
  EXPECT_TRUE(holds(refusal(bad), "the requests are 10000001"));
  bad = good;
  bad.prompt_max = 0;
  EXPECT_TRUE(holds(refusal(bad), "a limit of lengths is 0"));
  bad = good;
  bad.lengths = "";
  EXPECT_TRUE(holds(refusal(bad), "no lengths are stated"));
  bad = good;
  bad.adapters = "servegen";
  EXPECT_TRUE(holds(refusal(bad), "are clients of servegen arrivals"));
  bad = good;
  bad.arrivals = "trace:" + file("t.csv", "t\n0\n");
  EXPECT_TRUE(holds(refusal(bad), "give 1 requests, fewer than the 2 asked for"));
  bad.seconds = 5;
  EXPECT_EQ(refusal(bad), "");
  bad = {.arrivals = "poisson:0.001", .lengths = "fixed:5:5", .seconds = 0.001};
  EXPECT_TRUE(holds(refusal(bad), "there is no request in that time"));
}

TEST_F(GenerateTest, ASummarySaysWhatIsAskedFor) {
  const Workload requests = {
      {.at_ns = 0, .adapter = "a", .rank = 8, .prompt_tokens = 100, .output_tokens = 1, .prefixes = {{"d", 50}}},
      {.at_ns = 1'000'000'000,
       .adapter = "b",
       .rank = 8,
       .prompt_tokens = 100,
       .output_tokens = 2,
       .prefixes = {{"d", 40}, {"e", 90}}},
      {.at_ns = 4'000'000'000,
       .adapter = "b",
       .prompt_tokens = 200,
       .output_tokens = 3,
       .prefixes = {{"e", 100}},
       .key = "k"},
      {.at_ns = 5'000'000'000, .prompt_tokens = 400, .output_tokens = 4, .app = "x"}};
  const WorkloadSummary summary = summarise_workload(requests);
  EXPECT_EQ(summary_text(summary),
            "requests        4\n"
            "seconds         5.000\n"
            "requests/s      0.600\n"
            "CV of gaps      0.566\n"
            "prompt tokens   mean 200.0, P50 100, P99 400, together 800\n"
            "output tokens   mean 2.5, P50 2, P99 4, together 10\n"
            "adapters        2, without one 25.0 %\n"
            "most asked      b, 50.0 %\n"
            "rank 8          2 adapters, 75.0 %\n"
            "shared prefix   16.2 % of prompt tokens, with the same adapter 11.2 %\n"
            "apps            1\n"
            "keys            1\n");
  EXPECT_TRUE(holds(summary_text(summarise_workload({})), "requests        0\n"));
}

TEST_F(GenerateTest, TheAzureTraceIsReplayedAsItWas) {
  const std::string azure = shared("traces/azure_llm_2023_conv.csv");
  if (azure.empty()) GTEST_SKIP() << "no shared data: neither LORALEI_SHARED_DATA nor ../shared/data";
  const Workload requests = made({.arrivals = "trace:" + azure, .lengths = "order:" + azure});
  const WorkloadSummary summary = summarise_workload(requests);
  EXPECT_EQ(summary.requests, 19'366);
  EXPECT_NEAR(summary.seconds, 3501.721937, 1e-6);
  EXPECT_NEAR(summary.prompt.mean, 1154.7, 0.05);
  EXPECT_NEAR(summary.output.mean, 211.1, 0.05);
  EXPECT_EQ(requests[1].at_ns, 4'314'579'000);
  EXPECT_EQ(requests[1].prompt_tokens, 396);
  const std::string aibrix = shared("traces/aibrix_8min_up_and_down_lengths.csv");
  EXPECT_EQ(made({.arrivals = "trace:" + aibrix, .lengths = "order:" + aibrix}).size(), 2026u);
}

// The file says that 68 and 84 % of the characters are shared with a step of the same
// agent and of any. What earlier steps answered counts as new here, so a little less is.
TEST_F(GenerateTest, RealTrajectoriesShareWhatTheyShould) {
  const std::string steps = shared("traces/lragent_trajectories_lengths.csv");
  if (steps.empty()) GTEST_SKIP() << "no shared data: neither LORALEI_SHARED_DATA nor ../shared/data";
  const Workload requests = made({.arrivals = "poisson:0.1", .prefixes = "agents:1:" + steps, .count = 3130});
  const WorkloadSummary summary = summarise_workload(requests);
  const double tokens = static_cast<double>(summary.prompt.sum);
  EXPECT_NEAR(static_cast<double>(summary.shared_tokens) / tokens, 0.83, 0.01);
  EXPECT_NEAR(static_cast<double>(summary.shared_by_adapter_tokens) / tokens, 0.665, 0.02);
  EXPECT_EQ(summary.adapters, 3);
  EXPECT_EQ(summary.apps, 2);
}

TEST_F(GenerateTest, RealClientsAreReplayed) {
  const std::string packed = shared("traces/servegen_m_small_rates.csv.zst");
  if (packed.empty()) GTEST_SKIP() << "no shared data: neither LORALEI_SHARED_DATA nor ../shared/data";
  const std::string rates = path("rates.csv");
  if (std::system(("zstd -q -d '" + packed + "' -o '" + rates + "' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "zstd is not installed, which unpacks " << packed;
  EXPECT_TRUE(holds(refusal({.arrivals = "servegen:" + packed, .lengths = "fixed:5:5", .seconds = 5}), "zstd -d"));
  const Workload requests = made({.arrivals = "servegen:50:20:360000:" + rates,
                                  .lengths = "draw:" + shared("traces/servegen_m_small_lengths.csv"),
                                  .adapters = "servegen",
                                  .seconds = 3600});
  const WorkloadSummary summary = summarise_workload(requests);
  EXPECT_NEAR(summary.rate, 50, 2);
  EXPECT_EQ(summary.adapters, 20);
  EXPECT_EQ(summary.base_requests, 0);
  ASSERT_TRUE(write_workload(path("w"), requests).ok());
  EXPECT_EQ(read_workload(path("w")).value(), requests);
}

}  // namespace
}  // namespace loralei
