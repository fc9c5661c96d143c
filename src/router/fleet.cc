// SPDX-License-Identifier: Apache-2.0
#include "router/fleet.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/fast_hash.h"

namespace loralei {
namespace {

constexpr double kBytesPerToken = 4, kAnswerTokens = 128;  // expected before anything has ended
constexpr double kLately = 1.0 / 64;                       // what one request counts of the means
constexpr int32_t kSequences = 256;                        // of a server that does not say how many it takes
constexpr int32_t kTokensMost = 1 << 24;                   // of a request, whatever it says
constexpr int32_t kRank = 16;                              // of an adapter that nobody has loaded yet

// Whose text it is: KV is shared by requests that name the same.
uint64_t prefix_identity(const ModelRef& model) {
  std::string names = model.model;
  for (const AdapterRef& adapter : model.adapters) names += '\0' + adapter.name;
  return fast_hash(reinterpret_cast<const std::byte*>(names.data()), names.size(), 0);
}

uint64_t number_of(const std::string& name) {
  return fast_hash(reinterpret_cast<const std::byte*>(name.data()), name.size(), 0);
}

int32_t tokens_of(double tokens) { return static_cast<int32_t>(std::clamp(tokens, 1.0, double{kTokensMost})); }

}  // namespace

Fleet::Fleet(const FleetOptions& options, const Clock& clock, LogSink& log)
    : options_(options),
      clock_(clock),
      log_(log),
      picker_(options.policy, options.seed),
      bytes_per_token_(kBytesPerToken),
      answer_tokens_(kAnswerTokens) {}

size_t Fleet::add(const UpstreamAddress& address, std::optional<size_t> vacant) {
  const std::lock_guard lock(mutex_);
  Replica replica;
  replica.address = address;
  replica.health = ReplicaHealth(options_.health);
  replica.sequences_max = kSequences;
  replica.kv_tokens = std::numeric_limits<int64_t>::max();
  replica.number = number_of(address_text(address));
  const size_t index = vacant.value_or(replicas_.size());
  homes_.add_replica(index, replica.number);
  if (!vacant) {
    replicas_.push_back(std::move(replica));
    return index;
  }
  Replica& place = replicas_.at(index);
  CHECK(place.left && place.load.all().requests() == 0);
  place = std::move(replica);
  return index;
}

void Fleet::leave(size_t index) {
  const std::lock_guard lock(mutex_);
  Replica& replica = replicas_.at(index);
  CHECK(!replica.left);
  forget_adapters(replica);
  replica.tiers = {};
  replica.models.clear();
  replica.base.clear();
  replica.why = "it is no longer of the fleet";
  replica.left = true;
  prefixes_.forget(index);
  homes_.forget_replica(index);
}

bool Fleet::vacant(size_t index) const {
  const std::lock_guard lock(mutex_);
  const Replica& replica = replicas_.at(index);
  return replica.left && replica.load.all().requests() == 0;
}

size_t Fleet::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(replicas_.begin(), replicas_.end(), [](const Replica& replica) { return !replica.left; }));
}

UpstreamAddress Fleet::address(size_t index) const {
  const std::lock_guard lock(mutex_);
  return replicas_.at(index).address;
}

bool Fleet::is_base(const std::string& name) const {
  if (name.empty()) return true;
  for (const Replica& replica : replicas_) {
    if (std::find(replica.models.begin(), replica.models.end(), name) != replica.models.end()) return true;
  }
  return false;
}

Fleet::Wanted Fleet::wanted_by(const RouteFacts& facts) const {
  Wanted wanted;
  const auto want = [&](const std::string& name) {
    const auto found = names_.find(name);
    if (found == names_.end()) {
      wanted.unknown = true;
    } else {
      wanted.adapters.push_back(found->second);
    }
  };
  const ModelRef& model = facts.model;
  for (const AdapterRef& adapter : model.adapters) {
    if (!adapter.name.empty()) want(adapter.name);
  }
  if (model.adapters.empty() && !model.names_none && !is_base(model.model)) want(model.model);
  return wanted;
}

