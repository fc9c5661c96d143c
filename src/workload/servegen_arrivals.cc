// SPDX-License-Identifier: Apache-2.0
#include "workload/servegen_arrivals.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "base/prng.h"
#include "workload/csv.h"
#include "workload/draws.h"
#include "workload/workload.h"

namespace loralei {
namespace {

constexpr const char* kWhat = "arrivals";
constexpr double kWindowSeconds = 600;
constexpr double kGammaShapeMin = 1e-3, kWeibullShapeMin = 0.02, kShapeMax = 1e6;
constexpr int32_t kClientMax = 1'000'000;

// Ten minutes in which a client sent requests; those without are not in the file.
struct RateWindow {
  double start_s = 0;
  double rate = 0;  // requests a second
  GapShape gap;
};
struct RateClient {
  int32_t id = 0;
  std::vector<RateWindow> windows;  // ascending, not overlapping

  double requests(double begin_s, double end_s) const {
    double sum = 0;
    for (const RateWindow& window : windows) {
      const double seconds = std::min(end_s, window.start_s + kWindowSeconds) - std::max(begin_s, window.start_s);
      if (seconds > 0) sum += seconds * window.rate;
    }
    return sum;
  }
};

Result<RateWindow> read_window(const CsvTable& table, size_t row, const std::vector<size_t>& columns) {
  RateWindow window;
  TRY_ASSIGN(window.start_s, table.number(row, columns[1], 0, 1e9));
  TRY_ASSIGN(window.rate, table.number(row, columns[2], 1e-9, 1e6));
  const std::string_view name = table.cell(row, columns[3]);
  window.gap.weibull = name == "Weibull";
  if (!window.gap.weibull && name != "Gamma") return table.wrong(row, columns[3], "Gamma or Weibull");
  TRY_ASSIGN(window.gap.shape,
             table.number(row, columns[4], window.gap.weibull ? kWeibullShapeMin : kGammaShapeMin, kShapeMax));
  return window;
}

Result<std::vector<RateClient>> read_clients(const std::string& path) {
  TRY_ASSIGN(const CsvTable table, CsvTable::read(path));
  std::vector<size_t> columns;
  for (const char* name : {"client", "start_s", "requests_per_s", "distribution", "param1"}) {
    TRY_ASSIGN(const size_t column, table.need_column(name));
    columns.push_back(column);
  }
  std::map<int32_t, RateClient> clients;
  for (size_t row = 0; row < table.rows(); ++row) {
    TRY_ASSIGN(const double id, table.number(row, columns[0], 0, kClientMax));
    if (id != std::floor(id)) return table.wrong(row, columns[0], "a whole number");
    RateClient& client = clients[static_cast<int32_t>(id)];
    client.id = static_cast<int32_t>(id);
    TRY_ASSIGN(const RateWindow window, read_window(table, row, columns));
    if (!client.windows.empty() && window.start_s < client.windows.back().start_s + kWindowSeconds)
      return table.wrong(row, columns[1], "600 seconds or more after this client's row before");
    client.windows.push_back(window);
  }
  std::vector<RateClient> list;
  for (auto& [id, client] : clients) list.push_back(std::move(client));
  return list;
}

// One client's arrivals, one after another, in the file's time.
class ClientWalk {
 public:
  ClientWalk(const RateClient& client, double begin_s, double scale, uint64_t seed)
      : client_(&client), scale_(scale), at_s_(begin_s), random_(seed) {}

  std::optional<double> next() {
    if (!enter()) return std::nullopt;
    const GapShape& gap = client_->windows[window_].gap;
    double left = first_ ? first_gap_draw(random_, gap) : gap_draw(random_, gap);
    first_ = false;
    while (enter()) {
      const RateWindow& window = client_->windows[window_];
      const double rate = window.rate * scale_, end_s = window.start_s + kWindowSeconds;
      const double passed = (end_s - at_s_) * rate;
      if (left < passed) {
        at_s_ += left / rate;
        return at_s_;
      }
      left -= passed;
      at_s_ = end_s;
    }
    return std::nullopt;
  }
  int32_t client() const { return client_->id; }

 private:
  // Moves on to a time in a window; false behind the last one.
  bool enter() {
    const auto& windows = client_->windows;
    while (window_ < windows.size() && at_s_ >= windows[window_].start_s + kWindowSeconds) ++window_;
    if (window_ == windows.size()) return false;
    at_s_ = std::max(at_s_, windows[window_].start_s);
    return true;
  }

