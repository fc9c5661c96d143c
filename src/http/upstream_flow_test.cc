// SPDX-License-Identifier: Apache-2.0
// Listeners that rest, calls that are cancelled, and the end of it all.
#include <random>

#include "http/upstream_test_util.h"

namespace loralei {
namespace {

constexpr size_t kLargeBytes = 100'000'000;

char byte_at(size_t at) { return static_cast<char>('a' + at * 7 % 26); }

// Sends a large answer, as much as is taken.
class LargeAnswer {
 public:
  LargeAnswer(RawPeer peer, bool chunked)
      : peer_(std::move(peer)), thread_([this, chunked] { chunked ? send_chunks() : send_all(); }) {}
  ~LargeAnswer() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  size_t sent_bytes() const { return sent_bytes_; }

 private:
  void send_all() {
    peer_.send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(kLargeBytes) + "\r\n\r\n");
    std::string piece;
    for (size_t at = 0; at < kLargeBytes; at += piece.size()) {
      fill(piece, at, 50'000);
      if (!peer_.send(piece)) return;
      sent_bytes_ += piece.size();
    }
  }
  void send_chunks() {
    peer_.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    std::string piece;
    for (size_t at = 0, i = 0; at < kLargeBytes; at += piece.size(), ++i) {
      fill(piece, at, std::min<size_t>(kLargeBytes - at, 1 + i * 977 % 100'000));
      char length[20];
      std::snprintf(length, sizeof length, "%zx\r\n", piece.size());
      if (!peer_.send(length + piece + "\r\n")) return;
      sent_bytes_ += piece.size();
    }
    peer_.send("0\r\n\r\n");
  }
  static void fill(std::string& piece, size_t at, size_t bytes) {
    piece.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) piece[i] = byte_at(at + i);
  }
  RawPeer peer_;
  std::atomic<size_t> sent_bytes_{0};
  std::thread thread_;
};

// Rests behind every piece, as long as it is told to.
class Resting final : public UpstreamListener {
 public:
  void on_head(int, const HttpHeaders&) override {}
  bool on_body(std::string_view piece) override {
    for (size_t i = 0; i < piece.size(); ++i) right = right && piece[i] == byte_at(bytes + i);
    largest = std::max(largest, piece.size());
    bytes += piece.size();
    const bool rests = rest;
    pieces.add();
    return !rests;
  }
  void on_end() override { ends.add(); }
  void on_failure(const UpstreamFailure& failure) override {
    ADD_FAILURE() << failure.error.message;
    ends.add();
  }
  std::atomic<bool> rest{true};
  Counter pieces, ends;
  // Of the calls' thread, and while it rests the test's.
  size_t bytes = 0, largest = 0;
  bool right = true;
};

TEST_F(UpstreamTest, WhileAListenerRestsNothingIsReadBeyondABuffer) {
  // Of both sides' systems, at most.
  constexpr size_t kSystemBytes = 24'000'000;
  for (const bool chunked : {false, true}) {
    SCOPED_TRACE(chunked);
    RawServer raw;
    const auto listener = std::make_shared<Resting>();
    const auto resting = upstream->call(raw.address(), get(), listener);
    RawPeer peer = raw.accept();
    peer.request();
    LargeAnswer answer(std::move(peer), chunked);
    for (int i = 1; i <= 50; ++i) {
      ASSERT_TRUE(listener->pieces.wait_for(i));
      EXPECT_EQ(listener->pieces.value(), i);
      EXPECT_LE(listener->bytes, static_cast<size_t>(i) * kUpstreamBufferBytes);
      EXPECT_LE(answer.sent_bytes(), listener->bytes + kSystemBytes);
      // Calls meanwhile are not held up.
      if (i % 10 == 0) {
        RawServer other;
        const auto told = call(other.address(), get());
        RawPeer others = other.accept();
        others.request();
        others.answer("ok");
        EXPECT_TRUE(told->wait());
        EXPECT_EQ(told->body, "ok");
      }
      EXPECT_EQ(listener->pieces.value(), i) << "told while it rests";
      if (i == 50) listener->rest = false;
      resting->resume();
    }
    ASSERT_TRUE(listener->ends.wait_for(1));
    EXPECT_EQ(listener->bytes, kLargeBytes);
    EXPECT_LE(listener->largest, kUpstreamBufferBytes);
    EXPECT_TRUE(listener->right);
    answer.join();
  }
}

TEST_F(UpstreamTest, AListenerThatRestsAtTheLastPieceHearsOfTheEndBehindIt) {
  for (const char* answer : {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                             "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"}) {
    RawServer raw;
    auto told = std::make_shared<Told>();
    told->at_piece = [](std::string_view) { return false; };
    const auto rests = upstream->call(raw.address(), get(), told);
    RawPeer peer = raw.accept();
    peer.request();
    peer.send(answer);
    peer.close();
    ASSERT_TRUE(told->pieces.wait_for(1));
    // What is asked of the same thread behind it is answered first.
    RawServer other;
    const auto second = call(other.address(), get());
    RawPeer others = other.accept();
    others.request();
    others.answer();
    ASSERT_TRUE(second->wait());
    EXPECT_EQ(told->ends.value(), 0);
    rests->resume();
    ASSERT_TRUE(told->wait());
    EXPECT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_EQ(told->body, "ok");
  }
}

TEST_F(UpstreamTest, AResumeBeforeTheListenerReturnsCounts) {
  RawServer raw;
  auto told = std::make_shared<Told>();
  Counter ready;
  std::shared_ptr<UpstreamCall> running;
  told->at_piece = [&](std::string_view) {
    EXPECT_TRUE(ready.wait_for(1));
    running->resume();
    return false;
  };
  running = upstream->call(raw.address(), get(), told);
  ready.add();
  running->resume();  // and one that nobody waits for does nothing
  RawPeer peer = raw.accept();
  peer.request();
  peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n");
  ASSERT_TRUE(told->pieces.wait_for(2));
  peer.send("1\r\nc\r\n0\r\n\r\n");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "abc");
}

// ---- cancel ----

TEST_F(UpstreamTest, CancelClosesAtEveryStage) {
  RawServer full("127.0.0.1", 0, 0);
  full.fill_queue();
  const auto gone = [&](const std::shared_ptr<UpstreamCall>& running, std::weak_ptr<Told> told) {
    running->cancel();
    running->cancel();
    EXPECT_TRUE(nothing_is_open());
    EXPECT_TRUE(soon([&] { return told.expired(); })) << "the listener is let go of";
    running->resume();
  };
  std::weak_ptr<Told> told = call(full.address(), get());
  gone(last_call, told);  // while connecting
  RawServer raw;
  told = call(raw.address(), post(std::string(64'000'000, 'b')));
  RawPeer peer = raw.accept();
  ASSERT_TRUE(peer.readable());
  gone(last_call, told);  // while sending
  EXPECT_TRUE(peer.sees_the_end());
  told = call(raw.address(), get());
  peer = raw.accept();
  peer.request();
  gone(last_call, told);  // before the head
  EXPECT_TRUE(peer.sees_the_end());
  for (const bool rests : {false, true}) {
    auto listener = std::make_shared<Told>();
    listener->at_piece = [rests](std::string_view) { return !rests; };
    const auto running = upstream->call(raw.address(), get(), listener);
    peer = raw.accept();
    peer.request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin");
    ASSERT_TRUE(listener->pieces.wait_for(1));
    told = listener;
    listener.reset();
    gone(running, told);  // in the body
    EXPECT_TRUE(peer.sees_the_end());
  }
}

TEST_F(UpstreamTest, NothingIsToldBehindACancelFromWithin) {
  for (const bool at_head : {true, false}) {
    RawServer raw;
    auto told = std::make_shared<Told>();
    std::shared_ptr<UpstreamCall> running;
    Counter ready;
    const auto cancel = [&] {
      EXPECT_TRUE(ready.wait_for(1));
      running->cancel();
    };
    if (at_head) told->at_head = cancel;
    told->at_piece = [&, at_head](std::string_view) {
      EXPECT_FALSE(at_head);
      cancel();
      return true;
    };
    running = upstream->call(raw.address(), get(), told);
    ready.add();
    RawPeer peer = raw.accept();
    peer.request();
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
    EXPECT_TRUE(peer.sees_the_end());
    EXPECT_TRUE(nothing_is_open());
    EXPECT_EQ(told->pieces.value(), at_head ? 0 : 1);
    EXPECT_EQ(told->ends.value(), 0);
  }
}

// A listener that holds its call, as those of a proxy do.
TEST_F(UpstreamTest, AListenerAndItsCallMayHoldEachOther) {
  start();
  struct Holder {
    std::shared_ptr<UpstreamCall> running;
  };
  auto holder = std::make_shared<Holder>();
  const std::weak_ptr<Holder> seen = holder;
  auto told = std::make_shared<Told>();
  told->at_head = [holder] {};
  const std::weak_ptr<Told> told_seen = told;
  holder->running = upstream->call(served(), post("x"), told);
  EXPECT_TRUE(told->wait());
  const std::weak_ptr<UpstreamCall> call_seen = holder->running;
  holder.reset();
  told.reset();
  EXPECT_TRUE(soon([&] { return told_seen.expired() && seen.expired() && call_seen.expired(); }));
}

// ---- many at once ----

// Told of calls that end in any way; checks the order of what it is told.
class AnyWay final : public UpstreamListener {
 public:
  AnyWay(std::mt19937& random, std::atomic<int>& alive, std::atomic<int>& ended)
      : cancel_at_(static_cast<int>(random() % 40)),
        rest_every_(static_cast<int>(1 + random() % 4)),
        alive_(alive),
        ended_(ended) {
    ++alive_;
  }
  ~AnyWay() override { --alive_; }
  void on_head(int, const HttpHeaders&) override {
    told();
    EXPECT_FALSE(head_.exchange(true));
  }
  bool on_body(std::string_view) override {
    told();
    EXPECT_TRUE(head_);
    if (++pieces_ % rest_every_ != 0) return true;
    std::lock_guard lock(mutex_);
    if (running_) running_->resume();
    return running_ == nullptr;
  }
  void on_end() override { end(); }
  void on_failure(const UpstreamFailure& failure) override {
    EXPECT_FALSE(failure.error.message.empty());
    end();
  }
  void set_call(const std::shared_ptr<UpstreamCall>& running) {
    std::lock_guard lock(mutex_);
    running_ = running;
  }