bool Fleet::has(const Replica& replica, const Wanted& wanted) const {
  return std::all_of(wanted.adapters.begin(), wanted.adapters.end(), [&](size_t adapter) {
    return adapter < replica.tiers.size() && replica.tiers[adapter] != kAbsent;
  });
}

int64_t Fleet::bytes_of(const Adapter& adapter, const Profile& profile) const {
  if (adapter.bytes > 0) return adapter.bytes;
  return profile.model.adapter_bytes_per_rank * (adapter.rank > 0 ? adapter.rank : kRank);
}

// Until the last of what is wanted is where steps can use it.
double Fleet::adapter_s(const Replica& replica, const Wanted& wanted) const {
  const Profile& profile = profile_of(replica);
  double seconds = 0;
  for (const size_t adapter : wanted.adapters) {
    if (adapter >= replica.tiers.size() || replica.load.all().has(AdapterSourceId{adapter + 1})) continue;
    const int64_t bytes = bytes_of(adapters_[adapter], profile);
    const uint8_t tier = replica.tiers[adapter];
    if (tier == static_cast<uint8_t>(ReplicaTier::kDisk) && profile.disk) seconds += profile.disk->predict_s(bytes);
    if (tier != static_cast<uint8_t>(ReplicaTier::kDevice) && profile.link) seconds += profile.link->predict_s(bytes);
  }
  return seconds;
}

// Of several adapters a row pays for all their ranks; they count as the first.
RoutedRequest Fleet::request_of(const RouteFacts& facts, const Wanted& wanted) const {
  RoutedRequest request;
  request.prompt_tokens = tokens_of(static_cast<double>(facts.text.size()) / bytes_per_token_);
  double answer = answer_tokens_;
  if (facts.max_tokens > 0) answer = std::min(answer, static_cast<double>(facts.max_tokens));
  request.answer_tokens = tokens_of(answer * facts.choices);
  for (const size_t adapter : wanted.adapters) {
    const int32_t rank = adapters_[adapter].rank > 0 ? adapters_[adapter].rank : kRank;
    if (request.adapter == AdapterSourceId()) request.adapter = AdapterSourceId{adapter + 1};
    request.rank += rank;
  }
  return request;
}

int32_t Fleet::cached_tokens(size_t replica) const {
  return static_cast<int32_t>(prefix_pieces_[replica] * double{kPrefixPieceBytes} / bytes_per_token_);
}

// Those that can be asked; `knowing`: only who is known to have what is wanted.
void Fleet::offer(const RouteQuery& query, const Wanted& wanted, bool knowing, int64_t now_ns) {
  candidates_.clear();
  candidate_replicas_.clear();
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    if (!replica.usable(now_ns) || (knowing && !has(replica, wanted))) continue;
    if (std::find(query.tried.begin(), query.tried.end(), i) != query.tried.end()) continue;
    if (query.may && !query.may(replica.address)) continue;
    const int32_t room = replica.health.allowed(replica.sequences_max, now_ns);
    candidates_.push_back({.load = &replica.load,
                           .step = &profile_of(replica).step,
                           .requests_max = std::max(0, room - replica.others),
                           .context_tokens_max = replica.kv_tokens,
                           .adapter_s = adapter_s(replica, wanted),
                           .stray_s = stray_s(i, wanted),
                           .cached_tokens = cached_tokens(i)});
    candidate_replicas_.push_back(i);
  }
}

