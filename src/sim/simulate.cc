// SPDX-License-Identifier: Apache-2.0
#include "sim/simulate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "base/check.h"
#include "engine/validate.h"
#include "workload/prompts.h"

namespace loralei::sim {
namespace {

// A simulated month behind the last arrival.
constexpr int64_t kPatienceNs = int64_t{30} * 86'400 * 1'000'000'000;
constexpr const char* kNeverEnds =
    "the simulation does not end a month behind the last arrival: the machine is too slow for this workload, "
    "or somebody waits for nothing";

TokenId token_of(uint64_t number) {
  return kSimulatedFirst + static_cast<TokenId>(number % (kSimulatedVocab - kSimulatedFirst));
}

class Simulation {
 public:
  Simulation(const Workload& workload, const Profile& profile, const SimulationOptions& options)
      : workload_(workload), profile_(profile), options_(options), faults_(options.faults, options.fault_kinds) {
    for (int32_t i = 0; i < options.routers; ++i) {
      RouterOptions router = options.router;
      router.seed += static_cast<uint64_t>(i);
      routers_.push_back(std::make_unique<Router>(router, profile));
    }
  }

  Result<SimulatedRun> run() {
    run_.requests.resize(workload_.size());
    last_token_ns_.assign(workload_.size(), -1);
    add_adapters();
    ways_.resize(workload_.size());
    for (int32_t i = 0; i < options_.replicas; ++i) {
      TRY_ASSIGN(std::unique_ptr<Replica> replica, make_replica(static_cast<size_t>(i), 0));
      for (const auto& router : routers_)
        router->add_replica(options_.replica.engine.max_sequences, replica->context_tokens_max(),
                            replica->adapter_bytes_max());
      max_model_len_ = replica->max_model_len();  // all are alike
      places_.push_back({std::move(replica)});
    }
    for (const Place& place : places_) register_adapters(*place.replica);
    if (options_.etcd) TRY(start_fleet());
    plan_arrival();
    if (options_.router.placement && fleet_ == nullptr) plan_placement();
    if (faults_.any()) {
      plan_budget_change();
      plan_churn();
      plan_sleep();
      plan_app_change();
    }
    if (options_.samples > 0) sample();
    const int64_t last_ns = workload_.empty() ? 0 : workload_.back().at_ns;
    while ((fleet_ == nullptr || !fleet_->over()) && kernel_.step()) {
      if (options_.check) each_alive([](Replica& replica) { replica.check(); });
      if (kernel_.now_ns() - last_ns > kPatienceNs) return internal_error(kNeverEnds);
    }
    TRY(judge());
    for (const Place& place : places_) {
      run_.replicas.push_back(place.replica->stats());
      run_.busy_ns += place.replica->busy_ns();
    }
    for (const ServedRequest& served : run_.requests) run_.end_ns = std::max(run_.end_ns, served.end_ns);
    run_.events = kernel_.events();
    for (const auto& router : routers_) run_.routed_beyond += router->missed();
    if (fleet_ != nullptr) run_.fleet->counts = fleet_->counts();
    return std::move(run_);
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;
  static constexpr size_t kTriesMost = 3;  // as a router's

  // Where a process of a replica runs, one behind the other.
  struct Place {
    std::unique_ptr<Replica> replica;
    uint64_t process = 0;
  };
  // Of a request.
  struct Way {
    size_t place = kNowhere;
    std::vector<size_t> tried;
  };

  bool alive(size_t place) const { return fleet_ == nullptr || fleet_->alive(place); }
  template <class What>
  void each_alive(const What& what) {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (alive(i)) what(*places_[i].replica);
    }
  }
  Router& router_of(size_t index) { return *routers_[index % routers_.size()]; }

