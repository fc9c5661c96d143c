// SPDX-License-Identifier: Apache-2.0
// A squashed answer over HTTP: the bytes are those of one that was not, wherever it was
// squashed. The server is real, and so is the engine's loop; model and device are fake.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "http/client.h"
#include "serve/api_server.h"
#include "support/loop_engine.h"
#include "sys/memory_file_system.h"

namespace loralei::test {
namespace {

using Json = nlohmann::json;

constexpr int kTokens = 12;
constexpr int64_t kStepNs = 1'000'000;

// A token for each id of the fake model: letters, a space, and both bytes of "ö", so that
// answers hold characters of two tokens and halves of some.
std::string tokenizer_json() {
  Json vocab = {{"<end>", 0}, {"\u0120", 1}, {"\u00c3", 2}, {"\u00b6", 3}};
  for (char letter = 'a'; letter <= 'z'; ++letter) vocab[std::string(1, letter)] = vocab.size();
  for (char letter = 'A'; vocab.size() < sim::kVocab; ++letter) vocab[std::string(1, letter)] = vocab.size();
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json end = {{"id", 0},         {"content", "<end>"},  {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false}, {"special", true}};
  return Json{{"version", "1.0"},
              {"added_tokens", {end}},
              {"normalizer", nullptr},
              {"pre_tokenizer", bytes},
              {"post_processor", nullptr},
              {"decoder", bytes},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}}
      .dump();
}

struct Asked {
  std::string route;
  bool stream = false;
  int choices = 1;

