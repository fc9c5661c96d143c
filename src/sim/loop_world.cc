// SPDX-License-Identifier: Apache-2.0
#include "sim/loop_world.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace loralei::sim {
namespace {

ModelLimits limits_of(const WorldOptions& setup) {
  ModelLimits limits;
  limits.rows_max = setup.step_tokens;
  limits.logits_rows_max = setup.max_sequences + setup.draft_rows;
  limits.segments_max = 16;
  return limits;
}

// A position's 16 bytes are a part of a block that pays to encode.
KvShape shape_of(const ModelConfig& config, bool encodes, const KvTables& tables) {
  if (encodes) return {16, config.kv_heads, config.head_dim, DType::kI8};
  return {kv_layers(config), config.kv_heads, config.head_dim, DType::kF32, {}, tables};
}

}  // namespace

LoopWorld::LoopWorld(const WorldOptions& setup)
    : setup_(setup), ledger(setup.memory_bytes), executor(limits_of(setup)) {
  ledger.set_cap(MemoryUse::kAdapters, setup.adapter_bytes);
  const ModelConfig config = fake_config();
  LoopParts parts;
  if (setup.device_bytes > 0) executor.tier = std::make_unique<FakeTier>(setup.device_bytes, setup.device_layers);
  executor.early_loads = setup.early_loads;
  parts.executor = &executor;
  const bool encodes = setup.kv_sharing != KvSharing::kExact;
  const KvShape shape = shape_of(config, encodes, setup.tables);
  parts.kv =
      std::move(KvCache::create(shape, setup.blocks, setup.prefix_cache, ledger, clock, setup.blocks_max)).value();
  if (setup.states > 0) keep_states(*parts.kv);
  CHECK(parts.kv->rest_by({.sharing = setup.kv_sharing, .ledger = &ledger}).ok());
  parts.kv_sharing = setup.kv_sharing;
  if (!setup.kv_dir.empty()) {
    const std::optional<KvGrid>& grid = parts.kv->grid();
    const KvDiskOptions options{.folder = setup.kv_dir,
                                .grid = grid ? grid->digest() : 0,
                                .bytes_most = 64 * kv_block_bytes(shape),
                                .record_bytes_most = kv_block_bytes(shape),
                                .write_buffer_bytes = 8 * kv_block_bytes(shape),
                                .read_buffer_bytes = 8 * kv_block_bytes(shape),
                                .thread = false};
    parts.kv_disk = std::move(KvDisk::open(options, ledger, clock, log, [this](KvFetched&& fetched) {
                      messages.emplace_back(std::move(fetched));
                    })).value();
    disk = parts.kv_disk.get();
    parts.kv->spill_to(*disk);
  }
  parts.kv_events = setup.kv_events;
  if (setup.kv_events != nullptr) parts.kv->tell(*setup.kv_events);
  if (encodes) {  // there is time between steps
    executor.clock = &clock;
    executor.step_ns = 1000;
  }
  executor.on_done([this](StepDone&& step) { done = std::move(step); });
  executor.use_kv(parts.kv->view(), parts.kv->streams());
  executor.tables = setup.tables;
  CHECK(executor.reserve_vocab(config.vocab).ok());
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
  parts.set_budget = [](int64_t blocks, const RoomMaker& room) { return room.resize_kv(static_cast<int32_t>(blocks)); };
  parts.max_model_len = static_cast<int32_t>(max_model_len());
  parts.max_sequences = setup.max_sequences;
  parts.step_tokens = setup.step_tokens;
  parts.prefix_cache = setup.prefix_cache;
  parts.speculate = setup.speculate;
  parts.queued = &queued;
  parts.on_step = setup.on_step;
  parts.adapter_keeping = setup.adapter_keeping;
  parts.cold_start = setup.cold_start;
  parts.scheduling = setup.scheduling;
  parts.lengths = setup.lengths;
  parts.keep_lengths = setup.keep_lengths;
  parts.kv_block_bytes = kv_block_bytes(shape);
  parts.kv_eviction = setup.kv_eviction;
  parts.joint_kv = setup.joint;
  parts.watch_memory = setup.watch_memory;
  parts.adapter_floor_bytes = setup.adapter_floor_bytes;
  loop = std::make_unique<EngineLoop>(std::move(parts));
}

void LoopWorld::keep_states(KvCache& kv) {
  constexpr int64_t kStateFloats = 20;
  CHECK(kv.keep_states(kStateFloats, setup_.states, ledger).ok());
  executor.use_states(kv.states());
}

