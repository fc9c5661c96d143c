// SPDX-License-Identifier: Apache-2.0
// For tests of TLS: certificates made as they are needed, and a tunnel, with which a
// client that speaks no TLS talks to a server that does.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "http/server_tls.h"

namespace loralei {

struct TestCertificate {
  std::string certificate, key;  // PEM; signed by itself
};

// Of an EC key, valid from and until so many seconds from now.
inline TestCertificate make_test_certificate(const char* name = "localhost", long from_s = -3600, long until_s = 3600,
                                             const char* password = nullptr) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  CHECK(key != nullptr && certificate != nullptr);
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate), until_s);
  X509_set_pubkey(certificate, key);
  X509_NAME* const subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
  const auto text = [](const auto& write) {
    BIO* const out = BIO_new(BIO_s_mem());
    CHECK(write(out) == 1);
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(out, &bytes);
    std::string pem(bytes, static_cast<size_t>(size));
    BIO_free(out);
    return pem;
  };
  TestCertificate pair;
  pair.certificate = text([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
  pair.key = text([&](BIO* out) {
    const EVP_CIPHER* const cipher = password != nullptr ? EVP_aes_128_cbc() : nullptr;
    return PEM_write_bio_PKCS8PrivateKey(
        out, key, cipher, password,
        password != nullptr ? static_cast<int>(std::char_traits<char>::length(password)) : 0, nullptr, nullptr);
  });
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pair;
}

// One for all tests that need only some.
inline std::shared_ptr<const ServerTls> test_tls() {
  static const std::shared_ptr<const ServerTls> tls = [] {
    const TestCertificate pair = make_test_certificate();
    auto made = ServerTls::make(pair.certificate, pair.key);
    CHECK(made.ok());
    return *made;
  }();
  return tls;
}

// A socket of this machine; -1: there is none.
inline int connect_to(const std::string& host, int port) {
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), nullptr, &found) != 0) return -1;
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = ::connect(fd, found->ai_addr, found->ai_addrlen) == 0;
  ::freeaddrinfo(found);
  if (connected) return fd;
  ::close(fd);
  return -1;
}

// A client of TLS that blocks, for as long as kPatience of its socket.
class TlsPeer {
 public:
  explicit TlsPeer(int port, int version = 0, const std::string& protocols = "", const std::string& host = "127.0.0.1")
      : context_(SSL_CTX_new(TLS_client_method())), fd_(connect_to(host, port)) {
    static const bool ignored = std::signal(SIGPIPE, SIG_IGN) != SIG_ERR;
    (void)ignored;
    if (version != 0) {
      SSL_CTX_set_security_level(context_, 0);
      SSL_CTX_set_min_proto_version(context_, version);
      SSL_CTX_set_max_proto_version(context_, version);
    }
    ssl_ = SSL_new(context_);
    if (!protocols.empty())
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(protocols.data()),
                          static_cast<unsigned>(protocols.size()));
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL_set_fd(ssl_, fd_);
    ERR_clear_error();
    connected_ = fd_ >= 0 && SSL_connect(ssl_) == 1;
    if (!connected_) note_error();
  }
  ~TlsPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    close_socket();
  }
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  bool connected() const { return connected_; }
  const std::string& error() const { return error_; }  // of the first call that failed
  SSL* ssl() { return ssl_; }
  int fd() const { return fd_; }
  bool send(std::string_view bytes) {
    ERR_clear_error();
    return connected_ &&
           SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
  }
  // Until the end; a cut, without close_notify, stands at the end.
  std::string read() {
    std::string all;
    std::array<char, 4096> chunk;
    for (;;) {
      ERR_clear_error();
      const int n = SSL_read(ssl_, chunk.data(), chunk.size());
      if (n <= 0) return all + (SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN ? "" : " [cut]");
      all.append(chunk.data(), static_cast<size_t>(n));
    }
  }
  void say_end() { SSL_shutdown(ssl_); }
  void close_socket() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  void note_error() {
    const unsigned long code = ERR_peek_last_error();
    const char* const reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
    error_ = reason != nullptr ? reason : "the end of the connection";
  }
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
  int fd_;
  bool connected_ = false;
  std::string error_;
};

// Plain bytes on its port, TLS from there to the server's. Who leaves it leaves the
// server; what the server says to its end reaches the client.
class TlsTunnel {
 public:
  TlsTunnel(std::string host, int port) : host_(std::move(host)), server_port_(port) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    CHECK(::listen(listener_, 1024) == 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepts_ = std::thread([this] { accept_all(); });
  }
  ~TlsTunnel() {
    ends_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    accepts_.join();
    ::close(listener_);
    for (std::thread& thread : threads_) thread.join();
  }
  TlsTunnel(const TlsTunnel&) = delete;
  TlsTunnel& operator=(const TlsTunnel&) = delete;
  int port() const { return port_; }