Result<Placed> Fleet::place(const RouteQuery& query) {
  const std::vector<uint64_t> prefix = prefix_hashes(prefix_identity(query.facts->model), query.facts->text);
  const std::lock_guard lock(mutex_);
  prefix_pieces_.resize(replicas_.size());
  prefixes_.find(prefix, prefix_pieces_);
  const int64_t now_ns = clock_.now_ns();
  begin_due(now_ns);
  const Wanted wanted = wanted_by(*query.facts);
  RoutedRequest request = request_of(*query.facts, wanted);
  RouteObjectives objectives = options_.objectives;
  objectives.first_token_s = std::min(objectives.first_token_s, query.objectives.first_token_s);
  objectives.token_s = std::min(objectives.token_s, query.objectives.token_s);
  if (options_.homes) find_homes(wanted, now_ns);
  const bool names = wanted.unknown || !wanted.adapters.empty();
  bool known = !wanted.unknown;
  offer(query, wanted, names, now_ns);
  if (candidates_.empty() && names) {
    known = false;
    offer(query, wanted, false, now_ns);
  }
  const auto choice = picker_.pick(request, objectives, candidates_);
  if (!choice) return Error{ErrorCode::kUnavailable, "No replica can take the request now; send it again later."};
  if (!choice->meets_objectives) {
    if (options_.shed) {
      ++shed_;
      return Error{ErrorCode::kOverloaded,
                   "No replica can answer within the request's objectives now; send it again later, or ask for less."};
    }
    ++missed_;
  }
  const size_t index = candidate_replicas_[choice->index];
  Replica& replica = replicas_[index];
  const RequestId id{next_id_++};
  prefixes_.sent(prefix, index);
  request.cached_tokens = std::min(cached_tokens(index), request.prompt_tokens);
  replica.load.sent(id, request);
  ++replica.picks;
  sent_[id] = {index, static_cast<double>(query.facts->text.size()), request.adapter};
  if (request.adapter != AdapterSourceId()) ++adapters_[request.adapter.value - 1].requests;
  if (options_.homes && !replica.reports) {
    for (const size_t adapter : wanted.adapters) homes_.asked(static_cast<uint32_t>(adapter));
  }
  if (!query.facts->stream) {
    const StepModel& step = profile_of(replica).step;
    const double first_s = step.predict_s(replica.load.next_step()) + candidates_[choice->index].adapter_s;
    begins_.push({now_ns + static_cast<int64_t>(std::min(first_s, 3600.0) * 1e9), id});
  }
  return Placed{index, replica.address,          id,
                known, choice->meets_objectives, others_than(choice->index, query.others, request, objectives)};
}

std::vector<UpstreamAddress> Fleet::others_than(size_t candidate, int count, const RoutedRequest& request,
                                                const RouteObjectives& objectives) {
  std::vector<UpstreamAddress> others;
  while (static_cast<int>(others.size()) < count) {
    candidates_.erase(candidates_.begin() + static_cast<ptrdiff_t>(candidate));
    candidate_replicas_.erase(candidate_replicas_.begin() + static_cast<ptrdiff_t>(candidate));
    const auto choice = picker_.pick(request, objectives, candidates_);
    if (!choice) break;
    candidate = choice->index;
    others.push_back(replicas_[candidate_replicas_[candidate]].address);
  }
  return others;
}

std::optional<Placed> Fleet::moved(const Placed& placement, const UpstreamAddress& address) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Replica& replica) { return !replica.left && replica.address == address; };
  const auto found = std::find_if(replicas_.begin(), replicas_.end(), is_it);
  const auto index = static_cast<size_t>(found - replicas_.begin());
  if (found == replicas_.end() || index == placement.replica) return std::nullopt;
  Sent& sent = sent_.at(placement.id);
  RoutedRequest request = replicas_[sent.replica].load.ended(placement.id);
  request.cached_tokens = 0;  // which was the other's guess
  found->load.sent(placement.id, request);
  ++found->picks;
  sent.replica = index;
  return Placed{index, address, placement.id, placement.known, placement.meets_objectives};
}

void Fleet::begin_due(int64_t now_ns) {
  for (; !begins_.empty() && begins_.top().at_ns <= now_ns; begins_.pop()) {
    const auto found = sent_.find(begins_.top().id);
    if (found != sent_.end()) replicas_[found->second.replica].load.answers(found->first);
  }
}

void Fleet::answers(const Placed& placement) {
  const std::lock_guard lock(mutex_);
  if (sent_.count(placement.id) != 0) replicas_[placement.replica].load.answers(placement.id);
}

