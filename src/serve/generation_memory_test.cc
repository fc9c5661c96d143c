// SPDX-License-Identifier: Apache-2.0
// A client that takes slowly, and an answer for which there is no memory.
#include <gtest/gtest.h>

#include "base/fixed_byte_budget.h"
#include "serve/plan.h"
#include "serve/server_test_util.h"
#include "wire/responses_api.h"

namespace loralei {
namespace {

class SlowWriter final : public ResponseWriter {
 public:
  bool respond(int status, HttpHeaders, std::string) override {
    answered = status;
    return true;
  }
  bool respond_pieces(int status, HttpHeaders, NextPiece) override {
    answered = status;
    return true;
  }
  bool start_stream(int, HttpHeaders) override { return true; }
  bool write(std::string_view) override {
    ++writes;
    return true;
  }
  bool wants_more() const override { return !full; }
  void on_room(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    on_room_ = std::move(callback);
  }
  void finish() override { finished = true; }
  void on_closed(std::function<void()>) override {}
  bool closed() const override { return false; }

  void take_all() {
    full = false;
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      callback = std::exchange(on_room_, nullptr);
    }
    ASSERT_TRUE(callback);
    callback();
  }
  std::atomic<bool> full{false}, finished{false};
  std::atomic<int> answered{0}, writes{0};

 private:
  std::mutex mutex_;
  std::function<void()> on_room_;
};

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    engine.hold_tokens = true;
    auto tokenizer =
        Tokenizer::from_directory(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-gpt2").value();
    text = TextModel::make(tokenizer, ChatTemplate::builtin("chatml").value(), "base").value();
  }
  GenerationPlan plan() {
    GenerationPlan plan;
    plan.text = text;
    plan.form = make_completion_answer({}, {});
    plan.stop = compile_stop_strings({});
    plan.prompts = {{1}};
    return plan;
  }
  void start(GenerationPlan plan) {
    auto reply = std::make_shared<Reply>(writer, metrics, log, "test", "POST", "id", HttpHeaders{},
                                         std::make_shared<ByteShare>(engine.request_memory()));
    std::make_shared<Generation>(context, std::move(reply), std::move(plan))->start();
  }
  void emit(EndReason end = EndReason::kNone) {
    post(end);
    const int64_t looks = engine.looks;  // the second look from here comes behind the event
    while (engine.looks < looks + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void post(EndReason end = EndReason::kNone) {
    TokenEvent event;
    event.id = engine.wait_submit(0).id;
    event.has_token = true;
    event.token = 70;
    event.logprobs = TokenLogprobs{-1.0f, std::vector<TokenLogprob>(20, TokenLogprob{70, -1.0f})};
    event.end = end;
    engine.emit(std::move(event));
  }

  FakeEngine engine;
  ManualClock clock;
  CollectingLog log;
  Metrics metrics{{"base", 64}};
  std::shared_ptr<const TextModel> text;
  std::shared_ptr<SlowWriter> writer = std::make_shared<SlowWriter>();
  Dispatcher dispatcher{engine, clock};
  const ServeContext context{engine, dispatcher, metrics, clock, log, 1'000'000'000};
};

TEST_F(MemoryTest, TheEngineRestsUntilASlowReaderHasTakenWhatWaits) {
  GenerationPlan streamed = plan();
  streamed.stream = true;
  start(std::move(streamed));
  emit();
  EXPECT_TRUE(engine.holds.empty());
  writer->full = true;
  emit();
  emit();  // was under way: it is not lost
  ASSERT_EQ(engine.holds.size(), 1u);
  const uint64_t id = engine.wait_submit(0).id.value;
  EXPECT_EQ(engine.holds[0], std::pair(id, true));
  EXPECT_EQ(writer->writes, 3);
  clock.advance_ns(20'000'000'000);
  const int64_t looks = engine.looks;
  while (engine.looks < looks + 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(writer->writes, 3) << "nobody needs a sign of life who has not taken the last";
  writer->take_all();
  ASSERT_EQ(engine.holds.size(), 2u);
  EXPECT_EQ(engine.holds[1], std::pair(id, false));
  emit(EndReason::kLength);
  EXPECT_TRUE(writer->finished);
}

TEST_F(MemoryTest, AnAnswerEndsWhereItsMemoryDoes) {
  const auto memory = std::make_shared<FixedByteBudget>(100'000);
  engine.memory = memory;
  GenerationPlan whole = plan();
  whole.logprobs = true;
  start(std::move(whole));
  int tokens = 0;
  while (writer->answered == 0 && tokens < 1000) {
    for (int i = 0; i < 20; ++i) post();
    emit();
    tokens += 21;
    EXPECT_LE(memory->taken_bytes(), 100'000);
  }
  EXPECT_EQ(writer->answered, 429);
  EXPECT_GT(tokens, 50);
  EXPECT_NE(log.text().find("error"), std::string::npos);
  for (int wait = 0; memory->taken_bytes() > 0 && wait < 1000; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(memory->taken_bytes(), 0);
}

// An API whose streams repeat at their end what they have said needs memory for it,
// as a whole answer does.
TEST_F(MemoryTest, AStreamThatKeepsItsTextEndsWhereItsMemoryDoes) {
  const auto memory = std::make_shared<FixedByteBudget>(50'000);
  engine.memory = memory;
  GenerationPlan streamed = plan();
  streamed.form = make_responses_answer({}, {});
  streamed.stream = true;
  start(std::move(streamed));
  int tokens = 0;
  while (!writer->finished && tokens < 5'000) {
    for (int i = 0; i < 100; ++i) post();
    emit();
    tokens += 101;
  }
  EXPECT_TRUE(writer->finished);
  EXPECT_LT(tokens, 50'000 / (8 + 10) + 200) << "eight bytes in the engine, and ten times its text";
  EXPECT_NE(log.text().find("error"), std::string::npos);
}

}  // namespace
}  // namespace loralei