 private:
  // One direction at rest: what was taken of one side and not given to the other.
  struct Held {
    std::array<char, 16 * 1024> bytes;
    size_t from = 0, to = 0;
    bool empty() const { return from == to; }
  };
  struct Relay {
    int client;
    TlsPeer server;
    Held up, down;
    bool client_gone = false, server_done = false, server_wants_write = false;
  };

  void accept_all() {
    for (;;) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      threads_.emplace_back([this, client] { relay(client); });
    }
  }

  void relay(int client) {
    Relay all{.client = client, .server = TlsPeer(server_port_, 0, "", host_), .up = {}, .down = {}};
    if (all.server.connected()) {
      ::fcntl(client, F_SETFL, O_NONBLOCK);
      ::fcntl(all.server.fd(), F_SETFL, O_NONBLOCK);
      while (!ends_ && step(all)) wait(all);
    }
    all.server.close_socket();
    ::close(client);
  }

  // Until something can be done, or there may be an end.
  static void wait(const Relay& all) {
    constexpr int kLookMs = 50;
    short client = 0, server = 0;
    if ((all.up.empty() || all.server_done) && !all.client_gone) client |= POLLIN;
    if (!all.down.empty()) client |= POLLOUT;
    if (!all.up.empty()) server |= all.server_wants_write ? POLLOUT : POLLIN;
    if (all.down.empty() && !all.server_done) server |= POLLIN;
    std::array<pollfd, 2> both = {pollfd{all.client, static_cast<short>(client | POLLRDHUP), 0},
                                  pollfd{all.server_done ? -1 : all.server.fd(), server, 0}};
    ::poll(both.data(), both.size(), kLookMs);
  }

  static bool step(Relay& all) {
    return take_of_client(all) && give_server(all) && take_of_server(all) && give_client(all);
  }

  static bool take_of_client(Relay& all) {
    while (all.up.empty() || all.server_done) {
      const ssize_t n = ::recv(all.client, all.up.bytes.data(), all.up.bytes.size(), 0);
      if (n < 0 && errno == EAGAIN) return true;
      if (n <= 0) {
        all.client_gone = true;
        return n == 0 && !all.server_done;
      }
      if (all.server_done) continue;  // nobody takes it
      all.up.from = 0;
      all.up.to = static_cast<size_t>(n);
    }
    return true;
  }

  static bool give_server(Relay& all) {
    while (!all.up.empty() && !all.server_done) {
      ERR_clear_error();
      const int n =
          SSL_write(all.server.ssl(), all.up.bytes.data() + all.up.from, static_cast<int>(all.up.to - all.up.from));
      if (n <= 0) {
        const int why = SSL_get_error(all.server.ssl(), n);
        all.server_wants_write = why == SSL_ERROR_WANT_WRITE;
        if (why != SSL_ERROR_WANT_WRITE && why != SSL_ERROR_WANT_READ) all.up.from = all.up.to;  // it reads no more
        break;
      }
      all.up.from += static_cast<size_t>(n);
    }
    pollfd peer{all.client, POLLRDHUP, 0};
    const bool left = all.client_gone || (::poll(&peer, 1, 0) > 0 && (peer.revents & (POLLRDHUP | POLLHUP)) != 0);
    if (!left || (all.up.empty() && !all.client_gone)) return true;
    // It has left: behind what the server took, or behind what it does not take.
    if (all.up.empty()) all.server.say_end();
    return false;
  }

  static bool take_of_server(Relay& all) {
    if (!all.down.empty() || all.server_done) return true;
    ERR_clear_error();
    const int n = SSL_read(all.server.ssl(), all.down.bytes.data(), static_cast<int>(all.down.bytes.size()));
    if (n > 0) {
      all.down.from = 0;
      all.down.to = static_cast<size_t>(n);
      return true;
    }
    const int why = SSL_get_error(all.server.ssl(), n);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return true;
    all.server_done = true;
    all.server.close_socket();
    ::shutdown(all.client, SHUT_WR);
    return true;
  }

  static bool give_client(Relay& all) {
    while (!all.down.empty()) {
      const ssize_t n =
          ::send(all.client, all.down.bytes.data() + all.down.from, all.down.to - all.down.from, MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN;
      all.down.from += static_cast<size_t>(n);
    }
    return true;
  }

  const std::string host_;
  const int server_port_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;  // of accepts_
  std::thread accepts_;
};

}  // namespace loralei
