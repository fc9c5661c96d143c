// SPDX-License-Identifier: Apache-2.0
// What a request's time is counted as, on a clock that the test moves.
#include <gtest/gtest.h>

#include "serve/plan.h"
#include "serve/server_test_util.h"

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// A client that takes everything.
class TakingWriter final : public ResponseWriter {
 public:
  bool respond(int, HttpHeaders, std::string) override { return true; }
  bool respond_pieces(int, HttpHeaders, NextPiece) override { return true; }
  bool start_stream(int, HttpHeaders) override { return true; }
  bool write(std::string_view) override { return true; }
  bool wants_more() const override { return true; }
  void on_room(std::function<void()>) override {}
  void finish() override {}
  void on_closed(std::function<void()>) override {}
  bool closed() const override { return false; }
};

class TimesTest : public testing::Test {
 protected:
  void SetUp() override {
    engine.hold_tokens = true;
    auto tokenizer =
        Tokenizer::from_directory(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-gpt2").value();
    text = TextModel::make(tokenizer, ChatTemplate::builtin("chatml").value(), "base").value();
  }
  std::shared_ptr<Reply> reply() {
    return std::make_shared<Reply>(std::make_shared<TakingWriter>(), metrics, log, "test", "POST", "id", HttpHeaders{},
                                   std::make_shared<ByteShare>(engine.request_memory()));
  }
  // The next event of a part, `after_s` seconds later; the engine began with the part
  // `queue_s` after its submission.
  void emit(size_t part, int64_t after_s, int64_t queue_s, EndReason end) {
    clock.advance_ns(after_s * kSecond);
    TokenEvent event;
    event.id = engine.wait_submit(part).id;
    event.has_token = true;
    event.token = 5;
    event.queue_ns = queue_s * kSecond;
    event.end = end;
    engine.emit(std::move(event));
    const int64_t looks = engine.looks;  // the second look from here comes behind the event
    while (engine.looks < looks + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void expect_sum(const std::string& histogram, int64_t seconds) {
    const std::string page = metrics.render({}, {}, {}, 0);
    const std::string line = "loralei_request_" + histogram + "_seconds_sum " + std::to_string(seconds) + "\n";
    EXPECT_NE(page.find(line), std::string::npos) << line << page.substr(page.find("loralei_request_" + histogram), 99);
  }

  FakeEngine engine;
  ManualClock clock;
  CollectingLog log;
  Metrics metrics{{"base", 64}};
  std::shared_ptr<const TextModel> text;
  Dispatcher dispatcher{engine, clock};
  const ServeContext context{engine, dispatcher, metrics, clock, log, kSecond};
};

// Arrived; 5 s for a text thread; submitted; 2 s in the engine's queue; 1 s of prefill;
// 4 s to the end.
TEST_F(TimesTest, WaitingForATextThreadIsWaiting) {
  GenerationPlan plan;
  plan.text = text;
  plan.form = make_completion_answer({}, {});
  plan.stop = compile_stop_strings({});
  plan.prompts = {{1}, {2}};
  clock.advance_ns(5 * kSecond);
  std::make_shared<Generation>(context, reply(), std::move(plan))->start();
  emit(0, 3, 2, EndReason::kNone);
  // Another prompt that the engine began with after the first token of all takes nothing
  // from the first one's prefill.
  emit(1, 2, 4, EndReason::kLength);
  emit(0, 2, 0, EndReason::kLength);
  expect_sum("queue", 7);
  expect_sum("prefill", 1);
  expect_sum("decode", 4);
  expect_sum("inference", 5);
}

TEST_F(TimesTest, OfAnEmbeddingToo) {
  EmbeddingPlan plan;
  plan.inputs = {{1}, {2}};
  clock.advance_ns(5 * kSecond);
  std::make_shared<EmbeddingJob>(context, reply(), std::move(plan))->start();
  emit(0, 3, 2, EndReason::kStop);
  emit(1, 3, 4, EndReason::kStop);
  EXPECT_NE(log.text().find(" queue_ms=7000.0 "), std::string::npos) << log.text();
}

}  // namespace
}  // namespace loralei
