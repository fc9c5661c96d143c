// SPDX-License-Identifier: Apache-2.0
// What TLS adds to a server: certificates, handshakes, ends that are said and ends that
// are not. All that holds for plain connections is tested over TLS by server_test.cc,
// server_memory_test.cc and server_sink_test.cc.
#include "http/server_tls.h"

#include <openssl/crypto.h>

#include <cstdlib>
#include <cstring>
#include <ctime>

#include "http/server_test_util.h"
#include "http/server_tls_stream.h"

namespace loralei {
namespace {

// What OpenSSL holds of what other threads than the test's allocated.
std::atomic<int64_t> g_server_bytes{0};
thread_local bool t_is_test = false;

struct alignas(16) Block {
  size_t bytes;
  bool counted;
};

void* counted_malloc(size_t bytes, const char*, int) {
  auto* const block = static_cast<Block*>(std::malloc(sizeof(Block) + bytes));
  if (block == nullptr) return nullptr;
  *block = {bytes, !t_is_test};
  if (block->counted) g_server_bytes += static_cast<int64_t>(bytes);
  return block + 1;
}
void counted_free(void* at, const char*, int) {
  if (at == nullptr) return;
  Block* const block = static_cast<Block*>(at) - 1;
  if (block->counted) g_server_bytes -= static_cast<int64_t>(block->bytes);
  std::free(block);
}
void* counted_realloc(void* at, size_t bytes, const char* file, int line) {
  if (at == nullptr) return counted_malloc(bytes, file, line);
  void* const made = counted_malloc(bytes, file, line);
  if (made == nullptr) return nullptr;
  std::memcpy(made, at, std::min(bytes, (static_cast<Block*>(at) - 1)->bytes));
  counted_free(at, file, line);
  return made;
}
const bool g_counts = CRYPTO_set_mem_functions(counted_malloc, counted_realloc, counted_free) == 1;

constexpr const char* kGet = "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
constexpr const char* kHeld = "GET /held HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

class ServerTlsTest : public ServerFixture {
 protected:
  ServerTlsTest() { options.tls = test_tls(); }
};

int raw_peer(int port, std::string_view bytes) {
  const int fd = connect_to("127.0.0.1", port);
  EXPECT_GE(fd, 0);
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (!bytes.empty()) {
    EXPECT_GT(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  }
  return fd;
}
std::string raw_read(int fd) {
  std::string all;
  char chunk[4096];
  for (ssize_t n; (n = ::recv(fd, chunk, sizeof chunk, 0)) > 0;) all.append(chunk, static_cast<size_t>(n));
  ::close(fd);
  return all;
}

TEST_F(ServerTlsTest, SpeaksTls12And13AndNothingOlder) {
  start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsPeer peer(server->port(), version);
    ASSERT_TRUE(peer.connected()) << peer.error();
    EXPECT_EQ(SSL_version(peer.ssl()), version);
    EXPECT_TRUE(peer.send(kGet));
    const std::string answer = peer.read();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
    EXPECT_EQ(answer.find("[cut]"), std::string::npos) << "its end is said";
  }
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION}) {
    TlsPeer old(server->port(), version);
    EXPECT_FALSE(old.connected());
    EXPECT_NE(old.error().find("protocol version"), std::string::npos) << old.error();
  }
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
}

TEST_F(ServerTlsTest, ChoosesHttp11) {
  start();
  TlsPeer both(server->port(), 0, "\x02h2\x08http/1.1");
  ASSERT_TRUE(both.connected()) << both.error();
  const unsigned char* chosen = nullptr;
  unsigned bytes = 0;
  SSL_get0_alpn_selected(both.ssl(), &chosen, &bytes);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(chosen), bytes), "http/1.1");
  TlsPeer other(server->port(), 0, "\x02h2");
  EXPECT_FALSE(other.connected());
  EXPECT_NE(other.error().find("no application protocol"), std::string::npos) << other.error();
}

