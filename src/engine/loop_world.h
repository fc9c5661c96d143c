// SPDX-License-Identifier: Apache-2.0
// For tests of the engine loop: one loop over the fake model, driven turn by turn; every
// event is recorded and every invariant checked after every turn.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "adapters/source_test_util.h"
#include "engine/loop.h"
#include "engine/test_support.h"

namespace loralei::testing_support {

struct WorldOptions {
  int32_t blocks = 64;
  int32_t blocks_max = 0;  // that resize() may ask for; 0: no more than `blocks`
  int32_t max_sequences = 8;
  int32_t step_tokens = 32;
  int64_t adapter_bytes = 1 << 20;
  bool prefix_cache = true;
  int32_t max_model_len = 300;
  Speculation speculate = Speculation::kAuto;
  int32_t draft_rows = 0;    // rows of logits beside one for every sequence
  int64_t device_bytes = 0;  // of adapters in the executor's own memory; 0: they are used in host memory
  std::shared_ptr<ByteBudget> requests;
};

class World {
 public:
  explicit World(const WorldOptions& setup = {}) : setup_(setup), executor(limits(setup)) {
    ledger.set_cap(MemoryUse::kAdapters, setup.adapter_bytes);
    const ModelConfig config = fake_config();
    LoopParts parts;
    if (setup.device_bytes > 0) executor.tier = std::make_unique<FakeTier>(setup.device_bytes);
    parts.executor = &executor;
    const KvShape shape{config.layers, config.kv_heads, config.head_dim, DType::kF32};
    parts.kv =
        std::move(KvCache::create(shape, setup.blocks, setup.prefix_cache, ledger, clock, setup.blocks_max)).value();
    parts.slot = std::make_unique<BatchSlot>(executor.limits(), config.layers, config.hidden, ledger);
    EXPECT_TRUE(parts.slot->reserve_vocab(config.vocab).ok());
    parts.config = config;
    parts.eos = config.eos;
    parts.ledger = &ledger;
    parts.requests = setup.requests;
    parts.clock = &clock;
    parts.log = &log;
    parts.start_load = [this](LoadJob&& job) {
      jobs.push_back(std::move(job));
      return true;
    };
    parts.set_budget = [](int64_t blocks, const RoomMaker& room) {
      return room.resize_kv(static_cast<int32_t>(blocks));
    };
    parts.max_model_len = std::min(setup.max_model_len, setup.blocks * kKvBlockTokens);
    parts.max_sequences = setup.max_sequences;
    parts.step_tokens = setup.step_tokens;
    parts.prefix_cache = setup.prefix_cache;
    parts.speculate = setup.speculate;
    parts.queued = &queued;
    loop = std::make_unique<EngineLoop>(std::move(parts));
  }

  static ModelLimits limits(const WorldOptions& setup) {
    ModelLimits limits;
    limits.rows_max = setup.step_tokens;
    limits.logits_rows_max = setup.max_sequences + setup.draft_rows;
    limits.segments_max = 16;
    return limits;
  }

  int64_t max_model_len() const { return std::min(setup_.max_model_len, setup_.blocks * kKvBlockTokens); }

  RequestId submit(Submit submit) {
    submit.id = RequestId{++last_id};
    submits[submit.id] = submit;
    queued.fetch_add(1);
    messages.emplace_back(std::in_place_type<Arrival>, submit, clock.now_ns());
    return submit.id;
  }
  void cancel(RequestId id, int32_t choice = kAllChoices) {
    messages.emplace_back(std::in_place_type<Cancel>, Cancel{id, choice});
  }
  void hold(RequestId id, bool held) { messages.emplace_back(std::in_place_type<Hold>, Hold{id, held}); }
  void command(AdapterAction action, const std::string& name, const std::string& path = "", bool reload = false,
               AdapterSourceId replaces = {}) {
    messages.emplace_back(std::in_place_type<AdapterCommand>, ++tickets, action, spec_of(name, path), reload, replaces);
  }
  // Another number of KV blocks, by way of a budget.
  void resize(int32_t blocks) {
    messages.emplace_back(std::in_place_type<MemoryCommand>, MemoryCommand{++tickets, blocks});
  }
  void finish_load(size_t index = 0) {
    if (jobs.empty()) return;
    LoadJob job = std::move(jobs[index]);
    jobs.erase(jobs.begin() + static_cast<int64_t>(index));
    messages.emplace_back(std::in_place_type<LoadDone>, run_load_job(files.source(), job));
  }
  // The oldest upload to the device ends; false: none is under way.
  bool finish_upload(bool well = true) {
    if (executor.tier == nullptr || !executor.tier->end_upload(well)) return false;
    messages.emplace_back(std::in_place_type<TierNews>);
    return true;
  }

