// SPDX-License-Identifier: Apache-2.0
// Certificates made for a test, and a server that answers one connection after the other
// with them, perhaps behind a proxy's CONNECT. For tests of what asks over TLS.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace loralei::testing_support {

// A certificate and its key; `signer` null: it signs itself and is an authority.
class MadeCertificate {
 public:
  struct Options {
    std::string names = "DNS:localhost,IP:127.0.0.1";
    int64_t begins_s = -3600, ends_s = 3600;  // from now
    const MadeCertificate* signer = nullptr;
  };
  explicit MadeCertificate(const Options& options) {
    key_ = EVP_EC_gen("P-256");
    certificate_ = X509_new();
    static std::atomic<long> serial{1};
    X509_set_version(certificate_, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate_), serial++);
    X509_gmtime_adj(X509_getm_notBefore(certificate_), options.begins_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate_), options.ends_s);
    X509_set_pubkey(certificate_, key_);
    const bool authority = options.signer == nullptr;
    const MadeCertificate& signer = authority ? *this : *options.signer;
    const std::string common = (authority ? "authority " : "server ") + std::to_string(serial);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate_), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(common.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate_, X509_get_subject_name(signer.certificate_));
    extend(NID_basic_constraints, authority ? "critical,CA:TRUE" : "CA:FALSE");
    if (!authority) extend(NID_subject_alt_name, options.names);
    X509_sign(certificate_, signer.key_, EVP_sha256());
  }
  ~MadeCertificate() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  MadeCertificate(const MadeCertificate&) = delete;
  MadeCertificate& operator=(const MadeCertificate&) = delete;

  X509* certificate() const { return certificate_; }
  EVP_PKEY* key() const { return key_; }
  void write(const std::string& path) const {
    FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr);
    PEM_write_X509(file, certificate_);
    std::fclose(file);
  }

 private:
  void extend(int which, const std::string& value) {
    X509_EXTENSION* const one = X509V3_EXT_conf_nid(nullptr, nullptr, which, value.c_str());
    X509_add_ext(certificate_, one, -1);
    X509_EXTENSION_free(one);
  }
  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
};

// Accepts connections of 127.0.0.1 one after the other until it is destroyed.
class TlsTestServer {
 public:
  // What a connection does: gets the agreed session, or null where there was no
  // agreement, and the socket.
  using Serve = std::function<void(SSL*, int)>;

  // `proxy_answer`: what a request gets that comes before TLS; empty: none does.
  TlsTestServer(const MadeCertificate& certificate, Serve serve, std::string proxy_answer = {}, int max_version = 0)
      : serve_(std::move(serve)), proxy_answer_(std::move(proxy_answer)) {
    context_ = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context_, certificate.certificate());
    SSL_CTX_use_PrivateKey(context_, certificate.key());
    if (max_version > 0) SSL_CTX_set_max_proto_version(context_, max_version);
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &bytes);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~TlsTestServer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
    SSL_CTX_free(context_);
  }
  int port() const { return port_; }
  // The last request that came before TLS.
  std::string asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  static std::string read_head(const std::function<int(char*)>& one) {
    std::string head;
    for (char c = 0; head.find("\r\n\r\n") == std::string::npos && one(&c) == 1;) head += c;
    return head;
  }
  // One answer to each request, until the client ends.
  static Serve answering(const std::string& body) {
    return [body](SSL* ssl, int) {
      while (ssl != nullptr && !read_head([&](char* c) { return SSL_read(ssl, c, 1); }).empty()) {
        const std::string text =
            "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
        SSL_write(ssl, text.data(), static_cast<int>(text.size()));
      }
    };
  }

 private:
  void run() {
    for (;;) {
      const int client = ::accept(socket_, nullptr, nullptr);
      if (client < 0) return;
      if (!proxy_answer_.empty()) {
        std::string head = read_head([&](char* c) { return static_cast<int>(::recv(client, c, 1, 0)); });
        const std::lock_guard lock(mutex_);
        asked_ = std::move(head);
        (void)!::send(client, proxy_answer_.data(), proxy_answer_.size(), MSG_NOSIGNAL);
      }
      SSL* const ssl = SSL_new(context_);
      SSL_set_fd(ssl, client);
      serve_(SSL_accept(ssl) == 1 ? ssl : nullptr, client);
      SSL_free(ssl);
      ::close(client);
    }
  }

  const Serve serve_;
  const std::string proxy_answer_;
  mutable std::mutex mutex_;
  std::string asked_;
  SSL_CTX* context_ = nullptr;
  int socket_ = -1, port_ = 0;
  std::thread thread_;
};

}  // namespace loralei::testing_support
