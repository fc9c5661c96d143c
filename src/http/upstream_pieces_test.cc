// SPDX-License-Identifier: Apache-2.0
// Bodies of requests that come in pieces.
#include <deque>
#include <random>

#include "http/upstream_test_util.h"

namespace loralei {
namespace {

// Gives what the test put in, when it is asked for it.
class Pieces final : public UpstreamBody {
 public:
  explicit Pieces(std::optional<uint64_t> bytes = std::nullopt) : bytes_(bytes) {}

  std::optional<uint64_t> bytes() const override { return bytes_; }
  void next(Told told) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(told_) << "asked twice";
      told_ = std::move(told);
    }
    give();
    asked.add();
  }
  void put(std::string piece) {
    {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(std::move(piece));
    }
    give();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    give();
  }

  Counter asked;

 private:
  void give() {
    Told told;
    std::optional<std::string> piece;
    {
      const std::lock_guard lock(mutex_);
      if (!told_ || (pieces_.empty() && !ended_)) return;
      told = std::exchange(told_, nullptr);
      if (!pieces_.empty()) {
        piece = std::move(pieces_.front());
        pieces_.pop_front();
      }
    }
    told(std::move(piece));
  }
  const std::optional<uint64_t> bytes_;
  std::mutex mutex_;
  std::deque<std::string> pieces_;
  bool ended_ = false;
  Told told_;
};

// As much as is asked for, at once.
class Endless final : public UpstreamBody {
 public:
  static constexpr size_t kPiece = 50'000;
  explicit Endless(size_t bytes) : bytes_(bytes) {}
  std::optional<uint64_t> bytes() const override { return bytes_; }
  void next(Told told) override {
    std::string piece(std::min(kPiece, bytes_ - given), ' ');
    for (size_t i = 0; i < piece.size(); ++i) piece[i] = byte_at(given + i);
    given += piece.size();
    told(std::move(piece));
  }
  static char byte_at(size_t at) { return static_cast<char>('a' + at * 7 % 26); }
  std::atomic<size_t> given{0};

 private:
  const size_t bytes_;
};

std::string text_of(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += std::to_string(text.size()) + ",";
  text.resize(bytes);
  return text;
}

class UpstreamPiecesTest : public UpstreamTest {
 protected:
  static UpstreamRequest with(std::shared_ptr<UpstreamBody> pieces, int64_t continue_ms = 0) {
    UpstreamRequest request{.method = "POST", .target = "/echo"};
    request.pieces = std::move(pieces);
    request.continue_ms = continue_ms;
    return request;
  }
  // What `peer` has received when `end` has come.
  static std::string read_to(RawPeer& peer, const std::string& end) {
    std::string bytes;
    char chunk[4096];
    while (!bytes.ends_with(end) && peer.readable()) {
      const ssize_t n = ::recv(peer.fd(), chunk, sizeof chunk, 0);
      if (n <= 0) break;
      bytes.append(chunk, static_cast<size_t>(n));
    }
    return bytes;
  }
  // Whatever was asked of the thread of calls before has been done behind this.
  void let_all_run() {
    RawServer other;
    const auto told = call(other.address(), get());
    RawPeer peer = other.accept();
    peer.request();
    peer.answer();
    ASSERT_TRUE(told->wait());
  }
};