void Fleet::ended(const Placed& placement, const std::optional<AnswerCounts>& counts) {
  const std::lock_guard lock(mutex_);
  const auto found = sent_.find(placement.id);
  CHECK(found != sent_.end());
  Replica& replica = replicas_[placement.replica];
  replica.load.ended(placement.id);
  if (counts && counts->prompt_tokens > 0 && found->second.text_bytes > 0) {
    const double ratio = found->second.text_bytes / static_cast<double>(counts->prompt_tokens);
    bytes_per_token_ += kLately * (std::clamp(ratio, 0.25, 64.0) - bytes_per_token_);
  }
  if (counts && counts->output_tokens > 0)
    answer_tokens_ += kLately * (static_cast<double>(counts->output_tokens) - answer_tokens_);
  if (const AdapterSourceId adapter = found->second.adapter; adapter != AdapterSourceId()) {
    --adapters_[adapter.value - 1].requests;
    release(static_cast<uint32_t>(adapter.value - 1));
  }
  sent_.erase(found);
}

uint32_t Fleet::adapter_of(const std::string& name) {
  const auto found = names_.find(name);
  if (found != names_.end()) return found->second;
  uint32_t place = static_cast<uint32_t>(adapters_.size());
  if (free_adapters_.empty()) {
    adapters_.emplace_back();
  } else {
    place = free_adapters_.back();
    free_adapters_.pop_back();
    adapters_[place] = {};
  }
  adapters_[place].name = &names_.emplace(name, place).first->first;
  adapters_[place].number = number_of(name);
  return place;
}

void Fleet::put(Replica& replica, const std::string& name, uint8_t tier) {
  if (tier == kAbsent && names_.find(name) == names_.end()) return;
  const uint32_t place = adapter_of(name);
  if (replica.tiers.size() <= place) replica.tiers.resize(place + 1, kAbsent);
  const uint8_t before = std::exchange(replica.tiers[place], tier);
  if (before != kAbsent) --replica.counts[before];
  if (tier == kAbsent) homes_.forget_uses(index_of(replica), place);
  if (tier != kAbsent) ++replica.counts[tier];
  Adapter& adapter = adapters_[place];
  adapter.replicas += (tier != kAbsent ? 1 : 0) - (before != kAbsent ? 1 : 0);
  release(place);
}

void Fleet::release(uint32_t place) {
  Adapter& adapter = adapters_[place];
  if (adapter.replicas > 0 || adapter.requests > 0) return;
  homes_.forget_adapter(place);
  names_.erase(names_.find(*adapter.name));
  adapter = {};
  free_adapters_.push_back(place);
}

void Fleet::forget_adapters(Replica& replica) {
  for (size_t place = 0; place < replica.tiers.size(); ++place) {
    if (replica.tiers[place] != kAbsent) put(replica, std::string(*adapters_[place].name), kAbsent);
  }
}

bool Fleet::serves_the_base(const Replica& replica, int64_t now_ns) {
  if (replica.base.empty() || replica.base == base_) return true;
  const bool kept = std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& other) {
    return &other != &replica && other.base == base_ && other.usable(now_ns);
  });
  if (kept && !base_.empty()) return false;
  if (!base_.empty())
    log_.log(LogLevel::kWarning, "The fleet serves another base model now: " + replica.base + " and not " + base_);
  base_ = replica.base;
  return true;
}

void Fleet::take_cost(Replica& replica, const std::string& cost) {
  if (cost == replica.cost) return;
  replica.cost = cost;
  replica.profile.reset();
  if (cost.empty()) return;
  auto profile = parse_profile(cost, "the cost file of replica " + address_text(replica.address));
  if (profile.ok()) {
    replica.profile = *std::move(profile);
  } else {
    log_.log(LogLevel::kWarning, profile.error().message);
  }
}

