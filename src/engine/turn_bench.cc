// SPDX-License-Identifier: Apache-2.0
// turn_bench [TURNS]: what a turn costs beside the model: plan, batch, sampling of 64
// logits, commit. An executor that computes nothing; sequences that decode; requests that
// wait for a slot, or for adapters whose loads never end. Prints medians and the 99th
// percentile in microseconds.
//
// turn_bench policies [TURNS]: the same with a thousand that wait, for every policy of
// scheduling and of the adapters' cache. All stand side by side, and TURNS turns of each
// are measured in turn, kRounds times. Prints the median of the rounds' medians, and the
// median of the rounds' ratios to fifo with lru, which is to be at most kRatioMost.
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

constexpr int kVocab = 64, kPrompt = 32, kOutput = 4000, kRounds = 15;
constexpr double kRatioMost = 1.02;

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

struct Policies {
  const char* name = "fifo lru";
  SchedulingOptions scheduling;
  AdapterKeeping keeping;
};

// A loop in the state that a case says.
class Turns {
 public:
  Turns(const Case& one, const Policies& policies) : case_(one), executor_(one.running) {
    ModelConfig config;
    config.vocab = kVocab;
    config.layers = 1;
    config.hidden = 64;
    LoopParts parts;
    parts.executor = &executor_;
    parts.kv = KvCache::create_ids(one.running * (kPrompt + kOutput) / kKvBlockTokens + 1024, true, clock_);
    parts.kv_block_bytes = kKvBlockTokens * 1024;
    CHECK(executor_.reserve_vocab(kVocab).ok());
    parts.config = config;
    parts.ledger = &ledger_;
    parts.clock = &clock_;
    parts.log = &log_;
    parts.start_load = [](LoadJob&&) { return true; };
    parts.set_budget = [](int64_t, const RoomMaker&) { return Status(); };
    parts.max_model_len = kPrompt + kOutput;
    parts.max_sequences = one.running;
    parts.step_tokens = executor_.limits().rows_max;
    parts.queued = &queued_;
    parts.scheduling = policies.scheduling;
    parts.adapter_keeping = policies.keeping;
    loop_ = std::make_unique<EngineLoop>(std::move(parts));
    executor_.on_done([this](StepDone&& done) { messages_.emplace_back(std::move(done)); });
    fill();
  }

  // Microseconds of so many turns, sorted.
  std::vector<double> measure(int turns) {
    std::vector<double> us;
    for (int i = 0; i < turns; ++i) {
      output_.tokens.clear();
      const int64_t begin_ns = clock_.now_ns();
      turn();
      us.push_back(static_cast<double>(clock_.now_ns() - begin_ns) * 1e-3);
      CHECK(output_.tokens.size() == static_cast<size_t>(case_.running));
    }
    std::sort(us.begin(), us.end());
    return us;
  }

 private:
  void turn() {
    loop_->receive(messages_, output_);
    const Next next = loop_->next(clock_.now_ns(), output_);
    if (next.step != nullptr) executor_.start(*next.step);
  }
  void arrive(Submit submit) {
    ++queued_;
    messages_.emplace_back(Arrival{std::move(submit), clock_.now_ns()});
  }
  void fill() {
    uint64_t id = 0;
    for (int32_t i = 0; i < case_.running; ++i) arrive(request(++id, kOutput));
    EngineStats stats;
    while (loop_->fill_stats(stats), stats.running < case_.running || stats.waiting > 0) {
      turn();
      output_.tokens.clear();
    }
    for (int i = 0; i < 100; ++i) turn();
    for (int32_t i = 0; i < case_.cold; ++i) {
      const std::string name = "a" + std::to_string(i % 1000);
      if (i < 1000) messages_.emplace_back(AdapterCommand{1, AdapterAction::kAdd, spec_of(name, "/" + name)});
      Submit submit = request(++id, 10);
      submit.adapters.push_back({source_of(name), 1.0f});
      arrive(std::move(submit));
    }
    // Of two sizes, so that there are queues by size.
    for (int32_t i = 0; i < case_.waiting; ++i) arrive(request(++id, i % 4 == 0 ? kOutput : 10));
    for (int i = 0; i < 10; ++i) turn();
  }

