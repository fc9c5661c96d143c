// SPDX-License-Identifier: Apache-2.0
#include "bench/trace.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "bench/load_plots.h"
#include "bench/load_rows.h"
#include "bench/server.h"
#include "bench/trace_bodies.h"
#include "http/client.h"
#include "report/merge.h"
#include "sys/process.h"
#include "sys/threads.h"

namespace loralei {
namespace {

using nlohmann::json;

constexpr size_t kThreadsMost = 4096;

Error unavailable(std::string sentence) { return Error{ErrorCode::kUnavailable, std::move(sentence)}; }

// What an event's usage says of the answer, if it says so.
std::optional<int32_t> tokens_used(const json& event) {
  const auto usage = event.find("usage");
  if (usage == event.end() || !usage->is_object()) return std::nullopt;
  const auto tokens = usage->find("completion_tokens");
  if (tokens == usage->end() || !tokens->is_number_unsigned()) return std::nullopt;
  return static_cast<int32_t>(std::min<uint64_t>(tokens->get<uint64_t>(), INT32_MAX));
}

class OpenLoop {
 public:
  OpenLoop(const HttpClientOptions& server, const TraceBodies& bodies, TraceRun& run)
      : server_(server), bodies_(bodies), run_(run) {}

  // Sends every request when it is due, and waits for all answers.
  Status run() {
    start_ns_ = clock_.now_ns();
    Status sent;
    for (size_t index = 0; index < run_.workload.size() && sent.ok(); ++index) {
      const int64_t due_ns = start_ns_ + run_.workload[index].at_ns;
      const int64_t wait_ns = due_ns - clock_.now_ns();
      if (wait_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait_ns));
      run_.late_s = std::max(run_.late_s, static_cast<double>(clock_.now_ns() - due_ns) * 1e-9);
      sent = hand_over(index);
    }
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    return sent;
  }

 private:
  // To a thread that is free, or a new one.
  Status hand_over(size_t index) {
    {
      const std::lock_guard lock(mutex_);
      due_.push_back(index);
      if (due_.size() <= free_) {
        changed_.notify_one();
        return {};
      }
    }
    if (threads_.size() == kThreadsMost)
      return unavailable(std::to_string(kThreadsMost) +
                         " requests are under way; the server is too slow for this workload.");
    TRY_ASSIGN(std::thread thread, start_thread([this] { work(); }));
    threads_.push_back(std::move(thread));
    return {};
  }

  void work() {
    HttpClient client(server_);
    GapCounts gaps;
    std::unique_lock lock(mutex_);
    for (;;) {
      ++free_;
      changed_.wait(lock, [&] { return over_ || !due_.empty(); });
      --free_;
      if (due_.empty()) break;
      const size_t index = due_.front();
      due_.pop_front();
      lock.unlock();
      std::string failure;
      send(client, index, gaps, failure);
      lock.lock();
      if (!failure.empty() && run_.first_failure.empty()) run_.first_failure = failure;
    }
    run_.gaps.add(gaps);
  }

  void send(HttpClient& client, size_t index, GapCounts& gaps, std::string& failure) {
    ServedRequest& served = run_.served[index];
    SseParser events;
    int64_t last_ns = -1;
    const auto on_event = [&](std::string_view data) {
      const json event = data == "[DONE]" ? json() : json::parse(data, nullptr, false);
      if (!event.is_object()) return true;
      if (const auto error = event.find("error"); error != event.end() && !error->is_null()) failure = error->dump();
      if (const auto tokens = tokens_used(event)) served.tokens = *tokens;
      const auto choices = event.find("choices");
      if (choices == event.end() || !choices->is_array() || choices->empty()) return true;
      const json& choice = choices->front();
      if (!choice.is_object() || !choice.contains("text") || choice["text"] == "") return true;
      const int64_t now_ns = clock_.now_ns() - start_ns_;
      if (served.first_ns < 0) served.first_ns = now_ns;
      if (last_ns >= 0) gaps.add(now_ns - last_ns);
      last_ns = now_ns;
      return true;
    };
    std::string refused;
    const auto response =
        client.post_json("/v1/completions", bodies_.of(run_.workload[index], index), [&](std::string_view bytes) {
          if (bytes.starts_with("{")) refused = std::string(bytes.substr(0, 300));
          return events.feed(bytes, on_event);
        });
    served.end_ns = clock_.now_ns() - start_ns_;
    client.close();  // a kept one may have been closed by the server when the next request is due
    if (!response.ok()) {
      failure = response.error().message;
    } else if (response->status != 200) {
      failure = "the server answered " + std::to_string(response->status) + ": " + refused;
    } else if (served.first_ns < 0 && failure.empty()) {
      failure = "the server sent no text";
    }
    served.failed = !failure.empty();
  }

  const HttpClientOptions& server_;
  const TraceBodies& bodies_;
  TraceRun& run_;
  const SteadyClock clock_;
  int64_t start_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<size_t> due_;
  size_t free_ = 0;  // threads that wait
  bool over_ = false;
  std::vector<std::thread> threads_;
};

// Nobody waits long for /metrics.
HttpClientOptions for_metrics(HttpClientOptions server) {
  constexpr int64_t kPatienceMs = 5'000;
  server.read_timeout_ms = kPatienceMs;
  return server;
}

// Looks at the server's /metrics once a second; where it has none, never again.
class Sampler {
 public:
  Sampler(const HttpClientOptions& server, TraceRun& run)
      : run_(run), client_(for_metrics(server)), thread_([this](const std::stop_token& stop) { work(stop); }) {}
  ~Sampler() {
    thread_.request_stop();
    changed_.notify_all();
  }

