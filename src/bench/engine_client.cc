// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_client.h"

#include <algorithm>
#include <utility>

namespace loralei {
namespace {

constexpr int64_t kWaitNs = 10'000'000;

}  // namespace

// As llama's.
int first_plain_token(int vocab) { return vocab > 1000 ? 259 : 1; }

Result<RequestId> EngineClient::ask(int prompt_tokens, int new_tokens, std::optional<AdapterSourceId> adapter) {
  Submit request;
  const int first = first_plain_token(vocab_);
  for (int t = 0; t < prompt_tokens; ++t)
    request.prompt.push_back(static_cast<TokenId>(first + random_.below(static_cast<uint64_t>(vocab_ - first))));
  if (adapter) request.adapters.push_back({*adapter, 1.0f});
  request.max_tokens = new_tokens;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  return ask(std::move(request));
}

Result<RequestId> EngineClient::ask(Submit request) {
  const RequestId id = request.id = RequestId{next_id_++};
  Asked& asked = asked_[id];
  asked.begin_ns = clock_.now_ns();
  TRY(engine_.submit(std::move(request)));
  ++under_way_;
  return id;
}

Result<double> EngineClient::command(AdapterAction action, const AdapterSourceSpec& source) {
  const int64_t begin_ns = clock_.now_ns();
  TRY(command(AdapterCommand{.action = action, .source = source}));
  return static_cast<double>(clock_.now_ns() - begin_ns) * 1e-9;
}

Result<CommandReply> EngineClient::reply(uint64_t ticket) {
  TRY(follow([&] { return replies_.count(ticket) != 0; }));
  CommandReply reply = std::move(replies_.extract(ticket).mapped());
  if (!reply.status.ok()) return std::move(reply.status).error();
  return reply;
}

Status EngineClient::take(int64_t wait_ns) {
  EngineOutput output = engine_.wait_output(wait_ns);
  const int64_t now_ns = clock_.now_ns();
  board_.put(output.adapters);
  for (CommandReply& reply : output.replies) replies_[reply.ticket] = std::move(reply);
  for (const TokenEvent& event : output.tokens) {
    const auto found = asked_.find(event.id);
    if (found == asked_.end()) continue;
    Asked& asked = found->second;
    if (event.has_token && asked.token_ns.empty()) {
      asked.cached_tokens = event.cached_tokens;
      asked.borrowed_tokens = event.borrowed_tokens;
    }
    if (event.has_token) asked.token_ns.push_back(now_ns);
    if (event.end == EndReason::kNone) continue;
    asked.ended = true;
    --under_way_;
    if (event.end == EndReason::kError) return event.error;
  }
  return {};
}

Status EngineClient::follow(const std::function<bool()>& done) {
  while (!done()) TRY(take(kWaitNs));
  return {};
}

Status EngineClient::follow_until(int64_t at_ns) {
  for (int64_t left_ns; (left_ns = at_ns - clock_.now_ns()) > 0;) TRY(take(std::min(kWaitNs, left_ns)));
  return {};
}

Status EngineClient::follow_for(int64_t ns) { return follow_until(clock_.now_ns() + ns); }

Status EngineClient::follow_to_the_end() {
  return follow([&] { return under_way_ == 0; });
}

Status EngineClient::keep_asking(int32_t together, double seconds, const std::function<Status()>& ask) {
  const int64_t end_ns = clock_.now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (clock_.now_ns() < end_ns) {
    while (under_way_ < together) TRY(ask());
    TRY(follow([&] { return under_way_ < together || clock_.now_ns() >= end_ns; }));
  }
  return {};
}

void EngineClient::cancel_all() {
  for (const auto& [id, asked] : asked_)
    if (!asked.ended) cancel(id);
}

void EngineClient::forget_ended() {
  std::erase_if(asked_, [](const auto& asked) { return asked.second.ended; });
}

AdapterStatus EngineClient::status(AdapterSourceId source) const {
  for (const auto& status : board_.list())
    if (status->source.id == source) return *status;
  return {};
}

}  // namespace loralei
