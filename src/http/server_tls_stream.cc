// SPDX-License-Identifier: Apache-2.0
#include "http/server_tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <cstring>
#include <new>

#include "http/server_tls_impl.h"

namespace loralei {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kReadAtOnce = 64 * 1024;
constexpr size_t kRecordBytes = 16 * 1024;

}  // namespace

// OpenSSL's own sockets raise SIGPIPE, and read as long as there is something.
struct SocketBio {
  static ServerTlsStream& stream(BIO* bio) { return *static_cast<ServerTlsStream*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* into, int bytes) {
    ServerTlsStream& self = stream(bio);
    BIO_clear_retry_flags(bio);
    if (self.socket_ < 0 || bytes <= 0) return -1;
    if (self.readable_ == 0) {  // enough for now
      BIO_set_retry_read(bio);
      return -1;
    }
    const size_t most = std::min(static_cast<size_t>(bytes), self.readable_);
    const ssize_t n = ::recv(self.socket_, into, most, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
    if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    if (n > 0) self.readable_ -= static_cast<size_t>(n);
    if (n > 0 && !self.ready_) self.handshake_bytes_ += static_cast<size_t>(n);
    return static_cast<int>(n);
  }
  static int write(BIO* bio, const char* bytes, int count) {
    ServerTlsStream& self = stream(bio);
    BIO_clear_retry_flags(bio);
    if (self.socket_ < 0 || count <= 0) return -1;
    const ssize_t n = ::send(self.socket_, bytes, static_cast<size_t>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(bio);
    return static_cast<int>(n);
  }
  static long control(BIO* bio, int command, long, void*) {
    switch (command) {
      case BIO_CTRL_FLUSH:
        return 1;  // nothing is held back
      case BIO_CTRL_EOF:
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
      default:
        return 0;
    }
  }
  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }
  static BIO* make(ServerTlsStream* stream) {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "loralei socket");
      if (made == nullptr) throw std::bad_alloc();
      BIO_meth_set_read(made, read);
      BIO_meth_set_write(made, write);
      BIO_meth_set_ctrl(made, control);
      BIO_meth_set_create(made, create);
      return made;  // for as long as the process lives
    }();
    BIO* const bio = BIO_new(method);
    if (bio == nullptr) throw std::bad_alloc();
    BIO_set_data(bio, stream);
    return bio;
  }
};

ServerTlsStream::ServerTlsStream(const ServerTls& tls, int socket)
    : socket_(socket), ssl_(SSL_new(tls.impl().context.get())) {
  if (!ssl_) throw std::bad_alloc();
  BIO* const bio = SocketBio::make(this);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_accept_state(ssl_.get());
}

bool ServerTlsStream::is_plain_http() const {
  char first = 0;
  return socket_ >= 0 && ::recv(socket_, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && first >= 'A' && first <= 'Z';
}

error_code ServerTlsStream::judge(int result) {
  const int why = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  wants_write_ = why == SSL_ERROR_WANT_WRITE;
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return asio::error::would_block;
  if (why == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
  failed_ = true;  // OpenSSL wants not to be asked again
  return asio::error::connection_reset;
}

void ServerTlsStream::shake_hands(error_code& error) {
  ERR_clear_error();
  readable_ = kReadAtOnce;
  const int result = failed_ ? -1 : SSL_do_handshake(ssl_.get());
  if (result == 1) {
    ready_ = true;
    error = {};
    return;
  }
  error = failed_ ? asio::error::connection_reset : judge(result);
  if (error == asio::error::eof || handshake_bytes_ > kHandshakeBytes) error = asio::error::connection_reset;
}

size_t ServerTlsStream::read(std::span<char> into, error_code& error) {
  ERR_clear_error();
  readable_ = kReadAtOnce;
  size_t n = 0;
  error = {};
  if (failed_) {
    error = asio::error::connection_reset;
  } else if (const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &n); result != 1) {
    n = 0;
    error = judge(result);
  }
  return n;
}

size_t ServerTlsStream::write(std::string_view bytes, std::string_view behind, error_code& error) {
  ERR_clear_error();
  error = {};
  // A head and a small body are one record.
  std::array<char, kRecordBytes> both;
  if (!bytes.empty() && !behind.empty() && bytes.size() < both.size()) {
    const size_t more = std::min(behind.size(), both.size() - bytes.size());
    std::memcpy(both.data(), bytes.data(), bytes.size());
    std::memcpy(both.data() + bytes.size(), behind.data(), more);
    bytes = {both.data(), bytes.size() + more};
  } else if (bytes.empty()) {
    bytes = behind;
  }
  bytes = bytes.substr(0, kRecordBytes);
  size_t n = 0;
  if (failed_) {
    error = asio::error::connection_reset;
  } else if (const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n); result != 1) {
    n = 0;
    error = judge(result);
  }
  writing_ = error == asio::error::would_block;
  return n;
}

bool ServerTlsStream::has_pending() const { return !failed_ && SSL_pending(ssl_.get()) > 0; }

void ServerTlsStream::say_end() {
  if (!ready_ || failed_ || writing_ || told_end_ || socket_ < 0) return;
  told_end_ = true;
  ERR_clear_error();
  (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

void ServerTlsStream::leave_socket() {
  socket_ = -1;
  failed_ = true;
}

}  // namespace loralei