 private:
  void work(const std::stop_token& stop) {
    const SteadyClock clock;
    const int64_t start_ns = clock.now_ns();
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const auto response = client_.get("/metrics");
      if (!response.ok() || response->status != 200) return;
      run_.samples.push_back(sample_of(MetricsPage::parse(response->body), clock.now_ns() - start_ns));
      changed_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
    }
  }

  TraceRun& run_;
  HttpClient client_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // the last: ended first
};

// As far as the server says.
MetricsPage metrics_of(const HttpClientOptions& server) {
  HttpClient client(for_metrics(server));
  const auto response = client.get("/metrics");
  return MetricsPage::parse(response.ok() && response->status == 200 ? response->body : "");
}

int64_t other_lengths(const TraceRun& run) {
  int64_t count = 0;
  for (size_t i = 0; i < run.served.size(); ++i)
    count += !run.served[i].failed && run.served[i].tokens != run.workload[i].output_tokens ? 1 : 0;
  return count;
}

}  // namespace

Result<TraceRun> run_trace(const TraceBenchOptions& options, LogSink& log) {
  if (options.url.empty()) return invalid_argument("bench trace needs --url http://HOST:PORT of a running server.");
  if (options.workload.empty())
    return invalid_argument("bench trace needs --workload FILE, as loralei workload makes them.");
  TRY_ASSIGN(const HttpClientOptions server, parse_server_url(options.url));
  TraceRun run;
  TRY_ASSIGN(run.workload, read_workload(options.workload));
  run.served.resize(run.workload.size());
  HttpClient client(server);
  TRY_ASSIGN(const TraceBodies bodies, TraceBodies::create(client, run.workload, options));
  log.log(LogLevel::kInfo, std::to_string(run.workload.size()) + " requests in " +
                               seconds_text(run.workload.empty() ? 0 : run.workload.back().at_ns) + " s");
  const auto counted_before = counters_of(metrics_of(server));
  const double own_s = process_cpu_s();
  const SteadyClock clock;
  const double begin_s = clock.now_s();
  {
    const Sampler sampler(server, run);
    TRY(OpenLoop(server, bodies, run).run());
  }
  run.client_cores = (process_cpu_s() - own_s) / std::max(1e-9, clock.now_s() - begin_s);
  const auto counted = counters_of(metrics_of(server));
  if (counted_before && counted) run.counted = counts_since(*counted, *counted_before);
  return run;
}

Result<ServedMemory> ask_memory(const std::string& url) {
  TRY_ASSIGN(const HttpClientOptions server, parse_server_url(url));
  return memory_of(metrics_of(server));
}

Result<TraceRun> bench_trace(const TraceBenchOptions& options, LogSink& log, BenchReport& report) {
  TRY_ASSIGN(TraceRun run, run_trace(options, log));
  if (!run.first_failure.empty())
    log.log(LogLevel::kWarning, "requests failed, the first of them: " + run.first_failure);
  add_load_rows("trace.", summarise(run.workload, run.served, run.gaps, options.objectives), options.objectives,
                report);
  if (run.counted) add_count_rows("trace.", *run.counted, static_cast<int64_t>(run.workload.size()), report);
  add_load_plots("live", {run.workload, run.served, &run.gaps, run.samples, options.objectives}, report.plots);
  const auto row = [&](const char* name, const char* unit, double value) {
    report.rows.push_back(
        {.name = std::string("trace.") + name, .unit = unit, .value = value, .min = value, .max = value});
  };
  const int64_t others = options.ignore_eos ? other_lengths(run) : 0;
  if (others > 0) {
    log.log(LogLevel::kWarning, std::to_string(others) +
                                    " answers have another number of tokens than the workload wants, or the server "
                                    "does not say how many: tokens and ends are not those of the workload.");
  }
  row("answers_of_other_length", "requests", static_cast<double>(others));
  row("client_cores", "cores", run.client_cores);
  row("sent_late_most_ms", "ms", run.late_s * 1e3);
  return run;
}

void compare_with_simulated(const BenchReport& simulated, BenchReport& report) {
  constexpr std::pair<std::string_view, double> kTargets[] = {
      {"trace.all.first_token.p50_ms", 0.10}, {"trace.all.first_token.p99_ms", 0.25}, {"trace.requests_per_s", 0.03}};
  for (BenchRow& row : report.rows) {
    const auto same = std::find_if(simulated.rows.begin(), simulated.rows.end(),
                                   [&](const BenchRow& other) { return other.name == row.name; });
    if (same == simulated.rows.end()) continue;
    row.peer = same->value;
    for (const auto& [name, most] : kTargets) {
      if (row.name == name && row.ratio())
        report.targets.push_back({row.name + ", live to simulated, less 1", "<=", most, std::abs(*row.ratio() - 1)});
    }
  }
  for (const Chart& chart : simulated.plots) merge_chart(chart, report.plots);
}

}  // namespace loralei