TEST_F(ServerTlsTest, PlainHttpIsToldSo) {
  start();
  for (const char* request : {kGet, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"}) {
    const std::string answer = raw_read(raw_peer(server->port(), request));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer;
    EXPECT_NE(answer.find("speaks https"), std::string::npos) << answer;
  }
  EXPECT_EQ(server->stats().errors_total, 2);
  const std::string rubbish = raw_read(raw_peer(server->port(), "\x01\x02\x03\x04 and so on and so forth"));
  EXPECT_EQ(rubbish.find("HTTP"), std::string::npos) << rubbish;
  EXPECT_EQ(server->stats().requests_total, 0);
}

TEST_F(ServerTlsTest, RenegotiationIsNotTaken) {
  start();
  TlsPeer peer(server->port(), TLS1_2_VERSION);
  ASSERT_TRUE(peer.connected()) << peer.error();
  EXPECT_EQ(SSL_renegotiate(peer.ssl()), 1);
  EXPECT_NE(SSL_do_handshake(peer.ssl()), 1);
}

// Of the answer, which is incomplete, and of the request.
TEST_F(ServerTlsTest, ACutIsSeenAsOne) {
  start();
  TlsPeer reader(server->port());
  ASSERT_TRUE(reader.send(kHeld));
  handler.writer(0)->start_stream(200, {});
  handler.writer(0)->write("half");
  handler.drop_all();
  EXPECT_TRUE(reader.read().ends_with("[cut]"));
  EXPECT_EQ(handler.closed.value(), 1);
  for (const bool said : {false, true}) {
    TlsPeer leaver(server->port());
    ASSERT_TRUE(leaver.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf"));
    if (said) leaver.say_end();
    leaver.close_socket();
    EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
  }
  EXPECT_EQ(server->stats().requests_total, 1) << "half a request is none";
}

TEST_F(ServerTlsTest, ARequestBehindASaidEndIsAnswered) {
  start();
  TlsPeer peer(server->port());
  ASSERT_TRUE(peer.send(std::string("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi") + kGet));
  peer.say_end();
  const std::string answers = peer.read();
  EXPECT_NE(answers.find("\r\n\r\nhi"), std::string::npos) << answers;
}

// All of what was sent before a handshake is over, however slowly.
TEST_F(ServerTlsTest, SlowHandshakesStopNobodyElse) {
  options.max_connections = 20;
  options.read_timeout_ms = 600'000;
  start();
  std::vector<int> slow;
  for (int i = 0; i < 200; ++i) slow.push_back(raw_peer(server->port(), i % 2 == 0 ? "" : "\x16\x03\x01\x02"));
  for (int i = 0; i < 5; ++i) {
    TlsPeer peer(server->port());
    ASSERT_TRUE(peer.connected()) << peer.error();
    ASSERT_TRUE(peer.send(kGet));
    EXPECT_TRUE(peer.read().starts_with("HTTP/1.1 200"));
    slow.push_back(raw_peer(server->port(), "\x16"));
  }
  EXPECT_EQ(server->stats().connections_refused, 0);
  EXPECT_EQ(server->stop(600'000), 0) << "they hold up no stop, and are nothing that was cut";
  for (const int fd : slow) ::close(fd);
}

TEST_F(ServerTlsTest, AHandshakeHasItsTimeAndItsBytes) {
  options.read_timeout_ms = 100;
  start();
  EXPECT_EQ(raw_read(raw_peer(server->port(), "\x16\x03\x01")), "");
  server.reset();
  options.read_timeout_ms = 600'000;
  start();
  // A greeting of 100,000 bytes.
  const std::string head("\x01\x01\x86\xa0\x03\x03", 6);
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    const std::string fragment = (i == 0 ? head : std::string()) + std::string(16'000, 'x');
    bytes += std::string("\x16\x03\x01", 3);
    bytes += static_cast<char>(fragment.size() >> 8);
    bytes += static_cast<char>(fragment.size() & 255);
    bytes += fragment;
  }
  const int fd = raw_peer(server->port(), std::string_view(bytes).substr(0, 5 * 16'000));
  EXPECT_TRUE(soon([&] { return server->stats().connections_total == 1 && server->stats().connections == 0; }));
  ::close(fd);
}

TEST_F(ServerTlsTest, WhoFindsNoPlaceIsToldByAnAlert) {
  options.max_connections = 1;
  start();
  TlsPeer busy(server->port());
  ASSERT_TRUE(busy.send(kHeld));
  handler.writer(0);
  TlsPeer refused(server->port());
  EXPECT_FALSE(refused.connected());
  EXPECT_NE(refused.error().find("internal error"), std::string::npos) << refused.error();
  handler.writer(0)->respond(200, {}, "done");
  EXPECT_TRUE(busy.read().ends_with("done"));
}

TEST_F(ServerTlsTest, AnotherCertificateIsForNewConnections) {
  start();
  const auto subject = [](TlsPeer& peer) {
    X509* const certificate = SSL_get1_peer_certificate(peer.ssl());
    char text[200] = "";
    X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof text);
    X509_free(certificate);
    return std::string(text);
  };
  TlsPeer old(server->port());
  EXPECT_EQ(subject(old), "/CN=localhost");
  const TestCertificate pair = make_test_certificate("new.example");
  auto made = ServerTls::make(pair.certificate, pair.key);
  ASSERT_TRUE(made.ok()) << made.error().message;
  server->use_tls(*made);
  TlsPeer fresh(server->port());
  EXPECT_EQ(subject(fresh), "/CN=new.example");
  EXPECT_TRUE(fresh.send(kGet));
  EXPECT_TRUE(fresh.read().starts_with("HTTP/1.1 200"));
  ASSERT_TRUE(old.send(kGet)) << "what runs goes on";
  EXPECT_TRUE(old.read().starts_with("HTTP/1.1 200"));
}

// OpenSSL's state, in a handshake, at rest, and while a record waits each way.
TEST_F(ServerTlsTest, TakesNoMoreThanIsCounted) {
  t_is_test = true;
  ASSERT_TRUE(g_counts) << "set before anything of OpenSSL was called";
  start();
  constexpr int kPeers = 8;
  const int64_t before = g_server_bytes;
  std::vector<std::unique_ptr<TlsPeer>> peers;
  int64_t most = 0;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<TlsPeer>(server->port(), i % 2 == 0 ? TLS1_2_VERSION : TLS1_3_VERSION));
    ASSERT_TRUE(peers.back()->send(kHeld));
    handler.writer(i)->respond(200, {}, std::string(16 << 20, 'x'));
    ASSERT_TRUE(peers.back()->send(std::string(8 * 1024, 'y')));
    most = std::max(most, g_server_bytes - before);
  }
  EXPECT_TRUE(soon([&] { return (most = std::max(most, g_server_bytes - before)) > kPeers * 16 * 1024; })) << most;
  EXPECT_LT(most, kPeers * kTlsBytes);
  RecordProperty("bytes_of_a_connection", std::to_string(most / kPeers));
  t_is_test = false;
}

TEST_F(ServerTlsTest, ItsConnectionsAreGrantedWhatTheyTake) {
  memory = std::make_shared<FixedByteBudget>(40 * connection_bytes(options));
  start();
  EXPECT_EQ(memory->taken_bytes(), kConnectionsAlways * connection_bytes(options));
  std::vector<std::unique_ptr<TlsPeer>> peers;
  for (int i = 0; i < 40; ++i) {
    peers.push_back(std::make_unique<TlsPeer>(server->port()));
    ASSERT_TRUE(peers.back()->send(kHeld));
    handler.writer(i);
  }
  EXPECT_EQ(memory->taken_bytes(), memory->most_bytes());
  EXPECT_FALSE(TlsPeer(server->port()).connected());
}

std::string refusal(const std::string& certificate, const std::string& key) {
  const auto made = ServerTls::make(certificate, key);
  return made.ok() ? "" : made.error().message;
}

TEST(ServerTls, SaysWhatIsWrongWithAPair) {
  const TestCertificate pair = make_test_certificate(), other = make_test_certificate();
  const TestCertificate locked = make_test_certificate("localhost", 0, 3600, "secret");
  EXPECT_EQ(refusal(pair.certificate, pair.key), "");
  EXPECT_EQ(refusal(pair.certificate + other.certificate, pair.key), "") << "with one behind it";
  const auto says = [](const std::string& sentence, const std::string& word) {
    return sentence.find(word) != std::string::npos;
  };
  EXPECT_TRUE(says(refusal("", pair.key), "holds no certificate"));
  EXPECT_TRUE(says(refusal(pair.key, pair.key), "holds no certificate"));
  EXPECT_TRUE(says(refusal(pair.certificate, ""), "holds no private key"));
  EXPECT_TRUE(says(refusal(pair.certificate, pair.certificate), "holds no private key"));
  EXPECT_TRUE(says(refusal(pair.certificate, other.key), "not the certificate's"));
  EXPECT_TRUE(says(refusal(pair.certificate, locked.key), "encrypted"));
  EXPECT_TRUE(
      says(refusal(pair.certificate + "-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n", pair.key),
           "behind its own"));
  std::string many = pair.certificate;
  for (int i = 0; i < 20; ++i) many += other.certificate;
  EXPECT_TRUE(says(refusal(many, pair.key), "more than 16"));
  for (const std::string& sentence : {refusal(pair.certificate, other.key), refusal(pair.certificate, locked.key)})
    EXPECT_EQ(sentence.find(other.key.substr(30, 20)), std::string::npos);
}

TEST(ServerTls, KnowsWhenACertificateIsOfUse) {
  const TestCertificate past = make_test_certificate("past", -7200, -3600),
                        future = make_test_certificate("future", 3600, 7200);
  const int64_t now_s = std::time(nullptr);
  const auto old = ServerTls::make(past.certificate, past.key), next = ServerTls::make(future.certificate, future.key);
  ASSERT_TRUE(old.ok() && next.ok());
  EXPECT_NE((*old)->complaint(now_s).find("has expired"), std::string::npos);
  EXPECT_NE((*next)->complaint(now_s).find("valid from"), std::string::npos);
  EXPECT_EQ((*old)->complaint(now_s - 5400), "");
  EXPECT_EQ(test_tls()->complaint(now_s), "");
  EXPECT_NE((*old)->subject().find("past"), std::string::npos);
  EXPECT_NE((*old)->until().find(" UTC"), std::string::npos);
}

}  // namespace
}  // namespace loralei
