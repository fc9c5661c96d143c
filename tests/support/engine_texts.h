// SPDX-License-Identifier: Apache-2.0
// EngineTexts: an engine over any executor of a harness's model, and what it answered.
// Texts of 8 tokens, greedy unless sampling says otherwise.
// The thread that made it takes the output; errors end the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "adapters/source_test_util.h"
#include "base/clock.h"
#include "engine/start.h"
#include "kv/block_pool.h"
#include "support/model_harness.h"

namespace loralei::test {

using testing_support::source_of;
using testing_support::spec_of;

class EngineTexts {
 public:
  static constexpr int32_t kBlocks = 24;  // of the KV cache

  static EngineOptions options(const ModelConfig& config, bool int8_adapters = false) {
    EngineOptions options;
    options.max_model_len = 96;
    options.max_sequences = 3;
    options.step_tokens = 16;
    options.kv_dtype = DType::kF32;
    options.kv_cache_bytes = kBlocks * kv_block_bytes({config.layers, config.kv_heads, config.head_dim, DType::kF32});
    options.adapter_bytes = 1 << 20;
    options.adapter_rank_max = 16;
    options.adapter_int8 = int8_adapters;
    return options;
  }

  // Of an executor whose results the ledger grants.
  using MakeExecutor = std::function<std::unique_ptr<Executor>(Ledger&)>;
  EngineTexts(ModelHarness& harness, const MakeExecutor& make_executor, bool int8_adapters = false) {
    AdapterBase base;
    base.config = harness.config();
    EngineParts parts;
    parts.executor = make_executor(ledger_);
    parts.config = harness.config();
    parts.adapters.stamp = [](const std::string& path) { return adapter_stamp(path); };
    parts.adapters.load = [base](const std::string& path, const AdapterLoadOptions& options, AdapterVersionId version) {
      return load_adapter(path, base, options, version);
    };
    parts.ledger = &ledger_;
    parts.clock = &clock_;
    parts.log = &log_;
    parts.options = options(harness.config(), int8_adapters);
    auto started = start_engine(std::move(parts));
    EXPECT_TRUE(started.ok()) << started.error().message;
    if (started.ok()) engine_ = std::move(*started);
  }
  ~EngineTexts() {
    if (engine_) engine_->stop();
  }

  void load(const std::string& name, const std::string& path, bool reload = false) {
    command({++tickets_, AdapterAction::kLoad, spec_of(name, path), reload});
  }
  // Another source in the place of `old`, which stays for its users until it is unloaded.
  void replace(const std::string& old, const std::string& name, const std::string& path) {
    command({++tickets_, AdapterAction::kLoad, spec_of(name, path), false, source_of(old)});
  }
  void unload(const std::string& name) { command({++tickets_, AdapterAction::kDrop, spec_of(name)}); }

  static SamplingParams greedy() {
    SamplingParams sampling;
    sampling.temperature = 0;
    return sampling;
  }
  RequestId submit(int prompt, int salt, std::vector<AdapterUse> adapters, const SamplingParams& sampling = greedy()) {
    Submit request;
    request.id = RequestId{++requests_};
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<TokenId>((i * 7 + salt * 31 + i / 5) % 90));
    request.adapters = std::move(adapters);
    request.max_tokens = 8;
    request.ignore_eos = true;
    request.sampling = sampling;
    const Status accepted = engine_->submit(std::move(request));
    EXPECT_TRUE(accepted.ok()) << accepted.error().message;
    ++open_;
    return RequestId{requests_};
  }

  // Until all requests have ended, or so many are left.
  void finish(int left = 0) {
    for (int waits = 0; open_ > left && waits < 60; ++waits) take();
    ASSERT_LE(open_, left);
  }
  // Until the engine's state is as wanted.
  void until(const std::function<bool(const EngineStats&)>& wanted) {
    for (int waits = 0; !wanted(engine_->stats()) && waits < 20000; ++waits) take(1'000'000);
    ASSERT_TRUE(wanted(engine_->stats()));
  }
  void take(int64_t timeout_ns = 1'000'000'000) {
    EngineOutput output = engine_->wait_output(timeout_ns);
    for (const TokenEvent& event : output.tokens) {
      if (event.has_token) tokens[event.id.value].push_back(event.token);
      cached_tokens += event.cached_tokens;
      if (event.end == EndReason::kNone) continue;
      ends[event.id.value] = event.end;
      if (event.end == EndReason::kError) errors[event.id.value] = event.error.message;
      --open_;
    }
    for (const CommandReply& reply : output.replies) {
      ++replies_;
      EXPECT_TRUE(reply.status.ok()) << reply.status.error().message;
    }
  }
  int open() const { return open_; }
  Engine& engine() { return *engine_; }

  std::map<uint64_t, std::vector<TokenId>> tokens;
  std::map<uint64_t, EndReason> ends;
  std::map<uint64_t, std::string> errors;
  int cached_tokens = 0;

 private:
  void command(AdapterCommand command) {
    ASSERT_TRUE(engine_->command(std::move(command)).ok());
    for (int waits = 0; replies_ < tickets_ && waits < 60; ++waits) take();
    ASSERT_EQ(replies_, tickets_);
  }

  Ledger ledger_{64 << 20};
  SteadyClock clock_;
  NullLogSink log_;
  std::unique_ptr<Engine> engine_;
  uint64_t requests_ = 0, tickets_ = 0, replies_ = 0;
  int open_ = 0;
};

}  // namespace loralei::test
