// SPDX-License-Identifier: Apache-2.0
#include "bench/server.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "http/client.h"
#include "sys/process.h"

namespace loralei {
namespace {

using nlohmann::json;

constexpr int kFirstPlainToken = 259;  // of a llama vocabulary: behind the special tokens and the bytes
constexpr int64_t kReadTimeoutMs = 600'000;
constexpr std::chrono::milliseconds kPause{300};  // until the other server's threads have stopped spinning

Error unavailable(std::string sentence) { return Error{ErrorCode::kUnavailable, std::move(sentence)}; }

enum class Way { kBase, kOne, kMany };

// A request that both servers understand. Greedy, with all weight on one plain
// token: random weights would emit broken text, with which llama-server ends a
// request in an error.
std::string request_body(const ServerBenchOptions& options, Way way, int number, Prng& random) {
  json body;
  std::vector<int> prompt;
  for (int i = 0; i < options.prompt_tokens; ++i)
    prompt.push_back(kFirstPlainToken +
                     static_cast<int>(random.below(static_cast<uint64_t>(options.vocab - kFirstPlainToken))));
  body["prompt"] = prompt;
  body["max_tokens"] = options.new_tokens;
  body["temperature"] = 0;
  body["ignore_eos"] = true;
  body["logit_bias"] = {{std::to_string(kFirstPlainToken + 741), 100}};
  body["stream"] = true;
  body["cache_prompt"] = false;
  if (way != Way::kBase) body["lora"] = {{{"id", way == Way::kOne ? 0 : number % options.adapters}, {"scale", 1.0}}};
  return body.dump();
}

struct Answer {
  Status status;
  double first_s = 0, last_s = 0;
  int pieces = 0;
};

void run_request(HttpClient& client, const std::string& body, const Clock& clock, double start_s, Answer& answer) {
  SseParser events;
  std::string refused;
  const auto on_event = [&](std::string_view data) {
    if (data == "[DONE]") return true;
    const json event = json::parse(data, nullptr, false);
    if (event.is_object() && event.contains("error")) refused = event["error"].dump();
    const auto choices = event.is_object() ? event.find("choices") : event.end();
    if (!event.is_object() || choices == event.end() || !choices->is_array() || choices->empty()) return true;
    if (choices->front().value("text", "").empty()) return true;
    const double now_s = clock.now_s() - start_s;
    if (answer.pieces++ == 0) answer.first_s = now_s;
    answer.last_s = now_s;
    return true;
  };
  auto response = client.post_json("/v1/completions", body, [&](std::string_view bytes) {
    if (bytes.starts_with("{")) refused = std::string(bytes.substr(0, 300));
    return events.feed(bytes, on_event);
  });
  if (!response.ok()) {
    answer.status = std::move(response).error();
  } else if (response->status != 200 || !refused.empty()) {
    answer.status = unavailable("The server answered " + std::to_string(response->status) + ": " + refused);
  } else if (answer.pieces == 0) {
    answer.status = unavailable("The server sent no token.");
  }
}

struct Batch {
  double tok_s = 0;         // generated tokens over the time until the last is there, prompts included
  double first_s = 0;       // median over the requests
  double first_last_s = 0;  // of the request that waited longest
  double client_cores = 0;
};

Result<Batch> run_batch(const ServerBenchOptions& options, const HttpClientOptions& server, Way way, uint64_t seed) {
  const SteadyClock clock;
  Prng random(seed);
  std::vector<std::string> bodies;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < options.requests; ++i) {
    bodies.push_back(request_body(options, way, i, random));
    clients.push_back(std::make_unique<HttpClient>(server));
  }
  std::vector<Answer> answers(static_cast<size_t>(options.requests));
  std::latch go(options.requests + 1);
  double start_s = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] {
      go.arrive_and_wait();
      run_request(*clients[i], bodies[i], clock, start_s, answers[i]);
    });
  }
  const double own_s = process_cpu_s();
  start_s = clock.now_s();
  go.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  const double wall_s = clock.now_s() - start_s;
  Batch batch;
  std::vector<double> first_s;
  double last_s = 0;
  for (const Answer& answer : answers) {
    TRY(answer.status);
    first_s.push_back(answer.first_s);
    last_s = std::max(last_s, answer.last_s);
  }
  batch.tok_s = options.requests * options.new_tokens / last_s;
  const BenchRow first = summarise("", "", first_s);
  batch.first_s = first.value;
  batch.first_last_s = first.max;
  batch.client_cores = (process_cpu_s() - own_s) / wall_s;
  return batch;
}