TEST_F(UpstreamPiecesTest, ArriveAsOneBody) {
  start();
  for (const size_t bytes : {1U, 2U, 65'536U, 3'000'000U}) {
    for (const bool known : {true, false}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes, known " << known);
      const std::string text = text_of(bytes);
      const auto pieces = std::make_shared<Pieces>(known ? std::optional<uint64_t>(bytes) : std::nullopt);
      const auto told = call(served(), with(pieces));
      for (size_t at = 0, i = 1; at < bytes; at += i * 997 % 70'000, ++i)
        pieces->put(text.substr(at, i * 997 % 70'000));
      pieces->end();
      ASSERT_TRUE(told->wait());
      EXPECT_FALSE(told->failure) << told->failure->error.message;
      EXPECT_EQ(told->status, 200);
      EXPECT_TRUE(told->body == text);
    }
  }
  EXPECT_EQ(upstream->stats().idle, 8) << "each had a connection of its own, which is kept";
  EXPECT_EQ(upstream->stats().reused_total, 0);
}

TEST_F(UpstreamPiecesTest, AreWrittenSo) {
  RawServer raw;
  const std::string host = "POST /echo HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(raw.port()) + "\r\n";
  const auto chunked = std::make_shared<Pieces>();
  auto told = call(raw.address(), with(chunked));
  chunked->put("abc");
  chunked->put(std::string(17, 'x'));
  chunked->end();
  RawPeer peer = raw.accept();
  EXPECT_EQ(read_to(peer, "0\r\n\r\n"),
            host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n11\r\n" + std::string(17, 'x') + "\r\n0\r\n\r\n");
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
  EXPECT_EQ(chunked->asked.value(), 3);

  const auto known = std::make_shared<Pieces>(6);
  told = call(raw.address(), with(known));
  known->put("abc");
  known->put("def");
  peer = raw.accept();
  EXPECT_EQ(read_to(peer, "def"), host + "Content-Length: 6\r\n\r\nabcdef");
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
  EXPECT_EQ(known->asked.value(), 2) << "nobody asks behind the last";
}

TEST_F(UpstreamPiecesTest, MayBeNone) {
  RawServer raw;
  const auto known = std::make_shared<Pieces>(0);
  auto told = call(raw.address(), with(known, 10'000));
  RawPeer peer = raw.accept();
  const std::string head = read_to(peer, "\r\n\r\n");
  EXPECT_TRUE(head.ends_with("\r\nContent-Length: 0\r\n\r\n")) << head;
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
  EXPECT_EQ(known->asked.value(), 0);
  const auto chunked = std::make_shared<Pieces>();
  told = call(raw.address(), with(chunked));
  chunked->end();
  peer = raw.accept();
  const std::string all = read_to(peer, "0\r\n\r\n");
  EXPECT_TRUE(all.ends_with("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")) << all;
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
}

TEST_F(UpstreamPiecesTest, AreAskedForAsThePeerTakesThem) {
  // Of both sides' systems, at most.
  constexpr size_t kSystemBytes = 24'000'000, kAll = 100'000'000, kStep = 1'000'000;
  RawServer raw;
  const auto body = std::make_shared<Endless>(kAll);
  const auto told = call(raw.address(), with(body));
  RawPeer peer = raw.accept();
  ASSERT_TRUE(peer.readable());
  char byte = 0;
  std::string head;
  while (!head.ends_with("\r\n\r\n") && ::recv(peer.fd(), &byte, 1, 0) == 1) head += byte;
  std::string part(kStep, ' ');
  bool right = true;
  for (size_t read = 0; read < kAll; read += kStep) {
    EXPECT_LE(body->given, read + kSystemBytes);
    ASSERT_EQ(::recv(peer.fd(), part.data(), kStep, MSG_WAITALL), static_cast<ssize_t>(kStep));
    for (size_t i = 0; i < kStep; ++i) right = right && part[i] == Endless::byte_at(read + i);
    if (read == 50 * kStep) let_all_run();  // others are not held up
  }
  EXPECT_TRUE(right);
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
}

// The maker of a body is slow, and that is no fault of its peer.
TEST_F(UpstreamPiecesTest, MayTakeAsLongAsTheyWant) {
  upstream_options.send_timeout_ms = 50;
  start_upstream();
  RawServer raw, deaf;
  const auto pieces = std::make_shared<Pieces>();
  const auto told = call(raw.address(), with(pieces));
  RawPeer peer = raw.accept();
  ASSERT_TRUE(pieces->asked.wait_for(1));
  const auto late = ask(deaf.address(), post(std::string(64'000'000, 'b')));
  ASSERT_TRUE(late->failure);
  EXPECT_EQ(late->failure->error.code, ErrorCode::kDeadline);
  EXPECT_EQ(told->ends.value(), 0);
  pieces->put("abc");
  ASSERT_TRUE(pieces->asked.wait_for(2));
  pieces->end();
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_FALSE(told->failure) << told->failure->error.message;
}

TEST_F(UpstreamPiecesTest, APeerThatTakesNothingIsLate) {
  upstream_options.send_timeout_ms = 50;
  start_upstream();
  RawServer raw;
  const auto body = std::make_shared<Endless>(1'000'000'000);
  const auto told = ask(raw.address(), with(body));
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, UpstreamStage::kSend);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kDeadline) << told->failure->error.message;
  EXPECT_TRUE(nothing_is_open());
}

TEST_F(UpstreamPiecesTest, AnEarlyAnswerEndsTheSending) {
  for (const bool known : {true, false}) {
    RawServer raw;
    const auto pieces = std::make_shared<Pieces>(known ? std::optional<uint64_t>(1'000'000) : std::nullopt);
    auto told = std::make_shared<Told>();
    const std::weak_ptr<UpstreamBody> seen = pieces;
    const auto running = upstream->call(raw.address(), with(pieces), told);
    RawPeer peer = raw.accept();
    pieces->put("first");
    ASSERT_TRUE(pieces->asked.wait_for(2));
    peer.send("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 8\r\n\r\ntoo ");
    ASSERT_TRUE(told->heads.wait_for(1));
    pieces->put("second");
    let_all_run();
    EXPECT_EQ(pieces->asked.value(), 2) << "asked for more behind an answer";
    peer.send("long");
    ASSERT_TRUE(told->wait());
    EXPECT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_EQ(told->status, 413);
    EXPECT_EQ(told->body, "too long");
    EXPECT_EQ(read_to(peer, "second").find("second"), std::string::npos) << "and nothing more is sent";
    EXPECT_TRUE(nothing_is_open()) << "a connection in whose midst a body ends is of no further use";
  }
}

TEST_F(UpstreamPiecesTest, APeerThatClosesInTheirMidst) {
  for (const bool waits : {true, false}) {
    RawServer raw;
    const auto pieces = std::make_shared<Pieces>(1'000'000);
    const auto body = waits ? std::shared_ptr<UpstreamBody>(pieces) : std::make_shared<Endless>(1'000'000'000);
    const auto told = call(raw.address(), with(body));
    RawPeer peer = raw.accept();
    pieces->put("first");
    if (waits) {
      ASSERT_TRUE(pieces->asked.wait_for(2));
    }
    ASSERT_TRUE(peer.readable());
    waits ? peer.close() : peer.reset();
    ASSERT_TRUE(told->wait());
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->stage, UpstreamStage::kSend);
    EXPECT_EQ(told->failure->error.code, ErrorCode::kIo);
    EXPECT_FALSE(told->failure->reused);
    EXPECT_FALSE(raw.has_one()) << "sent a second time";
    pieces->put("late");
    EXPECT_TRUE(nothing_is_open());
  }
}

// A kept one may be closed by its peer at this very moment, and a body that has begun
// cannot be sent again.
TEST_F(UpstreamPiecesTest, NeverBeginOnAKeptConnection) {
  RawServer raw;
  RawPeer kept = kept_connection(raw);
  const auto pieces = std::make_shared<Pieces>(3);
  const auto told = call(raw.address(), with(pieces));
  pieces->put("abc");
  RawPeer fresh = raw.accept();
  EXPECT_TRUE(fresh.request().ends_with("abc"));
  fresh.answer();
  ASSERT_TRUE(told->wait());
  EXPECT_FALSE(told->failure);
}

TEST_F(UpstreamPiecesTest, NothingIsAskedForWithoutAConnection) {
  upstream_options.connect_timeout_ms = 50;
  start_upstream();
  RawServer full("127.0.0.1", 0, 0), closed;
  full.fill_queue();
  closed.close();
  for (const UpstreamAddress& address : {full.address(), closed.address()}) {
    const auto pieces = std::make_shared<Pieces>();
    const auto told = ask(address, with(pieces));
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->stage, UpstreamStage::kConnect);
    EXPECT_EQ(pieces->asked.value(), 0);
  }
}

TEST_F(UpstreamPiecesTest, APeerThatIsAskedSaysWhetherItWantsThem) {
  RawServer raw;
  const auto pieces = std::make_shared<Pieces>(3);
  auto told = call(raw.address(), with(pieces, 3'600'000));
  RawPeer peer = raw.accept();
  const std::string head = read_to(peer, "\r\n\r\n");
  EXPECT_TRUE(head.ends_with("Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")) << head;
  let_all_run();
  EXPECT_EQ(pieces->asked.value(), 0);
  pieces->put("abc");
  peer.send("HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(read_to(peer, "abc"), "abc");
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
  // With its answer behind that it has said all.
  told = call(raw.address(), with(std::make_shared<Pieces>(3), 3'600'000));
  peer = raw.accept();
  read_to(peer, "\r\n\r\n");
  peer.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\nno");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->status, 409);
  EXPECT_TRUE(peer.sees_the_end());
}

TEST_F(UpstreamPiecesTest, OneThatDoesNotWantThemGetsNone) {
  RawServer raw;
  const auto pieces = std::make_shared<Pieces>(3);
  const auto told = call(raw.address(), with(pieces, 3'600'000));
  RawPeer peer = raw.accept();
  read_to(peer, "\r\n\r\n");
  peer.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->status, 403);
  EXPECT_EQ(told->body, "no");
  EXPECT_EQ(pieces->asked.value(), 0);
  EXPECT_TRUE(peer.sees_the_end());
}

TEST_F(UpstreamPiecesTest, OneThatSaysNothingGetsThemAfterAWhile) {
  RawServer raw;
  const auto pieces = std::make_shared<Pieces>(3);
  const auto told = call(raw.address(), with(pieces, 20));
  RawPeer peer = raw.accept();
  pieces->put("abc");
  EXPECT_TRUE(read_to(peer, "abc").ends_with("abc"));
  peer.send("HTTP/1.1 100 Continue\r\n\r\n");  // late
  peer.answer("ok");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "ok");
  EXPECT_EQ(pieces->asked.value(), 1);
}

TEST_F(UpstreamPiecesTest, ARealServerIsAskedAndAnswers) {
  start();
  const auto pieces = std::make_shared<Pieces>(3);
  const auto told = call(served(), with(pieces, 3'600'000));
  pieces->put("abc");
  ASSERT_TRUE(told->wait());
  EXPECT_EQ(told->body, "abc");
  const auto refused = std::make_shared<Pieces>(3);
  UpstreamRequest request = with(refused, 3'600'000);
  request.target = "/refused";
  EXPECT_EQ(ask(served(), std::move(request))->status, 401);
  EXPECT_EQ(refused->asked.value(), 0);
}

TEST_F(UpstreamPiecesTest, MoreOrFewerThanWereAnnouncedAreRefused) {
  for (const bool more : {true, false}) {
    RawServer raw;
    const auto pieces = std::make_shared<Pieces>(4);
    const auto told = call(raw.address(), with(pieces));
    RawPeer peer = raw.accept();
    pieces->put("abc");
    more ? pieces->put("de") : pieces->end();
    ASSERT_TRUE(told->wait());
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->error.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(told->failure->error.message.find(more ? "more bytes" : "fewer bytes"), std::string::npos);
    EXPECT_TRUE(peer.sees_the_end());
  }
}

TEST_F(UpstreamPiecesTest, ACancelLetsGoOfThemAtEveryStage) {
  RawServer raw;
  for (const char* stage : {"a word", "a piece", "room"}) {
    SCOPED_TRACE(stage);
    const bool asks = std::string(stage) == "a word", waits = std::string(stage) == "a piece";
    auto pieces = std::make_shared<Pieces>(1'000'000'000);
    const std::shared_ptr<UpstreamBody> body =
        asks || waits ? std::shared_ptr<UpstreamBody>(pieces) : std::make_shared<Endless>(1'000'000'000);
    const std::weak_ptr<Told> told = call(raw.address(), with(body, asks ? 3'600'000 : 0));
    RawPeer peer = raw.accept();
    ASSERT_TRUE(peer.readable());
    if (waits) {
      ASSERT_TRUE(pieces->asked.wait_for(1));
    }
    last_call->cancel();
    EXPECT_TRUE(nothing_is_open());
    EXPECT_TRUE(soon([&] { return told.expired() && body.use_count() == (asks || waits ? 2 : 1); }));
    pieces->put("late");
    EXPECT_TRUE(peer.sees_the_end());
  }
}

TEST_F(UpstreamPiecesTest, StopEndsThemToo) {
  RawServer raw;
  const auto pieces = std::make_shared<Pieces>(1'000'000);
  const auto told = call(raw.address(), with(pieces));
  RawPeer peer = raw.accept();
  ASSERT_TRUE(pieces->asked.wait_for(1));
  upstream->stop();
  ASSERT_EQ(told->ends.value(), 1);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kCancelled);
  pieces->put("late");
  upstream.reset();
  pieces->put("later");
  last_call.reset();
  EXPECT_TRUE(peer.sees_the_end());
}

// Gives pieces of random sizes from threads of its own.
class Hasty final : public UpstreamBody {
 public:
  Hasty(unsigned seed, std::atomic<int>& alive) : random_(seed), left_(random_() % 300'000), alive_(alive) {
    if (random_() % 2 == 0) bytes_ = left_;
    ++alive_;
  }
  ~Hasty() override {
    for (std::thread& thread : threads_) thread.join();
    --alive_;
  }
  std::optional<uint64_t> bytes() const override { return bytes_; }
  void next(Told told) override {
    const size_t bytes = std::min<size_t>(left_, 1 + random_() % 65'536);
    left_ -= bytes;
    const auto give = [told = std::move(told), bytes] {
      told(bytes > 0 ? std::optional(std::string(bytes, 'x')) : std::nullopt);
    };
    random_() % 2 == 0 ? give() : void(threads_.emplace_back(give));
  }

 private:
  std::mt19937 random_;
  size_t left_;
  std::optional<uint64_t> bytes_;
  std::vector<std::thread> threads_;
  std::atomic<int>& alive_;
};

TEST_F(UpstreamPiecesTest, ThatAreCancelledOrRefusedAtAnyMoment) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  upstream_options.threads = 2;
  start_upstream();
  start();
  RawServer closed;
  closed.close();
  std::atomic<int> alive{0}, whole{0}, ended{0};
  std::vector<std::shared_ptr<UpstreamCall>> running;
  for (int i = 0; i < 600; ++i) {
    UpstreamRequest request = with(std::make_shared<Hasty>(random(), alive), random() % 2 == 0 ? 3'600'000 : 0);
    if (random() % 4 == 0) request.target = "/refused";
    auto told = std::make_shared<Told>();
    told->keeps_body = false;
    told->at_head = [&whole] { ++whole; };
    told->at_end = [&ended] { ++ended; };
    const UpstreamAddress address = random() % 20 == 0 ? closed.address() : served();
    running.push_back(upstream->call(address, std::move(request), told));
    if (random() % 3 == 0) running[random() % running.size()]->cancel();
    while (upstream->stats().calls > 50) std::this_thread::yield();
  }
  ASSERT_TRUE(soon([&] { return upstream->stats().calls == 0; })) << upstream->stats().calls;
  EXPECT_GT(whole, 100);
  EXPECT_GT(ended, 200);
  EXPECT_TRUE(soon([&] { return alive == 0; })) << alive;
  EXPECT_EQ(upstream->stats().connections, upstream->stats().idle);
}

}  // namespace
}  // namespace loralei
