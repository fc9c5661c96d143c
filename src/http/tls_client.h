// SPDX-License-Identifier: Apache-2.0
// TLS of a client, on bytes alone: what authorities are trusted (TlsTrust), and one
// connection's coding (TlsClientSession), which its owner moves over a socket.
//
// Thread: a TlsTrust may be shared by any number of threads; a session is one thread's.
// Ownership: a session keeps its trust alive.
// Invariants: TLS 1.2 or later; the peer's certificate is always checked, against the
// authorities and against the name that was asked for: there is no way to leave that
// out. An end of the stream that the peer did not announce is never a good one.
// Failure: kUnauthenticated with what is wrong about the certificate and what to do; kIo
// for everything else.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct ssl_ctx_st;
struct ssl_st;

namespace loralei {

class TlsTrust {
 public:
  // `ca_file`: PEM certificates of the authorities; empty: those of the system, or of
  // the file or folder that SSL_CERT_FILE and SSL_CERT_DIR name.
  static Result<std::shared_ptr<const TlsTrust>> load(const std::string& ca_file = {});
  ~TlsTrust();
  TlsTrust(const TlsTrust&) = delete;
  TlsTrust& operator=(const TlsTrust&) = delete;

 private:
  friend class TlsClientSession;
  explicit TlsTrust(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

class TlsClientSession {
 public:
  // `host`: a name or a numeric address, as the certificate must say it; `where` stands
  // for the peer in messages.
  static Result<std::unique_ptr<TlsClientSession>> make(std::shared_ptr<const TlsTrust> trust, const std::string& host,
                                                        std::string where);
  ~TlsClientSession();
  TlsClientSession(const TlsClientSession&) = delete;
  TlsClientSession& operator=(const TlsClientSession&) = delete;

  // Bytes that the peer sent.
  void feed(std::string_view coded);
  // Bytes for the peer: to be sent after each of the calls below, also one that failed.
  std::string take_output();
  // True: done. False: the peer's answer is needed.
  Result<bool> handshake();
  Status write(std::string_view plain);
  // Appends what can be read by now; true: the peer has ended the stream.
  Result<bool> read(std::string& plain);

 private:
  TlsClientSession(std::shared_ptr<const TlsTrust> trust, std::string where)
      : trust_(std::move(trust)), where_(std::move(where)) {}
  Error failure(const char* step) const;

  const std::shared_ptr<const TlsTrust> trust_;
  const std::string where_;
  ssl_st* ssl_ = nullptr;
};

}  // namespace loralei
