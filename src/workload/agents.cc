// SPDX-License-Identifier: Apache-2.0
#include "workload/agents.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "base/printable.h"
#include "workload/csv.h"
#include "workload/draws.h"
#include "workload/spec.h"

namespace loralei {
namespace {

constexpr const char* kWhat = "prefixes";
constexpr double kCharsPerToken = 4;
constexpr double kThinkMax = 86400;

struct AgentStep {
  std::string agent;
  int32_t prompt_tokens = 1, output_tokens = 1;
  int32_t context_tokens = 0;  // the prompt begins with so much of the question's context
};
struct AgentQuestion {
  std::string app, key;
  std::vector<AgentStep> steps;
  int32_t told_tokens = 0;  // of the context, by all steps so far
};

class AgentFile {
 public:
  AgentFile(const CsvTable& table, const LengthOptions& lengths) : table_(table), lengths_(lengths) {}

  Result<std::vector<AgentQuestion>> read() {
    for (const char* name :
         {"dataset", "question", "step", "agent", "input_chars", "output_chars", "shared_prefix_any_agent_chars"}) {
      TRY_ASSIGN(const size_t column, table_.need_column(name));
      columns_.push_back(column);
    }
    for (size_t row = 0; row < table_.rows(); ++row) TRY(add(row));
    return std::move(questions_);
  }

 private:
  Result<double> chars(size_t row, size_t which) const { return table_.number(row, columns_[which], 0, 1e9); }

  Status add(size_t row) {
    const std::string app(table_.cell(row, columns_[0]));
    const std::string key = app + "/" + std::string(table_.cell(row, columns_[1]));
    TRY_ASSIGN(const double step, table_.number(row, columns_[2], 0, 1e6));
    if (step == 0) {
      if (!keys_.insert(key).second) return table_.wrong(row, columns_[1], "another question than those before");
      questions_.push_back({.app = app, .key = key});
    }
    if (questions_.empty() || questions_.back().key != key ||
        step != static_cast<double>(questions_.back().steps.size()))
      return table_.wrong(row, columns_[2], "the next step of the question before, or 0");
    AgentQuestion& question = questions_.back();
    TRY_ASSIGN(const double input, chars(row, 4));
    TRY_ASSIGN(const double output, chars(row, 5));
    TRY_ASSIGN(const double shared, chars(row, 6));
    if (shared > input) return table_.wrong(row, columns_[6], "within the step's input_chars");
    AgentStep one{.agent = std::string(table_.cell(row, columns_[3]))};
    if (one.agent.empty()) return table_.wrong(row, columns_[3], "the name of an agent");
    one.prompt_tokens = scaled_tokens(input / kCharsPerToken, lengths_.scale, lengths_.prompt_max);
    one.output_tokens = scaled_tokens(output / kCharsPerToken, lengths_.scale, lengths_.output_max);
    const double shared_tokens = std::round(shared / kCharsPerToken * lengths_.scale);
    const bool tells_on = shared_tokens >= question.told_tokens;
    one.context_tokens =
        tells_on ? one.prompt_tokens : std::min(static_cast<int32_t>(shared_tokens), one.prompt_tokens);
    question.told_tokens = std::max(question.told_tokens, one.context_tokens);
    question.steps.push_back(std::move(one));
    return {};
  }

  const CsvTable& table_;
  const LengthOptions& lengths_;
  std::vector<size_t> columns_;
  std::vector<AgentQuestion> questions_;
  std::unordered_set<std::string> keys_;  // of these
};

// Gives the questions in a new order each time all have come.
class QuestionOrder {
 public:
  QuestionOrder(size_t count, uint64_t seed) : order_(count), random_(stream_seed(seed, "questions")) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }
  size_t next() {
    if (given_ % order_.size() == 0) {
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[below_draw(random_, i)]);
    }
    return order_[given_++ % order_.size()];
  }
  size_t round() const { return (given_ - 1) / order_.size(); }  // of the last one given, from 0

 private:
  std::vector<size_t> order_;
  size_t given_ = 0;
  Prng random_;
};

WorkloadRequest request_of(const AgentQuestion& question, size_t step, size_t round, int64_t at_ns) {
  const AgentStep& one = question.steps[step];
  WorkloadRequest request{.at_ns = at_ns,
                          .adapter = one.agent,
                          .prompt_tokens = one.prompt_tokens,
                          .output_tokens = one.output_tokens,
                          .app = question.app,
                          .key = question.key + (round == 0 ? "" : "#" + std::to_string(round + 1))};
  if (one.context_tokens > 0) request.prefixes.push_back({request.key, one.context_tokens});
  return request;
}

}  // namespace

Result<Workload> agent_requests(const std::string& text, std::span<const WorkloadArrival> arrivals,
                                const LengthOptions& lengths, double seconds, int64_t count) {
  const WorkloadSpec spec = parse_workload_spec(text, 1);
  if (spec.file.empty()) return wrong_spec(kWhat, spec, "no file is named. Write agents:THINK:FILE.");
  TRY_ASSIGN(const double think_s, spec_number(kWhat, spec, 0, "THINK", 0, kThinkMax));
  TRY_ASSIGN(const CsvTable table, CsvTable::read(spec.file));
  TRY_ASSIGN(const std::vector<AgentQuestion> questions, AgentFile(table, lengths).read());
  QuestionOrder order(questions.size(), lengths.seed);
  struct Due {
    int64_t at_ns;
    uint64_t number;  // of the question's arrival
    size_t question, step, round;
    bool operator>(const Due& other) const {
      return std::tie(at_ns, number, step) > std::tie(other.at_ns, other.number, other.step);
    }
  };
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  Workload requests;
  const int64_t think_ns = std::llround(think_s * 1e9);
  const int64_t most = count > 0 ? std::min(count, kWorkloadLinesMax) : kWorkloadLinesMax;
  // Takes what is due before `until_ns`; false once there is enough.
  const auto take = [&](int64_t until_ns) {
    while (!due.empty() && due.top().at_ns < until_ns) {
      if (static_cast<int64_t>(requests.size()) == most) return false;
      Due one = due.top();
      due.pop();
      requests.push_back(request_of(questions[one.question], one.step, one.round, one.at_ns));
      one.at_ns += think_ns;
      if (++one.step < questions[one.question].steps.size()) due.push(one);
    }
    return static_cast<int64_t>(requests.size()) < most;
  };
  uint64_t number = 0;
  for (const WorkloadArrival& arrival : arrivals) {
    if (!take(arrival.at_ns)) break;
    const size_t question = order.next();
    due.push({arrival.at_ns, number++, question, 0, order.round()});
  }
  const int64_t end_ns = seconds > 0 ? std::llround(seconds * 1e9) : kWorkloadSecondsMax * kNsPerSecond;
  take(end_ns);
  if (count == 0 && static_cast<int64_t>(requests.size()) == most)
    return wrong_spec(kWhat, spec, "these are more requests than a workload may have. Ask for fewer seconds.");
  return requests;
}

}  // namespace loralei