  Result<std::unique_ptr<Replica>> make_replica(size_t place, uint64_t process) {
    ReplicaOptions options = options_.replica;
    if (options_.lengths_known)
      options.foresee_output = [this](const Submit& submit) { return foreseen_output(submit.sampling.seed); };
    return Replica::create(
        kernel_, profile_, adapters_, faults_, options,
        [this](uint64_t seed, uint64_t position) { return next_token(seed, position); },
        [this, place, process](const EngineOutput& output) {
          if (places_[place].process == process) take(place, output);
        });
  }

  Status start_fleet() {
    run_.fleet.emplace();
    std::optional<double> placement_s;
    if (options_.router.placement) placement_s = options_.router.placement->interval_s;
    fleet_ = std::make_unique<Fleet>(kernel_, faults_, routers_, places_.size(), placement_s,
                                     Fleet::Hooks{.died = [this](size_t place) { died(place); },
                                                  .started = [this](size_t place) { started(place); },
                                                  .more = [this] { return next_ < workload_.size(); },
                                                  .busy = [this] { return busy(); },
                                                  .ask = [this](const PlacementMove& move) { ask(move); }});
    return fleet_->start();
  }

  bool busy() {
    bool holds = outstanding_ > 0;
    each_alive([&holds](const Replica& replica) { holds = holds || replica.holds_something(); });
    return holds;
  }

  // What ran there breaks off. The process goes on unheard until it has nothing to do.
  void died(size_t place) {
    Place& here = places_[place];
    ++here.process;
    run_.ended.push_back(here.replica->stats());
    run_.busy_ns += here.replica->busy_ns();
    for (const auto& router : routers_) router->forget_adapters(place);
    std::vector<size_t> broken;
    for (size_t index = 0; index < next_; ++index) {
      if (ways_[index].place == place) broken.push_back(index);
    }
    for (const size_t index : broken) {
      const RequestId id{index + 1};
      here.replica->deliver(Cancel{id, kAllChoices});
      router_of(index).failed(place, kernel_.now_ns());
      router_of(index).broke_off(place, id);
    }
    gone_.push_back(std::move(here.replica));
    for (const size_t index : broken) {
      // Behind its first token nothing is repeated.
      if (run_.requests[index].first_ns >= 0) {
        fail(index);
      } else if (find_place(index)) {
        places_[ways_[index].place].replica->submit(submit_of(index));
      }
    }
  }

  void started(size_t place) {
    auto replica = make_replica(place, places_[place].process);
    CHECK(replica.ok());
    places_[place].replica = *std::move(replica);
    register_adapters(*places_[place].replica);
  }

  void add_adapters() {
    const int64_t rank_bytes = profile_.model.adapter_bytes_per_rank;
    for (const WorkloadRequest& request : workload_) {
      if (request.adapter.empty() || sources_.count(request.adapter) != 0) continue;
      const int32_t rank = request.rank > 0 ? request.rank : options_.rank;
      sources_.emplace(request.adapter, AdapterSourceId{++last_source_});
      adapters_.add("/" + request.adapter, {.bytes = rank * rank_bytes, .rank = rank});
    }
  }
  void register_adapters(Replica& replica) {
    const AdapterAction action = options_.replica.adapters_in_memory ? AdapterAction::kLoad : AdapterAction::kAdd;
    for (const auto& [name, source] : sources_)
      replica.deliver(AdapterCommand{++tickets_, action, {source, name, "/" + name}});
  }

  // One arrival at a time: the next is planned when the one before has come.
  void plan_arrival() {
    if (next_ == workload_.size()) return;
    kernel_.at(std::max(workload_[next_].at_ns, kernel_.now_ns()), EventOrder::kArrival, [this] {
      const size_t index = next_++;
      arrive(index);
      plan_arrival();
    });
  }

  RoutedRequest routed(const WorkloadRequest& request) const {
    RoutedRequest routed{.prompt_tokens = request.prompt_tokens};
    if (request.adapter.empty()) return routed;
    routed.adapter = sources_.at(request.adapter);
    routed.rank = request.rank > 0 ? request.rank : options_.rank;
    return routed;
  }

