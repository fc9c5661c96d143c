// SPDX-License-Identifier: Apache-2.0
// turn_bench [TURNS]: what a turn costs beside the model: plan, batch, sampling of 64
// logits, commit. An executor that computes nothing; sequences that decode; requests that
// wait for a slot, or for adapters whose loads never end. Prints medians and the 99th
// percentile in microseconds.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "adapters/source_test_util.h"
#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

using testing_support::source_of;
using testing_support::spec_of;

constexpr int kVocab = 64, kPrompt = 32, kOutput = 4000;

class NoExecutor final : public Executor {
 public:
  explicit NoExecutor(int32_t sequences) {
    limits_.rows_max = std::max(512, sequences);
    limits_.logits_rows_max = std::max(128, sequences);
    limits_.segments_max = 4 * sequences;
  }
  void announce(const Adapter&) override {}
  void withdraw(AdapterVersionId) override {}
  Status reserve_vocab(int32_t vocab) override {
    vocab_ = vocab;
    logits_.assign(static_cast<size_t>(limits_.logits_rows_max) * static_cast<size_t>(vocab), 0.0f);
    return {};
  }
  void start(const StepBatch& batch) override { end_step({batch.step, {}}); }
  StepResult result() const override { return {.logits = logits_.data(), .logits_stride = vocab_}; }
  const ModelLimits& limits() const override { return limits_; }

 private:
  ModelLimits limits_;
  int64_t vocab_ = 0;
  std::vector<float> logits_;
};

struct Case {
  int32_t running = 1;
  int32_t waiting = 0;  // for a slot
  int32_t cold = 0;     // for adapters
};

Submit request(uint64_t id, int32_t output) {
  Submit submit;
  submit.id = RequestId{id};
  for (int i = 0; i < kPrompt; ++i)
    submit.prompt.push_back(static_cast<TokenId>((id * 7 + static_cast<uint64_t>(i)) % kVocab));
  submit.max_tokens = output;
  submit.ignore_eos = true;
  submit.sampling.temperature = 0;
  return submit;
}

void measure(const Case& one, int turns) {
  Ledger ledger(int64_t{1} << 32);
  SteadyClock clock;
  NullLogSink log;
  NoExecutor executor(one.running);
  std::atomic<int32_t> queued{0};
  ModelConfig config;
  config.vocab = kVocab;
  config.layers = 1;
  config.hidden = 64;
  LoopParts parts;
  parts.executor = &executor;
  parts.kv = KvCache::create_ids(one.running * (kPrompt + kOutput) / kKvBlockTokens + 1024, true, clock);
  CHECK(executor.reserve_vocab(kVocab).ok());
  parts.config = config;
  parts.ledger = &ledger;
  parts.clock = &clock;
  parts.log = &log;
  parts.start_load = [](LoadJob&&) { return true; };
  parts.set_budget = [](int64_t, const RoomMaker&) { return Status(); };
  parts.max_model_len = kPrompt + kOutput;
  parts.max_sequences = one.running;
  parts.step_tokens = executor.limits().rows_max;
  parts.queued = &queued;
  EngineLoop loop(std::move(parts));
  std::vector<Message> messages;
  EngineOutput output;
  executor.on_done([&](StepDone&& done) { messages.emplace_back(std::move(done)); });
  const auto turn = [&] {
    loop.receive(messages, output);
    const Next next = loop.next(clock.now_ns(), output);
    if (next.step != nullptr) executor.start(*next.step);
  };
  uint64_t id = 0;
  const auto arrive = [&](Submit submit) {
    ++queued;
    messages.emplace_back(std::in_place_type<Arrival>, std::move(submit), clock.now_ns());
  };
  for (int32_t i = 0; i < one.running; ++i) arrive(request(++id, kOutput));
  EngineStats stats;
  while (loop.fill_stats(stats), stats.running < one.running || stats.waiting > 0) {
    turn();
    output.tokens.clear();
  }
  for (int i = 0; i < 100; ++i) turn();
  for (int32_t i = 0; i < one.cold; ++i) {
    const std::string name = "a" + std::to_string(i % 1000);
    if (i < 1000) messages.emplace_back(AdapterCommand{1, AdapterAction::kAdd, spec_of(name, "/" + name)});
    Submit submit = request(++id, 10);
    submit.adapters.push_back({source_of(name), 1.0f});
    arrive(std::move(submit));
  }
  for (int32_t i = 0; i < one.waiting; ++i) arrive(request(++id, 10));
  for (int i = 0; i < 10; ++i) turn();
  std::vector<double> us;
  for (int i = 0; i < turns; ++i) {
    output.tokens.clear();
    const int64_t begin_ns = clock.now_ns();
    turn();
    us.push_back(static_cast<double>(clock.now_ns() - begin_ns) * 1e-3);
    CHECK(output.tokens.size() == static_cast<size_t>(one.running));
  }
  std::sort(us.begin(), us.end());
  std::printf("running %3d  waiting %5d  cold %5d  turn %8.1f us  p99 %8.1f us\n", one.running, one.waiting, one.cold,
              us[us.size() / 2], us[us.size() * 99 / 100]);
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::max(10, std::atoi(argv[1])) : 1000;
  for (const int32_t waiting : {0, 10000}) {
    for (const int32_t running : {1, 32, 256}) loralei::measure({running, waiting, 0}, turns);
  }
  for (const int32_t running : {1, 32, 256}) loralei::measure({running, 0, 10000}, turns);
  return 0;
}
