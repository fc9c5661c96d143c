// SPDX-License-Identifier: Apache-2.0
#include "router/answer_reader.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(AnswerReader, PassesWholeEventsOn) {
  AnswerReader reader(true);
  EXPECT_EQ(reader.take("data: a\n\ndata: b"), "data: a\n\n");
  EXPECT_EQ(reader.take("\n"), "");
  EXPECT_EQ(reader.take("\ndata: c\n\n"), "data: b\n\ndata: c\n\n");
  EXPECT_EQ(reader.take("data: d\r\n\r"), "");
  EXPECT_EQ(reader.take("\n"), "data: d\r\n\r\n");
  EXPECT_EQ(reader.take("data: [DO"), "");
  EXPECT_EQ(reader.rest(), "data: [DO");
  EXPECT_EQ(reader.counts().output_tokens, 5);
}

TEST(AnswerReader, TellsCommentsFromContent) {
  AnswerReader reader(true);
  reader.take(": ping\n\n");
  reader.take(": ping\r\n\r\n");
  EXPECT_FALSE(reader.has_content());
  reader.take(": ping\n\nevent: x\n\n");
  EXPECT_TRUE(reader.has_content());
}

TEST(AnswerReader, ReadsWhatAnAnswerSaysOfItself) {
  AnswerReader whole(false);
  const std::string chat =
      R"({"choices": [{"text": "\"prompt_tokens\": 99"}], "usage": {"prompt_tokens": 12, "completion_tokens": 22}})";
  EXPECT_EQ(whole.take(chat), chat);
  EXPECT_EQ(whole.counts().prompt_tokens, 12);
  EXPECT_EQ(whole.counts().output_tokens, 22);

  AnswerReader events(true);
  events.take("data: {\"x\":1}\n\n");
  events.take("data: {\"usage\":{\"input_tokens\":7,\"output_tokens\":3}}\n\n");
  EXPECT_EQ(events.counts().prompt_tokens, 7);
  EXPECT_EQ(events.counts().output_tokens, 3);

  AnswerReader silent(false);
  silent.take("{\"completion_tokens\": -4, \"prompt_tokens\": ");
  EXPECT_EQ(silent.counts().prompt_tokens, 0);
  EXPECT_EQ(silent.counts().output_tokens, 0);
}

TEST(AnswerReader, PassesAnyBodyOnAsItCame) {
  Prng random(5);
  for (int round = 0; round < 300; ++round) {
    std::string body, passed;
    for (uint64_t left = random.below(400); left > 0; --left) body += "\n\r:da a"[random.below(7)];
    AnswerReader reader(random.below(4) != 0);
    for (size_t at = 0; at < body.size();) {
      const size_t bytes = std::min<size_t>(1 + random.below(9), body.size() - at);
      passed += reader.take(std::string_view(body).substr(at, bytes));
      at += bytes;
    }
    passed += reader.rest();
    ASSERT_EQ(passed, body) << "round " << round;
  }
}

TEST(AnswerReader, PassesAnEventWithoutAnEndOnAsItComes) {
  AnswerReader reader(true);
  const std::string piece(64 * 1024, 'x');
  size_t passed = 0, most_kept = 0, given = 0;
  for (int i = 0; i < 64; ++i) {
    given += piece.size();
    passed += reader.take(piece).size();
    most_kept = std::max(most_kept, given - passed);
  }
  EXPECT_LE(most_kept, kEventBytesMost);
  passed += reader.rest().size();
  EXPECT_EQ(passed, given);
}

}  // namespace
}  // namespace loralei
