// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loralei {
namespace {

// What a matcher that sees the whole text at once emits.
struct Naive {
  std::string text, stop;
};

Naive naive(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > best.size()) best = stop;
    }
    if (best.empty()) continue;
    return {text.substr(0, include_stop ? end : end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopMatcher, EqualsANaiveSearchOfTheWholeText) {
  const uint64_t seed = 3;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const auto letters = [&](uint64_t most) {
    std::string out;
    for (uint64_t i = prng.below(most + 1); i > 0; --i) out += static_cast<char>('a' + prng.below(2));
    return out;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t i = prng.below(4); i > 0; --i) stops.push_back(letters(5));
    const bool include = prng.below(2) == 0;
    StopMatcher matcher(compile_stop_strings(stops), include);
    std::string whole, emitted, stop;
    for (uint64_t parts = prng.below(8); parts > 0; --parts) {
      const std::string part = letters(4);
      whole += part;
      const StopMatcher::Output output = matcher.push(part);
      emitted += output.text;
      if (output.stop) stop = *output.stop;
    }
    emitted += matcher.flush();
    const Naive wanted = naive(whole, stops, include);
    ASSERT_EQ(emitted, wanted.text) << whole;
    ASSERT_EQ(stop, wanted.stop) << whole;
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher(compile_stop_strings({"</s>"}), false);
  EXPECT_EQ(matcher.push("one <").text, "one ");
  EXPECT_EQ(matcher.push("/x").text, "</x");
  EXPECT_EQ(matcher.push(" </").text, " ");
  const auto last = matcher.push("s> more");
  ASSERT_TRUE(last.stop);
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(matcher.push("after").text, "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, MatchesAcrossCodePoints) {
  StopMatcher matcher(compile_stop_strings({"\xE2\x82\xAC\xE2\x82\xAC"}), true);
  EXPECT_EQ(matcher.push("a\xE2\x82\xAC").text, "a");
  const auto last = matcher.push("\xE2\x82\xAC z");
  ASSERT_TRUE(last.stop);
  EXPECT_EQ(last.text, "\xE2\x82\xAC\xE2\x82\xAC");
}

TEST(StopMatcher, ManyShareOneCompilationAndCountEachForThemselves) {
  const auto stops = compile_stop_strings({std::string(1024, 'a'), "ab"});
  std::vector<StopMatcher> matchers(128, StopMatcher(stops, false));
  EXPECT_EQ(matchers[0].push("xa").text, "x");
  EXPECT_EQ(matchers[1].push("b").text, "b");
  const auto last = matchers[0].push("b");
  EXPECT_EQ(last.stop, &(*stops)[1].text());
}

TEST(StopMatcher, WithoutStopsPassesEverythingOn) {
  StopMatcher matcher(compile_stop_strings({""}), false);
  EXPECT_EQ(matcher.push("text").text, "text");
  EXPECT_EQ(matcher.flush(), "");
}

}  // namespace
}  // namespace loralei
