// SPDX-License-Identifier: Apache-2.0
#include "apps/report_output.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

using std::string_literals::operator""s;

TEST(TypedCommand, IsWhatOneWouldTypeInAShell) {
  EXPECT_EQ(typed_command("loralei\0bench\0--url\0http://h:1\0--label\0it's a model\0--text\0\0"s),
            "loralei bench --url http://h:1 --label 'it'\\''s a model' --text ''");
  EXPECT_EQ(typed_command(""), "");
}

TEST(TypedCommand, KeepsSecrets) {
  EXPECT_EQ(typed_command("l\0--api-key\0s3cret\0--hf-token=s3cret\0--admin-key=s3cret\0--max-num-batched-tokens\0"
                          "8\0"s),
            "l --api-key ... --hf-token=... --admin-key=... --max-num-batched-tokens 8");
}

TEST(StatedOptions, AreAsTheyWereTyped) {
  CLI::App app;
  int policy = 0, times = 0;
  std::string key;
  bool flag = false;
  std::vector<int> several;
  app.add_option("--policy,--old-name", policy)
      ->transform(CLI::CheckedTransformer(std::map<std::string, int>{{"fifo", 2}}));
  app.add_option("--times", times);
  app.add_option("--api-key", key);
  app.add_flag("--fast", flag);
  app.add_option("--several", several);
  app.parse("--old-name fifo --times=3 --api-key s3cret --fast --several 1 2", false);
  const auto stated = stated_options(app,
                                     "l\0--old-name\0fifo\0--times=3\0--api-key\0s3cret\0--fast\0--several\0"
                                     "1\0"
                                     "2\0"s);
  EXPECT_EQ(
      stated,
      (std::map<std::string, std::string>{
          {"--policy", "fifo"}, {"--times", "3"}, {"--api-key", "..."}, {"--fast", "true"}, {"--several", "1,2"}}));
}

TEST(ReportOutput, OfThisProcessThereIsACommandAndAMachine) {
  BenchReport report;
  say_where(report);
  EXPECT_NE(report.command.find("test"), std::string::npos);
  for (const char* name : {"cpu", "cores", "memory"}) EXPECT_FALSE(report.machine[name].empty()) << name;
  EXPECT_EQ(report.time.size(), 20u);
}

}  // namespace
}  // namespace loralei