  Submit submit_of(size_t index) {
    const WorkloadRequest& request = workload_[index];
    Submit submit;
    submit.id = RequestId{index + 1};
    submit.prompt = prompt_of(index);
    if (!request.adapter.empty()) submit.adapters.push_back({sources_.at(request.adapter), 1.0f});
    submit.sampling.temperature = 0;
    submit.sampling.seed = index;
    submit.app_id = request.app;
    submit.client = ClientId{clients_.try_emplace(request.app, clients_.size()).first->second};
    // What a client would say that does not know how long the answer will be.
    submit.max_tokens = std::max(1, max_model_len_ - request.prompt_tokens);
    return submit;
  }

  void arrive(size_t index) {
    const WorkloadRequest& request = workload_[index];
    Submit submit = submit_of(index);
    ++outstanding_;
    if (!validate_submit(submit, {.max_model_len = max_model_len_}).ok()) return end(index, true);
    // Replicas report what they were asked for to all.
    for (const auto& router : routers_) {
      if (router.get() != &router_of(index)) router->asked(routed(request), kernel_.now_ns());
    }
    if (!find_place(index)) return;
    if (const auto after_ns = faults_.cancel_after_ns())
      kernel_.after(*after_ns, EventOrder::kArrival, [this, index] {
        // Where it is by then, though it have ended.
        if (const size_t place = ways_[index].tried.back(); alive(place))
          places_[place].replica->deliver(Cancel{RequestId{index + 1}, kAllChoices});
      });
    places_[ways_[index].place].replica->submit(std::move(submit));
  }

  // Of a request that nobody has answered anything of; false: it got its error. A replica
  // that has died refuses it at once.
  bool find_place(size_t index) {
    Router& router = router_of(index);
    Way& way = ways_[index];
    const RequestId id{index + 1};
    const int64_t now_ns = kernel_.now_ns();
    while (way.tried.size() < kTriesMost) {
      const auto place = router.route(id, routed(workload_[index]), now_ns, way.tried);
      if (!place) break;
      if (!way.tried.empty()) ++run_.fleet->retries;
      way.tried.push_back(*place);
      way.place = *place;
      if (alive(*place)) return true;
      router.failed(*place, now_ns);
      router.broke_off(*place, id);
    }
    fail(index);
    return false;
  }

  // Its client gets an error.
  void fail(size_t index) {
    ++run_.fleet->errors;
    end(index, true);
  }
  void end(size_t index, bool failed) {
    ServedRequest& served = run_.requests[index];
    served.end_ns = kernel_.now_ns();
    served.failed = failed;
    ways_[index].place = kNowhere;
    --outstanding_;
  }

  // A replica is to have an adapter in memory.
  void ask(const PlacementMove& move) {
    if (!alive(move.replica)) return;
    ++run_.placed;
    run_.placed_bytes += move.bytes;
    places_[move.replica].replica->deliver(AdapterCommand{++tickets_, AdapterAction::kLoad, {move.adapter, "", ""}});
  }

  // As long as requests come.
  void plan_placement() {
    const auto interval_ns = static_cast<int64_t>(options_.router.placement->interval_s * 1e9);
    kernel_.after(interval_ns, EventOrder::kArrival, [this] {
      for (const PlacementMove& move : routers_[0]->place(kernel_.now_ns())) ask(move);
      if (next_ < workload_.size()) plan_placement();
    });
  }