void Fleet::take(size_t index, const ReplicaReport& report) {
  const std::lock_guard lock(mutex_);
  Replica& replica = replicas_.at(index);
  if (replica.left) return;
  const bool anew = !replica.last_boot.empty() && report.boot != replica.last_boot;
  if (anew) prefixes_.forget(index);
  replica.last_boot = report.boot;
  if (report.since == 0) {
    forget_adapters(replica);
    homes_.begin_uses(index);
  } else if (report.boot != replica.boot || report.since != replica.cursor) {
    replica.boot.clear();  // an answer to another question: ask for all
    replica.cursor = 0;
    return;
  }
  replica.reports = true;
  replica.store = report.store;
  replica.boot = report.boot;
  replica.cursor = report.cursor;
  for (const ReplicaAdapter& adapter : report.adapters) {
    put(replica, adapter.name, static_cast<uint8_t>(adapter.tier));
    Adapter& known = adapters_[adapter_of(adapter.name)];
    if (adapter.rank > 0) known.rank = adapter.rank;
    if (adapter.bytes > 0) known.bytes = adapter.bytes;
    if (options_.homes) homes_.count_uses(index, adapter_of(adapter.name), adapter.uses);
  }
  for (const std::string& name : report.gone) put(replica, name, kAbsent);
  if (!report.more) homes_.end_uses(index);
  replica.models = report.models;
  if (report.adapter_bytes > 0) replica.adapter_bytes = report.adapter_bytes;
  if (report.sequences_max > 0) replica.sequences_max = report.sequences_max;
  if (report.kv_tokens > 0) replica.kv_tokens = report.kv_tokens;
  replica.reported_running = report.running;
  replica.reported_waiting = report.waiting;
  replica.others = std::max(0, report.running + report.waiting - replica.load.all().requests());
  take_cost(replica, report.cost);
  replica.base = report.base;
  const int64_t now_ns = clock_.now_ns();
  const bool same = serves_the_base(replica, now_ns);
  replica.health.heard(report.ready && same, now_ns, anew);
  replica.why = !same          ? "it serves another base model (" + report.base + ") than the others (" + base_ + ")"
                : report.ready ? ""
                               : "it says that it is not ready";
}

void Fleet::take(size_t index, const ModelNames& names) {
  const std::lock_guard lock(mutex_);
  Replica& replica = replicas_.at(index);
  if (replica.left) return;
  replica.reports = false;
  replica.store = false;
  replica.models = names.base;
  const std::vector<uint8_t> before = replica.tiers;
  for (const std::string& name : names.adapters) put(replica, name, static_cast<uint8_t>(ReplicaTier::kDevice));
  for (size_t place = 0; place < before.size(); ++place) {
    if (before[place] == kAbsent) continue;
    const std::string name = *adapters_[place].name;
    if (std::find(names.adapters.begin(), names.adapters.end(), name) == names.adapters.end())
      put(replica, name, kAbsent);
  }
  replica.health.heard(true, clock_.now_ns());
  replica.why.clear();
}

void Fleet::failed(size_t index, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Replica& replica = replicas_.at(index);
  if (replica.left) return;
  const int64_t now_ns = clock_.now_ns();
  const bool was_usable = replica.health.usable(now_ns);
  replica.health.failed(now_ns);
  replica.why = why;
  if (was_usable) {
    log_.log(LogLevel::kWarning, "Replica " + address_text(replica.address) + " is left out for now: " + why);
  }
}

void Fleet::not_ready(size_t index, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Replica& replica = replicas_.at(index);
  if (replica.left) return;
  replica.health.heard(false, clock_.now_ns());
  replica.why = why;
}

std::string Fleet::report_query(size_t index) const {
  const std::lock_guard lock(mutex_);
  const Replica& replica = replicas_.at(index);
  if (replica.boot.empty()) return "";
  return "?boot=" + replica.boot + "&since=" + std::to_string(replica.cursor);
}

bool Fleet::any_usable() const {
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.now_ns();
  return std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& r) { return r.usable(now_ns); });
}

}  // namespace loralei
