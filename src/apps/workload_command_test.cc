// SPDX-License-Identifier: Apache-2.0
// `loralei workload` from what is typed to what is printed and written.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "apps/command_test_util.h"
#include "apps/options.h"
#include "workload/workload.h"

namespace loralei {
namespace {

using testing_support::Said;

Said workload(std::vector<std::string> words) {
  words.insert(words.begin(), "workload");
  Said said = testing_support::say(words, add_workload_command);
  said.err += said.refusal;
  return said;
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class WorkloadCommand : public testing::Test {
 protected:
  WorkloadCommand()
      : path_(
            (std::filesystem::path(testing::TempDir()) / ("loralei-workload-" + std::to_string(::getpid()))).string()) {
  }
  ~WorkloadCommand() override { std::filesystem::remove(path_); }
  const std::string path_;
};

TEST_F(WorkloadCommand, PrintsWhatItWouldWrite) {
  const std::vector<std::string> words = {"--arrivals",  "poisson:5",  "--lengths",        "fixed:100:20", "--adapters",
                                          "powerlaw:10", "--prefixes", "documents:3:50:1", "--count",      "40"};
  const Said printed = workload(words);
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  std::vector<std::string> more = words;
  more.insert(more.end(), {"-o", path_});
  const Said written = workload(more);
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_TRUE(written.out.starts_with(path_ + ", 40 requests in ")) << written.out;
  std::ifstream file(path_);
  EXPECT_EQ(printed.out, std::string(std::istreambuf_iterator<char>(file), {}));
  const auto read = read_workload(path_);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->size(), 40u);
  EXPECT_EQ(read->front().prompt_tokens, 150);
  const Said shown = workload({"--show", path_});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_TRUE(holds(shown.out, "requests        40\n")) << shown.out;
  EXPECT_TRUE(holds(shown.out, "prompt tokens   mean 150.0, P50 150, P99 150")) << shown.out;
  for (const char* seed : {"1", "2"}) {
    more = words;
    more.insert(more.end(), {"--seed", seed});
    EXPECT_EQ(workload(more).out == printed.out, std::string(seed) == "1");
  }
}

TEST_F(WorkloadCommand, TellsWhatIsMissingOrWrong) {
  const auto refused = [](const std::vector<std::string>& words) {
    const Said said = workload(words);
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_EQ(said.out, "");
    return said.err;
  };
  EXPECT_TRUE(holds(refused({}), "loralei workload: Say when requests come"));
  EXPECT_TRUE(holds(refused({"--arrivals", "poisson:5"}), "have no end"));
  EXPECT_TRUE(holds(refused({"--arrivals", "poisson:5", "--count", "3"}), "no lengths are stated"));
  EXPECT_TRUE(holds(refused({"--arrivals", "poisson:5", "--count", "-3"}), "the requests are -3"));
  EXPECT_TRUE(holds(refused({"--show", path_, "--arrivals", "poisson:5"}), "--show tells of a file that is there"));
  EXPECT_TRUE(holds(refused({"--show", path_}), path_));
  std::ofstream(path_) << "# a workload\n{\"t\": 0}\n";
  EXPECT_TRUE(holds(refused({"--show", path_}), path_ + ":2: \"prompt_tokens\" is missing"));
  EXPECT_TRUE(holds(workload({"--count", "many"}).err, "--count"));
}

}  // namespace
}  // namespace loralei
