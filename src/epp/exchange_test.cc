// SPDX-License-Identifier: Apache-2.0
#include "epp/exchange.h"

#include <gtest/gtest.h>

#include "epp/exchange_test_util.h"

namespace loralei {
namespace {

// The body that goes back with a request, and how it ends.
struct Back {
  std::string body;
  bool ends = false, trailers = false;
};
Back back_of(const std::vector<PickerAnswer>& answers) {
  Back back;
  for (const PickerAnswer& answer : answers) {
    EXPECT_FALSE(back.ends || back.trailers) << "something follows the end";
    if (answer.has_request_body()) {
      EXPECT_LE(piece_of(answer.request_body()).size(), kBackBytes);
      back.body += piece_of(answer.request_body());
      back.ends = answer.request_body().response().body_mutation().streamed_response().end_of_stream();
    }
    back.trailers |= answer.has_request_trailers();
  }
  return back;
}

// The immediate answer that a request has, which is all that is said.
ext_proc::ImmediateResponse refusal_of(PickExchange& exchange, const GatewayMessage& message) {
  const auto answers = say(exchange, message);
  EXPECT_EQ(answers.size(), 1u);
  EXPECT_TRUE(exchange.over());
  EXPECT_TRUE(exchange.breach().empty());
  if (answers.empty()) return {};
  EXPECT_TRUE(answers[0].has_immediate_response());
  const ext_proc::ImmediateResponse& refusal = answers[0].immediate_response();
  EXPECT_EQ(field_of(refusal.headers(), "content-type"), "application/json");
  return refusal;
}

GatewayMessage hint(GatewayMessage message, const std::vector<std::string>& allowed) {
  auto& space = (*message.mutable_metadata_context()->mutable_filter_metadata())[kSubsetSpace];
  auto& list = *(*space.mutable_fields())[kSubsetKey].mutable_list_value();
  for (const std::string& one : allowed) list.add_values()->set_string_value(one);
  return message;
}

TEST(PickExchange, HoldsARequestUntilItsBodyIsWhole) {
  PickerWorld world(2);
  PickExchange exchange(world.world);
  EXPECT_TRUE(say(exchange, post()).empty());
  EXPECT_TRUE(say(exchange, body(R"({"model": )")).empty());
  EXPECT_EQ(world.picks(), 0u);
  EXPECT_GT(world.memory->taken_bytes(), 0);
  const auto answers = say(exchange, body(R"("base"})", true));
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(endpoint_of(answers[0]), "10.0.0.1:8080");
  EXPECT_TRUE(answers[0].request_headers().response().clear_route_cache());
  const Back back = back_of(answers);
  EXPECT_EQ(back.body, R"({"model": "base"})");
  EXPECT_TRUE(back.ends);
  EXPECT_EQ(world.running(), 1);
  EXPECT_EQ(world.memory->taken_bytes(), 0) << "what has gone back is not held";
}

TEST(PickExchange, SaysTheEndpointTwiceAndTakesTheClientsOut) {
  PickerWorld world(1);
  PickExchange exchange(world.world);
  const auto answers = say(exchange, head_of("GET", "/v1/models", true, {{kEndpointHeader, "6.6.6.6:1"}}));
  ASSERT_EQ(answers.size(), 1u);
  const auto& space = answers[0].dynamic_metadata().fields().at(kEndpointSpace).struct_value();
  EXPECT_EQ(space.fields().at(kEndpointHeader).string_value(), "10.0.0.1:8080");
  const ext_proc::HeaderMutation& mutation = answers[0].request_headers().response().header_mutation();
  EXPECT_EQ(field_of(mutation, kEndpointHeader), "10.0.0.1:8080");
  EXPECT_EQ(mutation.set_headers(0).append_action(), ext_proc::OVERWRITE_IF_EXISTS_OR_ADD);
  ASSERT_EQ(mutation.remove_headers_size(), 1);
  EXPECT_EQ(mutation.remove_headers(0), kEndpointHeader);
}

TEST(PickExchange, GivesBodiesBackByteForByte) {
  PickerWorld world(1);
  for (const size_t bytes : {0ul, 1ul, kBackBytes - 1, kBackBytes, kBackBytes + 1, 3 * kBackBytes + 7}) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 131 >> 3);
    for (const bool with_trailers : {false, true}) {
      PickExchange exchange(world.world);
      EXPECT_TRUE(say(exchange, post()).empty());
      EXPECT_TRUE(say(exchange, body(text.substr(0, bytes / 3))).empty());
      auto answers = say(exchange, body(text.substr(bytes / 3), !with_trailers));
      if (with_trailers) {
        EXPECT_TRUE(answers.empty());
        answers = say(exchange, trailers());
      }
      ASSERT_FALSE(answers.empty());
      EXPECT_EQ(endpoint_of(answers[0]), "10.0.0.1:8080");
      const Back back = back_of(answers);
      EXPECT_EQ(back.body, text);
      EXPECT_EQ(back.trailers, with_trailers);
      EXPECT_EQ(back.ends, !with_trailers);
    }
  }
  EXPECT_EQ(world.running(), 0);
}

