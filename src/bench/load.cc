// SPDX-License-Identifier: Apache-2.0
#include "bench/load.h"

#include <algorithm>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kWaitNs = 100'000'000;
constexpr size_t kLoadsAsked = 64;  // at a time, so that no queue of the engine is full

struct TokenTime {
  int64_t at_ns;
  int sequence;
};

// The decode phase: everybody has started and nobody has ended.
void measure_decode(const std::vector<TokenTime>& tokens, BatchTimes& times) {
  const int64_t begin = *std::max_element(times.first_token_ns.begin(), times.first_token_ns.end());
  const int64_t end = *std::min_element(times.last_token_ns.begin(), times.last_token_ns.end());
  for (const TokenTime& token : tokens) times.decode_tokens += token.at_ns > begin && token.at_ns <= end;
  times.decode_ns = end - begin;
}

}  // namespace

Result<BatchTimes> BatchRunner::run(const BatchSpec& spec) {
  const uint64_t first_id = next_id_;
  next_id_ += static_cast<uint64_t>(spec.sequences);
  Prng random(spec.same_prompts ? 0 : spec.seed * 0x9e3779b9u + first_id);
  const int64_t start = clock_.now_ns();
  for (int i = 0; i < spec.sequences; ++i) {
    Submit request;
    request.id = RequestId{first_id + static_cast<uint64_t>(i)};
    for (int t = 0; t < spec.prompt_tokens; ++t) {
      // Plain tokens only: the first 259 of a llama vocabulary are special or bytes.
      request.prompt.push_back(static_cast<TokenId>(259 + random.below(static_cast<uint64_t>(spec.vocab - 259))));
    }
    if (!spec.adapters.empty()) {
      request.adapters.push_back({sources_.at(spec.adapters[static_cast<size_t>(i) % spec.adapters.size()]), 1.0f});
    }
    request.sampling.temperature = spec.temperature;
    request.sampling.top_p = spec.top_p;
    request.sampling.seed = spec.seed;
    request.max_tokens = spec.new_tokens;
    request.ignore_eos = true;
    TRY(engine_.submit(std::move(request)));
  }
  BatchTimes times;
  times.first_token_ns.assign(static_cast<size_t>(spec.sequences), 0);
  times.last_token_ns.assign(static_cast<size_t>(spec.sequences), 0);
  std::vector<TokenTime> tokens;
  int running = spec.sequences;
  while (running > 0) {
    const EngineOutput output = engine_.wait_output(kWaitNs);
    const int64_t now = clock_.now_ns() - start;
    for (const TokenEvent& event : output.tokens) {
      if (event.id.value < first_id) continue;
      const auto sequence = static_cast<size_t>(event.id.value - first_id);
      if (event.has_token) {
        if (times.first_token_ns[sequence] == 0) times.first_token_ns[sequence] = now;
        times.last_token_ns[sequence] = now;
        tokens.push_back({now, static_cast<int>(sequence)});
      }
      if (event.end == EndReason::kNone) continue;
      --running;
      if (event.end == EndReason::kError) return event.error;
    }
  }
  times.wall_ns = clock_.now_ns() - start;
  if (!tokens.empty()) measure_decode(tokens, times);
  return times;
}

Status BatchRunner::unload(const std::string& name) {
  const uint64_t ticket = next_id_++;
  TRY(engine_.command(AdapterCommand{ticket, AdapterAction::kDrop, {sources_.at(name), name, ""}}));
  TRY(wait_reply(ticket));
  return {};
}

Status BatchRunner::load(const std::vector<std::string>& names, const std::vector<std::string>& paths) {
  const uint64_t first = next_id_;
  next_id_ += names.size();
  for (size_t asked = 0, loaded = 0; loaded < names.size();) {
    for (; asked < std::min(names.size(), loaded + kLoadsAsked); ++asked) {
      AdapterCommand command{.ticket = first + asked, .action = AdapterAction::kLoad};
      command.source = {sources_[names[asked]] = {command.ticket}, names[asked], paths[asked]};
      TRY(engine_.command(std::move(command)));
    }
    for (CommandReply& reply : engine_.wait_output(kWaitNs).replies) {
      if (reply.ticket < first) continue;
      if (!reply.status.ok()) return std::move(reply.status).error();
      ++loaded;
    }
  }
  return {};
}

Status BatchRunner::set_memory(int64_t budget_bytes) {
  const uint64_t ticket = next_id_++;
  TRY(engine_.command(MemoryCommand{ticket, budget_bytes}));
  TRY(wait_reply(ticket));
  return {};
}

Result<CommandReply> BatchRunner::wait_reply(uint64_t ticket) {
  for (;;) {
    EngineOutput output = engine_.wait_output(kWaitNs);
    for (CommandReply& reply : output.replies) {
      if (reply.ticket != ticket) continue;
      if (!reply.status.ok()) return std::move(reply.status).error();
      return std::move(reply);
    }
  }
}

}  // namespace loralei
