// SPDX-License-Identifier: Apache-2.0
// What goes wrong: where it is said to have, after how long, and what is tried again.
#include <sys/resource.h>

#include <fstream>
#include <map>

#include "http/upstream_test_util.h"

namespace loralei {
namespace {

using Stage = UpstreamStage;

// ---- once more ----

// On a kept connection the peer reads the request and closes.
struct Race {
  std::shared_ptr<Told> told;
  bool came_again = false;
};
class UpstreamRaceTest : public UpstreamTest {
 protected:
  Race close_on(const UpstreamRequest& request, const std::string& answer = "") {
    RawPeer peer = kept_connection(raw);
    Race race;
    race.told = call(raw.address(), request);
    EXPECT_FALSE(peer.request().empty());
    peer.send(answer);
    answer.empty() ? peer.reset() : peer.close();
    // What ends it is either the failure or an answer to the second request.
    EXPECT_TRUE(soon([&] { return raw.has_one() || race.told->ends.value() > 0; }));
    race.came_again = raw.has_one();
    if (race.came_again) {
      RawPeer fresh = raw.accept();
      EXPECT_TRUE(fresh.request().starts_with(request.method));
      fresh.answer("second");
    }
    EXPECT_TRUE(race.told->wait());
    EXPECT_TRUE(nothing_is_open() || race.came_again);
    start_upstream();
    return race;
  }
  RawServer raw;
};

TEST_F(UpstreamRaceTest, ASafeRequestIsSentOnceMore) {
  for (const char* method : {"GET", "HEAD", "OPTIONS"}) {
    const Race race = close_on({.method = method, .target = "/"});
    EXPECT_TRUE(race.came_again) << method;
    EXPECT_FALSE(race.told->failure) << method;
    EXPECT_EQ(race.told->status, 200);
  }
  UpstreamRequest twice = post("body");
  twice.idempotent = true;
  const Race race = close_on(twice);
  EXPECT_TRUE(race.came_again);
  EXPECT_EQ(race.told->body, "second");
}

TEST_F(UpstreamRaceTest, AnotherIsNotAndTheCallerIsToldWhy) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"}) {
    const Race race = close_on({.method = method, .target = "/"});
    EXPECT_FALSE(race.came_again) << method;
    ASSERT_TRUE(race.told->failure) << method;
    EXPECT_EQ(race.told->failure->stage, Stage::kHead);
    EXPECT_EQ(race.told->failure->error.code, ErrorCode::kIo);
    EXPECT_TRUE(race.told->failure->peer_closed);
    EXPECT_TRUE(race.told->failure->reused);
  }
}

TEST_F(UpstreamRaceTest, NorWhereAByteOfAnAnswerCame) {
  const Race race = close_on(get(), "H");
  EXPECT_FALSE(race.came_again);
  ASSERT_TRUE(race.told->failure);
  EXPECT_EQ(race.told->failure->stage, Stage::kHead);
  EXPECT_FALSE(race.told->failure->peer_closed);
}

TEST_F(UpstreamRaceTest, NorOnAFreshConnection) {
  const auto told = call(raw.address(), get());
  RawPeer peer = raw.accept();
  peer.request();
  peer.close();
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kHead);
  EXPECT_TRUE(told->failure->peer_closed);
  EXPECT_FALSE(told->failure->reused);
  EXPECT_FALSE(raw.has_one());
}

TEST_F(UpstreamRaceTest, NorTwice) {
  RawPeer peer = kept_connection(raw);
  const auto told = call(raw.address(), get());
  peer.request();
  peer.close();
  RawPeer fresh = raw.accept();
  fresh.request();
  fresh.close();
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kHead);
  EXPECT_FALSE(raw.has_one());
  EXPECT_EQ(upstream->stats().opened_total, 2);
}

// Nobody is there any more, but the first attempt may have been seen.
TEST_F(UpstreamRaceTest, TheStageIsThatOfTheAttemptThatGotFurthest) {
  RawPeer peer = kept_connection(raw);
  const auto told = call(raw.address(), get());
  peer.request();
  raw.close();
  peer.close();
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kHead);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kUnavailable) << told->failure->error.message;
}

// ---- what a peer does wrong ----

TEST_F(UpstreamTest, NobodyListens) {
  RawServer raw;
  raw.close();
  const auto told = ask(raw.address(), post("x"));
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kConnect);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kUnavailable);
  EXPECT_NE(told->failure->error.message.find("127.0.0.1:" + std::to_string(raw.port())), std::string::npos)
      << told->failure->error.message;
  EXPECT_TRUE(nothing_is_open());
}

