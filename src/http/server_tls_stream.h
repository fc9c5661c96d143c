// SPDX-License-Identifier: Apache-2.0
// ServerTlsStream: TLS between a connection and its socket, which it reads and writes
// when the connection asks for that, and never waits. Private to http/.
//
// Thread: one at a time (the connection's strand).
// Ownership: owns OpenSSL's state, at most kTlsBytes of it; borrows the socket until
// leave_socket(), which comes before the socket is closed: its number may be another's.
// Invariants: one call reads at most kReadAtOnce bytes of the socket, whatever records
// they hold, and a handshake all in all kHandshakeBytes; a record that was begun is
// written to its end before another one. What write() could not write is given again.
// Failure: error codes as a socket has them: would_block, eof where the client said that
// it sends nothing more (close_notify), connection_reset for all others: a socket's end
// without that is a cut.
#pragma once

#include <openssl/ssl.h>

#include <boost/system/error_code.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "http/server_tls.h"

namespace loralei {

inline constexpr size_t kHandshakeBytes = 64 * 1024;
// Told to who is let go before a handshake: a fatal alert, internal_error.
inline constexpr std::string_view kTlsBusy("\x15\x03\x03\x00\x02\x02\x50", 7);

class ServerTlsStream {
 public:
  ServerTlsStream(const ServerTls& tls, int socket);
  ServerTlsStream(const ServerTlsStream&) = delete;
  ServerTlsStream& operator=(const ServerTlsStream&) = delete;

  // What has come is no TLS, and looks as if it were HTTP. Asked before the handshake.
  bool is_plain_http() const;
  // Done when `error` is none.
  void shake_hands(boost::system::error_code& error);
  bool ready() const { return ready_; }
  size_t read(std::span<char> into, boost::system::error_code& error);
  // Of both, one behind the other, what one record holds.
  size_t write(std::string_view bytes, std::string_view behind, boost::system::error_code& error);
  bool is_writing() const { return writing_; }       // a record was begun
  bool has_pending() const;                          // read() has bytes without the socket
  bool wants_write() const { return wants_write_; }  // the last call that would have blocked waits to write
  void say_end();                                    // close_notify, as far as the socket takes it at once
  void leave_socket();

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  friend struct SocketBio;
  boost::system::error_code judge(int result);

  int socket_;
  size_t readable_ = 0;  // in this call
  size_t handshake_bytes_ = 0;
  bool ready_ = false, writing_ = false, wants_write_ = false, failed_ = false, told_end_ = false;
  std::unique_ptr<SSL, Free> ssl_;  // uses the above
};

}  // namespace loralei
