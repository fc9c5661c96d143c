// SPDX-License-Identifier: Apache-2.0
// bench prefix --agents: three agents read one growing context, each through an adapter
// of its own (workload/agents.h), with KV for a quarter, a half and all of what they
// hold. Questions are under way together; whose next step comes is drawn.
#include <algorithm>
#include <map>

#include "base/limits.h"
#include "bench/prefix.h"
#include "kv/block_count.h"
#include "workload/agents.h"
#include "workload/draws.h"

namespace loralei {
namespace {

constexpr int kPercents[] = {25, 50, 100};
// As the server leaves it where nothing is stated.
constexpr PrefixMode kModes[] = {{.name = "exact", .eviction = KvEviction::kDensity},
                                 {.name = "bounded", .sharing = KvSharing::kBounded, .eviction = KvEviction::kDensity},
                                 {.name = "borrow", .sharing = KvSharing::kBorrow, .eviction = KvEviction::kDensity}};
constexpr uint64_t kOwnTexts = uint64_t{1} << 32;  // beside the contexts'

struct AgentSteps {
  std::vector<PrefixRequest> requests;
  int32_t agents = 0;
  int32_t prompt_max = 0;
  int32_t held_blocks = 0;  // by all of them together, were nothing ever to go
};

// Blocks that a step adds to what its agent holds of its context.
class Held {
 public:
  int32_t add(const PrefixRequest& request) {
    const TextPart& context = request.prompt.front();
    int32_t& told = told_[{request.adapter, context.text}];
    const int32_t all = request.prompt_tokens() / kKvBlockTokens;
    const int32_t there = std::min(told, context.tokens) / kKvBlockTokens;
    told = std::max(told, context.tokens);
    return all - there;
  }

 private:
  std::map<std::pair<int32_t, uint64_t>, int32_t> told_;
};

PrefixRequest request_of(const WorkloadRequest& step, int32_t agent, uint64_t context, uint64_t number) {
  const int32_t shared = step.prefixes.empty() ? 0 : step.prefixes.back().tokens;
  PrefixRequest request{.adapter = agent, .prompt = {}};
  request.prompt.push_back({context, shared});
  if (shared < step.prompt_tokens) request.prompt.push_back({kOwnTexts + number, step.prompt_tokens - shared});
  return request;
}

Result<AgentSteps> agent_steps(const BenchOptions& options, uint64_t seed) {
  const PrefixBenchOptions& asked = options.prefix;
  const std::vector<WorkloadArrival> arrivals(static_cast<size_t>(asked.questions));
  LengthOptions lengths;
  lengths.scale = asked.scale;
  lengths.seed = seed;
  TRY_ASSIGN(const Workload workload, agent_requests("agents:1:" + asked.agents, arrivals, lengths, 0, 0));
  std::map<std::string, std::vector<WorkloadRequest>> by_question;
  for (const WorkloadRequest& step : workload) by_question[step.key].push_back(step);
  struct Question {
    const std::vector<WorkloadRequest>* steps;
    uint64_t context;
    size_t next = 0;
  };
  std::vector<Question> open;
  for (const auto& [key, steps] : by_question) open.push_back({&steps, open.size() + 1});
  AgentSteps all;
  std::map<std::string, int32_t> agents;
  Held held;
  Prng random(stream_seed(seed, "turns of questions"));
  while (!open.empty()) {
    const size_t at = below_draw(random, open.size());
    const WorkloadRequest& step = (*open[at].steps)[open[at].next++];
    const int32_t agent = agents.try_emplace(step.adapter, static_cast<int32_t>(agents.size())).first->second;
    all.requests.push_back(request_of(step, agent, open[at].context, all.requests.size()));
    all.prompt_max = std::max(all.prompt_max, step.prompt_tokens);
    all.held_blocks += held.add(all.requests.back());
    if (open[at].next == open[at].steps->size()) open.erase(open.begin() + static_cast<int64_t>(at));
  }
  all.agents = static_cast<int32_t>(agents.size());
  return all;
}

}  // namespace

Status bench_prefix_agents(const BenchOptions& options, LogSink& log, BenchReport& report) {
  // The same questions in every round: memory is a part of what these hold.
  TRY_ASSIGN(const AgentSteps steps, agent_steps(options, 1));
  TRY_ASSIGN(PrefixBench bench, open_prefix_bench(options, steps.agents, log));
  bench.run.tokens_max = steps.prompt_max + 1;
  const int32_t running = kv_blocks_for(bench.run.tokens_max + kKvBlockTokens) + 1;
  log.log(LogLevel::kInfo, std::to_string(steps.requests.size()) + " steps of " + std::to_string(steps.agents) +
                               " agents hold " + std::to_string(steps.held_blocks * kKvBlockTokens) + " tokens");
  std::string csv = memory_csv_head();
  for (const int percent : kPercents) {
    bench.run.kv_blocks = steps.held_blocks * percent / 100 + running;
    PrefixModes modes = prefix_modes(kModes);
    QuietRounds rounds(options.rounds, options.foreign_max);
    TRY(measure_prefix(
        options, bench, [&](uint64_t) { return steps.requests; }, modes, rounds));
    const size_t first_row = report.rows.size();
    const std::string name = "agents.m" + std::to_string(percent), prefix = "prefix." + bench.label + "." + name + ".";
    add_prefix_rows(prefix, modes, report);
    for (const std::string mode : {"bounded", "borrow"})
      report.rows.push_back(summarise(prefix + mode + ".to_exact", "ratio", prefix_ratios(modes, mode, "exact")));
    add_budget_target(prefix, modes, report);
    rounds.describe(report, first_row);
    for (const PrefixFigures& one : modes) csv += memory_csv(name + "." + one.mode.name, *one.trace);
  }
  return options.prefix.memory_trace.empty() ? Status() : write_text_file(options.prefix.memory_trace, csv);
}

}  // namespace loralei
