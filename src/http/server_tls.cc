// SPDX-License-Identifier: Apache-2.0
#include "http/server_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <climits>
#include <ctime>
#include <utility>

#include "base/printable.h"
#include "http/server_tls_impl.h"

namespace loralei {
namespace {

template <auto kFree>
struct FreeBy {
  template <typename T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using BioPtr = std::unique_ptr<BIO, FreeBy<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, FreeBy<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;

constexpr size_t kMaxChain = 16;       // certificates behind the first
constexpr size_t kSubjectBytes = 200;  // shown

BioPtr reader(const std::string& text) {
  return BioPtr(text.size() <= INT_MAX ? BIO_new_mem_buf(text.data(), static_cast<int>(text.size())) : nullptr);
}

// Nobody is asked for a password: a server starts alone.
int no_password(char*, int, int, void*) { return 0; }

// OpenSSL's word on the last failure, and none is left for who comes next.
std::string reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* const text = code != 0 ? ERR_reason_error_string(code) : nullptr;
  std::string out = text != nullptr ? text : "unknown";
  ERR_clear_error();
  return out;
}

Result<X509Ptr> read_certificate(BIO* bio) {
  X509Ptr certificate(bio ? PEM_read_bio_X509_AUX(bio, nullptr, no_password, nullptr) : nullptr);
  if (certificate) return certificate;
  return invalid_argument("the certificate's file holds no certificate in PEM form (-----BEGIN CERTIFICATE-----): " +
                          reason());
}

Result<KeyPtr> read_key(const std::string& pem) {
  const BioPtr bio = reader(pem);
  KeyPtr key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr) : nullptr);
  if (key) return key;
  const std::string why = reason();
  if (pem.find("ENCRYPTED") != std::string::npos)
    return invalid_argument(
        "the key is encrypted, and a server has nobody to ask for its password: write it without one, as "
        "openssl pkey -in KEY -out PLAIN does, to a file that only the server may read");
  return invalid_argument("the key's file holds no private key in PEM form (-----BEGIN PRIVATE KEY-----): " + why);
}

int64_t seconds_of(const ASN1_TIME* time) {
  std::tm utc{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &utc) != 1) return 0;
  return timegm(&utc);
}

std::string date_of(int64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

std::string subject_of(const X509* certificate) {
  const BioPtr out(BIO_new(BIO_s_mem()));
  constexpr unsigned long kFlags = XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB;
  if (!out || X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, kFlags) < 0) return "";
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return printable(std::string(text, static_cast<size_t>(std::max(0L, size)))).substr(0, kSubjectBytes);
}

// HTTP/1.1, to whom it names it; who names others only is told so at once.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_bytes, const unsigned char* in,
                    unsigned int in_bytes, void*) {
  static constexpr unsigned char kProtocols[] = "\x08http/1.1\x08http/1.0";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_bytes, kProtocols, sizeof kProtocols - 1, in, in_bytes) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

void set_up(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // What is written may lie elsewhere when it is tried again, and buffers of who is idle
  // are given back.
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // clients keep tickets, the server nothing
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
}

Status add_chain(SSL_CTX* context, BIO* bio) {
  for (size_t count = 0;; ++count) {
    X509Ptr next(PEM_read_bio_X509(bio, nullptr, no_password, nullptr));
    if (!next) break;
    if (count >= kMaxChain)
      return invalid_argument("the certificate's file holds more than " + std::to_string(kMaxChain) +
                              " certificates behind its own; leave those out that lead nowhere");
    if (SSL_CTX_add0_chain_cert(context, next.get()) != 1)
      return invalid_argument("the certificate's file has one behind its own that cannot be used: " + reason());
    (void)next.release();
  }
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  // The end of the file is "no start line".
  if (code == 0 || (ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE)) return {};
  const char* const text = ERR_reason_error_string(code);
  return invalid_argument(std::string("the certificate's file has one behind its own that cannot be read: ") +
                          (text != nullptr ? text : "unknown"));
}

}  // namespace

ServerTls::ServerTls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServerTls::~ServerTls() = default;
const std::string& ServerTls::subject() const { return impl_->subject; }
const std::string& ServerTls::until() const { return impl_->until; }

Result<std::shared_ptr<const ServerTls>> ServerTls::make(const std::string& certificate_pem,
                                                         const std::string& key_pem) {
  ERR_clear_error();
  auto impl = std::make_unique<Impl>();
  impl->context.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* const context = impl->context.get();
  if (context == nullptr) return io_error("OpenSSL cannot be used here: " + reason());
  set_up(context);
  const BioPtr bio = reader(certificate_pem);
  auto certificate = read_certificate(bio.get());
  if (!certificate.ok()) return certificate.error();
  if (SSL_CTX_use_certificate(context, certificate->get()) != 1)
    return invalid_argument("the certificate cannot be used (" + reason() +
                            "); give one with an RSA key of at least 2048 bits or an EC key, signed with SHA-256");
  TRY(add_chain(context, bio.get()));
  auto key = read_key(key_pem);
  if (!key.ok()) return key.error();
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    ERR_clear_error();
    return invalid_argument("the key is not the certificate's: give the two that were made together");
  }
  if (SSL_CTX_use_PrivateKey(context, key->get()) != 1) return invalid_argument("the key cannot be used: " + reason());
  impl->subject = subject_of(certificate->get());
  impl->from_s = seconds_of(X509_get0_notBefore(certificate->get()));
  impl->until_s = seconds_of(X509_get0_notAfter(certificate->get()));
  impl->until = date_of(impl->until_s);
  return std::shared_ptr<const ServerTls>(new ServerTls(std::move(impl)));
}

std::string ServerTls::complaint(int64_t now_s) const {
  if (now_s > impl_->until_s)
    return "The certificate of " + subject() + " has expired (" + until() +
           "), and clients refuse it: give a new one, and SIGHUP has it read.";
  if (now_s < impl_->from_s)
    return "The certificate of " + subject() + " is valid from " + date_of(impl_->from_s) +
           " on, and clients refuse it until then: is this machine's clock right?";
  return "";
}

}  // namespace loralei