  // Until the last request has come, and once more: then there is all the memory again.
  void plan_budget_change() {
    kernel_.after(faults_.next_budget_change_ns(), EventOrder::kArrival, [this] {
      const bool last = next_ == workload_.size();
      each_alive([&](Replica& replica) { replica.set_memory(++tickets_, last ? 1.0 : faults_.next_budget()); });
      if (!last) plan_budget_change();
    });
  }
  // An adapter is unloaded, and its name means another source from then on.
  void plan_churn() {
    if (sources_.empty()) return;
    kernel_.after(faults_.next_churn_ns(), EventOrder::kArrival, [this] {
      auto named = sources_.begin();
      std::advance(named, static_cast<std::ptrdiff_t>(faults_.churned(sources_.size())));
      const AdapterSourceId before = std::exchange(named->second, AdapterSourceId{++last_source_});
      each_alive([&](Replica& replica) {
        replica.deliver(AdapterCommand{++tickets_, AdapterAction::kDrop, {before, "", ""}});
        replica.deliver(
            AdapterCommand{++tickets_, AdapterAction::kAdd, {named->second, named->first, "/" + named->first}});
      });
      if (next_ < workload_.size()) plan_churn();
    });
  }

  // Of those that have asked so far; whoever names none has no state.
  void plan_app_change() {
    kernel_.after(faults_.next_app_change_ns(), EventOrder::kArrival, [this] {
      if (!clients_.empty()) {
        auto app = clients_.begin();
        std::advance(app, static_cast<std::ptrdiff_t>(faults_.app(clients_.size())));
        const auto state = static_cast<AppState>(faults_.app_state(std::size(kAppStateNames)));
        if (!app->first.empty())
          each_alive([&](Replica& replica) { replica.deliver(AppCommand{++tickets_, app->first, state}); });
      }
      if (next_ < workload_.size()) plan_app_change();
    });
  }

  void plan_sleep() {
    kernel_.after(faults_.next_clock_step_ns(), EventOrder::kArrival, [this] {
      each_alive([&](Replica& replica) { replica.sleep(faults_.clock_step_ns()); });
      if (next_ < workload_.size()) plan_sleep();
    });
  }

  // Now, and again while anything else is to come.
  void sample() {
    LoadSample sample{.at_ns = kernel_.now_ns()};
    each_alive([&](const Replica& replica) { replica.add_to(sample); });
    run_.samples.push_back(sample);
    if (kernel_.idle()) return;
    const int64_t last_ns = workload_.empty() ? 0 : workload_.back().at_ns;
    kernel_.after(last_ns / options_.samples + 1, EventOrder::kDecision, [this] { this->sample(); });
  }

  std::vector<TokenId> prompt_of(size_t index) const {
    std::vector<TokenId> prompt;
    prompt.reserve(static_cast<size_t>(workload_[index].prompt_tokens));
    for_each_prompt_number(workload_[index], index, [&](uint64_t number) { prompt.push_back(token_of(number)); });
    return prompt;
  }

  double foreseen_output(uint64_t index) const {
    const double chance = static_cast<double>(mix(79, index) >> 11) * 0x1p-53;
    const bool known = chance < *options_.lengths_known;
    return workload_[known ? index : mix(80, index) % workload_.size()].output_tokens;
  }

  TokenId next_token(uint64_t seed, uint64_t position) const {
    const WorkloadRequest& request = workload_[seed];
    const auto at = static_cast<int32_t>(position);
    const bool last = at + 1 >= request.prompt_tokens + request.output_tokens;
    return last ? kSimulatedEnd : token_of(mix(mix(78, seed), position));
  }

  void take(size_t place, const EngineOutput& output) {
    for (const AdapterNews& news : output.adapters) {
      for (const auto& router : routers_) router->take(place, news);
    }
    for (const TokenEvent& event : output.tokens) {
      const size_t index = event.id.value - 1;
      router_of(index).take(place, event);
      take(index, place, event);
    }
  }

