// SPDX-License-Identifier: Apache-2.0
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loralei {
namespace {

// What a matcher that sees the whole text at once emits.
struct Naive {
  std::string text;
  int which = -1;
};

Naive naive(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (stops[i].empty() || !std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (best < 0 || stops[i].size() > stops[static_cast<size_t>(best)].size()) best = static_cast<int>(i);
    }
    if (best >= 0) return {text.substr(0, include_stop ? end : end - stops[static_cast<size_t>(best)].size()), best};
  }
  return {text, -1};
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
    StopMatcher matcher(stops, include);
    std::string whole, emitted;
    int which = -1;
    for (uint64_t parts = prng.below(8); parts > 0; --parts) {
      const std::string part = letters(4);
      whole += part;
      const StopMatcher::Output output = matcher.push(part);
      emitted += output.text;
      if (output.stopped) which = output.which;
    }
    emitted += matcher.flush();
    const Naive wanted = naive(whole, stops, include);
    ASSERT_EQ(emitted, wanted.text) << whole;
    ASSERT_EQ(which, wanted.which) << whole;
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"</s>"}, false);
  EXPECT_EQ(matcher.push("one <").text, "one ");
  EXPECT_EQ(matcher.push("/x").text, "</x");
  EXPECT_EQ(matcher.push(" </").text, " ");
  const auto last = matcher.push("s> more");
  EXPECT_TRUE(last.stopped);
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(matcher.push("after").text, "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, MatchesAcrossCodePoints) {
  StopMatcher matcher({"\xE2\x82\xAC\xE2\x82\xAC"}, true);
  EXPECT_EQ(matcher.push("a\xE2\x82\xAC").text, "a");
  const auto last = matcher.push("\xE2\x82\xAC z");
  EXPECT_TRUE(last.stopped);
  EXPECT_EQ(last.text, "\xE2\x82\xAC\xE2\x82\xAC");
}

TEST(StopMatcher, WithoutStopsPassesEverythingOn) {
  StopMatcher matcher({""}, false);
  EXPECT_EQ(matcher.push("text").text, "text");
  EXPECT_EQ(matcher.flush(), "");
}

}  // namespace
}  // namespace loralei