 private:
  void told() {
    EXPECT_FALSE(done_);
    if (++steps_ != cancel_at_) return;
    std::lock_guard lock(mutex_);
    if (running_) running_->cancel();
  }
  void end() {
    EXPECT_FALSE(done_.exchange(true));
    ++ended_;
    std::lock_guard lock(mutex_);
    running_.reset();
  }
  const int cancel_at_, rest_every_;
  std::atomic<int>& alive_;
  std::atomic<int>& ended_;
  std::atomic<bool> head_{false}, done_{false};
  int pieces_ = 0, steps_ = 0;
  std::mutex mutex_;
  std::shared_ptr<UpstreamCall> running_;
};

// Answers by what the path says, and by chance.
class Moody final : public HttpHandler {
 public:
  explicit Moody(unsigned seed) : random_(seed) {}
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    unsigned mood = 0;
    size_t bytes = 0;
    {
      std::lock_guard lock(mutex_);
      mood = random_() % 8;
      bytes = random_() % 200'000;
    }
    if (mood == 0) return writer->respond(200, {{"Connection", "close"}}, ""), void();
    if (mood == 1) return;  // 500
    if (mood <= 3) return writer->respond(200, {}, std::string(bytes, 'x')), void();
    writer->start_stream(200, {});
    for (size_t at = 0; at < bytes; at += bytes / 7 + 1) writer->write(std::string(bytes / 7 + 1, 'y'));
    if (mood != 4) writer->finish();  // else it breaks off
  }

