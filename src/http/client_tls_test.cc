// SPDX-License-Identifier: Apache-2.0
// HttpClient over TLS and through proxies, against OpenSSL's server side.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "http/client.h"
#include "http/tls_client.h"
#include "http/tls_test_util.h"

namespace loralei {
namespace {

using testing_support::MadeCertificate;
using testing_support::TlsTestServer;
namespace fs = std::filesystem;

class ClientTls : public testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    folder_ = fs::path(testing::TempDir()) / ("loralei-tls-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    authority_.write(ca());
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string ca() const { return (folder_ / "ca.pem").string(); }
  HttpClientOptions options(int port, const std::string& host = "localhost") const {
    HttpClientOptions made;
    made.host = host;
    made.port = port;
    made.tls = *TlsTrust::load(ca());
    return made;
  }
  static std::string told(const Result<HttpResponse>& response) {
    return response.ok() ? response->body
                         : std::string(error_code_name(response.error().code)) + ": " + response.error().message;
  }
  std::string get(const MadeCertificate::Options& made, const std::string& host = "localhost") {
    const MadeCertificate certificate(made);
    TlsTestServer server(certificate, TlsTestServer::answering("hello"));
    HttpClient client(options(server.port(), host));
    return told(client.get("/"));
  }
  MadeCertificate authority_{{}};
  fs::path folder_;
};

TEST_F(ClientTls, AsksOverOneConnection) {
  const MadeCertificate certificate({.signer = &authority_});
  const std::string body(1'000'000, 'x');
  TlsTestServer server(certificate, TlsTestServer::answering(body));
  HttpClient client(options(server.port()));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(told(client.get("/")), body);
  HttpClient by_number(options(server.port(), "127.0.0.1"));
  client.close();
  EXPECT_EQ(told(by_number.get("/")), body);
}

TEST_F(ClientTls, ACertificateMustBeGood) {
  EXPECT_EQ(get({.signer = &authority_}), "hello");
  const MadeCertificate other({});
  const auto holds = [](const std::string& text, const char* part) {
    return text.starts_with("unauthenticated: the certificate of ") && text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(holds, get({.signer = &other}), "an authority that this machine does not know");
  EXPECT_PRED2(holds, get({}), "an authority that this machine does not know");
  EXPECT_PRED2(holds, get({.ends_s = -60, .signer = &authority_}), "has expired");
  EXPECT_PRED2(holds, get({.begins_s = 600, .signer = &authority_}), "is not valid yet");
  EXPECT_PRED2(holds, get({.names = "DNS:other", .signer = &authority_}), "is for another host");
  EXPECT_PRED2(holds, get({.names = "DNS:*.localhost", .signer = &authority_}), "is for another host");
  EXPECT_PRED2(holds, get({.names = "DNS:localhost", .signer = &authority_}, "127.0.0.1"), "is for another host");
}

TEST_F(ClientTls, AuthoritiesComeFromAFileOrTheSystem) {
  EXPECT_FALSE(TlsTrust::load(ca() + ".absent").ok());
  std::ofstream(folder_ / "text") << "no certificate";
  EXPECT_FALSE(TlsTrust::load(folder_ / "text").ok());
  const MadeCertificate certificate({.signer = &authority_});
  TlsTestServer server(certificate, TlsTestServer::answering("hello"));
  HttpClientOptions made = options(server.port());
  made.tls = *TlsTrust::load();
  EXPECT_NE(told(HttpClient(made).get("/")), "hello");
  ::setenv("SSL_CERT_FILE", ca().c_str(), 1);
  made.tls = *TlsTrust::load();
  ::unsetenv("SSL_CERT_FILE");
  EXPECT_EQ(told(HttpClient(made).get("/")), "hello");
}

TEST_F(ClientTls, OldVersionsAreRefused) {
  const MadeCertificate certificate({.signer = &authority_});
  TlsTestServer old(certificate, TlsTestServer::answering("hello"), "", TLS1_1_VERSION);
  EXPECT_EQ(told(HttpClient(options(old.port())).get("/")).substr(0, 4), "io: ");
}

// A body without a length ends with the stream; whoever cuts that may not pass for it.
TEST_F(ClientTls, AnEndThatWasNotAnnouncedIsNone) {
  const MadeCertificate certificate({.signer = &authority_});
  std::atomic<bool> announced = true;
  TlsTestServer server(certificate, [&](SSL* ssl, int) {
    if (ssl == nullptr) return;
    TlsTestServer::read_head([&](char* c) { return SSL_read(ssl, c, 1); });
    const std::string text = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf";
    SSL_write(ssl, text.data(), static_cast<int>(text.size()));
    if (announced) SSL_shutdown(ssl);
  });
  EXPECT_EQ(told(HttpClient(options(server.port())).get("/")), "half");
  announced = false;
  EXPECT_EQ(told(HttpClient(options(server.port())).get("/")).substr(0, 4), "io: ");
}

TEST_F(ClientTls, AProxyIsAskedToConnect) {
  const MadeCertificate certificate({.signer = &authority_});
  TlsTestServer server(certificate, TlsTestServer::answering("hello"), "HTTP/1.1 200 OK\r\n\r\n");
  HttpClientOptions made = options(443);
  made.proxy = HttpProxy{"127.0.0.1", server.port(), "Basic eA=="};
  EXPECT_EQ(told(HttpClient(made).get("/")), "hello");
  EXPECT_TRUE(server.asked().starts_with("CONNECT localhost:443 HTTP/1.1\r\n")) << server.asked();
  EXPECT_NE(server.asked().find("Proxy-Authorization: Basic eA==\r\n"), std::string::npos);
  // The certificate is the host's, never the proxy's.
  made.host = "elsewhere";
  EXPECT_NE(told(HttpClient(made).get("/")).find("is for another host"), std::string::npos);
  TlsTestServer shut(certificate, TlsTestServer::answering("hello"),
                     "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
  made.proxy->port = shut.port();
  EXPECT_NE(told(HttpClient(made).get("/")).find("it answers 407, so name a user"), std::string::npos);
}

TEST_F(ClientTls, APlainRequestNamesTheWholeAddressToAProxy) {
  const MadeCertificate certificate({.signer = &authority_});
  TlsTestServer server(
      certificate, [](SSL*, int) {}, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  HttpClientOptions made;
  made.host = "hub.example";
  made.port = 80;
  made.proxy = HttpProxy{"127.0.0.1", server.port(), ""};
  EXPECT_EQ(told(HttpClient(made).get("/x")), "ok");
  EXPECT_TRUE(server.asked().starts_with("GET http://hub.example/x HTTP/1.1\r\nHost: hub.example\r\n"))
      << server.asked();
}

}  // namespace
}  // namespace loralei
