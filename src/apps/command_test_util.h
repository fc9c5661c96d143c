// SPDX-License-Identifier: Apache-2.0
// A command run with words as they would be typed, for its tests: what it prints on both
// streams, how it ends, and what the parser refuses. One thread.
#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace loralei::testing_support {

struct Said {
  std::string out, err;
  std::string refusal, refused_as;  // the parser's words, and its name for them; empty: it refused nothing
  int exit_code = 0;
};

// `add`: registers the command with the app, and where its exit code goes.
template <typename Add>
Said say(std::vector<std::string> words, const Add& add) {
  CLI::App app;
  Said said;
  add(app, said.exit_code);
  std::reverse(words.begin(), words.end());  // as the parser wants them
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    said.refusal = error.what();
    said.refused_as = error.get_name();
  }
  std::fflush(stdout);
  said.out = testing::internal::GetCapturedStdout();
  said.err = testing::internal::GetCapturedStderr();
  return said;
}

}  // namespace loralei::testing_support
