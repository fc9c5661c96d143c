// SPDX-License-Identifier: Apache-2.0
#include "formats/py_regex.h"

#include <gtest/gtest.h>

#include "formats/json_util.h"
#include "sys/file.h"

namespace loralei {
namespace {

// What Python's re answers for every pattern on every text
// (tests/vectors/make_peft_matching.py).
TEST(PyRegex, AnswersAsPython) {
  auto text =
      PosixFileSystem().read_all(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/peft_matching.json", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Json vectors = Json::parse(*text);
  for (const Json& row : vectors["regexes"]) {
    const std::string pattern = row["pattern"];
    auto regex = PyRegex::compile(pattern);
    if (row.contains("error")) {
      EXPECT_FALSE(regex.ok()) << pattern;
      continue;
    }
    ASSERT_TRUE(regex.ok()) << pattern << ": " << regex.error().message;
    for (const Json& item : vectors["texts"]) {
      const auto listed = [&](const char* key) {
        return std::find(row[key].begin(), row[key].end(), item) != row[key].end() ? PyRegex::Answer::kYes
                                                                                   : PyRegex::Answer::kNo;
      };
      RegexBudget budget;
      EXPECT_EQ(regex->full_match(item.get<std::string>(), budget), listed("full")) << pattern << " on " << item;
      EXPECT_EQ(regex->match(item.get<std::string>(), budget), listed("start")) << pattern << " on " << item;
    }
  }
}

TEST(PyRegex, GroupHoldsWhatPythonCaptures) {
  auto regex = PyRegex::compile(".*?\\.[^.]*\\.(?P<idx>\\d+)\\.");
  ASSERT_TRUE(regex.ok());
  RegexBudget budget;
  std::string index;
  EXPECT_EQ(regex->match_group("model.layers.12.experts.3.up", "idx", index, budget), PyRegex::Answer::kYes);
  EXPECT_EQ(index, "12");  // the first number, not the last
  EXPECT_EQ(regex->match_group("lm_head", "idx", index, budget), PyRegex::Answer::kNo);
  EXPECT_EQ(index, "");
}

TEST(PyRegex, RefusesWhatItDoesNotKnow) {
  for (const char* pattern : {"(a)\\1", "(?<=a)b", "(?i)a", "a++", "(?>a)", "(?#x)a", "\\u0041", "a{1001}", "\\p"}) {
    EXPECT_FALSE(PyRegex::compile(pattern).ok()) << pattern;
  }
  EXPECT_FALSE(PyRegex::compile(std::string(10000, 'a')).ok());
  EXPECT_FALSE(PyRegex::compile(std::string(200, '(') + "a" + std::string(200, ')')).ok());
}

TEST(PyRegex, HostilePatternsRunOutOfBudget) {
  auto regex = PyRegex::compile("(a+)+(a+)+(a+)+b");
  ASSERT_TRUE(regex.ok());
  RegexBudget budget{.steps = 100000};
  EXPECT_EQ(regex->full_match(std::string(60, 'a'), budget), PyRegex::Answer::kTooHard);
  EXPECT_LT(budget.steps, 0);
  // The depth of the matcher's own recursion is bounded too.
  auto long_text = PyRegex::compile("(a|b)*");
  ASSERT_TRUE(long_text.ok());
  RegexBudget plenty;
  EXPECT_EQ(long_text->full_match(std::string(100000, 'a'), plenty), PyRegex::Answer::kTooHard);
}

}  // namespace
}  // namespace loralei