struct WayFigures {
  std::vector<double> tok_s, first_s, first_last_s;
  void add(const Batch& batch) {
    tok_s.push_back(batch.tok_s);
    first_s.push_back(batch.first_s);
    first_last_s.push_back(batch.first_last_s);
  }
};

void add_row(BenchReport& report, const std::string& name, const char* unit, const std::vector<double>& ours,
             const std::vector<double>& peer) {
  BenchRow row = summarise(name, unit, ours);
  if (!peer.empty()) row.peer = summarise("", "", peer).value;
  report.rows.push_back(std::move(row));
}

}  // namespace

Result<HttpClientOptions> parse_server_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  HttpClientOptions options;
  options.read_timeout_ms = kReadTimeoutMs;
  const size_t colon = url.rfind(':');
  if (url.starts_with(kScheme) && colon != std::string::npos && colon > kScheme.size()) {
    options.host = url.substr(kScheme.size(), colon - kScheme.size());
    const auto [end, error] = std::from_chars(url.data() + colon + 1, url.data() + url.size(), options.port);
    if (error == std::errc{} && end == url.data() + url.size() && options.port > 0 && options.port < 65536)
      return options;
  }
  return invalid_argument("'" + url + "' is not a server's address; write http://HOST:PORT.");
}

Status bench_server(const ServerBenchOptions& options, LogSink& log, BenchReport& report) {
  std::vector<HttpClientOptions> servers;
  for (const std::string& url : {options.url, options.peer_url}) {
    if (url.empty()) continue;
    TRY_ASSIGN(HttpClientOptions server, parse_server_url(url));
    servers.push_back(std::move(server));
  }
  if (options.url.empty()) return invalid_argument("bench server needs --url http://HOST:PORT.");
  if (servers.size() > 1 && options.adapters > 0) {
    // llama-server applies every adapter to a request without a "lora" field until its
    // own list is emptied.
    HttpClient peer(servers[1]);
    TRY_ASSIGN(const HttpResponse response, peer.post_json("/lora-adapters", "[]"));
    if (response.status != 200)
      return unavailable("The peer answered POST /lora-adapters with " + std::to_string(response.status) + ": " +
                         response.body.substr(0, 200));
  }
  struct Case {
    Way way;
    const char* name;
  };
  std::vector<Case> cases = {{Way::kBase, "base"}};
  if (options.adapters > 0) cases.insert(cases.end(), {{Way::kOne, "one"}, {Way::kMany, "many"}});
  std::vector<std::vector<WayFigures>> figures(cases.size(), std::vector<WayFigures>(servers.size()));
  std::vector<double> client_cores;
  for (int round = 0; round <= options.rounds; ++round) {  // the first warms up
    for (size_t i = 0; i < cases.size(); ++i) {
      for (size_t turn = 0; turn < servers.size(); ++turn) {
        const size_t who = (turn + static_cast<size_t>(round)) % servers.size();  // who goes first alternates
        const auto seed = static_cast<uint64_t>(round) * 100 + i;
        std::this_thread::sleep_for(kPause);
        TRY_ASSIGN(const Batch batch, run_batch(options, servers[who], cases[i].way, seed));
        if (round == 0) continue;
        figures[i][who].add(batch);
        client_cores.push_back(batch.client_cores);
      }
    }
    log.log(LogLevel::kInfo, "round " + std::to_string(round) + " of " + std::to_string(options.rounds));
  }
  const std::vector<double> none;
  for (size_t i = 0; i < cases.size(); ++i) {
    const WayFigures& ours = figures[i][0];
    const WayFigures* peer = servers.size() > 1 ? &figures[i][1] : nullptr;
    const std::string prefix =
        "server." + options.label + ".n" + std::to_string(options.requests) + "." + cases[i].name + ".";
    add_row(report, prefix + "tok_s", "tok/s", ours.tok_s, peer ? peer->tok_s : none);
    add_row(report, prefix + "first_token_s", "s", ours.first_s, peer ? peer->first_s : none);
    add_row(report, prefix + "last_first_token_s", "s", ours.first_last_s, peer ? peer->first_last_s : none);
  }
  report.rows.push_back(summarise("server.client_cores", "cores", client_cores));
  return {};
}

}  // namespace loralei