TEST_F(UpstreamTest, AnswersThatAreNone) {
  upstream_options.limits = {.max_header_bytes = 2048, .max_headers = 8};
  start_upstream();
  const std::string ok = "HTTP/1.1 200 OK\r\n", chunked = ok + "Transfer-Encoding: chunked\r\n\r\n";
  std::string fields;
  for (int i = 0; i < 9; ++i) fields += "a: b\r\n";
  const std::vector<std::pair<std::string, Stage>> cases = {
      {"\x16\x03\x01\x02\x03\x04\x05\x06\x07", Stage::kHead},
      {"SSH-2.0-OpenSSH\r\n", Stage::kHead},
      {"HTTP/2.0 200 OK\r\n\r\n", Stage::kHead},
      {"HTTP/1.1 2000 OK\r\n\r\n", Stage::kHead},
      {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", Stage::kHead},
      {ok + "X: " + std::string(4000, 'x') + "\r\n\r\n", Stage::kHead},
      {ok + std::string(4000, 'x'), Stage::kHead},
      {ok + fields + "\r\n", Stage::kHead},
      {ok + "a b: c\r\n\r\n", Stage::kHead},
      {ok + "Content-Length: -1\r\n\r\n", Stage::kHead},
      {ok + "Content-Length: 18446744073709551616\r\n\r\n", Stage::kHead},
      {ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", Stage::kHead},
      {ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Stage::kHead},
      {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Stage::kHead},
      {ok + "Transfer-Encoding: gzip\r\n\r\nabc", Stage::kHead},
      {chunked + "5\r\nabcdefgh\r\n", Stage::kBody},
      {chunked + "3\r\nabc\r\nzz\r\n", Stage::kBody},
      {chunked + "3\r\nabc\r\n11111111111111111\r\n", Stage::kBody},
      {chunked + "3\r\nabc\r\n3;" + std::string(4000, 'x'), Stage::kBody},
  };
  RawServer raw;
  for (const auto& [bytes, stage] : cases) {
    SCOPED_TRACE(bytes);
    const auto told = call(raw.address(), get());
    RawPeer peer = raw.accept();
    peer.request();
    peer.send(bytes);
    ASSERT_TRUE(told->wait());
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->stage, stage);
    EXPECT_EQ(told->status != 0, stage == Stage::kBody);
    EXPECT_EQ(told->failure->error.code, ErrorCode::kIo);
    EXPECT_NE(told->failure->error.message.find("127.0.0.1:" + std::to_string(raw.port())), std::string::npos);
    EXPECT_FALSE(told->failure->peer_closed);
    EXPECT_TRUE(peer.sees_the_end());
    EXPECT_TRUE(nothing_is_open());
  }
}

TEST_F(UpstreamTest, AnswersThatBreakOff) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::map<std::string, Stage> cases = {
      {"HTTP/1.1 100 Continue\r\n\r\n", Stage::kHead},
      {ok, Stage::kHead},
      {ok + "Content-Length: 5\r\n\r\n", Stage::kBody},
      {ok + "Content-Length: 5\r\n\r\nhell", Stage::kBody},
      {ok + "Transfer-Encoding: chunked\r\n\r\n", Stage::kBody},
      {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", Stage::kBody},
      {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", Stage::kBody},
  };
  RawServer raw;
  for (const auto& [bytes, stage] : cases) {
    SCOPED_TRACE(bytes);
    const auto told = call(raw.address(), get());
    RawPeer peer = raw.accept();
    peer.request();
    peer.send(bytes);
    peer.close();
    ASSERT_TRUE(told->wait());
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->stage, stage);
    EXPECT_EQ(told->failure->error.code, ErrorCode::kIo);
    EXPECT_FALSE(told->failure->peer_closed) << "something of an answer had come";
  }
  // A reset ends even a body that would have ended by the end of the connection.
  const auto told = call(raw.address(), get());
  RawPeer peer = raw.accept();
  peer.request();
  peer.send(ok + "\r\nhello");
  ASSERT_TRUE(told->pieces.wait_for(1));
  peer.reset();
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kBody);
}

TEST_F(UpstreamTest, APeerThatClosesWhileTheRequestIsSent) {
  RawServer raw;
  const auto told = call(raw.address(), post(std::string(64'000'000, 'b')));
  RawPeer peer = raw.accept();
  ASSERT_TRUE(peer.readable());
  peer.reset();
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kSend);
  EXPECT_TRUE(told->failure->peer_closed);
  EXPECT_TRUE(nothing_is_open());
}

TEST_F(UpstreamTest, WithoutDescriptorsACallSaysSo) {
  RawServer raw;
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const int next = ::dup(0);
  ASSERT_GE(next, 0);
  ::close(next);
  const rlimit full{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  const auto told = ask(raw.address(), get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kConnect);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kOverloaded) << told->failure->error.message;
  EXPECT_FALSE(told->failure->reused);
  EXPECT_TRUE(nothing_is_open());
}

// ---- time ----

