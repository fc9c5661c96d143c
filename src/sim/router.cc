// SPDX-License-Identifier: Apache-2.0
#include "sim/router.h"

#include <algorithm>

#include "base/check.h"

namespace loralei::sim {
namespace {

constexpr int32_t kAnswerTokens = 128;  // expected of the first answers, as of one answer that has ended
constexpr int64_t kMissedNs = 30'000'000'000;

}  // namespace

// One that a request which is there already has asked for is on its way.
double Router::adapter_s(const Known& replica, const RoutedRequest& request) const {
  if (request.adapter == AdapterSourceId() || replica.load.all().has(request.adapter)) return 0;
  const auto found = replica.adapters.find(request.adapter);
  const Places places = found == replica.adapters.end() ? Places() : found->second;
  const int64_t bytes = request.rank * profile_.model.adapter_bytes_per_rank;
  const double disk_s = profile_.disk ? profile_.disk->predict_s(bytes) : 0;
  const double link_s = profile_.link ? profile_.link->predict_s(bytes) : 0;
  return (places.in_memory ? 0 : disk_s) + (places.on_device ? 0 : link_s);
}

double Router::bringing_s(int32_t rank) const {
  const int64_t bytes = rank * profile_.model.adapter_bytes_per_rank;
  return (profile_.disk ? profile_.disk->predict_s(bytes) : 0) + (profile_.link ? profile_.link->predict_s(bytes) : 0);
}

std::optional<size_t> Router::route(RequestId id, RoutedRequest request, int64_t now_ns,
                                    std::span<const size_t> tried) {
  request.answer_tokens = expected_tokens();
  if (tried.empty()) asked(request, now_ns);
  candidates_.clear();
  candidate_replicas_.clear();
  const bool has_homes = placement_ && request.adapter != AdapterSourceId();
  const std::vector<size_t> homes =
      has_homes ? placement_->homes(request.adapter, rooms(now_ns)) : std::vector<size_t>();
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Known& replica = replicas_[i];
    if (!usable(i, now_ns) || std::find(tried.begin(), tried.end(), i) != tried.end()) continue;
    // Where it is in use it is in nobody's way.
    const bool strays = has_homes && std::find(homes.begin(), homes.end(), i) == homes.end() &&
                        !replica.load.all().has(request.adapter);
    candidates_.push_back(
        {.load = &replica.load,
         .step = &profile_.step,
         .requests_max = replica.watched ? replica.health.allowed(replica.requests_max, now_ns) : replica.requests_max,
         .context_tokens_max = replica.context_tokens_max,
         .adapter_s = adapter_s(replica, request),
         .stray_s = strays ? bringing_s(request.rank) : 0});
    candidate_replicas_.push_back(i);
  }
  const auto choice = picker_.pick(request, options_.objectives, candidates_);
  if (!choice) return std::nullopt;
  missed_ += choice->meets_objectives ? 0 : 1;
  const size_t replica = candidate_replicas_[choice->index];
  replicas_[replica].load.sent(id, request);
  tokens_[id] = 0;
  return replica;
}

bool Router::usable(size_t index, int64_t now_ns) const {
  const Known& replica = replicas_.at(index);
  return !replica.watched || (replica.member && replica.health.usable(now_ns));
}

void Router::broke_off(size_t index, RequestId id) {
  replicas_.at(index).load.ended(id);
  tokens_.erase(id);
}

const std::vector<PlacedReplica>& Router::rooms(int64_t now_ns) {
  for (size_t i = rooms_.size(); i < replicas_.size(); ++i) rooms_.push_back({true, replicas_[i].adapter_bytes, i});
  for (size_t i = 0; i < replicas_.size(); ++i) rooms_[i].up = usable(i, now_ns);
  return rooms_;
}

int32_t Router::expected_tokens() const {
  return static_cast<int32_t>((answer_tokens_ + kAnswerTokens) / (answers_ + 1));
}

void Router::asked(RoutedRequest request, int64_t now_ns) {
  if (!placement_ || request.adapter == AdapterSourceId()) return;
  placement_->asked(request.adapter, request.rank, request.rank * profile_.model.adapter_bytes_per_rank,
                    request.prompt_tokens + expected_tokens(), static_cast<double>(now_ns) * 1e-9);
}

// One that fails for a moment keeps its homes.
std::vector<PlacementMove> Router::place(int64_t now_ns) {
  if (!placement_) return {};
  std::vector<PlacedReplica> there = rooms(now_ns);
  for (size_t i = 0; i < there.size(); ++i) {
    if (there[i].up) replicas_[i].usable_ns = now_ns;
    there[i].up = now_ns - replicas_[i].usable_ns < kMissedNs;
  }
  return placement_->plan(static_cast<double>(now_ns) * 1e-9, there, [this](size_t index, AdapterSourceId adapter) {
    const auto found = replicas_[index].adapters.find(adapter);
    const bool there = found != replicas_[index].adapters.end() && (found->second.in_memory || found->second.on_device);
    return there ? AdapterPlace::kInMemory : AdapterPlace::kToBring;
  });
}

void Router::take(size_t index, const EngineOutput& output) {
  for (const AdapterNews& news : output.adapters) take(index, news);
  for (const TokenEvent& event : output.tokens) take(index, event);
}

void Router::take(size_t index, const AdapterNews& news) {
  Known& replica = replicas_.at(index);
  if (news.status == nullptr) {
    replica.adapters.erase(news.source);
  } else {
    replica.adapters[news.source] = {news.status->tier == AdapterTier::kResident, news.status->on_device};
  }
}

void Router::take(size_t index, const TokenEvent& event) {
  Known& replica = replicas_.at(index);
  const auto found = tokens_.find(event.id);
  CHECK(found != tokens_.end());
  if (event.has_token) {
    ++found->second;
    replica.load.answers(event.id);
  }
  if (event.end == EndReason::kNone) return;
  replica.load.ended(event.id);
  ++answers_;
  answer_tokens_ += found->second;
  tokens_.erase(found);
}

}  // namespace loralei::sim