TEST(PickExchange, SendsARequestWhereItsAdapterIs) {
  PickerWorld world(1);
  world.add({{.name = "sql", .tier = ReplicaTier::kDevice}});
  const auto endpoint = [&](const std::string& text) {
    PickExchange exchange(world.world);
    say(exchange, post());
    return endpoint_of(say(exchange, body(text, true)).at(0));
  };
  EXPECT_EQ(endpoint(R"({"model": "base"})"), "10.0.0.1:8080");
  EXPECT_EQ(endpoint(R"({"model": "sql"})"), "10.0.0.2:8080");
  EXPECT_EQ(endpoint("no JSON \xff"), "10.0.0.1:8080") << "a replica says what is wrong with it";
  PickExchange exchange(world.world);
  EXPECT_EQ(endpoint_of(say(exchange, head_of("GET", "/v1/models/s%71l?x=1", true)).at(0)), "10.0.0.2:8080");
}

TEST(PickExchange, PicksAmongWhatTheGatewayAllows) {
  PickerWorld world(3);
  const auto endpoint = [&](const std::vector<std::string>& allowed) {
    PickExchange exchange(world.world);
    const auto answers = say(exchange, hint(head_of("GET", "/v1/models", true), allowed));
    return answers.at(0).has_immediate_response() ? std::to_string(answers[0].immediate_response().status().code())
                                                  : endpoint_of(answers[0]);
  };
  EXPECT_EQ(endpoint({"10.0.0.3:8080", "10.0.0.2:8080"}), "10.0.0.2:8080");
  EXPECT_EQ(endpoint({"10.0.0.3:8080"}), "10.0.0.3:8080");
  EXPECT_EQ(endpoint({"nothing", "10.0.0.3:8080", ""}), "10.0.0.3:8080");
  EXPECT_EQ(endpoint({"10.0.0.3:8081"}), "503");
  EXPECT_EQ(endpoint({"10.0.0.9:8080"}), "503");
  EXPECT_EQ(endpoint({}), "503");
  // As one text, and with a later message than the head's.
  GatewayMessage message = head_of("POST", "/v1/completions", false);
  GatewayMessage last = body("{}", true);
  auto& space = (*last.mutable_metadata_context()->mutable_filter_metadata())[kSubsetSpace];
  (*space.mutable_fields())[kSubsetKey].set_string_value("10.0.0.7:1, 10.0.0.2:8080,,");
  PickExchange exchange(world.world);
  say(exchange, message);
  EXPECT_EQ(endpoint_of(say(exchange, last).at(0)), "10.0.0.2:8080");
  // Neither a list nor a text allows nobody; another key says nothing.
  GatewayMessage odd = head_of("GET", "/v1/models", true);
  auto& odd_space = (*odd.mutable_metadata_context()->mutable_filter_metadata())[kSubsetSpace];
  (*odd_space.mutable_fields())["other"].set_number_value(1);
  PickExchange free(world.world);
  EXPECT_EQ(endpoint_of(say(free, odd).at(0)), "10.0.0.1:8080");
  (*odd_space.mutable_fields())[kSubsetKey].set_number_value(1);
  PickExchange bound(world.world);
  EXPECT_EQ(refusal_of(bound, odd).status().code(), 503);
}

