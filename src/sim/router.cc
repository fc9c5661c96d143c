// SPDX-License-Identifier: Apache-2.0
#include "sim/router.h"

#include "base/check.h"

namespace loralei::sim {
namespace {

constexpr int32_t kAnswerTokens = 128;  // expected of the first answers, as of one answer that has ended

}  // namespace

// One that a request which is there already has asked for is on its way.
double Router::adapter_s(const Known& replica, const RoutedRequest& request) const {
  if (request.adapter == AdapterSourceId() || replica.load.all().has(request.adapter)) return 0;
  const auto found = replica.adapters.find(request.adapter);
  const Places places = found == replica.adapters.end() ? Places() : found->second;
  const int64_t bytes = request.rank * profile_.model.adapter_bytes_per_rank;
  double seconds = 0;
  if (!places.in_memory && profile_.disk) seconds += profile_.disk->predict_s(bytes);
  if (!places.on_device && profile_.link) seconds += profile_.link->predict_s(bytes);
  return seconds;
}

size_t Router::route(RequestId id, RoutedRequest request) {
  request.answer_tokens = static_cast<int32_t>((answer_tokens_ + kAnswerTokens) / (answers_ + 1));
  candidates_.clear();
  for (const Known& replica : replicas_) {
    candidates_.push_back({.load = &replica.load,
                           .step = &profile_.step,
                           .requests_max = replica.requests_max,
                           .context_tokens_max = replica.context_tokens_max,
                           .adapter_s = adapter_s(replica, request)});
  }
  const auto choice = picker_.pick(request, options_.objectives, candidates_);
  CHECK(choice.has_value());
  missed_ += choice->meets_objectives ? 0 : 1;
  replicas_[choice->index].load.sent(id, request);
  tokens_[id] = 0;
  return choice->index;
}

void Router::take(size_t index, const EngineOutput& output) {
  Known& replica = replicas_.at(index);
  for (const AdapterNews& news : output.adapters) {
    if (news.status == nullptr) {
      replica.adapters.erase(news.source);
    } else {
      replica.adapters[news.source] = {news.status->tier == AdapterTier::kResident, news.status->on_device};
    }
  }
  for (const TokenEvent& event : output.tokens) {
    const auto found = tokens_.find(event.id);
    CHECK(found != tokens_.end());
    if (event.has_token) {
      ++found->second;
      replica.load.answers(event.id);
    }
    if (event.end == EndReason::kNone) continue;
    replica.load.ended(event.id);
    ++answers_;
    answer_tokens_ += found->second;
    tokens_.erase(found);
  }
}

}  // namespace loralei::sim
