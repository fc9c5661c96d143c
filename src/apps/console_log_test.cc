// SPDX-License-Identifier: Apache-2.0
#include "apps/console_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace loralei {
namespace {

using Json = nlohmann::json;

constexpr int64_t kPatienceMs = 60'000;
// Ends the line, forges another, clears a terminal, turns the text around,
// and is no UTF-8.
const std::string kHostile = "x\nE all is well\r\x1b[2J\xE2\x80\xAE\xFF\"\\";

class ConsoleLogTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe(pipe_), 0); }
  void TearDown() override {
    for (const int descriptor : pipe_) ::close(descriptor);
  }
  ConsoleLog::Options options(bool json) const {
    ConsoleLog::Options options;
    options.json = json;
    options.descriptor = pipe_[1];
    return options;
  }
  // All that has been logged.
  std::vector<std::string> lines(ConsoleLog& log) {
    EXPECT_TRUE(log.flush(kPatienceMs));
    return split(text_now());
  }
  // What has come out, which may end within a line.
  std::string text_now() {
    ::fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char chunk[4096];
    for (ssize_t n = 0; (n = ::read(pipe_[0], chunk, sizeof chunk)) > 0;) text.append(chunk, static_cast<size_t>(n));
    return text;
  }
  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  static std::string without_time(const std::string& line) { return line.substr(std::min<size_t>(line.size(), 13)); }

 private:
  int pipe_[2] = {-1, -1};
};

TEST_F(ConsoleLogTest, HostileTextStaysInItsLine) {
  ConsoleLog log(options(false));
  const std::string shown = "x\\nE all is well\\r\\x1b[2J\\u202e\\xff";
  log.log(LogLevel::kInfo, "adapter '" + kHostile + "'");
  log.event(LogLevel::kWarning, "adapter not loaded", {{"adapter", kHostile}, {"status", 400}}, kHostile);
  log.announce("serving", {}, "a table\n  of ours: " + std::string("\x1b[2J\n"));
  const auto all = lines(log);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(without_time(all[0]), "I adapter '" + shown + "\"\\'");
  EXPECT_EQ(without_time(all[1]),
            "W adapter not loaded adapter=\"" + shown + "\\\"\\\\\" status=400: " + shown + "\"\\");
  EXPECT_EQ(all[2], "a table");
  EXPECT_EQ(all[3], "  of ours: \\x1b[2J");
}

TEST_F(ConsoleLogTest, JsonHasFields) {
  ConsoleLog log(options(true));
  log.log(LogLevel::kError, "it's over: " + kHostile);
  log.event(LogLevel::kInfo, "request",
            {{"id", "r-1"}, {"adapter", kHostile}, {"prompt", 12}, {"total_ms", 3.14159}, {"bytes", int64_t{1} << 40}});
  log.event(LogLevel::kInfo, "request refused", {{"status", 404}}, kHostile);
  log.announce("serving", {{"model", kHostile}, {"url", "http://[::1]:1"}}, "not shown");
  const auto all = lines(log);
  ASSERT_EQ(all.size(), 4u);
  std::vector<Json> events;
  for (const std::string& line : all) {
    events.push_back(Json::parse(line, nullptr, false));
    ASSERT_TRUE(events.back().is_object()) << line;
    EXPECT_TRUE(events.back()["time"].is_string());
  }
  const std::string shown = "x\\nE all is well\\r\\x1b[2J\\u202e\\xff\"\\";
  EXPECT_EQ(events[0]["level"], "error");
  EXPECT_EQ(events[0]["message"], "it's over: " + shown);
  EXPECT_EQ(events[1]["event"], "request");
  EXPECT_EQ(events[1]["adapter"], shown);
  EXPECT_EQ(events[1]["prompt"], 12);
  EXPECT_EQ(events[1]["total_ms"], 3.1);
  EXPECT_EQ(events[1]["bytes"], int64_t{1} << 40);
  EXPECT_FALSE(events[1].contains("message"));
  EXPECT_EQ(events[2]["status"], 404);
  EXPECT_EQ(events[2]["message"], shown);
  EXPECT_EQ(events[3]["event"], "serving");
  EXPECT_EQ(events[3]["url"], "http://[::1]:1");
}

TEST_F(ConsoleLogTest, TheLevelCountsButForAnnouncements) {
  ConsoleLog::Options quiet = options(false);
  quiet.level = LogLevel::kError;
  ConsoleLog log(quiet);
  log.log(LogLevel::kInfo, "one");
  log.event(LogLevel::kWarning, "two", {});
  log.announce("three", {}, "three\n");
  log.log(LogLevel::kError, "four");
  EXPECT_EQ(lines(log).size(), 2u);
}

TEST_F(ConsoleLogTest, APipeThatNobodyReadsCostsLinesOnlyAndTheyAreCounted) {
  constexpr int kLines = 20'000;
  for (const bool json : {false, true}) {
    ConsoleLog::Options small = options(json);
    small.limits = {.lines = 100, .bytes = 100'000};
    ConsoleLog log(small);
    const std::string long_line(1000, 'x');  // before the queue was, the pipe's 64 KiB were full after sixty of them
    for (int i = 0; i < kLines; ++i) log.log(LogLevel::kInfo, long_line);
    const uint64_t dropped = log.state().dropped_lines;
    EXPECT_GT(dropped, 0u);
    std::string text;
    while (!log.flush(1)) text += text_now();
    uint64_t told = 0, shown = 0;
    for (const std::string& line : split(text + text_now())) {
      if (line.find(long_line) != std::string::npos) {
        ++shown;
      } else if (json) {
        told += Json::parse(line)["lines"].get<uint64_t>();
      } else {
        told += std::stoull(without_time(line).substr(2));
      }
    }
    EXPECT_EQ(told, dropped);
    EXPECT_EQ(shown, kLines - dropped);
  }
}

}  // namespace
}  // namespace loralei