void LoopWorld::take(EngineOutput& output) {
  board.put(output.adapters);
  for (TokenEvent& event : output.tokens) {
    auto& record = records[{event.id, event.choice}];
    if (record.end != EndReason::kNone)
      wrong.push_back("an event after the end of request " + std::to_string(event.id.value));
    if (record.events++ == 0) record.first = event;
    if (event.has_token) record.tokens.push_back(event.token);
    if (event.logprobs) record.logprobs.push_back(*event.logprobs);
    record.end = event.end;
    record.last = std::move(event);
  }
  for (CommandReply& reply : output.replies) replies.push_back(std::move(reply));
}
void LoopWorld::run(int turns_max) {
  for (int i = 0; i < turns_max; ++i) {
    turn();
    if (loop->idle() && messages.empty()) {
      if (!disk_is_stuck && disk != nullptr && disk->run_one_job()) continue;
      if (finish_upload() || end_load()) continue;
      if (jobs.empty()) return;
      finish_load();
    }
  }
  wrong.push_back("still busy after " + std::to_string(turns_max) + " turns");
}

bool LoopWorld::begin_load(size_t index) {
  if (index >= jobs.size() || !jobs[index].read || !jobs[index].early) return false;
  const LoadJob job = jobs[index];
  BegunLoad load{.done = run_load_job(files.source(), job), .adapter = nullptr, .arrivals = nullptr};
  if (!load.done.load.ok() || load.done.load->adapter == nullptr) return false;
  jobs.erase(jobs.begin() + static_cast<int64_t>(index));
  constexpr int32_t kPieces = 2;  // of fake_config(): its layer, and what comes behind
  load.adapter = std::make_shared<Adapter>(*load.done.load->adapter);
  load.adapter->digest = {};
  load.arrivals = std::make_shared<Arrivals>(kPieces);
  load.done.load->adapter = load.adapter;
  messages.emplace_back(
      LoadBegun{job.id, {load.adapter, load.arrivals, {load.adapter->bytes / kPieces, load.adapter->bytes}}});
  begun.push_back(std::move(load));
  return true;
}

bool LoopWorld::bring_piece() {
  for (const BegunLoad& load : begun) {
    if (load.arrivals->there() + 1 == load.arrivals->total()) continue;
    load.arrivals->advance();
    return true;
  }
  return false;
}

std::optional<LoopWorld::BegunLoad> LoopWorld::take_begun(std::optional<AdapterVersionId> version) {
  const auto is_it = [&](const BegunLoad& load) { return !version || load.adapter->version == *version; };
  const auto found = std::find_if(begun.begin(), begun.end(), is_it);
  if (found == begun.end()) return std::nullopt;
  BegunLoad load = std::move(*found);
  begun.erase(found);
  return load;
}

bool LoopWorld::end_load(std::optional<AdapterVersionId> version) {
  std::optional<BegunLoad> load = take_begun(version);
  if (!load) return false;
  uint64_t content = 0;  // as FakeFiles names it
  std::memcpy(&content, load->adapter->pairs[0].a, sizeof content);
  for (size_t i = 0; i < 6; ++i) load->adapter->digest[i] = static_cast<uint8_t>(content >> (8 * (5 - i)));
  while (!load->arrivals->whole()) load->arrivals->advance();
  messages.emplace_back(std::move(load->done));
  return true;
}

bool LoopWorld::fail_load(const Error& error, std::optional<AdapterVersionId> version) {
  std::optional<BegunLoad> load = take_begun(version);
  if (!load) return false;
  load->done.load = error;
  load->arrivals->fail(error);
  messages.emplace_back(std::move(load->done));
  return true;
}

EngineStats LoopWorld::stats() const {
  EngineStats value;
  loop->fill_stats(value);
  return value;
}

AdapterList LoopWorld::adapters() const {
  EngineOutput output;
  loop->tell_adapters(output);
  board.put(output.adapters);
  return board.list();
}

Expected LoopWorld::oracle(RequestId id, int32_t choice) {
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
  return expected_output(submit, choice, uses, max_model_len());
}

std::vector<TokenId> prompt_of(int count, int salt) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(1 + (i * 13 + salt * 29 + i / 7) % (kVocab - 1));
  return tokens;
}

Submit simple(int prompt, int output, int salt, std::vector<AdapterUse> adapters) {
  Submit submit;
  submit.prompt = prompt_of(prompt, salt);
  submit.max_tokens = output;
  submit.ignore_eos = true;
  submit.sampling.seed = static_cast<uint64_t>(salt) + 5;
  submit.adapters = std::move(adapters);
  return submit;
}

Submit repeating(int prompt, int output, int salt, const std::vector<TokenId>& letters,
                 std::vector<AdapterUse> adapters) {
  Submit submit = simple(prompt, output, salt, std::move(adapters));
  for (const TokenId letter : letters) submit.sampling.logit_bias.emplace_back(letter, 50.0f);
  return submit;
}

}  // namespace loralei::sim
