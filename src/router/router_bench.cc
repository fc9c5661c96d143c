// SPDX-License-Identifier: Apache-2.0
// What a router adds: streams of a replica that says the time in every event, read
// directly and through `loralei route`, in turns.
//
//   router_bench replica PORT                     a replica, until it is ended
//   router_bench load REPLICA_PORT ROUTER_PORT [streams] [seconds] [rounds]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "http/server.h"
#include "http/upstream.h"
#include "wire/replica_report.h"

namespace {

using namespace loralei;

constexpr int64_t kTokenNs = 40'000'000;  // between two events of a stream
constexpr int kTokens = 50;
constexpr int64_t kTickNs = 1'000'000;

class NoLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view) override {}
};

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
void sleep_ns(int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

// The first event at once, each with when it was sent.
class Replica final : public HttpHandler {
 public:
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    if (request.path == "/v1/replica") {
      ReplicaReport report;
      report.boot = "bench", report.cursor = 1, report.models = {"base"}, report.sequences_max = 1 << 20;
      writer->respond(200, {{"Content-Type", "application/json"}}, replica_report_body(report));
      return;
    }
    writer->start_stream(200, {{"Content-Type", "text/event-stream"}});
    Stream stream{.writer = std::move(writer), .next_ns = now_ns()};
    say(stream);
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::move(stream));
  }
  [[noreturn]] void run() {
    for (;; sleep_ns(kTickNs)) {
      const std::lock_guard lock(mutex_);
      const int64_t now = now_ns();
      for (Stream& stream : streams_) {
        if (stream.next_ns <= now) say(stream);
      }
      std::erase_if(streams_, [](const Stream& stream) { return stream.said >= kTokens; });
    }
  }

 private:
  struct Stream {
    std::shared_ptr<ResponseWriter> writer;
    int64_t next_ns = 0;
    int said = 0;
  };
  static void say(Stream& stream) {
    const std::string text(160, 'x');  // as long as a chunk of a chat
    if (!stream.writer->write("data: {\"t\":" + std::to_string(now_ns()) + ",\"x\":\"" + text + "\"}\n\n"))
      stream.said = kTokens;
    stream.next_ns += kTokenNs;
    if (++stream.said >= kTokens) stream.writer->finish();
  }
  std::mutex mutex_;
  std::vector<Stream> streams_;
};

struct Seen {
  std::vector<double> first_ms, event_ms;
  int64_t failures = 0;
};

// Keeps so many streams open for a while.
class Load {
 public:
  Load(Upstream& upstream, int port, int streams, double seconds) : upstream_(upstream), address_{"127.0.0.1", port} {
    end_ns_ = now_ns() + static_cast<int64_t>(seconds * 1e9);
    for (int i = 0; i < streams; ++i) {
      begin();
      sleep_ns(kTokenNs * kTokens / streams);  // not all at once
    }
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return open_ == 0; });
  }
  Seen seen;

 private:
  class Reader final : public UpstreamListener {
   public:
    explicit Reader(Load& load) : load_(load), begin_ns_(now_ns()) {}
    void on_head(int status, const HttpHeaders&) override { good_ = status == 200; }
    bool on_body(std::string_view piece) override {
      const int64_t now = now_ns();
      for (size_t at = piece.find("{\"t\":"); at != std::string_view::npos; at = piece.find("{\"t\":", at + 1)) {
        int64_t sent = now;
        std::from_chars(piece.data() + at + 5, piece.data() + piece.size(), sent);
        load_.note(events_++ == 0 ? static_cast<double>(now - begin_ns_) * 1e-6 : -1,
                   static_cast<double>(now - sent) * 1e-6);
      }
      return true;
    }
    void on_end() override { load_.end(good_ && events_ == kTokens); }
    void on_failure(const UpstreamFailure&) override { load_.end(false); }

   private:
    Load& load_;
    const int64_t begin_ns_;
    int events_ = 0;
    bool good_ = false;
  };
  void begin() {
    {
      const std::lock_guard lock(mutex_);
      ++open_;
    }
    UpstreamRequest request{.method = "POST", .target = "/v1/chat/completions"};
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body_;
    upstream_.call(address_, std::move(request), std::make_shared<Reader>(*this));
  }
  void note(double first_ms, double event_ms) {
    const std::lock_guard lock(mutex_);
    if (first_ms >= 0) seen.first_ms.push_back(first_ms);
    seen.event_ms.push_back(event_ms);
  }
  void end(bool good) {
    const bool again = now_ns() < end_ns_;
    if (again) begin();
    const std::lock_guard lock(mutex_);
    seen.failures += good ? 0 : 1;
    if (--open_ == 0) ended_.notify_all();
  }
  Upstream& upstream_;
  const UpstreamAddress address_;
  const std::shared_ptr<const std::string> body_ = std::make_shared<const std::string>(
      R"({"model": "base", "stream": true, "messages": [{"role": "user", "content": ")" + std::string(1000, 'a') +
      "\"}]}");
  int64_t end_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  int64_t open_ = 0;
};

double at(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

int run_load(int direct, int routed, int streams, double seconds, int rounds) {
  NoLog log;
  UpstreamOptions options;
  options.max_idle_per_address = streams;
  auto upstream = Upstream::start(options, log);
  if (!upstream.ok()) return std::fprintf(stderr, "%s\n", upstream.error().message.c_str()), 1;
  std::printf("%d streams, an event each %lld ms; milliseconds\n", streams,
              static_cast<long long>(kTokenNs / 1'000'000));
  for (int round = 0; round < rounds; ++round) {
    double first[2][2], event[2][2];
    for (int through = 0; through < 2; ++through) {
      Load load(**upstream, through == 0 ? direct : routed, streams, seconds);
      first[through][0] = at(load.seen.first_ms, 0.5), first[through][1] = at(load.seen.first_ms, 0.99);
      event[through][0] = at(load.seen.event_ms, 0.5), event[through][1] = at(load.seen.event_ms, 0.99);
      std::printf("%s: first event P50 %.3f P99 %.3f, of an event P50 %.3f P99 %.3f; %zu requests, %lld failed\n",
                  through == 0 ? "direct " : "routed ", first[through][0], first[through][1], event[through][0],
                  event[through][1], load.seen.first_ms.size(), static_cast<long long>(load.seen.failures));
    }
    std::printf("added:   first event P50 %.3f P99 %.3f (asked: 1, 5), of an event P50 %.3f P99 %.3f\n",
                first[1][0] - first[0][0], first[1][1] - first[0][1], event[1][0] - event[0][0],
                event[1][1] - event[0][1]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  if (argc >= 3 && std::strcmp(argv[1], "replica") == 0) {
    NoLog log;
    Replica replica;
    HttpServerOptions options;
    options.port = number(2, 0);
    options.threads = 1;
    options.max_connections = 4096;
    auto server = HttpServer::start(options, replica, log);
    if (!server.ok()) return std::fprintf(stderr, "%s\n", server.error().message.c_str()), 1;
    replica.run();
  }
  if (argc >= 4 && std::strcmp(argv[1], "load") == 0)
    return run_load(number(2, 0), number(3, 0), number(4, 500), number(5, 8), number(6, 3));
  std::fprintf(stderr,
               "router_bench replica PORT\nrouter_bench load REPLICA_PORT ROUTER_PORT [streams] [seconds] "
               "[rounds]\n");
  return 2;
}
