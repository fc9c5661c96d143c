// SPDX-License-Identifier: Apache-2.0
// For tests of calls to other servers: a listener that writes down what it is told, and
// a server that does what a test says, byte by byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>

#include "http/server_test_util.h"
#include "http/upstream.h"

namespace loralei {

class Told final : public UpstreamListener {
 public:
  void on_head(int new_status, const HttpHeaders& new_headers) override {
    {
      std::lock_guard lock(mutex_);
      EXPECT_EQ(status, 0) << "one head";
      status = new_status;
      headers = new_headers;
    }
    if (at_head) at_head();
    heads.add();
  }
  bool on_body(std::string_view piece) override {
    {
      std::lock_guard lock(mutex_);
      EXPECT_NE(status, 0) << "a body behind its head";
      EXPECT_FALSE(done_);
      EXPECT_FALSE(piece.empty());
      EXPECT_LE(piece.size(), kUpstreamBufferBytes);
      if (keeps_body) body += piece;
    }
    const bool more = !at_piece || at_piece(piece);
    pieces.add();
    return more;
  }
  void on_end() override {
    if (at_end) at_end();
    end(std::nullopt);
  }
  void on_failure(const UpstreamFailure& new_failure) override {
    if (at_end) at_end();
    end(new_failure);
  }
  bool wait() { return ends.wait_for(1); }

  bool keeps_body = true;
  std::function<void()> at_head, at_end;
  std::function<bool(std::string_view)> at_piece;
  Counter heads, pieces, ends;
  // To be read behind wait().
  int status = 0;
  HttpHeaders headers;
  std::string body;
  std::optional<UpstreamFailure> failure;

 private:
  void end(std::optional<UpstreamFailure> new_failure) {
    {
      std::lock_guard lock(mutex_);
      EXPECT_FALSE(done_) << "one end";
      done_ = true;
      failure = std::move(new_failure);
    }
    ends.add();
  }
  std::mutex mutex_;
  bool done_ = false;
};

// One connection as its server sees it. Every wait ends after kPatience.
class RawPeer {
 public:
  explicit RawPeer(int fd) : fd_(fd) {}
  ~RawPeer() { close(); }
  RawPeer(RawPeer&& other) noexcept : fd_(std::exchange(other.fd_, -1)), unread_(std::move(other.unread_)) {}
  RawPeer& operator=(RawPeer&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    unread_ = std::move(other.unread_);
    return *this;
  }

  bool readable() const {
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) > 0;
  }
  // The head, and the body that it announces.
  std::string request() {
    size_t head = std::string::npos, bytes = 0;
    while ((head = unread_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return unread_;
    }
    const size_t length = unread_.find("Content-Length: ");
    if (length < head) bytes = std::stoul(unread_.substr(length + 16));
    while (unread_.size() < head + 4 + bytes) {
      if (!more()) break;
    }
    const std::string out = unread_.substr(0, head + 4 + bytes);
    unread_.erase(0, out.size());
    return out;
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void answer(std::string_view body = "") {
    send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
  }
  bool sees_the_end() {
    unread_.clear();
    while (more()) unread_.clear();
    return ended_;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  int fd() const { return fd_; }

 private:
  bool more() {
    char chunk[4096];
    if (!readable()) return false;
    const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
    if (n > 0) unread_.append(chunk, static_cast<size_t>(n));
    ended_ = n <= 0;
    return n > 0;
  }
  int fd_;
  std::string unread_;
  bool ended_ = false;
};

class RawServer {
 public:
  explicit RawServer(const char* host = "127.0.0.1", int wanted_port = 0, int backlog = 1024) : host_(host) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address = at(wanted_port);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd_, backlog), 0);
    socklen_t size = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~RawServer() { close(); }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool has_one() const {
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, 0) > 0;
  }
  RawPeer accept() {
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    EXPECT_GT(::poll(&one, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 0) << "nobody came";
    return RawPeer(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
  }
  // A server that takes nobody: its queue is full, and the system answers no other.
  void fill_queue() {
    for (int i = 0; i < 8; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      sockaddr_in address = at(port_);
      (void)::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
      fillers_.emplace_back(fd);
    }
  }
  UpstreamAddress address() const { return {host_, port_}; }
  int port() const { return port_; }

 private:
  sockaddr_in at(int port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, host_.c_str(), &address.sin_addr);
    return address;
  }
  const std::string host_;
  int fd_ = -1, port_ = 0;
  std::vector<RawPeer> fillers_;
};

class UpstreamTest : public ServerFixture {
 protected:
  void SetUp() override { start_upstream(); }
  // With what upstream_options says by now.
  void start_upstream() {
    upstream.reset();
    auto started = Upstream::start(upstream_options, log);
    ASSERT_TRUE(started.ok()) << started.error().message;
    upstream = std::move(started).value();
  }
  UpstreamAddress served() const { return {"127.0.0.1", server->port()}; }
  static UpstreamRequest get(const std::string& target = "/") {
    return {.method = "GET", .target = target, .headers = {}, .body = nullptr};
  }
  static UpstreamRequest post(const std::string& body, const std::string& target = "/echo") {
    return {.method = "POST", .target = target, .headers = {}, .body = std::make_shared<const std::string>(body)};
  }
  // Begins a call; what it is told is in the result.
  std::shared_ptr<Told> call(const UpstreamAddress& address, UpstreamRequest request) {
    auto told = std::make_shared<Told>();
    last_call = upstream->call(address, std::move(request), told);
    return told;
  }
  // To its end.
  std::shared_ptr<Told> ask(const UpstreamAddress& address, UpstreamRequest request) {
    auto told = call(address, std::move(request));
    EXPECT_TRUE(told->wait());
    return told;
  }
  // A call to `raw` that is answered in full, whose connection is kept.
  RawPeer kept_connection(RawServer& raw) {
    auto told = call(raw.address(), get());
    RawPeer peer = raw.accept();
    peer.request();
    peer.answer();
    EXPECT_TRUE(told->wait());
    EXPECT_FALSE(told->failure) << told->failure->error.message;
    EXPECT_EQ(upstream->stats().idle, 1);
    return peer;
  }
  bool nothing_is_open() {
    return soon([this] { return upstream->stats().connections == 0 && upstream->stats().calls == 0; });
  }

  UpstreamOptions upstream_options;
  std::unique_ptr<Upstream> upstream;
  std::shared_ptr<UpstreamCall> last_call;
};

}  // namespace loralei