// The system looks whether a silent peer is there: /proc/net/tcp tells of the timer.
TEST_F(UpstreamTest, APeerThatIsGoneWithoutAWordWillBeNoticed) {
  RawServer raw;
  const auto told = call(raw.address(), get());
  RawPeer peer = raw.accept();
  peer.request();
  sockaddr_in client{};
  socklen_t size = sizeof client;
  ASSERT_EQ(::getpeername(peer.fd(), reinterpret_cast<sockaddr*>(&client), &size), 0);
  char addresses[40];
  std::snprintf(addresses, sizeof addresses, " 0100007F:%04X 0100007F:%04X 01 ", unsigned{ntohs(client.sin_port)},
                static_cast<unsigned>(raw.port()));
  std::ifstream table("/proc/net/tcp");
  if (!table) GTEST_SKIP() << "no /proc/net/tcp";
  std::string line, ours;
  while (std::getline(table, line)) {
    const size_t found = line.find(addresses);
    if (found != std::string::npos) ours = line.substr(found + 29);  // "01 tx:rx tr:when ..."
  }
  // The state is "established", the timer is that of probes, due in 15 s at most (in
  // hundredths).
  ASSERT_GE(ours.size(), 32U) << ours;
  EXPECT_EQ(ours.substr(0, 2), "01") << ours;
  EXPECT_EQ(ours.substr(21, 3), "02:") << ours;
  EXPECT_LE(std::stoul(ours.substr(24, 8), nullptr, 16), 1500U) << ours;
  peer.answer();
  EXPECT_TRUE(told->wait());
}

TEST_F(UpstreamTest, TimeToConnect) {
  upstream_options.connect_timeout_ms = 50;
  start_upstream();
  RawServer raw("127.0.0.1", 0, 0);
  raw.fill_queue();
  const auto told = ask(raw.address(), get());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kConnect);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kDeadline) << told->failure->error.message;
  EXPECT_TRUE(nothing_is_open());
}

TEST_F(UpstreamTest, TimeToSend) {
  upstream_options.send_timeout_ms = 50;
  start_upstream();
  RawServer raw;
  const auto told = ask(raw.address(), post(std::string(64'000'000, 'b')));
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kSend);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kDeadline) << told->failure->error.message;
}

TEST_F(UpstreamTest, TimeToTheHeadOfTheOptionAndOfTheCall) {
  RawServer raw;
  UpstreamRequest short_one = get();
  short_one.head_timeout_ms = 50;
  const auto long_one = call(raw.address(), get());
  RawPeer peer = raw.accept();
  auto told = ask(raw.address(), short_one);
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kHead);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kDeadline) << told->failure->error.message;
  EXPECT_FALSE(told->failure->peer_closed);
  EXPECT_EQ(long_one->ends.value(), 0);
  upstream_options.head_timeout_ms = 50;
  start_upstream();
  EXPECT_EQ(ask(raw.address(), get())->failure->error.code, ErrorCode::kDeadline);
}

TEST_F(UpstreamTest, AHeadThatComesDropByDropHasNoMoreTime) {
  RawServer raw;
  UpstreamRequest request = get();
  request.head_timeout_ms = 100;
  const auto told = call(raw.address(), request);
  RawPeer peer = raw.accept();
  peer.request();
  while (told->ends.value() == 0 && peer.send("HTTP/1.1 103 Early Hints\r\n\r\n"))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kDeadline) << told->failure->error.message;
}

TEST_F(UpstreamTest, TimeOfABodyIsThatWithoutAByteAndNotOfAListenerThatRests) {
  upstream_options.body_timeout_ms = 100;
  start_upstream();
  RawServer raw;
  const std::string begin = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
  auto resting = std::make_shared<Told>();
  resting->at_piece = [&](std::string_view) { return resting->pieces.value() == 0; };
  const auto rests = upstream->call(raw.address(), get(), resting);
  RawPeer first = raw.accept();
  first.request();
  first.send(begin + "wanted");
  ASSERT_TRUE(resting->pieces.wait_for(1));
  first.send("and no more");
  ASSERT_TRUE(resting->pieces.wait_for(2));
  // Another one whose time begins later is over: so the first one's would be.
  const auto told = call(raw.address(), get());
  RawPeer second = raw.accept();
  second.request();
  second.send(begin + "x");
  ASSERT_TRUE(told->wait());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->stage, Stage::kBody);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kDeadline) << told->failure->error.message;
  EXPECT_EQ(told->body, "x");
  EXPECT_EQ(resting->ends.value(), 0);
  rests->resume();
  ASSERT_TRUE(resting->wait()) << "now it is wanted";
  EXPECT_EQ(resting->failure->error.code, ErrorCode::kDeadline);
}

// ---- names ----

