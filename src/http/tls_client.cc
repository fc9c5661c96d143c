// SPDX-License-Identifier: Apache-2.0
#include "http/tls_client.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>

#include "sys/env.h"
#include "sys/file.h"

namespace loralei {
namespace {

// Where systems keep their authorities that are not the one OpenSSL was built on.
constexpr std::array<const char*, 4> kBundles = {"/etc/ssl/certs/ca-certificates.crt",
                                                 "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
                                                 "/etc/ssl/cert.pem"};

std::string library_words() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  ERR_error_string_n(code, text.data(), text.size());
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  if (code == 0) return "the connection was cut";
  return reason == nullptr ? text.data() : reason;
}

bool is_numeric(const std::string& host) {
  std::array<unsigned char, 16> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

Status load_system(SSL_CTX* context) {
  const PosixFileSystem files;
  const bool stated = env_string(X509_get_default_cert_file_env()).has_value();
  if (SSL_CTX_set_default_verify_paths(context) != 1)
    return io_error("the system's certificate authorities cannot be read: " + library_words());
  if (stated || files.exists(X509_get_default_cert_file())) return {};
  for (const char* const bundle : kBundles) {
    if (files.exists(bundle) && SSL_CTX_load_verify_locations(context, bundle, nullptr) == 1) return {};
  }
  ERR_clear_error();
  return {};
}

std::string certificate_sentence(long reason, const std::string& where) {
  const std::string whose = "the certificate of " + where;
  switch (reason) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return whose + " has expired: its owner must renew it (or this machine's clock is wrong)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return whose + " is not valid yet: see whether this machine's clock is right";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return whose + " is for another host: ask by the name that it is made for";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      return whose +
             " is signed by an authority that this machine does not know: install ca-certificates, or name a file "
             "with your own authority's certificate in SSL_CERT_FILE";
    default:
      return whose + " is refused: " + X509_verify_cert_error_string(reason);
  }
}

}  // namespace

Result<std::shared_ptr<const TlsTrust>> TlsTrust::load(const std::string& ca_file) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return io_error("TLS cannot be started: " + library_words());
  std::shared_ptr<const TlsTrust> trust(new TlsTrust(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  if (ca_file.empty()) {
    TRY(load_system(context));
  } else if (SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1) {
    return invalid_argument("'" + ca_file + "' is no file of PEM certificates: " + library_words());
  }
  return trust;
}

TlsTrust::~TlsTrust() { SSL_CTX_free(context_); }

Result<std::unique_ptr<TlsClientSession>> TlsClientSession::make(std::shared_ptr<const TlsTrust> trust,
                                                                 const std::string& host, std::string where) {
  std::unique_ptr<TlsClientSession> session(new TlsClientSession(std::move(trust), std::move(where)));
  session->ssl_ = SSL_new(session->trust_->context_);
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  if (session->ssl_ == nullptr || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    return io_error("TLS cannot be started: " + library_words());
  }
  SSL_set_bio(session->ssl_, in, out);
  SSL_set_connect_state(session->ssl_);
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(session->ssl_);
  X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const bool numeric = is_numeric(host);
  const bool named = numeric ? X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1
                             : X509_VERIFY_PARAM_set1_host(wanted, host.data(), host.size()) == 1 &&
                                   SSL_set_tlsext_host_name(session->ssl_, host.c_str()) == 1;
  if (!named) return invalid_argument("'" + host + "' is no name of a host.");
  return session;
}

TlsClientSession::~TlsClientSession() { SSL_free(ssl_); }

void TlsClientSession::feed(std::string_view coded) {
  BIO_write(SSL_get_rbio(ssl_), coded.data(), static_cast<int>(coded.size()));
}

std::string TlsClientSession::take_output() {
  BIO* const out = SSL_get_wbio(ssl_);
  std::string coded(BIO_ctrl_pending(out), '\0');
  if (!coded.empty()) BIO_read(out, coded.data(), static_cast<int>(coded.size()));
  return coded;
}

Error TlsClientSession::failure(const char* step) const {
  const long reason = SSL_get_verify_result(ssl_);
  if (reason != X509_V_OK) {
    ERR_clear_error();
    return {ErrorCode::kUnauthenticated, certificate_sentence(reason, where_)};
  }
  return io_error(std::string(step) + " " + where_ + ": " + library_words());
}

Result<bool> TlsClientSession::handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  if (done == 1) return true;
  if (SSL_get_error(ssl_, done) == SSL_ERROR_WANT_READ) return false;
  return failure("agreeing on TLS with");
}

Status TlsClientSession::write(std::string_view plain) {
  while (!plain.empty()) {
    ERR_clear_error();
    size_t written = 0;
    if (SSL_write_ex(ssl_, plain.data(), plain.size(), &written) != 1) return failure("sending to");
    plain.remove_prefix(written);
  }
  return {};
}

Result<bool> TlsClientSession::read(std::string& plain) {
  std::array<char, 16 * 1024> chunk;
  for (;;) {
    ERR_clear_error();
    size_t got = 0;
    const int done = SSL_read_ex(ssl_, chunk.data(), chunk.size(), &got);
    if (done == 1) {
      plain.append(chunk.data(), got);
      continue;
    }
    const int why = SSL_get_error(ssl_, done);
    if (why == SSL_ERROR_WANT_READ) return false;
    if (why == SSL_ERROR_ZERO_RETURN) return true;
    return failure("reading from");
  }
}

}  // namespace loralei
