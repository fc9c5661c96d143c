// SPDX-License-Identifier: Apache-2.0
// Who comes in when there is little room: storms, half-open heads, memory that one
// address holds, descriptors.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "http/server_test_util.h"

namespace loralei {
namespace {

// A plain socket that may come from any address of this machine.
class Peer {
 public:
  Peer() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool connect(int port, const char* from = "127.0.0.1") {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, from, &address.sin_addr);
    if (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  bool send(std::string_view bytes) { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0; }
  // Until the server closes; an error stands at the end.
  std::string read() {
    std::string all;
    char chunk[4096];
    for (;;) {
      const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
      if (n < 0) return all + " error: " + std::strerror(errno);
      if (n == 0) return all;
      all.append(chunk, static_cast<size_t>(n));
    }
  }

 private:
  const int fd_;
};

class DoorsTest : public ServerFixture {};

constexpr std::string_view kGet = "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

TEST_F(DoorsTest, AStormOfConnectionsIsToldAndNotReset) {
  options.max_connections = 1;
  int made = 0;
  options.error_response = [&](int, std::string_view, const HttpHead&) {
    ++made;
    return HttpResponse{};
  };
  start();
  HttpClient busy = client();
  ASSERT_TRUE(busy.send_raw("GET /held HTTP/1.1\r\nHost: h\r\n\r\n").ok());
  handler.writer(0);
  constexpr int kStorm = 400;
  std::vector<std::unique_ptr<Peer>> storm;
  for (int i = 0; i < kStorm; ++i) {
    storm.push_back(std::make_unique<Peer>());
    ASSERT_TRUE(storm.back()->connect(server->port()));
    ASSERT_TRUE(storm.back()->send(kGet));
  }
  for (const auto& peer : storm) {
    const std::string answer = peer->read();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
    EXPECT_NE(answer.find("Retry-After: 1"), std::string::npos);
    EXPECT_EQ(answer.find("error: "), std::string::npos) << answer;
  }
  EXPECT_EQ(server->stats().connections_refused, kStorm);
  EXPECT_LE(server->stats().connections, 1);
  EXPECT_LT(made, kStorm / 4) << "a refusal is a few bytes that are there already";
}

TEST_F(DoorsTest, HalfOpenHeadsOfOneAddressKeepNobodyElseOut) {
  options.max_connections = 20;
  start();
  constexpr int kMany = 100;
  std::vector<std::unique_ptr<Peer>> half;
  const auto add_half = [&](const char* from) {
    half.push_back(std::make_unique<Peer>());
    ASSERT_TRUE(half.back()->connect(server->port(), from));
    ASSERT_TRUE(half.back()->send("GET /echo HTTP/1.1\r\nHo"));
  };
  Peer slow;  // of another address, and as slow as they are
  ASSERT_TRUE(slow.connect(server->port(), "127.0.0.3"));
  ASSERT_TRUE(slow.send(kGet.substr(0, 10)));
  for (int i = 0; i < kMany; ++i) add_half("127.0.0.2");
  for (int i = 0; i < 10; ++i) {
    Peer newcomer;
    ASSERT_TRUE(newcomer.connect(server->port()));
    ASSERT_TRUE(newcomer.send(kGet));
    EXPECT_TRUE(newcomer.read().starts_with("HTTP/1.1 200"));
    add_half("127.0.0.2");
  }
  ASSERT_TRUE(slow.send(kGet.substr(10)));
  EXPECT_TRUE(slow.read().starts_with("HTTP/1.1 200")) << "they took each other's places only";
  EXPECT_EQ(server->stats().connections_refused, 0);
  EXPECT_TRUE(half.front()->read().starts_with("HTTP/1.1 503"));
}

TEST_F(DoorsTest, BodiesThatTrickleFromOneAddressKeepNobodyElseOut) {
  give_memory(1'000'000);
  start();
  const auto head = [](const char* path, int bytes) {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  };
  std::vector<std::unique_ptr<Peer>> slow;
  for (int i = 0; i < 9; ++i) {
    slow.push_back(std::make_unique<Peer>());
    ASSERT_TRUE(slow.back()->connect(server->port(), "127.0.0.2"));
    ASSERT_TRUE(slow.back()->send(head("/echo", 110'000)));
    ASSERT_TRUE(soon([&] { return taken() == 110'000 * (i + 1); }));
  }
  const auto ask = [&](const char* from) {
    Peer peer;
    EXPECT_TRUE(peer.connect(server->port(), from));
    EXPECT_TRUE(peer.send(head("/echo", 60'000) + std::string(60'000, 'b')));
    return peer.read().substr(9, 3);
  };
  EXPECT_EQ(ask("127.0.0.2"), "429");
  EXPECT_EQ(taken(), 990'000) << "for one of its own nobody gives way";
  EXPECT_EQ(ask("127.0.0.1"), "429");
  EXPECT_TRUE(soon([&] { return ask("127.0.0.1") == "200"; })) << "asked again";
  EXPECT_TRUE(slow.front()->read().starts_with("HTTP/1.1 429"));
}

TEST_F(DoorsTest, WithoutDescriptorsConnectionsAreToldSo) {
  start();
  ASSERT_EQ(client().get("/echo")->status, 200);
  ASSERT_TRUE(soon([&] { return server->stats().connections == 0; }));
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 5; ++i) peers.push_back(std::make_unique<Peer>());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int highest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(highest) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> fill;  // what is free below the limit
  for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) fill.push_back(fd);
  std::vector<std::string> answers;
  for (const auto& peer : peers) {
    answers.emplace_back(peer->connect(server->port()) && peer->send(kGet) ? peer->read() : "no connection");
  }
  for (const int fd : fill) ::close(fd);
  ::close(highest);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const std::string& answer : answers) EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
  EXPECT_EQ(client().get("/echo")->status, 200);
}

TEST_F(DoorsTest, AnAdoptedConnectionIsServed) {
  start();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  server->adopt(ends[0]);
  ASSERT_GT(::send(ends[1], kGet.data(), kGet.size(), MSG_NOSIGNAL), 0);
  std::string answer;
  char chunk[4096];
  for (ssize_t n; (n = ::recv(ends[1], chunk, sizeof chunk, 0)) > 0;) answer.append(chunk, static_cast<size_t>(n));
  ::close(ends[1]);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
}

}  // namespace
}  // namespace loralei