TEST(PickExchange, NamesOthersAndCountsWhereTheGatewayWent) {
  PickerWorld world(3);
  world.world.fallbacks = 1;
  PickExchange exchange(world.world);
  const auto answers = say(exchange, head_of("GET", "/v1/models", true));
  EXPECT_EQ(endpoint_of(answers.at(0)), "10.0.0.1:8080,10.0.0.2:8080");
  const auto& space = answers[0].dynamic_metadata().fields().at(kEndpointSpace).struct_value();
  EXPECT_EQ(space.fields().at(kEndpointHeader).string_value(), endpoint_of(answers[0]));
  GatewayMessage served = answer_head(200);
  auto& said = (*served.mutable_metadata_context()->mutable_filter_metadata())[kEndpointSpace];
  (*said.mutable_fields())[kServedKey].set_string_value("10.0.0.2:8080");
  say(exchange, served);
  EXPECT_EQ(world.fleet.states()[0].sent, 0);
  EXPECT_EQ(world.fleet.states()[1].sent, 1);
  EXPECT_EQ(world.suspects, std::vector<size_t>{0}) << "it did not take the request";
  say(exchange, answer_body("{}", true));
  EXPECT_EQ(world.running(), 0);
  // The first one, one that is not there, and nonsense change nothing.
  for (const char* text : {"10.0.0.1:8080", "10.0.0.9:8080", "", "x"}) {
    PickExchange same(world.world);
    say(same, head_of("GET", "/v1/models", true));
    (*said.mutable_fields())[kServedKey].set_string_value(text);
    say(same, served);
    EXPECT_EQ(world.fleet.states()[0].sent, 1) << text;
  }
  EXPECT_EQ(world.running(), 0);
}

TEST(PickExchange, NobodyThereIs503AndShedIs429) {
  PickerWorld nobody(0);
  {
    PickExchange exchange(nobody.world);
    const auto refusal = refusal_of(exchange, head_of("GET", "/v1/models", true));
    EXPECT_EQ(refusal.status().code(), 503);
    EXPECT_EQ(field_of(refusal.headers(), "retry-after"), "1");
    EXPECT_EQ(field_of(refusal.headers(), kDroppedHeader), "rejected-no-endpoints");
    EXPECT_NE(refusal.body().find("\"error\""), std::string::npos);
  }
  FleetOptions options;
  options.shed = true;
  PickerWorld strict(1, options);
  for (const char* objective : {"x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"}) {
    PickExchange exchange(strict.world);
    say(exchange, post({{objective, "0.001"}, {"x-request-id", "mine"}}, "/v1/messages"));
    const auto refusal = refusal_of(exchange, body("{}", true));
    EXPECT_EQ(refusal.status().code(), 429);
    EXPECT_EQ(field_of(refusal.headers(), "retry-after"), "1");
    EXPECT_EQ(field_of(refusal.headers(), kDroppedHeader), "rejected-saturated");
    EXPECT_NE(refusal.body().find("\"request_id\":\"mine\""), std::string::npos) << refusal.body();
  }
  PickExchange exchange(strict.world);
  say(exchange, post({{"x-llm-d-slo-ttft-ms", "60000"}}));
  EXPECT_EQ(endpoint_of(say(exchange, body("{}", true)).at(0)), "10.0.0.1:8080");
}

