// SPDX-License-Identifier: Apache-2.0
// Exchanges under messages of any order, many at once: whatever they are, what place()
// counted is taken back once (Fleet checks that it is not taken back twice), nothing is
// held in the end, and what goes on is what came.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <random>

#include "base/prng.h"
#include "epp/exchange_test_util.h"

namespace loralei {
namespace {

struct Talk {
  std::unique_ptr<PickExchange> exchange;
  std::string sent, back;  // the request's body
  std::string answer, passed;
  bool placed = false, back_ended = false;
};

GatewayMessage any_message(Prng& random, Talk& talk) {
  const auto text = [&] {
    std::string bytes(random() % 3 == 0 ? random() % 70'000 : random() % 20, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  };
  switch (random() % 9) {
    case 0:
      return head_of("GET", "/v1/models", true);
    case 1:
      return post(random() % 4 == 0 ? Fields{{"x-llm-d-slo-ttft-ms", "5"}} : Fields{});
    case 2:
    case 3:
      return body(text(), random() % 2 == 0);
    case 4:
      return random() % 4 == 0 ? trailers() : body("", true);
    case 5:
      return answer_head(random() % 2 == 0 ? 200 : 503, random() % 2 == 0 ? "text/event-stream" : "text/plain");
    case 6:
    case 7:
      return answer_body(text(), random() % 8 == 0);
    default:
      return random() % 6 == 0 ? answer_trailers() : random() % 6 == 0 ? GatewayMessage() : body("{}");
  }
}

void take(Talk& talk, GatewayMessage message) {
  const bool was_over = talk.exchange->over();
  if (message.has_request_body() && !was_over) talk.sent += message.request_body().body();
  if (message.has_response_body() && !was_over) talk.answer += message.response_body().body();
  talk.exchange->take(message);
  for (PickerAnswer answer; talk.exchange->next(answer);) {
    EXPECT_FALSE(was_over) << "said behind the end";
    if (answer.has_request_headers()) {
      EXPECT_FALSE(std::exchange(talk.placed, true)) << "placed twice";
      EXPECT_FALSE(endpoint_of(answer).empty());
    } else if (answer.has_request_body()) {
      EXPECT_TRUE(talk.placed) << "a body goes before its head";
      EXPECT_FALSE(talk.back_ended);
      talk.back += piece_of(answer.request_body());
      talk.back_ended = answer.request_body().response().body_mutation().streamed_response().end_of_stream();
    } else if (answer.has_response_body()) {
      talk.passed += piece_of(answer.response_body());
    } else if (answer.has_immediate_response()) {
      EXPECT_FALSE(talk.placed);
      EXPECT_TRUE(talk.exchange->over());
    }
  }
  if (talk.placed && talk.back_ended) {
    EXPECT_EQ(talk.back, talk.sent.substr(0, talk.back.size()));
  }
  if (talk.exchange->breach().empty() && !talk.exchange->over()) {
    EXPECT_EQ(talk.passed, talk.answer);
  }
}

TEST(ExchangeRandom, AnyOrderOfMessagesFreesWhatItTook) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Prng random(seed);
  PickerWorld world(3);
  uint64_t placed = 0, whole = 0;
  std::vector<Talk> talks(8);
  for (int step = 0; step < 6'000; ++step) {
    Talk& talk = talks[random() % talks.size()];
    if (!talk.exchange || talk.exchange->over() || random() % 40 == 0) {
      placed += talk.placed ? 1 : 0;
      whole += talk.back_ended && talk.back == talk.sent ? 1 : 0;
      talk = {};
      talk.exchange = std::make_unique<PickExchange>(world.world);
      if (random() % 8 != 0) take(talk, post());
    }
    take(talk, any_message(random, talk));
    ASSERT_LE(world.running(), static_cast<int32_t>(talks.size()));
    if (::testing::Test::HasFailure()) FAIL() << "step " << step << ", seed " << seed;
  }
  talks.clear();
  EXPECT_EQ(world.running(), 0);
  EXPECT_EQ(world.memory->taken_bytes(), 0);
  EXPECT_GT(placed, 300u);
  EXPECT_GT(whole, 100u);
  EXPECT_GE(world.picks(), placed);
}

}  // namespace
}  // namespace loralei
