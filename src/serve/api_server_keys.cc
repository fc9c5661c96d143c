// SPDX-License-Identifier: Apache-2.0
// What ApiServer does for keys with names: their limits, and what they may use.
#include "serve/api_server.h"

namespace loralei {
namespace {

// What is computed for a client; the rest of what keys may ask for costs next to nothing.
bool is_counted(RouteId route) {
  switch (route) {
    case RouteId::kChat:
    case RouteId::kResponses:
    case RouteId::kMessages:
    case RouteId::kCountTokens:
    case RouteId::kCompletions:
    case RouteId::kEmbeddings:
    case RouteId::kTokenize:
    case RouteId::kDetokenize:
      return true;
    default:
      return false;
  }
}

}  // namespace

void ApiServer::use_keys(const std::vector<NamedKey>& keys) {
  keys_.set_keys(keys);
  access_.use_keys(keys);
}

bool ApiServer::enter(RouteId route, const NamedKey& key, Reply& reply) {
  if (!is_counted(route)) {
    reply.belong_to(key.name, nullptr);
    return true;
  }
  KeyLedger::Entry entry = keys_.enter(key.name);
  reply.belong_to(key.name, std::move(entry.ticket));
  reply.set_limits(std::move(entry.headers));
  if (!entry.refusal) return true;
  reply.refuse(entry.refusal->error, std::move(entry.refusal->headers));
  return false;
}

bool ApiServer::take_tokens(Reply& reply, int64_t prompt, int64_t answer, bool stated) {
  KeyTicket* const ticket = reply.ticket();
  if (ticket == nullptr) return true;
  auto refusal = ticket->take_tokens(prompt, answer, stated);
  reply.set_limits(ticket->headers());
  if (!refusal) return true;
  reply.refuse(refusal->error, std::move(refusal->headers));
  return false;
}

bool ApiServer::take_tokens(Reply& reply, const GenerationPlan& plan, bool stated) {
  int64_t prompt = 0;
  for (const auto& one : plan.prompts) prompt += static_cast<int64_t>(one.size());
  const auto answers = static_cast<int64_t>(plan.prompts.size()) * plan.submit.choices;
  return take_tokens(reply, prompt, answers * plan.submit.max_tokens, stated);
}

Parsed<ResolvedModel> ApiServer::resolve(const ModelRef& model, const Sent& sent) {
  return resolve_model_for(sent.key.get(), model, options_.model_names, *catalogue_, adapters_.defaults().now());
}

}  // namespace loralei