  std::string body(const char* prompt = "what is asked here and is a little longer", int tokens = kTokens,
                   const char* model = "base") const {
    Json json = {{"model", model},     {"max_tokens", tokens}, {"seed", 7},   {"temperature", 0.8},
                 {"ignore_eos", true}, {"stream", stream},     {"n", choices}};
    if (route == "/v1/completions") {
      json["prompt"] = prompt;
    } else {
      json["messages"] = {{{"role", "user"}, {"content", prompt}}};
    }
    return json.dump();
  }
};

// What an answer's bytes are but for what no two answers share: one text for a whole
// answer, and of a stream one for each choice and one for the frames of all. Choices take
// turns in a stream; each has its own order.
std::vector<std::string> without_names(const std::string& bytes, const Asked& asked) {
  const auto plain = [](const std::string& text) {
    Json json = Json::parse(text);
    json["id"] = json["created"] = nullptr;
    return json.dump() + "\n";
  };
  if (!asked.stream) return {plain(bytes)};
  std::vector<std::string> parts(static_cast<size_t>(asked.choices) + 1);
  SseParser parser;
  parser.feed(bytes, [&](std::string_view event) {
    const std::string text(event);
    const Json json = Json::parse(text, nullptr, false);
    const bool of_one = json.is_object() && !json["choices"].empty();
    const size_t at = of_one ? json["choices"][0]["index"].get<size_t>() : parts.size() - 1;
    parts.at(at) += json.is_object() ? plain(text) : text + "\n";
    return true;
  });
  return parts;
}

class Server {
 public:
  Server() {
    for (const char* name : {"/a", "/b"}) {
      files_.put(name, "");
      engine_.files().put(name, static_cast<uint64_t>(name[1]));
    }
    const auto tokenizer = Tokenizer::from_json(tokenizer_json());
    const auto chat = ChatTemplate::parse("{% for message in messages %}{{ message['content'] }}{% endfor %}");
    EXPECT_TRUE(tokenizer.ok() && chat.ok());
    auto text = TextModel::make(*tokenizer, *chat, "base");
    ServeOptions options;
    options.model_names = {"base"};
    auto started = ApiServer::start(options, engine_, *text, files_, clock_, log_);
    EXPECT_TRUE(started.ok());
    server_ = std::move(*started);
    EXPECT_TRUE(server_->add_adapter("a", "/a").ok() && server_->add_adapter("b", "/b").ok());
    server_->serve();
  }
  ~Server() { EXPECT_TRUE(server_->shutdown(60'000)); }

  LoopEngine& engine() { return engine_; }
  // From a thread of its own; answers the id when the engine has the request.
  RequestId ask(const std::string& route, const std::string& body, std::string* answer = nullptr) {
    clients_.emplace_back([this, route, body, answer] {
      HttpClient client({.port = server_->port(), .read_timeout_ms = 300'000});
      std::string bytes;
      const auto reply = client.post_json(route, body, [&](std::string_view piece) {
        bytes += piece;
        return true;
      });
      EXPECT_TRUE(reply.ok() && reply->status == 200) << bytes;
      if (answer != nullptr) *answer = bytes;
    });
    return engine_.wait_submits(++asked_);
  }
  void finish_all() {
    for (int turns = 0; turns < 100'000 && engine_.open_choices() > 0; ++turns) engine_.turn();
    for (std::thread& client : clients_) client.join();
    clients_.clear();
  }

 private:
  // The device has room for one adapter.
  LoopEngine engine_{{.device_bytes = 1000,
                      .scheduling = {.policy = SchedulePolicy::kWrs, .prediction = LengthPrediction::kMaxTokens}},
                     kStepNs};
  MemoryFileSystem files_;
  SteadyClock clock_;
  NullLogSink log_;
  std::unique_ptr<ApiServer> server_;
  size_t asked_ = 0;
  std::vector<std::thread> clients_;
};

// What is answered when it is squashed behind so many tokens; -1: it is not. One request
// uses the device's room for long. Another waits for it, and the one that is looked at
// passes that: it is to end before. Then the machine has other things to do.
std::string answered(const Asked& asked, int squashed_at) {
  Server server;
  LoopEngine& engine = server.engine();
  const Asked whole{.route = "/v1/completions"};
  server.ask(whole.route, whole.body("warm", 20));  // so that it knows what steps take
  server.finish_all();
  const RequestId holds = server.ask(whole.route, whole.body("holds", 200, "a"));
  for (int turns = 0; turns < 100 && engine.tokens(holds) == 0; ++turns) engine.turn();
  const RequestId waits = server.ask(whole.route, whole.body("waits", 3, "b"));
  for (int i = 0; i < 3; ++i) engine.turn();
  std::string answer;
  const RequestId passes = server.ask(asked.route, asked.body(), &answer);
  for (int turns = 0; turns < 100 && engine.tokens(passes) < squashed_at; ++turns) engine.turn(false);
  if (squashed_at == 0) engine.turn(false);  // its prompt is under way
  EXPECT_EQ(engine.tokens(waits), 0);
  EXPECT_EQ(engine.stats().squashes, 0u);
  if (squashed_at >= 0) {
    engine.pass_time(1000 * kStepNs);
    engine.turn(false);
    EXPECT_GE(engine.stats().squashes, 1u);
  }
  server.finish_all();
  EXPECT_EQ(engine.tokens(passes), kTokens * asked.choices) << "each token once";
  return answer;
}

class SquashOverHttp : public testing::TestWithParam<Asked> {};

TEST_P(SquashOverHttp, TheBytesAreTheSameWhereverItWasSquashed) {
  const Asked& asked = GetParam();
  const std::string undisturbed = answered(asked, -1);
  ASSERT_FALSE(undisturbed.empty());
  const auto expected = without_names(undisturbed, asked);
  for (int at = 0; at < kTokens; ++at) {
    SCOPED_TRACE(testing::Message() << "token " << at);
    EXPECT_EQ(without_names(answered(asked, at), asked), expected);
  }
}

std::vector<Asked> all_forms() {
  std::vector<Asked> forms;
  for (const char* route : {"/v1/chat/completions", "/v1/completions"})
    for (const bool stream : {true, false})
      for (const int choices : {1, 4}) forms.push_back({route, stream, choices});
  return forms;
}

INSTANTIATE_TEST_SUITE_P(Forms, SquashOverHttp, testing::ValuesIn(all_forms()));

}  // namespace
}  // namespace loralei::test