 private:
  std::mutex mutex_;
  std::mt19937 random_;
};

TEST_F(UpstreamTest, CallsThatAreCancelledAtAnyMoment) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  upstream_options.threads = 2;
  upstream_options.max_idle_per_address = 8;
  start_upstream();
  Moody moody(seed);
  auto started = HttpServer::start(options, moody, log);
  ASSERT_TRUE(started.ok());
  server = std::move(started).value();
  RawServer silent, closed;
  closed.close();
  std::atomic<int> alive{0}, ended{0};
  int cancelled = 0;
  std::vector<std::shared_ptr<UpstreamCall>> running;
  for (int i = 0; i < 2000; ++i) {
    const unsigned kind = random() % 20;
    const UpstreamAddress address = kind == 0 ? silent.address() : kind == 1 ? closed.address() : served();
    auto listener = std::make_shared<AnyWay>(random, alive, ended);
    UpstreamRequest request = random() % 2 == 0 ? get() : post(std::string(random() % 100'000, 'b'), "/");
    running.push_back(upstream->call(address, std::move(request), listener));
    if (random() % 2 == 0) listener->set_call(running.back());
    if (random() % 4 == 0) {
      ++cancelled;
      running[random() % running.size()]->cancel();
    }
    if (random() % 4 == 0) running[random() % running.size()]->resume();
    while (upstream->stats().calls > 200) std::this_thread::yield();
    if (kind == 0) running.back()->cancel();
  }
  // Listeners that ended hold no call; those whose call was cancelled are broken up here.
  ASSERT_TRUE(soon([&] { return upstream->stats().calls == 0; })) << upstream->stats().calls;
  const UpstreamStats stats = upstream->stats();
  EXPECT_EQ(stats.connections, stats.idle);
  EXPECT_GT(stats.reused_total, 100);
  EXPECT_GT(ended, 500);
  EXPECT_GT(cancelled, 100);
  running.clear();
  upstream->stop();
  EXPECT_EQ(upstream->stats().connections, 0);
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
  server.reset();
}

// ---- the end ----

TEST_F(UpstreamTest, StopEndsEveryCall) {
  RawServer raw, full("127.0.0.1", 0, 0);
  full.fill_queue();
  RawPeer idle = kept_connection(raw);
  auto resting = std::make_shared<Told>();
  resting->at_piece = [](std::string_view) { return false; };
  const auto rests = upstream->call(raw.address(), get(), resting);
  idle.request();
  idle.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin");
  ASSERT_TRUE(resting->pieces.wait_for(1));
  const auto connecting = call(full.address(), get());
  const auto waiting = call(raw.address(), get());
  RawPeer peer = raw.accept();
  peer.request();
  const auto on_its_way = call(raw.address(), get());
  upstream->stop();
  for (const auto& told : {resting, connecting, waiting, on_its_way}) {
    ASSERT_EQ(told->ends.value(), 1);
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->error.code, ErrorCode::kCancelled) << told->failure->error.message;
  }
  EXPECT_EQ(resting->failure->stage, UpstreamStage::kBody);
  EXPECT_EQ(connecting->failure->stage, UpstreamStage::kConnect);
  EXPECT_EQ(upstream->stats().connections, 0);
  EXPECT_EQ(upstream->stats().calls, 0);
  EXPECT_TRUE(peer.sees_the_end());
  const auto late = call(raw.address(), get());
  ASSERT_EQ(late->ends.value(), 1) << "told at once";
  EXPECT_EQ(late->failure->error.code, ErrorCode::kCancelled);
  last_call->cancel();
  upstream->stop();
  upstream.reset();
  rests->resume();
  rests->cancel();
}

// No memory for what a listener keeps: its call ends, the others go on.
TEST_F(UpstreamTest, AListenerThatThrowsLosesItsCallAlone) {
  RawServer raw;
  auto told = std::make_shared<Told>();
  told->at_piece = [](std::string_view) -> bool { throw std::bad_alloc(); };
  upstream->call(raw.address(), get(), told);
  RawPeer peer = raw.accept();
  peer.request();
  peer.answer("x");
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kOverloaded);
  EXPECT_TRUE(nothing_is_open());
  (void)kept_connection(raw);
}

TEST_F(UpstreamTest, AThreadAtWorkIsSeen) {
  SteadyClock clock;
  Heartbeats beats(clock);
  upstream_options.beats = &beats;
  start_upstream();
  RawServer raw;
  auto told = std::make_shared<Told>();
  told->at_head = [&] {
    const auto silences = beats.silences();
    ASSERT_EQ(silences.size(), 1U);
    EXPECT_EQ(silences[0].who, "http");
  };
  upstream->call(raw.address(), get(), told);
  RawPeer peer = raw.accept();
  peer.request();
  EXPECT_TRUE(soon([&] { return beats.silences().empty(); })) << "it waits";
  peer.answer();
  EXPECT_TRUE(told->wait());
  upstream.reset();
}

}  // namespace
}  // namespace loralei
