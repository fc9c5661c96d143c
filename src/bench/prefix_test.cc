// SPDX-License-Identifier: Apache-2.0
// bench prefix as a whole, on a small model: which rows and targets there are, what the
// memory trace holds, and agents with memory for a part of what they hold.
#include "bench/prefix.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace loralei {
namespace {

class PrefixBenchTest : public testing::Test {
 protected:
  PrefixBenchTest()
      : folder_(std::filesystem::path(testing::TempDir()) / ("loralei-prefix-bench-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    options_.shape = "llama-nano";
    options_.cache_dir = folder_.string();
    options_.rank = 4;
    options_.rounds = 1;
    options_.foreign_max = 1e6;
    options_.host.threads = 2;
    options_.host.engine.memory_budget_bytes = int64_t{256} << 20;
    options_.host.engine.adapter_bytes = int64_t{8} << 20;
    options_.host.engine.speculate = Speculation::kOff;
    options_.prefix.scale = 0.125;
    options_.prefix.requests = 40;
    options_.prefix.think_s = 1e-3;
    options_.prefix.memory_trace = path("trace.csv");
  }
  ~PrefixBenchTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  double value(const std::string& name) const {
    const auto row = std::find_if(report_.rows.begin(), report_.rows.end(),
                                  [&](const BenchRow& one) { return one.name == "prefix.llama-nano.bf16." + name; });
    EXPECT_NE(row, report_.rows.end()) << name;
    return row == report_.rows.end() ? -1 : row->value;
  }

  const std::filesystem::path folder_;
  BenchOptions options_;
  BenchReport report_;
  NullLogSink log_;
};

TEST_F(PrefixBenchTest, TellsEveryModeOfASetupAndHoldsItAgainstTheOthers) {
  options_.prefix.setups = {"S4", "S1"};
  const Status ran = bench_prefix(options_, log_, report_);
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  for (const std::string name : {"s1.conversation", "s1.writing", "s4.conversation", "s4.writing"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(value(name + ".none.cached"), 0);
    EXPECT_GT(value(name + ".lru.cached"), 0);
    EXPECT_GT(value(name + ".bounded.cached"), 0);
    for (const std::string mode : {".none", ".lru", ".bounded"}) {
      EXPECT_GT(value(name + mode + ".first_token_ms"), 0);
      EXPECT_LE(value(name + mode + ".first_token_p50_ms"), value(name + mode + ".first_token_p99_ms"));
    }
    const double to_none = value(name + ".bounded.first_token_ms") / value(name + ".none.first_token_ms");
    EXPECT_NEAR(value(name + ".bounded.to_none"), to_none, 1e-9);
    // The pool was seen full.
    EXPECT_GT(value(name + ".bounded.pool_used_most"), 0.8);
  }
  EXPECT_GT(value("s1.conversation.lru.to_bounded"), 0);
  EXPECT_GT(value("s1.conversation.no_delta.to_bounded"), 0);
  const auto ablations = std::count_if(report_.rows.begin(), report_.rows.end(), [](const BenchRow& row) {
    return row.name.ends_with("no_context.first_token_ms");
  });
  EXPECT_EQ(ablations, 1);
  EXPECT_EQ(report_.plots.size(), 4u);
  ASSERT_EQ(report_.targets.size(), 12u);
  for (const BenchTarget& target : report_.targets) {
    if (target.name.find("steps_beyond_budget") == std::string::npos) continue;
    EXPECT_EQ(target.measured, 0) << target.name;
  }
  const std::string trace = text_of(options_.prefix.memory_trace);
  EXPECT_TRUE(trace.starts_with(memory_csv_head()));
  for (const char* run : {"\ns1.conversation.bounded,", "\ns1.conversation.no_delta,", "\ns4.writing.lru,"})
    EXPECT_NE(trace.find(run), std::string::npos) << run;
}

// Three agents tell on one text each; with memory for all that they hold, all is found
// that could be.
TEST_F(PrefixBenchTest, AgentsFindAllThatTheyHoldWhereThereIsRoomForIt) {
  std::ofstream file(path("agents.csv"));
  file << "dataset,question,step,agent,input_chars,output_chars,shared_prefix_same_agent_chars,"
          "shared_prefix_any_agent_chars\n";
  const char* const agents[] = {"plan", "action", "reflect"};
  for (int question = 0; question < 8; ++question) {
    for (int step = 0; step < 6; ++step) {
      const int chars = 800 + 400 * step, before = step == 0 ? 0 : 800 + 400 * (step - 1);
      file << "made," << question << "," << step << "," << agents[step % 3] << "," << chars << ",40,0," << before
           << "\n";
    }
  }
  file.close();
  options_.prefix.agents = path("agents.csv");
  options_.prefix.questions = 8;
  options_.prefix.scale = 1;
  const Status ran = bench_prefix(options_, log_, report_);
  ASSERT_TRUE(ran.ok()) << ran.error().message;
  const auto row = std::find_if(report_.rows.begin(), report_.rows.end(),
                                [](const BenchRow& one) { return one.name.ends_with("m100.exact.cached"); });
  ASSERT_NE(row, report_.rows.end());
  EXPECT_DOUBLE_EQ(row->value, *row->bound);
  EXPECT_GT(value("agents.m25.exact.computed_tokens"), value("agents.m100.exact.computed_tokens"));
  EXPECT_LE(value("agents.m50.exact.computed_tokens"), value("agents.m25.exact.computed_tokens"));
  EXPECT_DOUBLE_EQ(value("agents.m100.bounded.cached"), row->value);
  for (const BenchTarget& target : report_.targets) EXPECT_TRUE(target.ok()) << target.name;
}

TEST_F(PrefixBenchTest, SaysWhatIsMissingOrWrong) {
  const auto refused = [&] {
    BenchReport report;
    const Status ran = bench_prefix(options_, log_, report);
    return ran.ok() ? std::string() : ran.error().message;
  };
  options_.prefix.app_usage = path("absent.csv");
  EXPECT_NE(refused().find("absent.csv"), std::string::npos);
  options_.prefix.app_usage = "";
  options_.prefix.agents = path("none.csv");
  EXPECT_NE(refused().find("none.csv"), std::string::npos);
  options_.prefix.agents = "";
  options_.shape = "";
  options_.host.model_path = path("model");
  EXPECT_NE(refused().find("--adapter PATH"), std::string::npos);
}

}  // namespace
}  // namespace loralei