class UpstreamNamesTest : public UpstreamTest {
 protected:
  void SetUp() override {
    upstream_options.look_up = [this](const std::string& name) -> Result<std::vector<std::string>> {
      asked.push_back(name);
      if (known.empty()) return not_found("nobody knows it");
      return known;
    };
    UpstreamTest::SetUp();
  }
  // A call that is answered, and whose connection is not kept.
  void succeed(RawServer& raw, const std::string& host = "name") {
    const auto told = call({host, raw.port()}, get());
    RawPeer peer = raw.accept();
    EXPECT_NE(peer.request().find("\r\nHost: " + host + ":" + std::to_string(raw.port())), std::string::npos);
    peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    ASSERT_TRUE(told->wait());
    EXPECT_FALSE(told->failure) << told->failure->error.message;
  }
  std::vector<std::string> asked, known;  // of the Upstream's one thread, and between calls the test's
};

TEST_F(UpstreamNamesTest, AreKeptForAWhileAndNumbersAreNotAsked) {
  RawServer raw;
  known = {"127.0.0.1"};
  for (int i = 0; i < 3; ++i) succeed(raw);
  EXPECT_EQ(asked, std::vector<std::string>{"name"});
  succeed(raw, "127.0.0.1");
  succeed(raw, "other");
  EXPECT_EQ(asked, (std::vector<std::string>{"name", "other"}));
  upstream_options.name_ms = 0;
  start_upstream();
  succeed(raw);
  succeed(raw);
  EXPECT_EQ(asked.size(), 4U);
}

TEST_F(UpstreamNamesTest, AddressesAreTriedInTurnAndTheOneThatWorkedComesFirst) {
  auto second = std::make_unique<RawServer>("127.0.0.3");
  known = {"127.0.0.2", "127.0.0.3"};
  succeed(*second);
  RawServer first("127.0.0.2", second->port());
  succeed(*second);
  EXPECT_FALSE(first.has_one());
  const int port = second->port();
  second.reset();
  succeed(first);
  EXPECT_EQ(first.port(), port);
  EXPECT_EQ(asked.size(), 1U);
}

TEST_F(UpstreamNamesTest, AnAddressThatDoesNotAnswerLeavesTimeForTheNext) {
  upstream_options.connect_timeout_ms = 400;
  start_upstream();
  RawServer silent("127.0.0.2", 0, 0), works("127.0.0.3", silent.port());
  silent.fill_queue();
  known = {"127.0.0.2", "127.0.0.3"};
  succeed(works);
}

TEST_F(UpstreamNamesTest, WhereNoneAnswersTheNameIsLookedUpAnew) {
  RawServer raw("127.0.0.3");
  known = {"127.0.0.2"};
  const auto told = ask({"name", raw.port()}, get());
  ASSERT_TRUE(told->failure);
  EXPECT_EQ(told->failure->error.code, ErrorCode::kUnavailable);
  known = {"127.0.0.3"};
  succeed(raw);
  EXPECT_EQ(asked.size(), 2U);
}

TEST_F(UpstreamNamesTest, UnknownAndUselessNames) {
  for (const std::vector<std::string>& addresses : {std::vector<std::string>{}, {"not numeric"}}) {
    known = addresses;
    const auto told = ask({"name", 80}, get());
    ASSERT_TRUE(told->failure);
    EXPECT_EQ(told->failure->stage, Stage::kConnect);
    EXPECT_NE(told->failure->error.message.find("name:80"), std::string::npos) << told->failure->error.message;
  }
  EXPECT_EQ(asked.size(), 2U) << "a failure is not kept";
}

TEST_F(UpstreamTest, TheSystemKnowsNamesToo) {
  start();
  for (int i = 0; i < 2; ++i) {
    std::vector<std::shared_ptr<Told>> all;
    for (int k = 0; k < 5; ++k) all.push_back(call({"localhost", server->port()}, post("x")));
    for (const auto& told : all) {
      EXPECT_TRUE(told->wait());
      EXPECT_FALSE(told->failure) << told->failure->error.message;
    }
  }
}

TEST(UpstreamAddress, AsText) {
  EXPECT_EQ(address_text({"host", 80}), "host:80");
  EXPECT_EQ(address_text({"::1", 80}), "[::1]:80");
  EXPECT_EQ(address_text({"[::1]", 80}), "[::1]:80");
}

TEST(UpstreamOptions, AreChecked) {
  NullLogSink log;
  for (const UpstreamOptions& options :
       {UpstreamOptions{.threads = 0}, UpstreamOptions{.threads = 1000}, UpstreamOptions{.connect_timeout_ms = 0},
        UpstreamOptions{.body_timeout_ms = -1}, UpstreamOptions{.name_ms = -1},
        UpstreamOptions{.max_idle_per_address = -1}}) {
    const auto started = Upstream::start(options, log);
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace loralei