  const Case case_;
  Ledger ledger_{int64_t{1} << 32};
  SteadyClock clock_;
  NullLogSink log_;
  NoExecutor executor_;
  std::atomic<int32_t> queued_{0};
  std::vector<Message> messages_;
  EngineOutput output_;
  std::unique_ptr<EngineLoop> loop_;
};

void measure(const Case& one, int turns) {
  const std::vector<double> us = Turns(one, {}).measure(turns);
  std::printf("running %3d  waiting %5d  cold %5d  turn %8.1f us  p99 %8.1f us\n", one.running, one.waiting, one.cold,
              us[us.size() / 2], us[us.size() * 99 / 100]);
}

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

// The first is what the others are compared with.
std::vector<Policies> all_policies() {
  const SchedulingOptions fifo, sjf{.policy = SchedulePolicy::kSjf}, wrs{.policy = SchedulePolicy::kWrs},
      priority{.policy = SchedulePolicy::kPriority}, turns{.fairness = Fairness::kVtc};
  const AdapterKeeping lru, none = AdapterKeeping::none(), fair_share{.policy = KeepPolicy::kFairShare},
                            chameleon{.policy = KeepPolicy::kChameleon}, density{.policy = KeepPolicy::kDensity};
  return {{"fifo lru", fifo, lru},
          {"fifo lru again", fifo, lru},  // what the noise is
          {"fifo none", fifo, none},
          {"fifo fair-share", fifo, fair_share},
          {"fifo chameleon", fifo, chameleon},
          {"fifo density", fifo, density},
          {"priority lru", priority, lru},
          {"fifo vtc lru", turns, lru},
          {"sjf lru", sjf, lru},
          {"sjf none", sjf, none},
          {"sjf fair-share", sjf, fair_share},
          {"sjf chameleon", sjf, chameleon},
          {"sjf density", sjf, density},
          {"wrs lru", wrs, lru},
          {"wrs none", wrs, none},
          {"wrs fair-share", wrs, fair_share},
          {"wrs chameleon", wrs, chameleon},
          {"wrs density", wrs, density}};
}

void compare_policies(const Case& one, int turns) {
  const std::vector<Policies> policies = all_policies();
  std::vector<std::unique_ptr<Turns>> loops;
  for (const Policies& policy : policies) loops.push_back(std::make_unique<Turns>(one, policy));
  std::vector<std::vector<double>> us(policies.size()), ratios(policies.size());
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> now(policies.size());
    for (size_t i = 0; i < policies.size(); ++i) {
      const size_t at = round % 2 == 0 ? i : policies.size() - 1 - i;
      now[at] = median(loops[at]->measure(turns));
    }
    for (size_t i = 0; i < policies.size(); ++i) {
      us[i].push_back(now[i]);
      ratios[i].push_back(now[i] / now[0]);
    }
  }
  std::printf("running %d  waiting %d  cold %d  (ratio to fifo lru: at most %.2f)\n", one.running, one.waiting,
              one.cold, kRatioMost);
  for (size_t i = 0; i < policies.size(); ++i)
    std::printf("  %-18s turn %8.2f us  ratio %6.3f\n", policies[i].name, median(us[i]), median(ratios[i]));
}

}  // namespace
}  // namespace loralei

int main(int argc, char** argv) {
  const bool policies = argc > 1 && std::string(argv[1]) == "policies";
  const int number = policies ? 2 : 1;
  const int given = argc > number ? std::max(10, std::atoi(argv[number])) : 0;
  if (policies) {
    // Within what the sequences that run may still say.
    const int turns = std::min(given > 0 ? given : 100, (loralei::kOutput - 200) / loralei::kRounds);
    for (const int32_t running : {1, 32, 256}) loralei::compare_policies({running, 1000, 0}, turns);
    loralei::compare_policies({32, 0, 1000}, turns);
    return 0;
  }
  const int turns = given > 0 ? given : 1000;
  for (const int32_t waiting : {0, 10000}) {
    for (const int32_t running : {1, 32, 256}) loralei::measure({running, waiting, 0}, turns);
  }
  for (const int32_t running : {1, 32, 256}) loralei::measure({running, 0, 10000}, turns);
  return 0;
}
