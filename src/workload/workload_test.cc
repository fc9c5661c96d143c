// SPDX-License-Identifier: Apache-2.0
// Workload files: what is written reads back as it was, and each wrong line has its
// sentence with file and line.
#include "workload/workload.h"
#include "workload/prompts.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "workload/workload_test_util.h"

namespace loralei {
namespace {

class WorkloadFileTest : public WorkloadFiles {
 protected:
  // What reading a file of this text says.
  std::string refusal(const std::string& text) const {
    const auto read = read_workload(file("w.jsonl", text));
    return read.ok() ? "" : read.error().message;
  }
  void expect_refused(const std::string& line, const std::string& sentence) const {
    const std::string good = R"({"t": 1, "prompt_tokens": 5, "output_tokens": 5})";
    const std::string said = refusal(good + "\n" + line + "\n" + good + "\n");
    EXPECT_TRUE(said.starts_with(path("w.jsonl") + ":2: ")) << line << "\n" << said;
    EXPECT_TRUE(holds(said, sentence)) << line << "\n" << said;
  }
};

std::string random_name(Prng& random) {
  static const std::vector<std::string> kParts = {"a", "Z", "7", "-", "\"", "\\", " ", "\xc3\xa9", "\xe2\x82\xac", "/"};
  std::string name;
  for (uint64_t i = 1 + random.below(12); i > 0; --i) name += kParts[random.below(kParts.size())];
  return name;
}

Workload random_workload(Prng& random, int count) {
  Workload requests;
  int64_t at_ns = 0;
  for (int i = 0; i < count; ++i) {
    WorkloadRequest request;
    at_ns += static_cast<int64_t>(random.below(random.below(2) == 0 ? 3 : 2'000'000'000'000));
    request.at_ns = at_ns;
    if (random.below(3) > 0) {
      request.adapter = random_name(random);
      request.rank = random.below(2) == 0 ? 0 : 1 + static_cast<int32_t>(request.adapter.size());
    }
    request.prompt_tokens = 1 + static_cast<int32_t>(random.below(100'000));
    request.output_tokens = 1 + static_cast<int32_t>(random.below(5'000));
    for (uint64_t left = random.below(4); left > 0; --left) {
      const int32_t last = request.prefixes.empty() ? 0 : request.prefixes.back().tokens;
      if (last == request.prompt_tokens) break;
      const int32_t tokens = last + 1 + static_cast<int32_t>(random.below(request.prompt_tokens - last));
      request.prefixes.push_back({"p" + std::to_string(left) + random_name(random), tokens});
    }
    if (random.below(2) == 0) request.app = random_name(random);
    if (random.below(2) == 0) request.key = random_name(random);
    requests.push_back(request);
  }
  return requests;
}

TEST_F(WorkloadFileTest, WhatIsWrittenReadsBackAsItWas) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    const Workload requests = random_workload(random, 300);
    const Status written = write_workload(path("w.jsonl"), requests);
    ASSERT_TRUE(written.ok()) << written.error().message;
    const auto read = read_workload(path("w.jsonl"));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, requests);
    const std::string text = text_of(path("w.jsonl"));
    ASSERT_TRUE(write_workload(path("w.jsonl"), *read).ok());
    EXPECT_EQ(text_of(path("w.jsonl")), text);
    EXPECT_FALSE(std::filesystem::exists(path("w.jsonl.part")));
  }
}

TEST_F(WorkloadFileTest, EveryNanosecondOfAMonthReadsBack) {
  Prng random(7);
  Workload requests;
  for (int64_t at_ns = 0; at_ns < kWorkloadSecondsMax * kNsPerSecond;
       at_ns += static_cast<int64_t>(1 + random.below(1'500'000'000'000)))
    requests.push_back({.at_ns = at_ns, .prompt_tokens = 1, .output_tokens = 1});
  requests.push_back({.at_ns = kWorkloadSecondsMax * kNsPerSecond - 1, .prompt_tokens = 1, .output_tokens = 1});
  requests.push_back({.at_ns = kWorkloadSecondsMax * kNsPerSecond, .prompt_tokens = 1, .output_tokens = 1});
  ASSERT_TRUE(write_workload(path("w.jsonl"), requests).ok());
  const auto read = read_workload(path("w.jsonl"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, requests);
}

TEST_F(WorkloadFileTest, ALineHasItsKeysInOrderAndNothingThatIsEmpty) {
  WorkloadRequest request{.at_ns = 1'500'000'000, .prompt_tokens = 7, .output_tokens = 3};
  EXPECT_EQ(workload_line(request), R"({"t": 1.5, "prompt_tokens": 7, "output_tokens": 3})");
  request = {2, "a \"b\"", 8, 7, 3, {{"d", 4}}, "mail", "user 1"};
  EXPECT_EQ(workload_line(request),
            R"({"t": 0.000000002, "adapter": "a \"b\"", "rank": 8, "prompt_tokens": 7, "output_tokens": 3, )"
            R"("prefix": {"id": "d", "tokens": 4}, "app": "mail", "key": "user 1"})");
  request.prefixes.push_back({"e", 7});
  EXPECT_TRUE(holds(workload_line(request), R"("prefix": [{"id": "d", "tokens": 4}, {"id": "e", "tokens": 7}])"));
}

TEST_F(WorkloadFileTest, CommentsEmptyLinesAndForeignLineEndsHoldNothing) {
  const auto read =
      read_workload(file("w.jsonl",
                         "# made by hand\r\n\r\n  \n{\"output_tokens\": 2.0, \"t\": 1e-3, \"prompt_tokens\": 1}\r\n#\n"
                         "{\"t\": 0.25, \"prompt_tokens\": 3, \"output_tokens\": 4, \"prefix\": [], \"app\": null}"));
  ASSERT_TRUE(read.ok()) << read.error().message;
  const Workload expected = {{.at_ns = 1'000'000, .prompt_tokens = 1, .output_tokens = 2},
                             {.at_ns = 250'000'000, .prompt_tokens = 3, .output_tokens = 4}};
  EXPECT_EQ(*read, expected);
  EXPECT_TRUE(read_workload(file("w.jsonl", "")).value().empty());
}

TEST_F(WorkloadFileTest, EachWrongLineHasItsSentence) {
  expect_refused("hello", "the line is not valid JSON");
  expect_refused("[1]", "the line is no JSON object");
  expect_refused(R"({"t": 2, "prompt_tokens": 5, "output_tokens": 5)", "the line is not valid JSON");
  expect_refused(R"({"t": NaN, "prompt_tokens": 5, "output_tokens": 5})", "the line is not valid JSON");
  expect_refused(R"({"t": 1e999, "prompt_tokens": 5, "output_tokens": 5})", "number overflow");
  expect_refused(R"({"prompt_tokens": 5, "output_tokens": 5})", "\"t\" is missing");
  expect_refused(R"({"t": 2, "output_tokens": 5})", "\"prompt_tokens\" is missing");
  expect_refused(R"({"t": 2, "prompt_tokens": 5})", "\"output_tokens\" is missing");
  expect_refused(R"({"t": -1, "prompt_tokens": 5, "output_tokens": 5})", "it must be from 0 to 2592000 seconds");
  expect_refused(R"({"t": 1e9, "prompt_tokens": 5, "output_tokens": 5})", "it must be from 0 to 2592000 seconds");
  expect_refused(R"({"t": "2", "prompt_tokens": 5, "output_tokens": 5})", "must be a number");
  expect_refused(R"({"t": 0.5, "prompt_tokens": 5, "output_tokens": 5})", "\"t\" goes back from 1 to 0.5");
  expect_refused(R"({"t": 2, "prompt_tokens": 0, "output_tokens": 5})", "must be a whole number between 1 and");
  expect_refused(R"({"t": 2, "prompt_tokens": 5, "output_tokens": -5})", "must be a whole number between 1 and");
  expect_refused(R"({"t": 2, "prompt_tokens": 5.5, "output_tokens": 5})", "must be a whole number between 1 and");
  expect_refused(R"({"t": 2, "prompt_tokens": 1e12, "output_tokens": 5})", "must be a whole number between 1 and");
  expect_refused(R"({"t": 2, "prompt_tokens": 5, "output_tokens": 5, "tokens": 5})",
                 "\"tokens\" is no key of a request");
  expect_refused(R"({"t": 2, "prompt_tokens": 5, "output_tokens": 5, "t": 3})", "the key \"t\" stands twice");
  expect_refused(R"({"t": 2, "prompt_tokens": 5, "output_tokens": 5, "rank": 8})", "without an \"adapter\"");
  expect_refused(R"({"t": 2, "adapter": "a", "rank": -8, "prompt_tokens": 5, "output_tokens": 5})",
                 "must be a whole number between 1 and 4096");
  expect_refused(R"({"t": 2, "adapter": 7, "prompt_tokens": 5, "output_tokens": 5})", "must be a string");
  expect_refused(R"({"t": 2, "adapter": "a\u0000", "prompt_tokens": 5, "output_tokens": 5})", "control characters");
  expect_refused(R"({"t": 2, "app": ")" + std::string(1025, 'x') + R"(", "prompt_tokens": 5, "output_tokens": 5})",
                 "has 1025 bytes; at most 1024 are read");
  expect_refused(std::string(200, '['), "nested too deep");
}

TEST_F(WorkloadFileTest, EachWrongPrefixHasItsSentence) {
  const auto expect = [this](const std::string& prefix, const std::string& sentence) {
    expect_refused(R"({"t": 2, "prompt_tokens": 9, "output_tokens": 5, "prefix": )" + prefix + "}", sentence);
  };
  expect("\"d\"", "\"prefix\" is an object");
  expect("[[]]", "\"prefix\" is an object");
  expect(R"({"id": "d"})", "\"tokens\" is missing");
  expect(R"({"tokens": 3})", "\"id\" is missing");
  expect(R"({"id": "", "tokens": 3})", "a prefix has no \"id\"");
  expect(R"({"id": "d", "tokens": 3, "text": "x"})", "\"text\" is no key of a prefix. It has id and tokens.");
  expect(R"({"id": "d", "tokens": 10})", "it must be from 1 to 9, the length of the prompt");
  expect(R"([{"id": "d", "tokens": 3}, {"id": "d", "tokens": 4}])", "stands twice");
  expect(R"([{"id": "d", "tokens": 3}, {"id": "e", "tokens": 3}])", "Put the longest last");
  std::string many;
  for (int i = 0; i < 65; ++i) many += (i == 0 ? "[" : ", ") + std::string(R"({"id": "d", "tokens": 3})");
  expect(many + "]", "the request has 65 prefixes; at most 64 are read");
}

TEST_F(WorkloadFileTest, AnAdapterHasOneRank) {
  const std::string begin = R"({"t": 2, "prompt_tokens": 5, "output_tokens": 5, "adapter": "a")";
  EXPECT_EQ(refusal(begin + ", \"rank\": 8}\n" + begin + "}\n" + begin + ", \"rank\": 8}"), "");
  EXPECT_EQ(refusal("#\n" + begin + ", \"rank\": 8}\n" + begin + ", \"rank\": 16}"),
            path("w.jsonl") +
                ":3: the adapter 'a' has rank 16 here and rank 8 in line 2. "
                "Give each rank an adapter of its own.");
}

TEST_F(WorkloadFileTest, FilesThatAreNoneAreRefused) {
  EXPECT_TRUE(holds(refusal(std::string(kWorkloadLineBytesMax + 1, ' ')), "w.jsonl:1: the line has more than"));
  EXPECT_TRUE(holds(refusal("\n" + std::string(3 * kWorkloadLineBytesMax, 'x') + "\n"), "w.jsonl:2: the line has"));
  EXPECT_EQ(refusal(std::string(kWorkloadLineBytesMax, ' ')), "");
  EXPECT_TRUE(holds(read_workload(path("none")).error().message, "none"));
  EXPECT_TRUE(holds(read_workload("trace.jsonl.zst").error().message, "`zstd -d trace.jsonl.zst`"));
}

TEST_F(WorkloadFileTest, MoreThanTenMillionLinesAreRefused) {
  EXPECT_TRUE(holds(refusal(std::string(kWorkloadLinesMax + 1, '\n')), "at most 10000000 lines"));
  EXPECT_EQ(refusal(std::string(kWorkloadLinesMax, '\n')), "");
}

TEST_F(WorkloadFileTest, WhatCouldNotBeReadIsNotWritten) {
  file("w.jsonl", "as it was");
  const WorkloadRequest good{.at_ns = 5, .prompt_tokens = 1, .output_tokens = 1};
  WorkloadRequest bad = good;
  bad.at_ns = 4;
  const Status refused = write_workload(path("w.jsonl"), std::vector{good, bad});
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().message.starts_with("the request of line 2: \"t\" goes back")) << refused.error().message;
  bad = good;
  bad.key = "\x80";
  EXPECT_FALSE(write_workload(path("w.jsonl"), std::vector{bad}).ok());
  bad = good;
  bad.output_tokens = 0;
  EXPECT_FALSE(write_workload(path("w.jsonl"), std::vector{bad}).ok());
  EXPECT_EQ(text_of(path("w.jsonl")), "as it was");
  EXPECT_FALSE(std::filesystem::exists(path("w.jsonl.part")));
}

// Random bytes, and good lines with bytes changed, cut and put in: an answer each, and
// what is read can be written.
TEST_F(WorkloadFileTest, NoBytesCrashTheReader) {
  static const std::string kBytes =
      "{}[]\",:.0123456789eE+-\\u\n\r #tnfa\xff\x80\0 "
      "promt_kesuadi";
  int read_well = 0;
  for (uint64_t seed = 1; seed <= 800; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng random(seed);
    std::string text;
    for (const WorkloadRequest& request : random_workload(random, 3)) text += workload_line(request) + "\n";
    if (seed % 4 == 0) text.resize(random.below(200), '\0');
    for (uint64_t changes = random.below(4); changes > 0; --changes) {
      const size_t at = random.below(text.size() + 1);
      const char byte = random.below(2) == 0 ? kBytes[random.below(kBytes.size())] : static_cast<char>(random());
      if (random.below(3) == 0) {
        text.insert(at, 1, byte);
      } else if (random.below(2) == 0) {
        text.erase(at, random.below(5));
      } else if (at < text.size()) {
        text[at] = byte;
      }
    }
    if (seed % 4 == 1)
      for (char& byte : text) byte = static_cast<char>(random());
    const auto read = read_workload(file("w.jsonl", text));
    if (!read.ok()) {
      EXPECT_FALSE(read.error().message.empty());
      continue;
    }
    ++read_well;
    const Status written = write_workload(path("again.jsonl"), *read);
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_EQ(read_workload(path("again.jsonl")).value(), *read);
  }
  EXPECT_GT(read_well, 50);
}

// Otherwise what a server has cached of one workload would answer the next.
TEST(Prompts, OtherWorkloadsAskOtherThings) {
  const auto numbers = [](int64_t at_ns, size_t index) {
    std::vector<uint64_t> taken;
    const WorkloadRequest request{.at_ns = at_ns, .prompt_tokens = 40};
    for_each_prompt_number(request, index, [&](uint64_t number) { taken.push_back(number); });
    return taken;
  };
  EXPECT_EQ(numbers(5'000, 3), numbers(5'000, 3));
  EXPECT_NE(numbers(5'000, 3), numbers(6'000, 3));
  EXPECT_NE(numbers(5'000, 3), numbers(5'000, 4));
  EXPECT_NE(numbers(5'000, 3).front(), numbers(6'000, 3).front());
}

}  // namespace
}  // namespace loralei