  const RateClient* client_;
  double scale_, at_s_;
  size_t window_ = 0;
  bool first_ = true;
  Prng random_;
};

struct ServegenChoice {
  double begin_s = 0;
  double scale = 1;  // of every rate
  std::vector<RateClient> clients;
};

double end_of(const std::vector<RateClient>& clients) {
  double end_s = 0;
  for (const RateClient& client : clients) end_s = std::max(end_s, client.windows.back().start_s + kWindowSeconds);
  return end_s;
}

// Who sends, from when on, and how much more than the file says.
Result<ServegenChoice> choose(const ArrivalOptions& options, const WorkloadSpec& spec,
                              std::vector<RateClient> clients) {
  ServegenChoice choice{.scale = options.rate_scale};
  double wanted = 0;
  if (!spec.numbers.empty()) {
    TRY_ASSIGN(wanted, spec_number(kWhat, spec, 0, "RPS", 1e-6, 1e6));
  }
  const double file_end_s = end_of(clients);
  if (spec.numbers.size() > 2) {
    TRY_ASSIGN(choice.begin_s, spec_number(kWhat, spec, 2, "START", 0, file_end_s - 1));
  }
  double seconds = options.seconds > 0 ? options.seconds : file_end_s - choice.begin_s;
  if (options.seconds == 0 && wanted > 0) seconds = options.count / (wanted * options.rate_scale);
  const double end_s = choice.begin_s + seconds;
  if (end_s > file_end_s)
    return wrong_spec(kWhat, spec,
                      "the file ends at " + number_text(file_end_s) + " seconds, before the workload does at " +
                          number_text(end_s) + ". Begin earlier or ask for less.");
  std::erase_if(clients, [&](const RateClient& one) { return one.requests(choice.begin_s, end_s) == 0; });
  std::stable_sort(clients.begin(), clients.end(), [&](const RateClient& a, const RateClient& b) {
    return a.requests(choice.begin_s, end_s) > b.requests(choice.begin_s, end_s);
  });
  if (spec.numbers.size() > 1) {
    TRY_ASSIGN(const int64_t count, spec_count(kWhat, spec, 1, "CLIENTS", 1, kClientMax));
    if (count > static_cast<int64_t>(clients.size()))
      return wrong_spec(kWhat, spec, "only " + std::to_string(clients.size()) + " clients send requests in that time.");
    clients.resize(static_cast<size_t>(count));
  }
  double requests = 0;
  for (const RateClient& client : clients) requests += client.requests(choice.begin_s, end_s);
  if (requests == 0) return wrong_spec(kWhat, spec, "no client sends requests in that time.");
  if (wanted > 0) choice.scale = wanted * options.rate_scale * seconds / requests;
  choice.clients = std::move(clients);
  return choice;
}

}  // namespace

Result<std::vector<WorkloadArrival>> make_servegen_arrivals(const ArrivalOptions& options, const WorkloadSpec& spec) {
  if (spec.file.empty())
    return wrong_spec(kWhat, spec, "no file is named. Write servegen[:RPS[:CLIENTS[:START]]]:FILE.");
  if (options.seconds == 0 && options.count == 0)
    return wrong_spec(kWhat, spec, "state the seconds or the count: the file's requests are too many.");
  TRY_ASSIGN(std::vector<RateClient> clients, read_clients(spec.file));
  TRY_ASSIGN(const ServegenChoice choice, choose(options, spec, std::move(clients)));
  std::vector<ClientWalk> walks;
  using Due = std::pair<double, size_t>;  // time, index into `walks`
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  for (const RateClient& client : choice.clients) {
    const std::string stream = "arrivals of client " + std::to_string(client.id);
    walks.emplace_back(client, choice.begin_s, choice.scale, stream_seed(options.seed, stream));
    if (const auto at_s = walks.back().next()) due.emplace(*at_s, walks.size() - 1);
  }
  std::vector<WorkloadArrival> arrivals;
  while (!due.empty() && (options.count == 0 || static_cast<int64_t>(arrivals.size()) < options.count)) {
    const auto [at_s, index] = due.top();
    due.pop();
    const double passed_s = at_s - choice.begin_s;
    if (options.seconds > 0 && passed_s >= options.seconds) break;
    if (passed_s > static_cast<double>(kWorkloadSecondsMax))
      return wrong_spec(kWhat, spec, "the requests last longer than a workload may. Ask for fewer.");
    if (static_cast<int64_t>(arrivals.size()) == kWorkloadLinesMax)
      return wrong_spec(kWhat, spec,
                        "these are more than " + std::to_string(kWorkloadLinesMax) +
                            " requests. Ask for fewer seconds or a lower RPS.");
    arrivals.push_back({static_cast<int64_t>(passed_s * 1e9), walks[index].client(), at_s});
    if (const auto next_s = walks[index].next()) due.emplace(*next_s, index);
  }
  return arrivals;
}

}  // namespace loralei