  void turn() {
    clock.advance_ns(1000);
    EngineOutput output;
    loop->turn(messages, output);
    loop->check();
    take(output);
  }
  void take(EngineOutput& output) {
    for (TokenEvent& event : output.tokens) {
      auto& record = records[{event.id, event.choice}];
      EXPECT_EQ(record.end, EndReason::kNone) << "an event after the end of request " << event.id.value;
      if (record.events++ == 0) record.first = event;
      if (event.has_token) record.tokens.push_back(event.token);
      if (event.logprobs) record.logprobs.push_back(*event.logprobs);
      record.end = event.end;
      record.last = std::move(event);
    }
    for (CommandReply& reply : output.replies) replies.push_back(std::move(reply));
  }
  // Until nothing is left to do; loads and uploads end by themselves.
  void run(int turns_max = 5000) {
    for (int i = 0; i < turns_max; ++i) {
      turn();
      if (loop->idle() && messages.empty()) {
        if (finish_upload()) continue;
        if (jobs.empty()) return;
        finish_load();
      }
    }
    FAIL() << "still busy after " << turns_max << " turns";
  }
  std::vector<RequestId> submit_all(const std::vector<Submit>& requests) {
    std::vector<RequestId> ids;
    for (const Submit& request : requests) ids.push_back(submit(request));
    return ids;
  }
  EngineStats stats() const {
    EngineStats value;
    loop->fill_stats(value);
    loop->show_adapters(board, true);
    for (const auto& status : board.list()) value.adapters.push_back(*status);
    return value;
  }
  void expect_nothing_held() {
    const EngineStats value = stats();
    EXPECT_EQ(value.running + value.waiting + value.waiting_for_adapter, 0);
    EXPECT_EQ(value.kv_blocks_used, 0);
    EXPECT_EQ(queued.load(), 0);
    EXPECT_TRUE(executor.tier == nullptr || executor.tier->holds() == 0);
    for (const AdapterStatus& adapter : value.adapters) EXPECT_EQ(adapter.users, 0) << adapter.source.label;
  }

  struct Record {
    std::vector<TokenId> tokens;
    std::vector<TokenLogprobs> logprobs;
    TokenEvent first, last;
    EndReason end = EndReason::kNone;
    int events = 0;
  };
  Record& record(RequestId id, int32_t choice = 0) { return records[{id, choice}]; }

  // Compares a finished choice with the oracle; adapters by the versions that the events
  // named.
  void expect_oracle(RequestId id, int32_t choice = 0) {
    const Submit& submit = submits.at(id);
    const Record& record = records[{id, choice}];
    std::vector<FakeUse> uses;
    std::string versions = record.first.adapter_version;
    for (const AdapterUse& use : submit.adapters) {
      uses.push_back({FakeFiles::content_of(versions), use.scale, 0});
      const auto& invocation = invocations[uses.back().content];
      if (!invocation.empty()) {
        const auto found =
            std::find_end(submit.prompt.begin(), submit.prompt.end(), invocation.begin(), invocation.end());
        uses.back().first_position =
            found == submit.prompt.end() ? INT32_MAX : static_cast<int32_t>(found - submit.prompt.begin());
      }
      versions = versions.size() > 13 ? versions.substr(13) : "";
    }
    std::stable_sort(uses.begin(), uses.end(),
                     [](const FakeUse& a, const FakeUse& b) { return a.first_position < b.first_position; });
    const Expected expected = expected_output(submit, choice, uses, max_model_len());
    EXPECT_EQ(record.tokens, expected.tokens) << "request " << id.value << " choice " << choice;
    EXPECT_EQ(record.end, expected.end) << record.last.error.message;
  }

  const WorldOptions setup_;
  Ledger ledger{64 << 20};
  ManualClock clock;
  NullLogSink log;
  FakeExecutor executor;
  FakeFiles files;
  std::map<uint64_t, std::vector<TokenId>> invocations;  // by content
  std::deque<LoadJob> jobs;
  std::atomic<int32_t> queued{0};
  std::vector<Message> messages;
  std::map<RequestId, Submit> submits;
  std::map<std::pair<RequestId, int32_t>, Record> records;
  std::vector<CommandReply> replies;
  uint64_t last_id = 0, tickets = 0;
  mutable AdapterBoard board;
  std::unique_ptr<EngineLoop> loop;
};

inline std::vector<TokenId> prompt_of(int count, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(1 + (i * 13 + salt * 29 + i / 7) % (kVocab - 1));
  return tokens;
}

inline Submit simple(int prompt, int output, int salt = 0, std::vector<AdapterUse> adapters = {}) {
  Submit submit;
  submit.prompt = prompt_of(prompt, salt);
  submit.max_tokens = output;
  submit.ignore_eos = true;
  submit.sampling.seed = static_cast<uint64_t>(salt) + 5;
  submit.adapters = std::move(adapters);
  return submit;
}

// Only these tokens are likely: the fewer, the more the text repeats itself.
inline Submit repeating(int prompt, int output, int salt, const std::vector<TokenId>& letters,
                        std::vector<AdapterUse> adapters = {}) {
  Submit submit = simple(prompt, output, salt, std::move(adapters));
  for (const TokenId letter : letters) submit.sampling.logit_bias.emplace_back(letter, 50.0f);
  return submit;
}

}  // namespace loralei::testing_support