TEST(PickExchange, RefusesBodiesThatAreTooLargeOrForWhichThereIsNoMemory) {
  PickerWorld world(1);
  {
    PickExchange exchange(world.world);
    const auto refusal = refusal_of(exchange, post({{"content-length", "100001"}}));
    EXPECT_EQ(refusal.status().code(), 413);
    EXPECT_NE(refusal.body().find("--max-body"), std::string::npos);
  }
  {
    PickExchange exchange(world.world);
    say(exchange, post({{"content-length", "3"}}));  // whatever it says
    EXPECT_TRUE(say(exchange, body(std::string(60'000, 'x'))).empty());
    EXPECT_TRUE(say(exchange, body(std::string(40'000, 'x'))).empty());
    EXPECT_EQ(refusal_of(exchange, body("x", true)).status().code(), 413);
    EXPECT_EQ(world.memory->taken_bytes(), 0);
  }
  ASSERT_TRUE(world.memory->try_take(1 << 20));
  PickExchange exchange(world.world);
  say(exchange, post());
  const auto refusal = refusal_of(exchange, body("x"));
  EXPECT_EQ(refusal.status().code(), 429);
  EXPECT_EQ(field_of(refusal.headers(), kDroppedHeader), "rejected-saturated");
  EXPECT_EQ(world.picks(), 0u);
}

TEST(PickExchange, HoldsNoMoreThanItHasMemoryFor) {
  PickerWorld world(1);
  PickExchange exchange(world.world);
  say(exchange, post());
  for (int i = 0; i < 100; ++i) {
    say(exchange, body(std::string(1000, 'x')));
    EXPECT_GE(world.memory->taken_bytes(), 1000 * (i + 1));
    EXPECT_LE(world.memory->taken_bytes(), 100'000);
  }
}

TEST(PickExchange, RefusesWhatNoOneServerCanAnswer) {
  PickerWorld world(2);
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter/", "/v1/adapters", "/v1/adapters/a/pin"}) {
    PickExchange exchange(world.world);
    EXPECT_EQ(refusal_of(exchange, post({}, path)).status().code(), 403) << path;
  }
  PickExchange deletes(world.world);
  EXPECT_EQ(refusal_of(deletes, head_of("DELETE", "/v1/adapters/a", true)).status().code(), 403);
  PickExchange place(world.world);
  say(place, post());
  EXPECT_EQ(refusal_of(place, body(R"({"lora": [{"id": 0}]})", true)).status().code(), 400);
  PickExchange slo(world.world);
  EXPECT_EQ(refusal_of(slo, post({{"x-llm-d-slo-ttft-ms", "soon"}})).status().code(), 400);
  PickExchange twice(world.world);
  EXPECT_EQ(refusal_of(twice, post({{"x-llm-d-slo-ttft-ms", "1"}, {"x-llm-d-slo-ttft-ms", "2"}})).status().code(), 400);
  PickExchange full(world.world, ApiError{.status = 429, .message = "full"});
  EXPECT_EQ(refusal_of(full, post()).status().code(), 429);
  EXPECT_EQ(world.picks(), 0u);
}

TEST(PickExchange, PassesAnAnswerOnAsItComes) {
  PickerWorld world(1);
  PickExchange exchange(world.world);
  say(exchange, post());
  say(exchange, body(R"({"stream": true})", true));
  EXPECT_TRUE(say(exchange, answer_head(200, "text/event-stream")).at(0).has_response_headers());
  std::string passed;
  for (const std::string piece : {": still there\n\n", "data: {\"a\"", ": 1}\n", "\n", "data: [DONE]\n\n"}) {
    const auto answers = say(exchange, answer_body(piece));
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(piece_of(answers[0].response_body()), piece) << "at once, whether or not it is a whole event";
    EXPECT_FALSE(answers[0].response_body().response().body_mutation().streamed_response().end_of_stream());
    // A comment says only that somebody is there.
    EXPECT_EQ(world.fleet.states()[0].waiting, piece.starts_with(":") || passed.size() < 20 ? 1 : 0) << piece;
    passed += piece;
  }
  EXPECT_EQ(world.running(), 1);
  const auto last = say(exchange, answer_body("", true));
  EXPECT_TRUE(last.at(0).response_body().response().body_mutation().streamed_response().end_of_stream());
  EXPECT_EQ(world.running(), 0);
  EXPECT_TRUE(world.suspects.empty());
}

TEST(PickExchange, AnswersEndWithTheirHeadABodyOrTrailers) {
  PickerWorld world(1);
  for (int kind = 0; kind < 3; ++kind) {
    PickExchange exchange(world.world);
    say(exchange, head_of("GET", "/v1/models", true));
    EXPECT_EQ(world.running(), 1);
    EXPECT_EQ(say(exchange, answer_head(200, "text/plain", kind == 0)).size(), 1u);
    if (kind == 1) {
      EXPECT_EQ(say(exchange, answer_body("{}", true)).size(), 1u);
    }
    if (kind == 2) {
      say(exchange, answer_body("{}"));
      EXPECT_TRUE(say(exchange, answer_trailers()).at(0).has_response_trailers());
    }
    EXPECT_EQ(world.running(), 0) << kind;
    EXPECT_FALSE(exchange.over()) << "the gateway closes the stream";
  }
}

TEST(PickExchange, WhoLeavesFreesItsReplica) {
  PickerWorld world(1);
  const std::vector<GatewayMessage> messages = {post(), body("{"), body("}", true), answer_head(200), answer_body("x")};
  for (size_t taken = 0; taken <= messages.size(); ++taken) {
    {
      PickExchange exchange(world.world);
      for (size_t i = 0; i < taken; ++i) say(exchange, messages[i]);
      EXPECT_EQ(world.running(), taken >= 3 ? 1 : 0);
    }
    EXPECT_EQ(world.running(), 0);
    EXPECT_EQ(world.memory->taken_bytes(), 0);
    EXPECT_EQ(world.suspects.size(), taken >= 3 ? taken - 2 : 0u) << "its connection may be what broke";
  }
  {  // with a body on its way back
    PickExchange exchange(world.world);
    say(exchange, post());
    GatewayMessage large = body(std::string(90'000, 'x'), true);
    exchange.take(large);
    PickerAnswer answer;
    EXPECT_TRUE(exchange.next(answer) && exchange.next(answer));
  }
  EXPECT_EQ(world.running(), 0);
  EXPECT_EQ(world.memory->taken_bytes(), 0);
}

TEST(PickExchange, AReplicaThatCannotTakeRequestsIsLookedAt) {
  PickerWorld world(1);
  for (const int status : {200, 404, 429, 500}) {
    PickExchange exchange(world.world);
    say(exchange, head_of("GET", "/v1/models", true));
    say(exchange, answer_head(status, "text/plain", true));
  }
  EXPECT_TRUE(world.suspects.empty());
  for (const int status : {502, 503, 504}) {
    PickExchange exchange(world.world);
    say(exchange, head_of("GET", "/v1/models", true));
    say(exchange, answer_head(status, "text/plain", true));
  }
  EXPECT_EQ(world.suspects.size(), 3u);
}

TEST(PickExchange, AGatewayMayAnswerByItself) {
  PickerWorld world(1);
  PickExchange early(world.world);  // it never asked
  EXPECT_EQ(say(early, answer_head(401)).size(), 1u);
  EXPECT_EQ(say(early, answer_body("no", true)).size(), 1u);
  PickExchange midway(world.world);
  say(midway, post());
  say(midway, body("{"));
  EXPECT_EQ(say(midway, answer_head(408)).size(), 1u);
  EXPECT_EQ(world.memory->taken_bytes(), 0);
  EXPECT_TRUE(say(midway, body("}", true)).empty());
  EXPECT_EQ(say(midway, answer_body("late", true)).size(), 1u);
  EXPECT_TRUE(midway.breach().empty());
  EXPECT_EQ(world.picks(), 0u);
}

TEST(PickExchange, SaysHowAGatewayIsToBeSet) {
  PickerWorld world(1);
  for (const ext_proc::BodySendMode mode : {ext_proc::NONE, ext_proc::STREAMED, ext_proc::BUFFERED}) {
    GatewayMessage message = post();
    message.mutable_protocol_config()->set_request_body_mode(mode);
    PickExchange exchange(world.world);
    const auto refusal = refusal_of(exchange, message);
    EXPECT_EQ(refusal.status().code(), 500);
    EXPECT_NE(refusal.body().find("FULL_DUPLEX_STREAMED"), std::string::npos);
  }
  GatewayMessage watched = post();
  watched.set_observability_mode(true);
  PickExchange exchange(world.world);
  EXPECT_EQ(refusal_of(exchange, watched).status().code(), 500);
  // Its answers it may show in another way, or not.
  GatewayMessage message = head_of("GET", "/v1/models", true);
  message.mutable_protocol_config()->set_request_body_mode(ext_proc::FULL_DUPLEX_STREAMED);
  message.mutable_protocol_config()->set_response_body_mode(ext_proc::STREAMED);
  PickExchange streamed(world.world);
  say(streamed, message);
  say(streamed, answer_head(200));
  const auto answers = say(streamed, answer_body("{}", true));
  EXPECT_TRUE(answers.at(0).has_response_body());
  EXPECT_FALSE(answers[0].response_body().response().has_body_mutation());
  EXPECT_EQ(world.running(), 0);
}

TEST(PickExchange, EndsWithWhatComesOutOfOrder) {
  const GatewayMessage get = head_of("GET", "/v1/models", true), piece = body("{}", true), head = answer_head(200),
                       end = answer_body("", true);
  const std::vector<std::vector<GatewayMessage>> orders = {{piece},
                                                           {trailers()},
                                                           {end},
                                                           {answer_trailers()},
                                                           {GatewayMessage()},
                                                           {get, get},
                                                           {get, piece},
                                                           {get, trailers()},
                                                           {post(), piece, piece},
                                                           {post(), post()},
                                                           {get, end},
                                                           {get, answer_trailers()},
                                                           {get, head, head},
                                                           {get, head, end, end},
                                                           {get, head, end, answer_trailers()},
                                                           {head, get},
                                                           {get, GatewayMessage()}};
  for (size_t i = 0; i < orders.size(); ++i) {
    PickerWorld world(1);
    PickExchange exchange(world.world);
    for (size_t j = 0; j + 1 < orders[i].size(); ++j) say(exchange, orders[i][j]);
    EXPECT_FALSE(exchange.over()) << i;
    EXPECT_TRUE(say(exchange, orders[i].back()).empty()) << i;
    EXPECT_TRUE(exchange.over()) << i;
    EXPECT_NE(exchange.breach().find("ext_proc"), std::string::npos) << i;
    EXPECT_EQ(world.running(), 0) << i;
    EXPECT_TRUE(say(exchange, get).empty()) << "nothing is taken any more";
  }
}

}  // namespace
}  // namespace loralei