  void take(size_t index, size_t place, const TokenEvent& event) {
    const int64_t now_ns = kernel_.now_ns();
    ServedRequest& served = run_.requests.at(index);
    if (served.end_ns >= 0) wrong(index, "ended twice (S1)");
    if (ways_[index].place != place) wrong(index, "has something of a replica where it is not (S10)");
    served.cached_tokens += event.cached_tokens;
    if (event.has_token) {
      if (fleet_ != nullptr) check_token(index, served.tokens, event.token);
      ++served.tokens;
      if (served.first_ns < 0) served.first_ns = now_ns;
      if (last_token_ns_[index] >= 0) run_.gaps.add(now_ns - last_token_ns_[index]);
      last_token_ns_[index] = now_ns;
    }
    if (event.end == EndReason::kNone) return;
    end(index, event.end == EndReason::kError || event.end == EndReason::kCancelled);
  }

  void check_token(size_t index, int32_t before, TokenId token) {
    const int64_t position = int64_t{workload_[index].prompt_tokens} + before;
    if (token != next_token(index, static_cast<uint64_t>(position)))
      wrong(index, "has a token twice, or one that is not its own (S10)");
  }

  void wrong(size_t index, const std::string& what) {
    if (wrong_.empty()) wrong_ = "request " + std::to_string(index + 1) + " of the workload " + what;
  }

  Status judge() {
    for (size_t i = 0; i < workload_.size(); ++i) {
      const WorkloadRequest& request = workload_[i];
      const ServedRequest& served = run_.requests[i];
      if (served.end_ns < 0) wrong(i, "never ended (S1, S5)");
      if (served.failed) continue;
      const int32_t tokens = std::min(request.output_tokens, max_model_len_ - request.prompt_tokens);
      if (served.tokens != tokens) wrong(i, "has another number of tokens (S2)");
      if (served.first_ns < request.at_ns || served.end_ns < served.first_ns)
        wrong(i, "was answered before it was due (S3)");
    }
    each_alive([this](const Replica& replica) {
      if (replica.holds_something() && wrong_.empty()) wrong_ = "a replica holds something at the end (S4)";
    });
    if (fleet_ != nullptr && wrong_.empty()) wrong_ = fleet_->wrong();
    if (wrong_.empty()) return {};
    return internal_error("the simulation is wrong: " + wrong_ + "; please report this with the command");
  }

  const Workload& workload_;
  const Profile& profile_;
  const SimulationOptions& options_;
  Faults faults_;
  std::vector<std::unique_ptr<Router>> routers_;
  Kernel kernel_;
  SizedAdapters adapters_;
  std::map<std::string, AdapterSourceId> sources_;
  std::map<std::string, uint64_t> clients_;  // by application
  std::vector<Place> places_;
  std::vector<std::unique_ptr<Replica>> gone_;  // processes that died
  std::unique_ptr<Fleet> fleet_;                // null: nobody comes or goes
  std::vector<Way> ways_;                       // of requests
  std::vector<int64_t> last_token_ns_;
  SimulatedRun run_;
  std::string wrong_;
  size_t next_ = 0, outstanding_ = 0;  // requests: the next one; that have come and not ended
  int32_t max_model_len_ = 0;
  uint64_t tickets_ = 0, last_source_ = 0;
};

}  // namespace

Result<SimulatedRun> simulate(const Workload& workload, const Profile& profile, const SimulationOptions& options) {
  if (options.replicas < 1) return invalid_argument("there must be at least one replica");
  if (options.routers < 1) return invalid_argument("there must be at least one router");
  if (options.router.placement && options.routers > 1 && !options.etcd)
    return invalid_argument("with --placement several --routers need --etcd, where one of them is elected to plan");
  const auto uses_adapter = [](const WorkloadRequest& request) { return !request.adapter.empty(); };
  const bool knows_adapters = profile.disk.has_value() && profile.model.adapter_bytes_per_rank > 0;
  if (!knows_adapters && std::any_of(workload.begin(), workload.end(), uses_adapter)) {
    return invalid_argument("the workload has adapters, and the profile " + profile.name +
                            " does not say what they take (\"disk\", \"adapter_bytes_per_rank\"): measure it with "
                            "loralei profile MODEL --adapter PATH");
  }
  return Simulation(workload, profile, options).run();
}

}  // namespace loralei::sim
